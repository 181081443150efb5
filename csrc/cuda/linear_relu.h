// A linear layer and its ReLU as one cuBLAS product, where no kernel of ours serves.
#pragma once

#include "../problem.h"
#include "../torch_shim.h"

namespace fmlp::cuda {

// relu(x weight^T + bias), with bias and ReLU in the product's epilogue: the same bits as torch's two operators and one
// pass over memory less. Empty where torch has no such product: another device or dtype, no bias, nothing to compute,
// a tensor without strides, or an x that is no matrix in memory.
Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias);

// Whether layers with that product are faster than what a compiler makes of `problem` (csrc/NOTES.md, "cuBLAS").
bool linear_relu_pays(const MlpProblem& problem);

}  // namespace fmlp::cuda
