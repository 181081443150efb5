// The CPU kernels' entry points.
#pragma once

#include "../problem.h"

namespace fmlp::cpu {

// Whether our kernels serve this problem well; where not, plain torch operators are faster. Depends on nothing but the
// problem and the CPU.
bool covers(const MlpProblem& problem);

// Computes y, and the hidden activations where problem.saves_hidden, on the threads of torch's pool. Right for every
// problem with widths of at least 1, covered or not. In the 16-bit types hidden activations go on unrounded, except for
// bfloat16 through AVX512-BF16, which rounds them to bfloat16 as torch does and takes subnormals for zero.
void run(const MlpProblem& problem, const MlpOperands& operands);

// The instruction set in use: "avx512", "avx2", "neon" or "generic".
const char* isa();

}  // namespace fmlp::cpu
