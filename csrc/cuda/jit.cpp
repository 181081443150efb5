#include "jit.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "disk_cache.h"
#include "embedded.h"
#include "once_cache.h"

namespace fmlp::cuda {
namespace {

// ---- what survives a fork ----

struct State {
  OnceCache<CompiledKernel> compiled;
  OnceCache<LoadedKernel> loaded;
};

// The child of a fork starts with empty caches. The old ones are left alone, since another thread of the parent may
// have held their locks at the moment of the fork.
std::atomic<State*> current_state{nullptr};
std::atomic<int> current_generation{0};
std::atomic<bool> loaded_anything{false};
std::atomic<bool> forked_after_loading{false};

State& state() {
  static const bool registered = [] {
    current_state = new State;
    pthread_atfork(nullptr, nullptr, [] {
      current_state = new State;
      ++current_generation;
      if (loaded_anything) forked_after_loading = true;
    });
    return true;
  }();
  static_cast<void>(registered);
  return *current_state;
}

// ---- architectures and options ----

const std::string& embedded_sources_hash() {
  static const std::string text = [] {
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < kEmbeddedFileCount; ++i) {
      for (const char* part : {kEmbeddedFiles[i].name, kEmbeddedFiles[i].text}) {
        for (const char* c = part; *c != '\0'; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001b3;
        hash *= 0x100000001b3;
      }
    }
    char digits[20];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
    return std::string(digits);
  }();
  return text;
}

// "sm_90" where this NVRTC makes machine code for the target, else "compute_…" of the newest architecture below it,
// whose PTX the driver compiles on loading; empty when there is none.
std::string architecture(Target target) {
  int count = 0;
  if (nvrtc().nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return "";
  std::vector<int> known(static_cast<size_t>(count));
  if (nvrtc().nvrtcGetSupportedArchs(known.data()) != 0) return "";
  const int wanted = target.major * 10 + target.minor;
  if (std::find(known.begin(), known.end(), wanted) != known.end()) {
    return "sm_" + std::to_string(wanted) + (target.arch_specific ? "a" : "");
  }
  int newest = 0;
  for (const int arch : known) {
    if (arch < wanted) newest = std::max(newest, arch);
  }
  return newest == 0 ? "" : "compute_" + std::to_string(newest);
}

std::vector<std::string> compile_options(const std::string& arch) {
  return {"--std=c++20", "--device-as-default-execution-space", "--gpu-architecture=" + arch, "--ptxas-options=-v"};
}

// ---- NVRTC ----

// The number in front of `label` in ptxas's report, or 0.
int reported(const std::string& log, const char* label) {
  const size_t end = log.find(label);
  if (end == std::string::npos) return 0;
  size_t begin = end;
  while (begin > 0 && log[begin - 1] >= '0' && log[begin - 1] <= '9') --begin;
  return std::atoi(log.substr(begin, end - begin).c_str());
}

// Owns an NVRTC program.
struct Program {
  void* handle = nullptr;
  ~Program() {
    if (handle != nullptr) nvrtc().nvrtcDestroyProgram(&handle);
  }
};

CompiledKernel run_nvrtc(const std::string& source, const std::string& arch) {
  const Nvrtc& api = nvrtc();
  CompiledKernel result;
  const auto failed = [&](const std::string& what, int code) {
    result.error = what + " (" + api.nvrtcGetErrorString(code) + ")";
    return result;
  };

  std::vector<const char*> names, texts;
  for (int i = 0; i < kEmbeddedFileCount; ++i) {
    names.push_back(kEmbeddedFiles[i].name);
    texts.push_back(kEmbeddedFiles[i].text);
  }
  Program program;
  if (const int code = api.nvrtcCreateProgram(&program.handle, source.c_str(), "fmlp_kernel.cu", kEmbeddedFileCount,
                                              texts.data(), names.data())) {
    return failed("NVRTC does not take the program", code);
  }
  const std::vector<std::string> options = compile_options(arch);
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());

  const auto start = std::chrono::steady_clock::now();
  const int code = api.nvrtcCompileProgram(program.handle, static_cast<int>(pointers.size()), pointers.data());
  result.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  size_t bytes = 0;
  std::string log;
  if (api.nvrtcGetProgramLogSize(program.handle, &bytes) == 0 && bytes > 1) {
    log.resize(bytes);
    api.nvrtcGetProgramLog(program.handle, log.data());
    log.resize(std::strlen(log.c_str()));
  }
  if (code != 0) return failed("NVRTC does not compile the kernel for " + arch + ": " + log, code);
  result.registers = reported(log, " registers");
  result.spill_bytes = reported(log, " bytes spill stores") + reported(log, " bytes spill loads");
  result.shared_bytes = reported(log, " bytes smem");

  const bool is_ptx = arch.rfind("compute_", 0) == 0;
  const auto size_of_image = is_ptx ? api.nvrtcGetPTXSize : api.nvrtcGetCUBINSize;
  const auto image = is_ptx ? api.nvrtcGetPTX : api.nvrtcGetCUBIN;
  if (const int error = size_of_image(program.handle, &bytes); error != 0 || bytes == 0) {
    return failed("NVRTC gives no image for " + arch, error);
  }
  result.image.resize(bytes);
  if (const int error = image(program.handle, result.image.data()))
    return failed("NVRTC gives no image for " + arch, error);
  return result;
}

// ---- disk ----

// The statistics in front of the image.
struct Record {
  int32_t registers, spill_bytes, shared_bytes, reserved;
};

bool read_from_disk(const std::string& key, CompiledKernel& kernel) {
  const std::optional<std::string> payload = disk_cache::read(key);
  Record record;
  if (!payload || payload->size() <= sizeof record) return false;
  std::memcpy(&record, payload->data(), sizeof record);
  kernel.registers = record.registers;
  kernel.spill_bytes = record.spill_bytes;
  kernel.shared_bytes = record.shared_bytes;
  kernel.image = payload->substr(sizeof record);
  kernel.from_disk = true;
  return true;
}

void write_to_disk(const std::string& key, const CompiledKernel& kernel) {
  const Record record = {kernel.registers, kernel.spill_bytes, kernel.shared_bytes, 0};
  std::string payload(reinterpret_cast<const char*>(&record), sizeof record);
  disk_cache::write(key, payload + kernel.image);
}

CompiledKernel compile_uncached(const std::string& source, const std::string& arch) {
  std::string key = source + "// arch " + arch + "\n// options";
  for (const std::string& option : compile_options(arch)) key += " " + option;
  key += "\n// NVRTC " + std::to_string(nvrtc().major) + "." + std::to_string(nvrtc().minor) + "\n// kernel files " +
         embedded_sources_hash() + "\n";
  CompiledKernel kernel;
  if (read_from_disk(key, kernel)) return kernel;
  kernel = run_nvrtc(source, arch);
  if (kernel.error.empty()) {
    write_to_disk(key, kernel);
  } else if (static std::atomic<bool> warned{false}; !warned.exchange(true)) {
    std::fprintf(stderr, "fmlp_op: a kernel could not be compiled, torch's own operators are used instead: %s\n",
                 kernel.error.c_str());
  }
  return kernel;
}

// ---- driver ----

// Loading a module allocates, which a stream capture in its strict modes would forbid to this thread.
struct RelaxedCapture {
  int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode); }
  ~RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode); }
};

LoadedKernel load_uncached(const CompiledKernel& compiled, int threads, int dynamic_shared_bytes, int cluster_size) {
  constexpr int kMaxDynamicSharedBytes = 8, kNonPortableClusterSizeAllowed = 14;  // of CUfunction_attribute
  const Driver& api = driver();
  LoadedKernel kernel;
  const auto failed = [&](const char* function, DriverResult result) {
    kernel.error = describe(function, result);
    return kernel;
  };
  const RelaxedCapture relaxed;
  loaded_anything = true;
  Module module = nullptr;
  if (const DriverResult result = api.cuModuleLoadData(&module, compiled.image.data()))
    return failed("cuModuleLoadData", result);
  if (const DriverResult result = api.cuModuleGetFunction(&kernel.function, module, "fmlp_kernel")) {
    return failed("cuModuleGetFunction", result);
  }
  if (dynamic_shared_bytes > 0) {
    if (const DriverResult result =
            api.cuFuncSetAttribute(kernel.function, kMaxDynamicSharedBytes, dynamic_shared_bytes)) {
      return failed("cuFuncSetAttribute", result);
    }
  }
  if (cluster_size > 8) {
    if (const DriverResult result = api.cuFuncSetAttribute(kernel.function, kNonPortableClusterSizeAllowed, 1)) {
      return failed("cuFuncSetAttribute", result);
    }
  }
  if (const DriverResult result = api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
          &kernel.blocks_per_multiprocessor, kernel.function, threads, static_cast<size_t>(dynamic_shared_bytes))) {
    return failed("cuOccupancyMaxActiveBlocksPerMultiprocessor", result);
  }
  if (kernel.blocks_per_multiprocessor == 0) kernel.error = "no block of the kernel fits this device";
  return kernel;
}

}  // namespace

std::shared_ptr<const CompiledKernel> compile(const std::string& source, Target target) {
  if (!nvrtc().missing.empty()) {
    CompiledKernel failed;
    failed.error = nvrtc().missing;
    return std::make_shared<const CompiledKernel>(failed);
  }
  const std::string arch = architecture(target);
  return state().compiled.get(source + arch, [&] {
    if (!arch.empty()) return compile_uncached(source, arch);
    CompiledKernel failed;
    failed.error = "this NVRTC has no architecture for compute capability " + std::to_string(target.major) + "." +
                   std::to_string(target.minor);
    return failed;
  });
}

std::shared_ptr<const LoadedKernel> load(const std::string& source, Target target, int device_index, int threads,
                                         int dynamic_shared_bytes, int cluster_size) {
  return state().loaded.get(source + std::to_string(device_index), [&] {
    const auto compiled = compile(source, target);
    if (compiled->error.empty()) return load_uncached(*compiled, threads, dynamic_shared_bytes, cluster_size);
    LoadedKernel failed;
    failed.error = compiled->error;
    return failed;
  });
}

int generation() { return current_generation.load(std::memory_order_relaxed); }

std::string fork_error() {
  return forked_after_loading
             ? "this process was forked from one that had already used CUDA, which CUDA does not support: "
               "start it with the spawn method"
             : "";
}

}  // namespace fmlp::cuda
