#include "plan.h"

#include <algorithm>

namespace fmlp::cuda {
namespace {

// ---- estimates: microseconds of GPU time in a CUDA graph on an H200 ----
//
// Only their order counts, so other devices are taken to differ by a factor. Each is fitted to the figures beside it
// (widths, rows: measured / estimated; 64x3: three layers of width 64; B: weight bytes, M: rows x weights).

// What all estimates are made of.
struct Work {
  double weights = 0;          // elements, of all layers
  double weight_bytes = 0;     // of all layers
  double products = 0;         // M
  double tensor_bytes = 0;     // x, y and the hidden activations that a kernel writes too
  double linear_bytes = 0;     // what the linears of eager torch read and write, without weights
  double activated_bytes = 0;  // what its activations read and write
  int launches = 0;            // kernels of eager torch
};

Work work_of(const MlpProblem& problem) {
  Work work;
  const double rows = static_cast<double>(problem.rows), bytes = static_cast<double>(element_size(problem.dtype));
  for (int l = 0; l < problem.depth; ++l) {
    const double in = static_cast<double>(problem.widths[l]), out = static_cast<double>(problem.widths[l + 1]);
    const bool last = l + 1 == problem.depth;
    const bool activates = (last ? problem.output_activation : problem.activation).kind != ActivationKind::identity;
    work.weights += in * out;
    work.linear_bytes += rows * (in + out) * bytes;
    work.activated_bytes += activates ? 2 * rows * out * bytes : 0;
    work.launches += activates ? 2 : 1;
    if (l == 0) work.tensor_bytes += rows * in * bytes;
    if (last || problem.saves_hidden) work.tensor_bytes += rows * out * bytes;
  }
  work.weight_bytes = work.weights * bytes;
  work.products = rows * work.weights;
  return work;
}

// Takes a few instructions, not an exponential or a sine.
bool is_cheap(const Activation& activation) {
  switch (activation.kind) {
    case ActivationKind::identity:
    case ActivationKind::relu:
    case ActivationKind::leaky_relu:
    case ActivationKind::hardswish:
      return true;
    default:
      return false;
  }
}

bool is_exact(const MlpProblem& problem) { return problem.dtype == DType::float32 && !problem.allow_tf32; }

// A launch each for linears and activations, the weights, then what the device is busy with. Rather too little than too
// much: where eager torch is near, it stays.
//
//     256-256-256-64  16 rows  bf16  10.5 / 10.3    fp32  11.2 / 10.6
//     64x3    bf16   1024   11 / 10    4096   11 / 11    16384   16 / 15    2^20   350 / 325
//     64x3    fp32   1024   13 / 11    4096   15 / 13    16384   27 / 22    2^20  1110 / 767
//     128x3   fp32   1024   17 / 13                                         2^20  2200 / 2535
double eager_us(const MlpProblem& problem, const Work& work) {
  constexpr double launch = 2, bytes_per_us = 4.26e6, weight_bytes_per_us = 1e6;
  const double products_per_us = problem.dtype == DType::float64   ? 12e6
                                 : is_exact(problem)               ? 25.5e6
                                 : problem.dtype == DType::float32 ? 211e6
                                                                   : 406e6;
  return work.launches * launch + work.weight_bytes / weight_bytes_per_us + work.activated_bytes / bytes_per_us +
         std::max(work.linear_bytes / bytes_per_us, work.products / products_per_us);
}

// One multiprocessor reads all weights before the first product; then all multiply: 0.9 + B / 54000 + 0.15 M / 10^6,
// from 16384 weights on 0.125, in float64 0.33; but no row takes less than 0.0005.
//
//     48-64-40-24     fp32  16 rows  1.1 / 1.4    1024   2.5 / 2.4    4096  5.8 / 5.4     8192  10.1 / 9.5
//     64x3            fp32  16       1.6 / 1.8    1024   3.5 / 3.7    4096  9.1 / 9.4    16384  32 / 32
//     64x3            bf16  16       1.4 / 1.4    1024   4.0 / 3.2    4096  8.8 / 8.9    16384  31 / 32
//     128x3           fp32  16       4.5 / 4.6    1024  10.4 / 10.8
//     128-128-128-8   fp32                        1024   7.7 / 7.7    4096   17 / 21     16384  52 / 73
//     128-128-128-64  bf16  16       2.5 / 2.5    1024   8.2 / 7.7    4096   20 / 23     16384  67 / 86
//     16x3            fp32  16       1.0 / 1.0    1024   1.7 / 1.5                       16384   9.3 / 9.1
//     48-64-40-24     fp64                        1024   4.0 / 4.1    4096   11 / 11     16384  38 / 38
//
// Where the first layer is streamed (plan.stages), every row has a block of its own that reads all weights:
//
//     1000-50x8-10    fp32   1 row   6.4 / 6.1    16   6.6 / 6.3
double row_us(const MlpProblem& problem, const Work& work, const Plan& plan, int multiprocessors) {
  const double us_per_product = problem.dtype == DType::float64 ? 0.33e-6 : work.weights < 16384 ? 0.15e-6 : 0.125e-6;
  const auto waves = plan.stages > 1 ? (problem.rows + multiprocessors - 1) / multiprocessors : 1;
  const double computing = std::max(us_per_product * work.products, 0.5e-3 * static_cast<double>(problem.rows));
  return 0.9 + static_cast<double>(waves) * work.weight_bytes / 54e3 + computing;
}

// Latency of launch and layers, then a block's share of the weights. Of the 16 rows of a cluster, only those that exist
// are handed on and activated; beyond 16 rows there are more clusters, beside each other.
//
//     16-bit: 1.5 + 0.5 layers + B / S / 45000
//     bf16 256-256-256-64  3.8 / 3.8    512x3  6.1 / 5.2    1024x3  11.5 / 11.7
//
//     fp32: 1.4 + (0.7 + 0.2 r) layers + B / S / 31000 (46000 for S = 8), r = rows / 16; and 0.25 r for each activation
//     with an exponential or a sine
//     1 row     23-256-256-1  4.1 / 4.1    512-256-64-1  4.4 / 4.7    48-512-256-128-12  elu  6.3 / 5.8
//               235-128-128-128-12  elu  5.5 / 4.8    2-256-256-256-1  sin  6.1 / 5.4
//     16 rows   128x3  4.4 / 4.5    256-256-256-64  5.2 / 5.3    512x3  10.2 / 10.4    23-256-256-1  5.2 / 4.7
//               512-256-64-1  5.8 / 5.3    48-512-256-128-12  elu  8.3 / 7.3    235-128-128-128-12  elu  7.3 / 6.3
//               2-256-256-256-1  sin  7.6 / 6.8
//     128 rows  512x3  12.7 / 12.6    256x3  6.4 / 6.2
double cluster_us(const MlpProblem& problem, const Work& work, const Plan& plan) {
  const double block_bytes = work.weight_bytes / plan.cluster_size;
  if (problem.dtype != DType::float32) return 1.5 + 0.5 * problem.depth + block_bytes / 45e3;
  const double filled = static_cast<double>(std::min<int64_t>(problem.rows, 16)) / 16;
  const double activations = is_cheap(problem.activation) ? 0 : 0.25 * (problem.depth - 1);
  return 1.4 + (0.7 + 0.2 * filled) * problem.depth + activations * filled +
         block_bytes / (plan.cluster_size == 16 ? 31e3 : 46e3);
}

// Staging a block's weights (estimated: 64 bytes a thread each 0.8 us), then waves of one tile per block.
//
//     64x3   bf16    65536 rows  7.4 / 7.9    2^20  75 / 76        tf32         2^20  146 / 150
//     128x3  bf16    2^20        169 / 157                    256x3  bf16, S = 2  2^19  425 / 439
//     64x3   exact   2^20        251 / 247    128x3  exact, S = 2  2^20  1165 to 1275 / 1215
//     32x3   exact   2^20         94 / 76
//
// mma.sync in place of wgmma took 1.2 to 1.8 times as long. TF32 in the compute-bound widths is taken at half of bf16.
double tile_us(const MlpProblem& problem, const Work& work, const Plan& plan, int multiprocessors) {
  constexpr double start = 2.7, staged_bytes_per_us_and_thread = 80, bytes_per_us = 3.8e6, warp_slowdown = 1.8;
  const bool shares = plan.cluster_size > 1;
  double products_per_us = shares ? 245e6 : 350e6;
  if (problem.dtype == DType::float32) products_per_us /= 2;
  if (is_exact(problem)) products_per_us = shares ? 43e6 : 54e6;
  if (!plan.arch_specific) products_per_us /= warp_slowdown;
  const int64_t wave = static_cast<int64_t>(plan.rows_per_block) * std::max(1, multiprocessors / plan.cluster_size);
  const double filled = static_cast<double>((problem.rows + wave - 1) / wave * wave);
  return start + work.weight_bytes / plan.cluster_size / (plan.threads * staged_bytes_per_us_and_thread) +
         filled / static_cast<double>(problem.rows) *
             std::max(work.tensor_bytes / bytes_per_us, work.products / products_per_us);
}

}  // namespace

const char* kernel_name(Plan::Kernel kernel) {
  switch (kernel) {
    case Plan::Kernel::none:
      return "none";
    case Plan::Kernel::row:
      return "row";
    case Plan::Kernel::tile:
      return "tile";
    case Plan::Kernel::cluster:
      return "cluster";
  }
  return "";
}

Plan no_plan(const char* reason) {
  Plan plan;
  plan.reason = reason;
  return plan;
}

Plan plan(const MlpProblem& problem, const DeviceProperties& device) {
  if (device.major < 8) return no_plan("kernels need a device of compute capability 8.0 or newer");
  for (int l = 0; l <= problem.depth; ++l) {
    if (problem.widths[l] == 0) return no_plan("a layer of width 0 has nothing to fuse");
  }
  const Plan row = plan_row(problem, device), cluster = plan_cluster(problem, device);
  if (problem.rows == 0) return row;  // nothing is launched
  const Plan tile = plan_tile(problem, device);

  const Work work = work_of(problem);
  Plan best = no_plan("torch's own operators are faster for so many rows or so wide layers, by estimate");
  double best_us = eager_us(problem, work);
  const auto consider = [&](const Plan& candidate, double microseconds) {
    if (microseconds >= best_us) return;
    best = candidate;
    best_us = microseconds;
  };
  if (row.kernel != Plan::Kernel::none) consider(row, row_us(problem, work, row, device.multiprocessors));
  if (cluster.kernel != Plan::Kernel::none) consider(cluster, cluster_us(problem, work, cluster));
  if (tile.kernel != Plan::Kernel::none) consider(tile, tile_us(problem, work, tile, device.multiprocessors));

  const bool none_can =
      row.kernel == Plan::Kernel::none && cluster.kernel == Plan::Kernel::none && tile.kernel == Plan::Kernel::none;
  if (!none_can) return best;
  if (problem.dtype == DType::float64) return row;
  return problem.rows <= 128 && device.major >= 9 ? cluster : tile;  // the reason of the one closest to serving it
}

}  // namespace fmlp::cuda
