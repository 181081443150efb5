#include "mlp_kernel.h"

FMLP_DEFINE_KERNELS(kAvx2Kernels)
