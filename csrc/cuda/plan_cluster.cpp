// The cluster kernel: 16 rows per cluster of blocks, each weight read once.
//
// kernels/cluster_shape.cuh defines the geometry, and the kernel asserts that `shared_bytes` agrees with it.
#include <algorithm>

#include "plan.h"

namespace fmlp::cuda {
namespace {

constexpr int kRows = 16;  // of a cluster
// One wave of clusters of eight on an H200; clusters of 16 fit seven times (112 rows).
constexpr int64_t kMostRows = 128, kMostClustersOf16 = 7;
// The widest layers that compile without spills, and on sm_90, beyond those, 16-bit ones of exactly 1024.
int64_t most_width(bool is_float, int major) {
  if (is_float) return major == 12 ? 320 : 512;
  return major == 9 ? 768 : 512;
}
constexpr int64_t kAlsoOnSm90 = 1024;

// 16-bit layers from this width on take 16 blocks.
constexpr int64_t kWide16Bit = 512;

int shared_bytes(const MlpProblem& problem, int threads, int blocks) {
  const int per_word = problem.dtype == DType::float32 ? 1 : 2;
  const int multiple = std::max(8 * blocks, 16 * per_word);
  const auto features = [&](int i) {
    return (static_cast<int>(problem.widths[i]) + multiple - 1) / multiple * multiple;
  };
  const auto pitch = [](int count, int remainder) { return count + (remainder - count % 32 + 32) % 32; };
  int hidden_words = 0, columns = 8, biases = 0;
  for (int l = 0; l < problem.depth; ++l) {
    if (l > 0) hidden_words = std::max(hidden_words, features(l) / per_word);
    columns = std::max(columns, features(l + 1) / blocks);
    biases += features(l + 1) / blocks;
  }
  const int activation_bytes = kRows * pitch(hidden_words, 16) * 4;
  const int sum_bytes = threads / 32 * kRows * pitch(columns, 8) * 4;
  return 2 * (activation_bytes + sum_bytes) + 4 * biases + 8 * problem.depth;
}

}  // namespace

// Measured on an H200, three layers, graph us (eager: fp32 11.2, bf16 10.5 for 256-256-256-64):
//
//     width                       128     256 (64 out)    512    1024
//     fp32  16 rows, S = 16       4.0     5.7            10.3
//           128 rows, S = 8               6.1
//     bf16  16 rows, S = 8        3.3*    3.8             6.1**  11.5**
//           128 rows, S = 8               3.9                            (* S = 4, ** S = 16)
Plan plan_cluster(const MlpProblem& problem, const DeviceProperties& device) {
  if (device.major < 9) return no_plan("clusters of blocks need compute capability 9.0 or newer");
  if (problem.dtype == DType::float64) return no_plan("tensor-core kernels do not compute in float64");
  if (problem.rows > kMostRows) return no_plan("clusters serve at most 128 rows");
  const bool is_float = problem.dtype == DType::float32, is_small = device.major == 12;
  const int64_t widest = *std::max_element(problem.widths, problem.widths + problem.depth + 1);
  for (int i = 0; i <= problem.depth; ++i) {
    const int64_t width = problem.widths[i];
    if (width > most_width(is_float, device.major) && !(width == kAlsoOnSm90 && !is_float && device.major == 9)) {
      return no_plan("a layer is too wide for a cluster of blocks");
    }
  }
  const int64_t clusters = (problem.rows + kRows - 1) / kRows;
  Plan plan;
  plan.kernel = Plan::Kernel::cluster;
  plan.reason = "few rows and wide layers: a cluster of blocks reads each weight once";
  plan.threads = is_float && !is_small ? 256 : 128;
  plan.rows_per_block = plan.rows_per_warp = kRows;
  const bool holds_16 = !is_small && device.multiprocessors >= kMostClustersOf16 * 16;  // not a MIG slice, say
  plan.cluster_size = holds_16 && clusters <= kMostClustersOf16 && (is_float || widest >= kWide16Bit) ? 16 : 8;
  plan.dependent_launch = device.supports_dependent_launch;
  plan.shared_bytes = shared_bytes(problem, plan.threads, plan.cluster_size);
  if (plan.shared_bytes > device.shared_bytes_per_block_optin) {
    return no_plan("the activations do not fit in shared memory");
  }
  plan.grid = clusters * plan.cluster_size;
  return plan;
}

}  // namespace fmlp::cuda
