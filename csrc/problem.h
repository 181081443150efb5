// What is to be computed: y = W_d · f(… f(W_1 · x + b_1) …) + b_d for `depth` linear layers.
//
// MlpProblem holds everything a plan may depend on and no pointer; MlpOperands holds the pointers that go with
// one problem. Every kernel family (cpu/, cuda/) takes the two.
#pragma once

#include <cstdint>

#include "activations.h"

namespace fmlp {

inline constexpr int kMaxDepth = 16;

enum class DType : uint8_t { float32, float16, bfloat16, float64 };

constexpr int64_t element_size(DType dtype) { return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2; }

struct MlpProblem {
  DType dtype = DType::float32;
  int depth = 0;                       // linear layers
  int64_t rows = 0;                    // product of the leading dimensions of x
  int64_t x_row_stride = 0;            // elements from one row of x to the next; rows themselves are contiguous
  int64_t widths[kMaxDepth + 1] = {};  // in_features, then the out_features of every layer
  uint32_t bias_mask = 0;              // bit l: layer l has a bias
  int alignment = 16;            // bytes (16, 8, 4 or 2) that every pointer and the row stride of x are a multiple of
  Activation activation;         // after every layer but the last
  Activation output_activation;  // after the last layer
  bool allow_tf32 = false;       // float32 products may be rounded to TF32
  bool saves_hidden = false;     // hidden activations are written too, for a backward pass

  bool has_bias(int layer) const { return bias_mask >> layer & 1; }
};

struct MlpOperands {
  const void* x = nullptr;              // [rows, widths[0]], row stride x_row_stride
  const void* weights[kMaxDepth] = {};  // layer l: [widths[l + 1], widths[l]], contiguous
  const void* biases[kMaxDepth] = {};   // layer l: [widths[l + 1]], or null
  void* y = nullptr;                    // [rows, widths[depth]], contiguous
  void* hidden[kMaxDepth - 1] = {};     // layer l: [rows, widths[l + 1]], contiguous; null unless saves_hidden
};

}  // namespace fmlp
