// Compiles only where our declarations of LibTorch's C shim agree with torch's own. The two stand side by side: C
// linkage makes a second declaration with another type an error.
#define TORCH_TARGET_VERSION ((2ull << 56) | (10ull << 48))
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "torch_shim.h"
