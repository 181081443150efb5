// The activation functions on vectors of numbers: one functor per entry of FMLP_ACTIVATIONS, under the entry's name.
#pragma once

#include "../activations.h"
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
