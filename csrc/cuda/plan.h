// Which kernel serves a problem on a device, with which block and grid: a pure function, testable with no GPU.
#pragma once

#include <cstdint>

#include "../problem.h"

namespace fmlp::cuda {

struct DeviceProperties {
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_bytes_per_block_optin = 0;
  int shared_bytes_per_multiprocessor = 0;
  bool supports_dependent_launch = false;  // of driver and device: programmatic dependent launch, in graphs too
};

struct Plan {
  enum class Kernel { none, row, tile, cluster };

  Kernel kernel = Kernel::none;  // none: the composite of torch's own operators serves
  const char* reason = "";       // why this kernel, or why none: one sentence

  // Fields of the generated Config; kernels/interface.cuh says what each means.
  int threads = 0;
  int rows_per_block = 1;
  int rows_per_warp = 1;
  int blocks_per_multiprocessor = 1;
  bool persistent = false;
  bool dependent_launch = false;
  int cluster_size = 1;
  int stages = 1;
  int shared_bytes = 0;        // dynamic shared memory
  bool arch_specific = false;  // needs the instructions of exactly this architecture (sm_90a)

  // Blocks. Of a row kernel, what the work amounts to; a persistent one is launched with no more of them than the
  // device can hold.
  int64_t grid = 0;
};

const char* kernel_name(Plan::Kernel kernel);

// The fastest, by estimate, of the families below and torch's own operators.
Plan plan(const MlpProblem& problem, const DeviceProperties& device);

// The plan of one family, in plan_<family>.cpp: for whatever its kernel can compute, or none and why not. The device is
// of compute capability 8.0 or newer, no width is 0.
Plan plan_row(const MlpProblem& problem, const DeviceProperties& device);
Plan plan_tile(const MlpProblem& problem, const DeviceProperties& device);
Plan plan_cluster(const MlpProblem& problem, const DeviceProperties& device);

Plan no_plan(const char* reason);

}  // namespace fmlp::cuda
