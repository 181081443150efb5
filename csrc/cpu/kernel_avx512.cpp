#include "mlp_kernel.h"

FMLP_DEFINE_KERNELS(kAvx512Kernels)
