// Activation functions for device code: one entry per line of FMLP_ACTIVATIONS in csrc/activations.h, same name.
// An entry is a struct with `apply(value, first parameter, second parameter)` for float and double.
#pragma once

namespace fmlp {

// CUDA's full-precision functions, under one name for both types: some activations are called as they are.
namespace libm {
static __device__ __forceinline__ float exp(float value) { return ::expf(value); }
static __device__ __forceinline__ double exp(double value) { return ::exp(value); }
static __device__ __forceinline__ float expm1(float value) { return ::expm1f(value); }
static __device__ __forceinline__ double expm1(double value) { return ::expm1(value); }
static __device__ __forceinline__ float log1p(float value) { return ::log1pf(value); }
static __device__ __forceinline__ double log1p(double value) { return ::log1p(value); }
static __device__ __forceinline__ float tanh(float value) { return ::tanhf(value); }
static __device__ __forceinline__ double tanh(double value) { return ::tanh(value); }
static __device__ __forceinline__ float erf(float value) { return ::erff(value); }
static __device__ __forceinline__ double erf(double value) { return ::erf(value); }
static __device__ __forceinline__ float sin(float value) { return ::sinf(value); }
static __device__ __forceinline__ double sin(double value) { return ::sin(value); }
}  // namespace libm

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

struct leaky_relu {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value negative_slope, Value) {
    return value > Value(0) ? value : value * negative_slope;
  }
};

struct elu {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value alpha, Value) {
    return value > Value(0) ? value : alpha * libm::expm1(value);
  }
};

struct selu {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    constexpr double alpha = 1.6732632423543772, scale = 1.0507009873554805;  // torch's
    return value > Value(0) ? Value(scale) * value : Value(alpha * scale) * libm::expm1(value);
  }
};

// 1 / (1 + exp(-value)), from exp(-|value|), which cannot overflow.
struct sigmoid {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    const Value e = libm::exp(value < Value(0) ? value : -value);
    return (value < Value(0) ? e : Value(1)) / (Value(1) + e);
  }
};

struct silu {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value first, Value second) {
    return value * sigmoid::apply(value, first, second);
  }
};

struct gelu {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    return Value(0.5) * value * (Value(1) + libm::erf(value * Value(0.70710678118654752)));
  }
};

// value * (1 + tanh(z)) / 2, which is value * sigmoid(2 z).
struct gelu_tanh {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value first, Value second) {
    constexpr double twice_root = 1.5957691216057308;  // 2 * sqrt(2 / pi)
    const Value twice_z = Value(twice_root) * value * (Value(1) + Value(0.044715) * value * value);
    return value * sigmoid::apply(twice_z, first, second);
  }
};

struct tanh {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    return libm::tanh(value);
  }
};

// log(1 + exp(beta value)) / beta, from exp(-|beta value|), which cannot overflow.
struct softplus {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value beta, Value threshold) {
    const Value z = value * beta;
    const Value soft = (z > Value(0) ? z : Value(0)) + libm::log1p(libm::exp(z < Value(0) ? z : -z));
    return z > threshold ? value : soft / beta;
  }
};

struct hardswish {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    const Value shifted = value + Value(3);
    const Value clamped = shifted < Value(0) ? Value(0) : shifted > Value(6) ? Value(6) : shifted;
    return value * clamped / Value(6);
  }
};

struct sin {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value frequency, Value) {
    return libm::sin(frequency * value);
  }
};

// value * tanh(log(1 + exp(value))) as a fraction of e = exp(-|value|), which cannot overflow.
struct mish {
  template <class Value>
  static __device__ __forceinline__ Value apply(Value value, Value, Value) {
    const bool negative = value < Value(0);
    const Value e = libm::exp(negative ? value : -value);
    const Value numerator = negative ? e * (e + Value(2)) : Value(2) * e + Value(1);
    return value * (numerator / (numerator + (negative ? Value(2) : Value(2) * e * e)));
  }
};

}  // namespace fmlp
