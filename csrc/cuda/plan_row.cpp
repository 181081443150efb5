// The row kernel: all weights in the registers of one block.
#include <algorithm>

#include "kernels/row_tiling.cuh"
#include "plan.h"

namespace fmlp::cuda {
namespace {

// Multiply-adds of a thread for one set of rows. The loop body is unrolled: more of it compiles for seconds.
constexpr int kMostProducts = 1024;
constexpr int kThreads = 256;
constexpr int64_t kMostWidth = 4096;  // far beyond what fits; bounds the search

struct RowCost {
  int registers = 0;     // of a thread; an estimate on the safe side
  int products = 0;      // of a thread, for rows_per_block rows
  int shared_bytes = 0;  // static
};

// Weights and biases stay in registers throughout. With one row, ptxas finds room for the rest in those of layers that
// are done, except for unpacked 16-bit weights; the figures come from compiling some hundred shapes for sm_80 to
// sm_120.
RowCost row_cost(const MlpProblem& problem, int rows_per_block, bool persistent, int stages = 1) {
  const int element_bytes = static_cast<int>(element_size(problem.dtype));
  const int elements = 16 / element_bytes, value_words = element_bytes == 8 ? 2 : 1;
  const auto tiling_of = [&](int layer) {
    return row_tiling(static_cast<int>(problem.widths[layer]), static_cast<int>(problem.widths[layer + 1]), elements,
                      kThreads);
  };
  const bool stages_x = row_stages_x(tiling_of(0), rows_per_block, persistent);
  RowCost cost;
  int working = 0, shared_values = 4, writer_lanes = 1;
  for (int l = 0; l < problem.depth; ++l) {
    const RowTiling tiling = tiling_of(l);
    // Loads of two bytes take a register each until they are packed.
    const bool packs = row_load_bytes(static_cast<int>(problem.widths[l]), element_bytes, problem.alignment) == 2;
    const int held = l == 0 && stages > 1 ? stages : tiling.chunks;
    cost.registers += tiling.outputs * ((packs ? 8 : 4) * held + (problem.has_bias(l) ? value_words : 0));
    cost.products += rows_per_block * tiling.outputs * tiling.chunks * elements;
    const int sums = rows_per_block * tiling.outputs * std::min(4, elements);
    const int unpacked_weights = element_bytes == 2 ? elements * tiling.outputs : 0;
    working = std::max(working, (sums + 2 * elements) * value_words + unpacked_weights);
    if (l > 0 || stages_x)
      shared_values += rows_per_block * row_shared_stride(tiling, elements, writer_lanes, rows_per_block);
    writer_lanes = tiling.lanes;
  }
  const int x_chunks = (static_cast<int>(problem.widths[0]) + elements - 1) / elements * rows_per_block;
  const int own_x_chunks = stages_x ? (x_chunks + kThreads - 1) / kThreads : tiling_of(0).chunks * rows_per_block;
  cost.registers += 4 * own_x_chunks;
  if (rows_per_block > 1 || persistent || stages > 1) {
    cost.registers += working + (stages > 1 ? 48 : persistent ? 40 : 32) + (element_bytes == 8 ? 24 : 0);
  } else {
    cost.registers += (element_bytes == 2 ? working : 0) + 18;
  }
  cost.shared_bytes = shared_values * std::max(4, element_bytes);
  return cost;
}

bool row_fits(const MlpProblem& problem, int rows_per_block, bool persistent, int stages = 1) {
  constexpr int kRegisters = 255, kStaticSharedBytes = 48 * 1024;
  const RowCost cost = row_cost(problem, rows_per_block, persistent, stages);
  return cost.registers <= kRegisters && cost.shared_bytes <= kStaticSharedBytes &&
         ((rows_per_block == 1 && stages == 1) || cost.products <= kMostProducts);
}

// The most chunks of the first layer that a thread can hold where it cannot hold all, up to as many as a multiprocessor
// can have on their way; 0 where not even a few fit, or where its loads are narrow (235-128-128-128-12, 16 rows, by
// loads of 4 bytes: 13.9 us, the cluster kernel 7.3).
int streaming_stages(const MlpProblem& problem) {
  const int element_bytes = static_cast<int>(element_size(problem.dtype)), in = static_cast<int>(problem.widths[0]);
  if (row_load_bytes(in, element_bytes, problem.alignment) < 16) return 0;
  const RowTiling tiling = row_tiling(in, static_cast<int>(problem.widths[1]), 16 / element_bytes, kThreads);
  for (int stages = std::min(8, tiling.chunks - 1); stages >= 4; --stages) {
    if (row_fits(problem, 1, false, stages)) return stages;
  }
  return 0;
}

// As few rows a block as leave every block a multiprocessor of its own, and up to four rows half of them free: there
// the blocks of the next kernel get ready. Where blocks outnumber multiprocessors, they stay and loop over rows, since
// every further block would read all weights again. Measured on an H200 (132 multiprocessors), 48-64-40-24, fp32,
// dependent launches, graph us (plain launches: 1.62 at 16 rows, 2.2 at 256, 3.0 at 1024; the smallest possible
// kernel: 1.2):
//
//     rows a block       16     64    128    256    512   1024   2048   4096   8192  rows
//     1                1.10*  1.23*  1.63   1.93   3.49   4.82   8.18   15.2   28.1
//     2                   -   1.44   1.51*  1.95   2.13   3.81   6.32   11.8   21.6
//     4                   -   1.62   1.63   1.68*  2.27*  2.68   4.57   8.18   15.4
//     8                   -      -   2.28   2.31   2.35   2.45*  4.22   7.71   14.6
//     8, looping          -      -      -      -   2.36   3.04   3.78*  5.88*  10.1*   (* chosen)
//     16, looping         -      -      -      -   3.23   3.32   3.58   5.74   10.1
void choose_rows(const MlpProblem& problem, int multiprocessors, Plan& plan) {
  const auto blocks = [&] { return (problem.rows + plan.rows_per_block - 1) / plan.rows_per_block; };
  const auto more = [&](int most) {
    if (plan.rows_per_block >= most || !row_fits(problem, 2 * plan.rows_per_block, plan.persistent)) return false;
    plan.rows_per_block *= 2;
    return true;
  };
  while (blocks() > multiprocessors / 2 && more(4)) {
  }
  while (blocks() > multiprocessors && more(8)) {
  }
  if (blocks() > multiprocessors && row_fits(problem, 1, true)) {
    plan.persistent = true;
    while (plan.rows_per_block > 1 && !row_fits(problem, plan.rows_per_block, true)) plan.rows_per_block /= 2;
    while (more(8)) {
    }
  }
}

}  // namespace

Plan plan_row(const MlpProblem& problem, const DeviceProperties& device) {
  for (int l = 0; l <= problem.depth; ++l) {
    if (problem.widths[l] > kMostWidth) return no_plan("a layer is wider than 4096");
  }
  Plan plan;
  plan.kernel = Plan::Kernel::row;
  plan.reason = "the weights of all layers fit the registers of one block";
  plan.threads = kThreads;
  const bool fits = row_fits(problem, 1, false);
  if (!fits) {
    plan.stages = streaming_stages(problem);
    plan.reason = "the weights of all layers but the first fit the registers of one block";
    if (plan.stages == 0) return no_plan("the weights do not fit the registers of one block");
  }
  // Saves 0.5 us where the kernel in front is one of ours and costs 0.2 us in a graph behind an ordinary kernel.
  plan.dependent_launch = device.supports_dependent_launch;
  if (fits) choose_rows(problem, device.multiprocessors, plan);
  plan.grid = (problem.rows + plan.rows_per_block - 1) / plan.rows_per_block;
  return plan;
}

}  // namespace fmlp::cuda
