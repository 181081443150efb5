// The activation functions this library knows, once for all host code.
//
// Adding one takes an entry here, one in cuda/kernels/activations.cuh, one in cpu/activations.h and one in
// fmlp_op/activations.py; tests/test_activations.py fails while any of the four lacks it.
#pragma once

#include <cstdint>

namespace fmlp {

// X(name, number of parameters, default of the first, default of the second)
#define FMLP_ACTIVATIONS(X) \
  X(identity, 0, 0, 0)      \
  X(relu, 0, 0, 0)

#define FMLP_ACTIVATION_ENUMERATOR(name, ...) name,
enum class ActivationKind : uint8_t { FMLP_ACTIVATIONS(FMLP_ACTIVATION_ENUMERATOR) };
#undef FMLP_ACTIVATION_ENUMERATOR

// An activation with the values of its parameters (a negative slope, say).
struct Activation {
  ActivationKind kind = ActivationKind::identity;
  double parameters[2] = {0, 0};
};

}  // namespace fmlp
