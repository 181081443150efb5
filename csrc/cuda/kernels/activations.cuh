// Activation functions for device code: one entry per line of FMLP_ACTIVATIONS in csrc/activations.h, same name.
// An entry is a struct with `apply(value, first parameter, second parameter)` for float and double.
#pragma once

namespace fmlp {

struct identity {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    return value;
  }
};

struct relu {
  // Not fmax: relu(NaN) is NaN in torch.
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    return value < Value(0) ? Value(0) : value;
  }
};

}  // namespace fmlp
