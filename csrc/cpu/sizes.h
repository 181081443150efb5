// Arithmetic on the sizes of a problem.
#pragma once

#include "../problem.h"

namespace fmlp::cpu {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t widest(const MlpProblem& problem) {
  int64_t width = 0;
  for (int i = 0; i <= problem.depth; ++i) width = problem.widths[i] > width ? problem.widths[i] : width;
  return width;
}

}  // namespace
}  // namespace fmlp::cpu
