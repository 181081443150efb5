// Plain C functions for Python (ctypes) and for tests. None of them needs a GPU.
//
// Those that write text work like snprintf: at most `capacity` bytes with the final zero, and the result is the length
// of the whole text without it; call again with more room when it is not smaller than `capacity`.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// MlpProblem of csrc/problem.h in fixed-size fields.
typedef struct {
  int64_t rows;
  int64_t x_row_stride;
  int64_t widths[17];  // in_features, then the out_features of every layer
  double activation_parameters[2];
  double output_activation_parameters[2];
  int32_t depth;  // 1 to 16
  int32_t dtype;  // 0 float32, 1 float16, 2 bfloat16, 3 float64
  uint32_t bias_mask;
  int32_t alignment;   // 16, 8, 4 or 2
  int32_t activation;  // place in FMLP_ACTIVATIONS of csrc/activations.h: 0 identity, 1 relu, …
  int32_t output_activation;
  int32_t allow_tf32;
  int32_t saves_hidden;
} fmlp_problem;

// The instruction set that the CPU kernels run with: "avx512", "avx2", "neon" or "generic".
const char* fmlp_cpu_instruction_set(void);

// 1 where the CPU kernel serves the problem; 0 where torch's own operators do.
int32_t fmlp_cpu_covers(const fmlp_problem* problem);

// DeviceProperties of cuda/plan.h.
typedef struct {
  int32_t major;
  int32_t minor;
  int32_t multiprocessors;
  int32_t shared_bytes_per_block_optin;
  int32_t shared_bytes_per_multiprocessor;
  int32_t supports_dependent_launch;
} fmlp_device;

// {"kernel": "row", "reason": "…", "threads": 256, "rows_per_block": 1, …, "grid": 16}
int64_t fmlp_plan_json(const fmlp_problem* problem, const fmlp_device* device, char* text, int64_t capacity);

// The generated source of the planned kernel; empty when the plan is none.
int64_t fmlp_kernel_source(const fmlp_problem* problem, const fmlp_device* device, char* text, int64_t capacity);

// Compiles the planned kernel for the device's compute capability with NVRTC.
// {"kernel": "row", "registers": 72, "spill_bytes": 0, "shared_bytes": 432, "image_bytes": 9000, "milliseconds": 80.1,
//  "from_disk": false, "error": ""}
int64_t fmlp_compile_json(const fmlp_problem* problem, const fmlp_device* device, char* text, int64_t capacity);

// {"nvrtc": "13.0", "nvrtc_missing": "", "driver": "13.0", "driver_missing": "", "cache_folder":
// "/home/me/.cache/fmlp_op"}
int64_t fmlp_cuda_info_json(char* text, int64_t capacity);

#ifdef __cplusplus
}
#endif
