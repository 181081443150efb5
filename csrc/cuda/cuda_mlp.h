// The MLP on a CUDA device: plan, look up, launch.
#pragma once

#include <string>

#include "../problem.h"
#include "plan.h"

namespace fmlp::cuda {

// Computes the problem on torch's current stream of the device and returns true; or returns false, does nothing, and
// says in `reason` why (then the caller runs the composite). The caller holds the device guard.
bool run(const MlpProblem& problem, const MlpOperands& operands, int device_index, std::string* reason);

// The same with a plan of the caller's.
bool run(const MlpProblem& problem, const Plan& plan, const MlpOperands& operands, int device_index,
         std::string* reason);

}  // namespace fmlp::cuda
