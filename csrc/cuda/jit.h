// From source text to compiled kernel, and from compiled kernel to a function on a device.
//
// Both are remembered for the life of the process, failures too: a kernel that does not compile is not tried again.
// Safe from any thread; two threads that ask for one kernel compile it once, and different kernels compile side by
// side.
#pragma once

#include <memory>
#include <string>

#include "driver.h"

namespace fmlp::cuda {

// The architecture to compile for.
struct Target {
  int major = 0, minor = 0;
  bool arch_specific = false;  // sm_90a rather than sm_90
};

struct CompiledKernel {
  std::string image;  // a cubin, or PTX for an architecture that this NVRTC does not know
  std::string error;  // not empty: it did not compile, and this says why
  int registers = 0;
  int spill_bytes = 0;
  int shared_bytes = 0;  // static ones
  double milliseconds = 0;
  bool from_disk = false;
};

// Memory, then disk, then NVRTC. The source is a whole translation unit that includes embedded kernel files.
std::shared_ptr<const CompiledKernel> compile(const std::string& source, Target target);

// A function that is loaded on one device, ready to launch.
struct LoadedKernel {
  Function function = nullptr;
  int blocks_per_multiprocessor = 0;  // that fit at a time
  std::string error;                  // not empty: it cannot be launched, and this says why
};

// Compiles if need be and loads into the current context, which must be the primary one of `device_index`.
std::shared_ptr<const LoadedKernel> load(const std::string& source, Target target, int device_index, int threads,
                                         int dynamic_shared_bytes, int cluster_size);

// Increases whenever what was handed out before may no longer be used: in the child of a fork.
int generation();

// Empty, or why this process cannot launch: it was forked from one that had used CUDA, which CUDA does not survive.
std::string fork_error();

}  // namespace fmlp::cuda
