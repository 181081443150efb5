// What every kernel file shares: the argument struct, and the contract with the generated source.
//
// A kernel family is one file `<name>.cuh` that provides
//
//     template <class Config> __device__ void <name>(const fmlp::KernelArguments<Config::depth>& arguments);
//
// and a file ../plan_<name>.cpp that says what it can serve, and with which block; ../plan.cpp weighs it against the
// others. Nothing else names the family: the build embeds every kernels/*.cuh, and the JIT (../jit.cpp) generates, per
// problem, a text of this form.
//
//     #include "<name>.cuh"
//     struct Config {
//       using scalar = fmlp::float32;                        // float32, float16, bfloat16 or float64
//       static constexpr int depth = 3;                      // linear layers
//       static constexpr int widths[depth + 1] = {48, 64, 40, 24};
//       static constexpr unsigned bias_mask = 7;             // bit l: layer l has a bias
//       static constexpr int alignment = 16;                 // bytes: divides every pointer and x's row stride
//       static constexpr bool allow_tf32 = false;
//       static constexpr bool saves_hidden = false;
//       using activation = fmlp::relu;                       // after every layer but the last
//       using output_activation = fmlp::identity;            // after the last layer
//       static constexpr double activation_parameters[2] = {0, 0};
//       static constexpr double output_activation_parameters[2] = {0, 0};
//       static constexpr int threads = 256;                  // of a block; all fields from here on come from the plan
//       static constexpr int rows_per_block = 1;             // rows a block works on at one time
//       static constexpr int rows_per_warp = 1;              // of those, rows of one warp (tile kernels)
//       static constexpr int blocks_per_multiprocessor = 1;  // second argument of __launch_bounds__
//       static constexpr bool persistent = false;            // the grid may be smaller than the work: loop over rows
//       static constexpr bool dependent_launch = false;      // launched before the kernel in front of it has ended
//       static constexpr int cluster_size = 1;               // blocks of a cluster
//       static constexpr int stages = 1;                     // chunks of a streamed first layer held (row); 1: none is
//       static constexpr int shared_bytes = 0;               // dynamic shared memory
//     };
//     extern "C" __global__ void __launch_bounds__(Config::threads, Config::blocks_per_multiprocessor)
//     fmlp_kernel(const __grid_constant__ fmlp::KernelArguments<Config::depth> arguments) {
//       fmlp::<name><Config>(arguments);
//     }
//
// Neither the number of rows nor the row stride of x is in the text: one compiled kernel serves every batch size.
// The dtype conversions are in numeric.cuh, the activations in activations.cuh. Device code includes nothing else.
#pragma once

#include "activations.cuh"
#include "numeric.cuh"

namespace fmlp {

// The operands of one call; the host (../cuda_mlp.cpp) writes the same layout as 8-byte words.
template <int depth>
struct KernelArguments {
  const void* x;               // [rows, widths[0]], rows x_row_stride elements apart
  void* y;                     // [rows, widths[depth]], contiguous
  const void* weights[depth];  // layer l: [widths[l + 1], widths[l]], contiguous
  const void* biases[depth];   // layer l: [widths[l + 1]], null where the bias mask says so
  void* hidden[depth];         // layer l: [rows, widths[l + 1]], contiguous; null unless Config::saves_hidden
  long long rows;
  long long x_row_stride;
};

template <class Config>
using Storage = typename Config::scalar::storage;
template <class Config>
using Accumulate = typename Config::scalar::accumulate;

// A function, so that a width is a constant wherever the layer is one, with no array in device memory.
template <class Config>
constexpr int width(int layer) {
  return Config::widths[layer];
}

template <class Config>
constexpr bool has_bias(int layer) {
  return Config::bias_mask >> layer & 1;
}

// What follows layer `layer`: the output activation after the last one, the hidden activation before.
template <class Config, int layer>
__device__ __forceinline__ Accumulate<Config> activate(Accumulate<Config> value) {
  using Value = Accumulate<Config>;
  if constexpr (layer + 1 == Config::depth) {
    constexpr Value first = Config::output_activation_parameters[0], second = Config::output_activation_parameters[1];
    return Config::output_activation::apply(value, first, second);
  } else {
    constexpr Value first = Config::activation_parameters[0], second = Config::activation_parameters[1];
    return Config::activation::apply(value, first, second);
  }
}

// Programmatic dependent launch, where the target has it. A kernel whose Config says dependent_launch may start while
// the kernel before it is still running: all its threads must call `wait_for_previous_kernel` before their first access
// to global memory, and must read with plain loads (not ld.global.nc). `allow_next_kernel` lets the kernel after it do
// the same; called only after the wait, so that a kernel which relies on everything before its predecessor being done,
// as those that fetch constant weights early do, is right.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fmlp
