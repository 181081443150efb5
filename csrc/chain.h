// An operator call, unpacked: the tensors of one chain of linear layers and what to do between them.
//
// Start from Chain; `check` is the one place where arguments are judged and errors are worded.
#pragma once

#include <array>
#include <string>

#include "problem.h"
#include "torch_shim.h"

namespace fmlp {

// Throws std::runtime_error with the one sentence that tells the caller of the operator what to do.
[[noreturn]] void refuse(const char* op, const std::string& sentence);

// What the shim says of one tensor. Pointers are borrowed from the tensor.
struct TensorInfo {
  int64_t dim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // null for a tensor without strides (sparse)
  int32_t dtype = 0;
  int32_t device_type = 0;
  int32_t device_index = 0;

  int64_t last() const { return sizes[dim - 1]; }
};

// Whether tensors may be addressed through strides and data pointers: not so for sparse or other opaque layouts.
enum class Layout { strided, any };

struct Chain {
  const char* op = nullptr;  // the operator's name, for messages
  bool numbered = true;      // arguments are called w1, b1 … (else weights[0], biases[0] …)
  int depth = 0;
  Tensor x;
  std::array<Tensor, kMaxDepth> weights;
  std::array<Tensor, kMaxDepth> biases;  // empty where a layer has none
  Activation activation;
  Activation output_activation;
  bool allow_tf32 = false;

  // Filled by `check`.
  TensorInfo x_info;
  std::array<TensorInfo, kMaxDepth> weight_info;
  std::array<TensorInfo, kMaxDepth> bias_info;

  // Throws std::runtime_error with one sentence that names the argument, its value and the rule.
  void check(Layout layout);

  // After `check(Layout::strided)`. False where only torch's own operators can do the work (a dtype or width of no
  // kernel of ours).
  // Copies operands whose strides no kernel reads; pointers live as long as the chain.
  bool describe(MlpProblem& problem, MlpOperands& operands);

  Tensor empty_like_x(int64_t last_size) const;  // [*, last_size], contiguous, dtype and device of x
};

}  // namespace fmlp
