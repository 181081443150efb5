#include "driver.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <initializer_list>

namespace fmlp::cuda {
namespace {

// Where torch's libraries lie, with a slash at the end, or empty when no torch is loaded in this process.
std::string torch_folder() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  const std::string path = map->l_name;
  return path.substr(0, path.rfind('/') + 1);
}

void* open_library(const std::string& path) { return dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL); }

// libcaffe2_nvrtc.so is part of every CUDA build of torch and depends on both NVRTC and the driver, so its handle
// reaches either, in the very copies that torch uses.
void* torch_nvrtc() {
  static void* const library = [] {
    const std::string folder = torch_folder();
    return folder.empty() ? nullptr : open_library(folder + "libcaffe2_nvrtc.so");
  }();
  return library;
}

// The first library that opens and has `symbol`.
void* find_library(const char* symbol, std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    void* library = name.empty() ? nullptr : open_library(name);
    if (library != nullptr && dlsym(library, symbol) != nullptr) return library;
  }
  return nullptr;
}

template <class Pointer>
void resolve(void* library, const char* name, Pointer& pointer, std::string& missing) {
  pointer = reinterpret_cast<Pointer>(dlsym(library, name));
  if (pointer == nullptr && missing.empty()) missing = std::string("the library found has no function ") + name;
}

// NVRTC opens its builtins by name and does not look beside itself; once loaded from there, the name is found.
void load_builtins(const Nvrtc& table) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(table.nvrtcVersion), &info) == 0 || info.dli_fname == nullptr) return;
  const std::string path = info.dli_fname;
  open_library(path.substr(0, path.rfind('/') + 1) + "libnvrtc-builtins.so." + std::to_string(table.major) + "." +
               std::to_string(table.minor));
}

Nvrtc load_nvrtc() {
  Nvrtc table;
  const char* chosen = std::getenv("FMLP_NVRTC_PATH");
  void* library = nullptr;
  if (chosen != nullptr && *chosen != '\0') {
    library = find_library("nvrtcCompileProgram", {chosen});
    if (library == nullptr) {
      table.missing = std::string("FMLP_NVRTC_PATH names ") + chosen + ", which cannot be loaded as NVRTC";
      return table;
    }
  } else if (torch_nvrtc() != nullptr && dlsym(torch_nvrtc(), "nvrtcCompileProgram") != nullptr) {
    library = torch_nvrtc();
  } else {
    const std::string folder = torch_folder();
    const std::string packages = folder.empty() ? "" : folder + "../../nvidia/";  // where pip puts CUDA's parts
    library = find_library("nvrtcCompileProgram",
                           {"libnvrtc.so.13", packages.empty() ? "" : packages + "cu13/lib/libnvrtc.so.13",
                            "libnvrtc.so.12", packages.empty() ? "" : packages + "cuda_nvrtc/lib/libnvrtc.so.12"});
  }
  if (library == nullptr) {
    table.missing =
        "NVRTC was not found: this torch has no libcaffe2_nvrtc.so beside it and no libnvrtc.so.13 or .12 can be "
        "loaded "
        "(set FMLP_NVRTC_PATH to one)";
    return table;
  }
#define FMLP_RESOLVE(name, type) resolve(library, #name, table.name, table.missing);
  FMLP_NVRTC_FUNCTIONS(FMLP_RESOLVE)
  if (table.missing.empty() && table.nvrtcVersion(&table.major, &table.minor) != 0) {
    table.missing = "NVRTC does not answer nvrtcVersion";
  } else if (table.missing.empty() && table.major < 12) {
    table.missing =
        "NVRTC " + std::to_string(table.major) + "." + std::to_string(table.minor) + " is too old: 12.0 is needed";
  } else if (table.missing.empty()) {
    load_builtins(table);
  }
  return table;
}

Driver load_driver() {
  Driver table;
  void* library = torch_nvrtc();
  if (library == nullptr || dlsym(library, "cuLaunchKernel") == nullptr) {
    library = find_library("cuLaunchKernel", {"libcuda.so.1"});
  }
  if (library == nullptr) {
    table.missing = "the NVIDIA driver (libcuda.so.1) was not found";
    return table;
  }
  FMLP_DRIVER_FUNCTIONS(FMLP_RESOLVE)
#undef FMLP_RESOLVE
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch_cuda == nullptr) {
    table.missing = "this torch has no CUDA support (libtorch_cuda.so is not loaded)";
  } else {
    resolve(torch_cuda, "aoti_torch_get_current_cuda_stream", table.aoti_torch_get_current_cuda_stream, table.missing);
  }
  if (table.cuDriverGetVersion != nullptr) table.cuDriverGetVersion(&table.version);
  return table;
}

}  // namespace

const Nvrtc& nvrtc() {
  static const Nvrtc table = load_nvrtc();
  return table;
}

const Driver& driver() {
  static const Driver table = load_driver();
  return table;
}

std::string describe(const char* function, DriverResult result) {
  const char* text = nullptr;
  const Driver& table = driver();
  if (table.cuGetErrorString != nullptr) table.cuGetErrorString(result, &text);
  return std::string(function) + " failed: " + (text != nullptr ? text : "unknown error") + " (CUDA error " +
         std::to_string(result) + ")";
}

}  // namespace fmlp::cuda
