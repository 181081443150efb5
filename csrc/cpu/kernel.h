// What each instruction set's translation unit offers to cpu_mlp.cpp: one set of functions per dtype.
//
// A panel is a range of rows that goes through all layers together, with its activations in a scratch buffer:
// `load_rows`, then `run_layer` for each layer. The outputs of one layer may be spread over threads; run_rows is the
// loop over panels for a range of rows, for one thread.
#pragma once

#include "../problem.h"

namespace fmlp::cpu {

struct Scratch {
  void* activations = nullptr;  // activation_bytes(problem, rows of the panel), aligned to kScratchAlignment
  void* weights = nullptr;      // weight_bytes(problem), aligned likewise; not shared between threads
};

inline constexpr int64_t kScratchAlignment = 64;

// Ranges of outputs given to run_layer begin at multiples of this.
inline constexpr int64_t kOutputAlignment = 16;

struct Kernel {
  // Rows are best given to threads in multiples of this.
  int64_t (*tile_rows)(const MlpProblem& problem);
  // Rows of the largest panel run_rows makes.
  int64_t (*panel_rows)(const MlpProblem& problem);
  int64_t (*activation_bytes)(const MlpProblem& problem, int64_t rows);
  int64_t (*weight_bytes)(const MlpProblem& problem);
  void (*load_rows)(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                    const Scratch& scratch);
  void (*run_layer)(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows, int layer,
                    int64_t first_output, int64_t last_output, const Scratch& scratch);
  void (*run_rows)(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t last_row,
                   const Scratch& scratch);
};

// Indexed by DType.
extern const Kernel kGenericKernels[4];
#if defined(__x86_64__)
extern const Kernel kAvx2Kernels[4];
extern const Kernel kAvx512Kernels[4];
extern const Kernel kAvx512Bf16Kernel;  // for bfloat16 only
#endif

}  // namespace fmlp::cpu
