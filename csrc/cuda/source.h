// The source text of one specialised kernel, in the form that kernels/interface.cuh describes.
#pragma once

#include <string>

#include "../problem.h"
#include "plan.h"

namespace fmlp::cuda {

std::string kernel_source(const MlpProblem& problem, const Plan& plan);

}  // namespace fmlp::cuda
