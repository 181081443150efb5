#include "c_api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "cpu/cpu_mlp.h"
#include "cuda/disk_cache.h"
#include "cuda/driver.h"
#include "cuda/jit.h"
#include "cuda/plan.h"
#include "cuda/source.h"

#define FMLP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace fmlp;
using namespace fmlp::cuda;

MlpProblem to_problem(const fmlp_problem& from) {
  MlpProblem problem;
  problem.dtype = static_cast<DType>(from.dtype);
  problem.depth = std::clamp(from.depth, 1, kMaxDepth);
  problem.rows = from.rows;
  problem.x_row_stride = from.x_row_stride;
  std::copy(std::begin(from.widths), std::end(from.widths), problem.widths);
  problem.bias_mask = from.bias_mask;
  problem.alignment = from.alignment;
  problem.activation.kind = static_cast<ActivationKind>(from.activation);
  problem.output_activation.kind = static_cast<ActivationKind>(from.output_activation);
  std::copy(std::begin(from.activation_parameters), std::end(from.activation_parameters),
            problem.activation.parameters);
  std::copy(std::begin(from.output_activation_parameters), std::end(from.output_activation_parameters),
            problem.output_activation.parameters);
  problem.allow_tf32 = from.allow_tf32 != 0;
  problem.saves_hidden = from.saves_hidden != 0;
  return problem;
}

DeviceProperties to_device(const fmlp_device& from) {
  DeviceProperties device;
  device.major = from.major;
  device.minor = from.minor;
  device.multiprocessors = from.multiprocessors;
  device.shared_bytes_per_block_optin = from.shared_bytes_per_block_optin;
  device.shared_bytes_per_multiprocessor = from.shared_bytes_per_multiprocessor;
  device.supports_dependent_launch = from.supports_dependent_launch != 0;
  return device;
}

int64_t copy_out(const std::string& from, char* text, int64_t capacity) {
  if (text != nullptr && capacity > 0) {
    const size_t count = std::min(from.size(), static_cast<size_t>(capacity) - 1);
    std::memcpy(text, from.data(), count);
    text[count] = '\0';
  }
  return static_cast<int64_t>(from.size());
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

// A JSON object, one member after the other.
class Json {
 public:
  Json& add(const char* name, const std::string& value) { return raw(name, quoted(value)); }
  Json& add(const char* name, const char* value) { return raw(name, quoted(value)); }
  Json& add(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
  Json& add(const char* name, int64_t value) { return raw(name, std::to_string(value)); }
  Json& add(const char* name, int value) { return raw(name, std::to_string(value)); }
  Json& add(const char* name, double value) { return raw(name, std::to_string(value)); }
  std::string text() const { return "{" + members_ + "}"; }

 private:
  Json& raw(const char* name, const std::string& value) {
    members_ += (members_.empty() ? "" : ", ") + quoted(name) + ": " + value;
    return *this;
  }
  std::string members_;
};

}  // namespace

FMLP_EXPORT const char* fmlp_cpu_instruction_set() { return cpu::isa(); }

FMLP_EXPORT int32_t fmlp_cpu_covers(const fmlp_problem* problem) { return cpu::covers(to_problem(*problem)); }

FMLP_EXPORT int64_t fmlp_plan_json(const fmlp_problem* problem, const fmlp_device* device, char* text,
                                   int64_t capacity) {
  const Plan chosen = plan(to_problem(*problem), to_device(*device));
  return copy_out(Json()
                      .add("kernel", kernel_name(chosen.kernel))
                      .add("reason", chosen.reason)
                      .add("threads", chosen.threads)
                      .add("rows_per_block", chosen.rows_per_block)
                      .add("rows_per_warp", chosen.rows_per_warp)
                      .add("blocks_per_multiprocessor", chosen.blocks_per_multiprocessor)
                      .add("persistent", chosen.persistent)
                      .add("dependent_launch", chosen.dependent_launch)
                      .add("cluster_size", chosen.cluster_size)
                      .add("stages", chosen.stages)
                      .add("shared_bytes", chosen.shared_bytes)
                      .add("arch_specific", chosen.arch_specific)
                      .add("grid", chosen.grid)
                      .text(),
                  text, capacity);
}

FMLP_EXPORT int64_t fmlp_kernel_source(const fmlp_problem* problem, const fmlp_device* device, char* text,
                                       int64_t capacity) {
  const MlpProblem wanted = to_problem(*problem);
  const Plan chosen = plan(wanted, to_device(*device));
  return copy_out(chosen.kernel == Plan::Kernel::none ? "" : kernel_source(wanted, chosen), text, capacity);
}

FMLP_EXPORT int64_t fmlp_compile_json(const fmlp_problem* problem, const fmlp_device* device, char* text,
                                      int64_t capacity) {
  const MlpProblem wanted = to_problem(*problem);
  const Plan chosen = plan(wanted, to_device(*device));
  if (chosen.kernel == Plan::Kernel::none) {
    return copy_out(Json().add("kernel", "none").add("error", chosen.reason).text(), text, capacity);
  }
  const auto kernel = compile(kernel_source(wanted, chosen), {device->major, device->minor, chosen.arch_specific});
  return copy_out(Json()
                      .add("kernel", kernel_name(chosen.kernel))
                      .add("registers", kernel->registers)
                      .add("spill_bytes", kernel->spill_bytes)
                      .add("shared_bytes", kernel->shared_bytes)
                      .add("image_bytes", static_cast<int64_t>(kernel->image.size()))
                      .add("milliseconds", kernel->milliseconds)
                      .add("from_disk", kernel->from_disk)
                      .add("error", kernel->error)
                      .text(),
                  text, capacity);
}

FMLP_EXPORT int64_t fmlp_cuda_info_json(char* text, int64_t capacity) {
  const auto version = [](int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); };
  return copy_out(Json()
                      .add("nvrtc", version(nvrtc().major, nvrtc().minor))
                      .add("nvrtc_missing", nvrtc().missing)
                      .add("driver", version(driver().version / 1000, driver().version % 1000 / 10))
                      .add("driver_missing", driver().missing)
                      .add("cache_folder", disk_cache::folder())
                      .text(),
                  text, capacity);
}
