// The few NVRTC and CUDA driver functions this library calls, resolved at run time.
//
// Building needs no CUDA and loading the library needs no GPU: `nvrtc()` and `driver()` look the functions up once, in
// what torch already brought along, and say in `missing` why they found nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace fmlp::cuda {

// The driver's types, declared here because its header is not there at build time; the layouts are those of cuda.h.
using DriverResult = int;
using Context = struct ContextOpaque*;
using Module = struct ModuleOpaque*;
using Function = struct FunctionOpaque*;
using Stream = struct StreamOpaque*;

struct LaunchAttribute {
  enum : int32_t { cluster_dimension = 4, programmatic_stream_serialization = 6 };
  int32_t id;
  int32_t padding;
  union {
    char bytes[64];
    uint32_t cluster[3];
    int32_t allowed;
  };
};

struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};

inline constexpr DriverResult kSuccess = 0, kInvalidContext = 201, kContextDestroyed = 709;

#define FMLP_NVRTC_FUNCTIONS(X)                                                                         \
  X(nvrtcVersion, int (*)(int* major, int* minor))                                                      \
  X(nvrtcGetErrorString, const char* (*)(int))                                                          \
  X(nvrtcGetNumSupportedArchs, int (*)(int*))                                                           \
  X(nvrtcGetSupportedArchs, int (*)(int*))                                                              \
  X(nvrtcCreateProgram, int (*)(void** program, const char* source, const char* name, int header_count, \
                                const char* const* headers, const char* const* include_names))          \
  X(nvrtcDestroyProgram, int (*)(void** program))                                                       \
  X(nvrtcCompileProgram, int (*)(void* program, int option_count, const char* const* options))          \
  X(nvrtcGetProgramLogSize, int (*)(void* program, size_t*))                                            \
  X(nvrtcGetProgramLog, int (*)(void* program, char*))                                                  \
  X(nvrtcGetCUBINSize, int (*)(void* program, size_t*))                                                 \
  X(nvrtcGetCUBIN, int (*)(void* program, char*))                                                       \
  X(nvrtcGetPTXSize, int (*)(void* program, size_t*))                                                   \
  X(nvrtcGetPTX, int (*)(void* program, char*))

#define FMLP_DRIVER_FUNCTIONS(X)                                                                               \
  X(cuGetErrorString, DriverResult (*)(DriverResult, const char**))                                            \
  X(cuDriverGetVersion, DriverResult (*)(int*))                                                                \
  X(cuDeviceGet, DriverResult (*)(int*, int ordinal))                                                          \
  X(cuDeviceGetAttribute, DriverResult (*)(int*, int attribute, int device))                                   \
  X(cuDevicePrimaryCtxRetain, DriverResult (*)(Context*, int device))                                          \
  X(cuCtxSetCurrent, DriverResult (*)(Context))                                                                \
  X(cuCtxGetCurrent, DriverResult (*)(Context*))                                                               \
  X(cuModuleLoadData, DriverResult (*)(Module*, const void*))                                                  \
  X(cuModuleGetFunction, DriverResult (*)(Function*, Module, const char*))                                     \
  X(cuFuncSetAttribute, DriverResult (*)(Function, int attribute, int value))                                  \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, DriverResult (*)(int*, Function, int threads, size_t shared)) \
  X(cuThreadExchangeStreamCaptureMode, DriverResult (*)(int* mode))                                            \
  X(cuLaunchKernelEx, DriverResult (*)(const LaunchConfig*, Function, void** parameters, void** extra))        \
  X(cuLaunchKernel, DriverResult (*)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                                     unsigned shared_bytes, Stream, void** parameters, void** extra))

#define FMLP_MEMBER(name, type) std::type_identity_t<type> name = nullptr;

struct Nvrtc {
  FMLP_NVRTC_FUNCTIONS(FMLP_MEMBER)
  int major = 0, minor = 0;
  std::string missing;  // why NVRTC cannot be used; empty when it can
};

struct Driver {
  FMLP_DRIVER_FUNCTIONS(FMLP_MEMBER)
  int32_t (*aoti_torch_get_current_cuda_stream)(int32_t device_index, void** stream) = nullptr;
  int version = 0;      // 12080 for 12.8
  std::string missing;  // why the driver cannot be used; empty when it can
};

#undef FMLP_MEMBER

const Nvrtc& nvrtc();
const Driver& driver();

// A driver result as a sentence: "cuLaunchKernel failed: invalid argument (CUDA error 1)".
std::string describe(const char* function, DriverResult result);

}  // namespace fmlp::cuda
