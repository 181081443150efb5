// The activation functions on vectors of numbers: one functor per entry of FMLP_ACTIVATIONS, under the entry's name.
#pragma once

#include "../activations.h"
#include "elementary.h"
#include "vector.h"

namespace fmlp::cpu {
namespace {

// A functor is called as f(v, parameters) with a vector of float or double, whatever its number of lanes, and the
// activation's parameters in that type.
namespace functors {

struct identity {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    return v;
  }
};

struct relu {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    return v < 0 ? V{} : v;  // not max(0, v): a NaN must stay one
  }
};

struct leaky_relu {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T* slope) const {
    return v > 0 ? v : v * slope[0];
  }
};

struct elu {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T* alpha) const {
    return v > 0 ? v : expm1_of(v) * alpha[0];
  }
};

struct selu {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    constexpr double alpha = 1.6732632423543772, scale = 1.0507009873554805;  // torch's
    return v > 0 ? v * T(scale) : expm1_of(v) * T(alpha * scale);
  }
};

// 1 / (1 + exp(-v)), from exp(-|v|), which cannot overflow.
struct sigmoid {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    const V e = exp_of_negative(-magnitude(v));
    return (v < 0 ? e : V{} + T(1)) / (e + T(1));
  }
};

struct silu {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T* none) const {
    return v * sigmoid{}(v, none);
  }
};

struct gelu {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    return v * T(0.5) * one_plus_erf_of(v * T(0.70710678118654752));
  }
};

// v * (1 + tanh(z)) / 2, which is v * sigmoid(2 z).
struct gelu_tanh {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T* none) const {
    constexpr double twice_root = 1.5957691216057308;  // 2 * sqrt(2 / pi)
    return v * sigmoid{}(v * (v * v * T(0.044715) + T(1)) * T(twice_root), none);
  }
};

struct tanh {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    return tanh_of(v);
  }
};

// log(1 + exp(beta v)) / beta, from exp(-|beta v|), which cannot overflow.
struct softplus {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T* beta_threshold) const {
    const V z = v * beta_threshold[0];
    const V soft = (z > 0 ? z : V{}) + log1p_of(exp_of_negative(-magnitude(z)));
    return z > beta_threshold[1] ? v : soft / beta_threshold[0];
  }
};

struct hardswish {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    return v * at_most(at_least(v + T(3), T(0)), T(6)) / T(6);
  }
};

struct sin {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T* frequency) const {
    return sin_of(v * frequency[0]);
  }
};

// v * tanh(log(1 + exp(v))) as a fraction of e = exp(-|v|), which cannot overflow.
struct mish {
  template <class V, class T>
  FMLP_INLINE V operator()(const V& v, const T*) const {
    const V e = exp_of_negative(-magnitude(v));
    const V numerator = v < 0 ? e * (e + T(2)) : e * T(2) + T(1);
    return v * (numerator / (numerator + (v < 0 ? V{} + T(2) : e * e * T(2))));
  }
};

}  // namespace functors

template <class Functor, class T>
FMLP_INLINE void apply_functor(Functor f, const T* parameters, T* values, int64_t count) {
  constexpr int lanes = kLanes<T>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store<lanes>(values + i, f(load<lanes>(values + i), parameters));
  if (i < count) {
    store_partial<lanes>(values + i, f(load_partial<lanes>(values + i, count - i), parameters), count - i);
  }
}

// Applies an activation in place. The kernels call it on values they have just written, which are still in L1.
template <class T>
__attribute__((noinline)) void apply_activation(const Activation& activation, T* values, int64_t count) {
  const T parameters[2] = {T(activation.parameters[0]), T(activation.parameters[1])};
  switch (activation.kind) {
#define FMLP_APPLY(name, ...) \
  case ActivationKind::name:  \
    return apply_functor(functors::name{}, parameters, values, count);
    FMLP_ACTIVATIONS(FMLP_APPLY)
#undef FMLP_APPLY
  }
}

}  // namespace
}  // namespace fmlp::cpu
