// Activations as operators name them: "relu", or with parameters "leaky_relu(0.2)".
#pragma once

#include <string>

#include "activations.h"

namespace fmlp {

// Throws std::runtime_error, opening with `argument`, for a name that is not in the table or a wrong number of
// parameters. Parameters left out take their defaults.
Activation parse_activation(const std::string& argument, const std::string& text);

}  // namespace fmlp
