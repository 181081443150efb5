// The tile kernel: tensor cores, weights in shared memory, activations in registers.
//
// kernels/tile_shape.cuh defines the geometry, and the kernel asserts that `shared_bytes` agrees with it.
#include <algorithm>

#include "plan.h"

namespace fmlp::cuda {
namespace {

constexpr int64_t kMostWidth = 256;
// Three TF32 products per product: beyond this width their operands leave the accumulators too few registers.
constexpr int64_t kMostExactWidth = 191;

// Sizes of a tile kernel on a cluster of `blocks`. Words have 4 bytes: two 16-bit elements, or one float.
struct Shape {
  const MlpProblem& problem;
  int blocks = 1;
  int per_word = problem.dtype == DType::float32 ? 1 : 2;
  bool exact = problem.dtype == DType::float32 && !problem.allow_tf32;

  // Of feature vector `i` (0: x, depth: y), padded.
  int words(int i) const {
    const int multiple = 8 * per_word * blocks;
    return (static_cast<int>(problem.widths[i]) + multiple - 1) / multiple * multiple / per_word;
  }
  int columns(int layer) const { return words(layer + 1) * per_word / blocks; }  // of one block

  // Chunks of operands and results that a layer keeps: many leave exact products a narrower pass.
  bool is_wide() const {
    for (int l = 0; l < problem.depth; ++l) {
      if (2 * (words(l) / 4 + words(l + 1) / 4 / blocks) > 72) return true;
    }
    return false;
  }

  // Registers for accumulators and activations of the layer that needs most. row_blocks: of 16 rows, per warp.
  int live_registers(int pass_limit, int row_blocks) const {
    int most = 0;
    for (int l = 0; l < problem.depth; ++l) {
      int live = std::min(columns(l), pass_limit) / 2 * (exact ? 3 : 1) + words(l) / 2 + (exact ? 16 : 0);
      if (columns(l) > pass_limit) live += words(l + 1) / 2 / blocks;
      most = std::max(most, live * row_blocks);
    }
    return most;
  }

  int shared_bytes(int threads) const {
    int bytes = 0, exchanged_words = 0;
    for (int l = 0; l < problem.depth; ++l) {
      bytes += words(l) / 4 * columns(l) * 16 * (exact ? 2 : 1) + columns(l) * 4;
      if (l > 0) exchanged_words = std::max(exchanged_words, words(l) / blocks);
    }
    if (blocks > 1) bytes += threads / 128 * ((blocks - 1) * (exchanged_words / 4) * 1024 + 16);
    return bytes;
  }
};

// Registers that accesses of few bytes cost, to a row of x, of a weight or of a result, and storing hidden activations.
int access_registers(const MlpProblem& problem) {
  int64_t common = problem.alignment | 16;
  for (int i = 0; i <= problem.depth; ++i) common |= problem.widths[i] * element_size(problem.dtype);
  const int64_t narrowest = common & -common;
  return (narrowest == 2 ? 30 : narrowest == 4 ? 24 : 0) + (problem.saves_hidden ? 8 : 0);
}

// Threads of a block of warpgroups with 16 rows a warp (wgmma, sm_90a), as many as registers allow; 0 where none fit.
// The registers beside the live ones come from compiling some hundred shapes; so do those of mma.sync below.
int warpgroup_threads(const Shape& shape, int multiprocessors) {
  const int pass_limit = !shape.exact ? 256 : shape.is_wide() ? 32 : 64;
  const int registers = shape.live_registers(pass_limit, 1) + (shape.exact ? 24 : 30) + access_registers(shape.problem);
  const int threads = registers <= 128 ? 512 : registers <= 168 ? 384 : registers <= 232 ? 256 : 0;
  if (shape.blocks > 1) return std::min(threads, 256);
  // Five warpgroups where the last wave then leaves fewer rows idle: 71.1 in place of 76.8 us (64x3, bf16, 2^20 rows).
  const auto rows_in_waves = [&](int count) {
    const int64_t rows = count / 32 * 16, tiles = (shape.problem.rows + rows - 1) / rows;
    return (tiles + multiprocessors - 1) / multiprocessors * rows;
  };
  return registers <= 96 && rows_in_waves(640) < rows_in_waves(512) ? 640 : threads;
}

// Blocks of 16 rows of a warp with mma.sync, 256 threads a block: 2, 1, or 0 where none fit.
int warp_row_blocks(const Shape& shape) {
  const int accesses = access_registers(shape.problem);
  for (const int row_blocks : {2, 1}) {
    const int pass_limit = (shape.exact ? 32 : 256) / row_blocks;
    const int others = shape.exact ? 100 : row_blocks == 2 ? 90 : 60;
    if (shape.live_registers(pass_limit, row_blocks) + others + accesses <= 255) return row_blocks;
  }
  return 0;
}

}  // namespace

Plan plan_tile(const MlpProblem& problem, const DeviceProperties& device) {
  if (problem.dtype == DType::float64) return no_plan("tensor-core kernels do not compute in float64");
  const int64_t widest = *std::max_element(problem.widths, problem.widths + problem.depth + 1);
  if (widest > kMostWidth) return no_plan("a layer is wider than 256, too wide for a kernel that serves many rows");
  if (Shape{problem}.exact && widest > kMostExactWidth) {
    return no_plan("exact float32 products need layers of at most 191, unless TF32 is allowed");
  }
  Plan plan;
  plan.kernel = Plan::Kernel::tile;
  plan.reason = "the weights fit in shared memory, and the rows pay for bringing them there";
  plan.persistent = true;
  plan.arch_specific = device.major == 9 && device.minor == 0;
  plan.dependent_launch = device.supports_dependent_launch;
  bool fits_registers = false;
  for (const int blocks : {1, 2, 4}) {
    if (blocks > 1 && !plan.arch_specific) break;
    const Shape shape{problem, blocks};
    const int row_blocks = plan.arch_specific ? 1 : warp_row_blocks(shape);
    plan.threads = plan.arch_specific ? warpgroup_threads(shape, device.multiprocessors) : 256;
    plan.rows_per_warp = 16 * row_blocks;
    plan.rows_per_block = plan.threads / 32 * plan.rows_per_warp;
    plan.cluster_size = blocks;
    if (plan.rows_per_block == 0) continue;
    fits_registers = true;
    plan.shared_bytes = shape.shared_bytes(plan.threads);
    if (plan.shared_bytes > device.shared_bytes_per_block_optin) continue;
    // Clusters of four do not fill every group of an H200's multiprocessors: 120 of 132 hold one.
    const int usable = blocks == 4 ? device.multiprocessors * 10 / 11 : device.multiprocessors;
    const int64_t tiles = (problem.rows + plan.rows_per_block - 1) / plan.rows_per_block;
    plan.grid = std::min<int64_t>(tiles, std::max(1, usable / blocks)) * blocks;
    return plan;
  }
  return no_plan(fits_registers ? "the weights do not fit in shared memory" : "a layer does not fit in registers");
}

}  // namespace fmlp::cuda
