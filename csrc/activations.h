// The activation functions this library knows, once for all host code.
//
// Adding one takes an entry here, one in cuda/kernels/activations.cuh, one in cpu/activations.h and one in
// fmlp_op/activations.py; tests/test_activations.py fails while any of the four lacks it.
#pragma once

#include <cstdint>

namespace fmlp {

// X(name, number of parameters, default of the first, default of the second, the same from torch's operators)
//
// The last is an expression of the tensor x and the parameters p and q that composite.cpp alone expands, in the words
// it defines.
// clang-format off
#define FMLP_ACTIVATIONS(X)                                                                        \
  X(identity,   0, 0,    0,  share(x))                                                             \
  X(relu,       0, 0,    0,  aten("relu", x))                                                      \
  X(leaky_relu, 1, 0.01, 0,  where(x > 0, x, x * p))                                               \
  X(elu,        1, 1,    0,  where(x > 0, x, aten("expm1", x) * p))                                \
  X(selu,       0, 0,    0,  aten("selu", x))                                                      \
  X(silu,       0, 0,    0,  aten("silu", x))                                                      \
  X(gelu,       0, 0,    0,  aten("gelu", x, "none"))                                              \
  X(gelu_tanh,  0, 0,    0,  aten("gelu", x, "tanh"))                                              \
  X(tanh,       0, 0,    0,  aten("tanh", x))                                                      \
  X(sigmoid,    0, 0,    0,  aten("sigmoid", x))                                                   \
  X(softplus,   2, 1,    20, where(x * p > q, x, aten("log_sigmoid", x * -p) / -p))                \
  X(hardswish,  0, 0,    0,  aten("hardswish", x))                                                 \
  X(sin,        1, 1,    0,  aten("sin", x * p))                                                   \
  X(mish,       0, 0,    0,  aten("mish", x))
// clang-format on

#define FMLP_ACTIVATION_ENUMERATOR(name, ...) name,
enum class ActivationKind : uint8_t { FMLP_ACTIVATIONS(FMLP_ACTIVATION_ENUMERATOR) };
#undef FMLP_ACTIVATION_ENUMERATOR

// An activation with the values of its parameters (a negative slope, say).
struct Activation {
  ActivationKind kind = ActivationKind::identity;
  double parameters[2] = {0, 0};
};

}  // namespace fmlp
