#include "mlp_kernel.h"

namespace fmlp::cpu {
const Kernel kAvx512Bf16Kernel = MlpKernel<BFloat16>::table;
}  // namespace fmlp::cpu
