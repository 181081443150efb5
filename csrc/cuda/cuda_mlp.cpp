#include "cuda_mlp.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>

#include "driver.h"
#include "jit.h"
#include "source.h"

namespace fmlp::cuda {
namespace {

// ---- devices ----

struct Device {
  DeviceProperties properties;
  Context primary = nullptr;
  std::string error;
};

Device query_device(int index) {
  enum {
    multiprocessor_count = 16,
    capability_major = 75,
    capability_minor = 76,
    shared_per_multiprocessor = 81,
    shared_per_block_optin = 97
  };  // of CUdevice_attribute
  const Driver& api = driver();
  Device device;
  int handle = 0;
  const auto read = [&](int attribute, int& value) {
    if (!device.error.empty()) return;
    if (const DriverResult result = api.cuDeviceGetAttribute(&value, attribute, handle)) {
      device.error = describe("cuDeviceGetAttribute", result);
    }
  };
  if (const DriverResult result = api.cuDeviceGet(&handle, index)) {
    device.error = describe("cuDeviceGet", result);
    return device;
  }
  read(capability_major, device.properties.major);
  read(capability_minor, device.properties.minor);
  read(multiprocessor_count, device.properties.multiprocessors);
  read(shared_per_multiprocessor, device.properties.shared_bytes_per_multiprocessor);
  read(shared_per_block_optin, device.properties.shared_bytes_per_block_optin);
  // Captured into graphs since CUDA 12.3.
  device.properties.supports_dependent_launch = device.properties.major >= 9 && api.version >= 12030;
  if (device.error.empty()) {
    if (const DriverResult result = api.cuDevicePrimaryCtxRetain(&device.primary, handle)) {
      device.error = describe("cuDevicePrimaryCtxRetain", result);
    }
  }
  return device;
}

// Queried once each. No lock, so that none can be held at a fork; of two threads that query at once, one wins.
const Device& device_at(int index) {
  constexpr size_t kMostDevices = 128;
  static std::array<std::atomic<const Device*>, kMostDevices> devices{};
  std::atomic<const Device*>& place = devices[static_cast<size_t>(index) % kMostDevices];
  const Device* known = place.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto mine = std::make_unique<const Device>(query_device(index));
  if (place.compare_exchange_strong(known, mine.get(), std::memory_order_acq_rel)) return *mine.release();
  return *known;
}

// ---- from problem to something that can be launched ----

struct Ready {
  std::shared_ptr<const LoadedKernel> kernel;  // null when not served
  std::string reason;                          // why not
  Plan plan;
  unsigned blocks = 0;
  Context primary = nullptr;
};

// A thread that has not called the CUDA runtime yet has no current context, though torch regards its device as set.
void bind_context(const Device& device) {
  Context context = nullptr;
  if (driver().cuCtxGetCurrent(&context) != kSuccess || context == nullptr) driver().cuCtxSetCurrent(device.primary);
}

Ready prepare(const MlpProblem& problem, const Plan* given, int device_index) {
  Ready ready;
  ready.reason = !driver().missing.empty()  ? driver().missing
                 : !nvrtc().missing.empty() ? nvrtc().missing
                                            : fork_error();
  if (!ready.reason.empty()) return ready;
  const Device& device = device_at(device_index);
  ready.reason = device.error;
  if (!ready.reason.empty()) return ready;

  ready.plan = given != nullptr ? *given : plan(problem, device.properties);
  ready.primary = device.primary;
  if (ready.plan.kernel == Plan::Kernel::none) {
    ready.reason = ready.plan.reason;
    return ready;
  }
  bind_context(device);
  const Target target = {device.properties.major, device.properties.minor, ready.plan.arch_specific};
  const auto kernel = load(kernel_source(problem, ready.plan), target, device_index, ready.plan.threads,
                           ready.plan.shared_bytes, ready.plan.cluster_size);
  ready.reason = kernel->error;
  if (!ready.reason.empty()) return ready;
  int64_t blocks = ready.plan.grid;
  if (ready.plan.persistent) {
    const int64_t resident =
        static_cast<int64_t>(kernel->blocks_per_multiprocessor) * device.properties.multiprocessors;
    blocks = std::min(blocks, resident / ready.plan.cluster_size * ready.plan.cluster_size);
  }
  ready.blocks = static_cast<unsigned>(blocks);
  ready.kernel = kernel;
  return ready;
}

// ---- the steady state ----

// Whether one plan and one kernel serve both; the row stride is only passed on.
bool same(const MlpProblem& a, const MlpProblem& b) {
  const auto equal = [](const Activation& x, const Activation& y) {
    return x.kind == y.kind && std::memcmp(x.parameters, y.parameters, sizeof x.parameters) == 0;
  };
  return a.depth == b.depth && a.rows == b.rows && a.dtype == b.dtype && a.bias_mask == b.bias_mask &&
         a.alignment == b.alignment && a.allow_tf32 == b.allow_tf32 && a.saves_hidden == b.saves_hidden &&
         std::memcmp(a.widths, b.widths, sizeof(int64_t) * static_cast<size_t>(a.depth + 1)) == 0 &&
         equal(a.activation, b.activation) && equal(a.output_activation, b.output_activation);
}

uint64_t hash(const MlpProblem& problem, int device_index) {
  constexpr uint64_t factor = 0x9e3779b97f4a7c15;
  uint64_t state = static_cast<uint64_t>(problem.rows) * factor + static_cast<uint64_t>(device_index);
  for (int l = 0; l <= problem.depth; ++l) state = (state ^ static_cast<uint64_t>(problem.widths[l])) * factor;
  state ^=
      problem.bias_mask | static_cast<uint64_t>(problem.alignment) << 16 | static_cast<uint64_t>(problem.dtype) << 24 |
      static_cast<uint64_t>(problem.saves_hidden) << 28 | static_cast<uint64_t>(problem.activation.kind) << 32 |
      static_cast<uint64_t>(problem.output_activation.kind) << 40 | static_cast<uint64_t>(problem.allow_tf32) << 48;
  return state * factor >> 32;
}

// What this thread launched lately: no lock, and nothing to share with another thread.
struct Slot {
  int generation = -1;  // of the caches that `ready` comes from; -1: empty
  int device_index = 0;
  MlpProblem problem;
  Ready ready;
};
constexpr size_t kSlots = 256;

Slot& find_slot(const MlpProblem& problem, int device_index) {
  static thread_local const std::unique_ptr<Slot[]> slots{new Slot[kSlots]};
  Slot& slot = slots[hash(problem, device_index) % kSlots];
  if (slot.generation != generation() || slot.device_index != device_index || !same(slot.problem, problem)) {
    slot.ready = prepare(problem, nullptr, device_index);
    slot.problem = problem;
    slot.device_index = device_index;
    slot.generation = generation();
  }
  return slot;
}

DriverResult launch(const Ready& ready, const MlpProblem& problem, const MlpOperands& operands, Stream stream) {
  // KernelArguments<depth> of kernels/interface.cuh: nothing but 8-byte words.
  uint64_t words[4 + 3 * kMaxDepth];
  uint64_t* next = words;
  const auto add = [&](const void* pointer) { *next++ = reinterpret_cast<uint64_t>(pointer); };
  const int depth = problem.depth;
  add(operands.x);
  add(operands.y);
  for (int l = 0; l < depth; ++l) add(operands.weights[l]);
  for (int l = 0; l < depth; ++l) add(operands.biases[l]);
  for (int l = 0; l < depth; ++l) add(l < depth - 1 ? operands.hidden[l] : nullptr);
  *next++ = static_cast<uint64_t>(problem.rows);
  *next++ = static_cast<uint64_t>(problem.x_row_stride);
  void* parameters[] = {words};

  const Driver& api = driver();
  const Plan& plan = ready.plan;
  if (plan.cluster_size == 1 && !plan.dependent_launch) {
    return api.cuLaunchKernel(ready.kernel->function, ready.blocks, 1, 1, static_cast<unsigned>(plan.threads), 1, 1,
                              static_cast<unsigned>(plan.shared_bytes), stream, parameters, nullptr);
  }
  LaunchAttribute attributes[2] = {};
  LaunchConfig config = {};
  config.grid[0] = ready.blocks;
  config.block[0] = static_cast<uint32_t>(plan.threads);
  config.grid[1] = config.grid[2] = config.block[1] = config.block[2] = 1;
  config.shared_bytes = static_cast<uint32_t>(plan.shared_bytes);
  config.stream = stream;
  config.attributes = attributes;
  if (plan.cluster_size > 1) {
    LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = LaunchAttribute::cluster_dimension;
    attribute.cluster[0] = static_cast<uint32_t>(plan.cluster_size);
    attribute.cluster[1] = attribute.cluster[2] = 1;
  }
  if (plan.dependent_launch) {
    LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = LaunchAttribute::programmatic_stream_serialization;
    attribute.allowed = 1;
  }
  return api.cuLaunchKernelEx(&config, ready.kernel->function, parameters, nullptr);
}

bool run_ready(const Ready& ready, const MlpProblem& problem, const MlpOperands& operands, int device_index,
               std::string* reason) {
  if (ready.kernel == nullptr) {
    if (reason != nullptr) *reason = ready.reason;
    return false;
  }
  if (problem.rows == 0) return true;
  void* stream = nullptr;
  if (driver().aoti_torch_get_current_cuda_stream(device_index, &stream) != 0) {
    if (reason != nullptr) *reason = "torch has no current stream for this device";
    return false;
  }
  DriverResult result = launch(ready, problem, operands, static_cast<Stream>(stream));
  if (result == kInvalidContext || result == kContextDestroyed) {
    driver().cuCtxSetCurrent(ready.primary);
    result = launch(ready, problem, operands, static_cast<Stream>(stream));
  }
  if (result == kSuccess) return true;
  if (reason != nullptr) *reason = describe("cuLaunchKernel", result);
  return false;
}

}  // namespace

bool run(const MlpProblem& problem, const MlpOperands& operands, int device_index, std::string* reason) {
  return run_ready(find_slot(problem, device_index).ready, problem, operands, device_index, reason);
}

bool run(const MlpProblem& problem, const Plan& plan, const MlpOperands& operands, int device_index,
         std::string* reason) {
  return run_ready(prepare(problem, &plan, device_index), problem, operands, device_index, reason);
}

}  // namespace fmlp::cuda
