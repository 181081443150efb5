// Activations as operators name them: "relu", or with parameters "leaky_relu(0.2)".
#pragma once

#include "activations.h"

namespace fmlp {

// Parameters left out take their defaults. Throws std::runtime_error, which names the operator and the argument, for a
// name that is not in the table or a wrong number of parameters.
Activation parse_activation(const char* op, const char* argument, const char* text);

}  // namespace fmlp
