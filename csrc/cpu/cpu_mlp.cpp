#include "cpu_mlp.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "../torch_shim.h"
#include "kernel.h"
#include "sizes.h"

namespace fmlp::cpu {
namespace {

struct InstructionSet {
  const char* name;
  const Kernel* kernels;
  bool has_bf16_products = false;  // AVX512-BF16
  bool has_bf16_tiles = false;     // AMX, which torch uses through oneDNN
};

InstructionSet choose_instruction_set() {
#if defined(__x86_64__)
  const char* limit = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string_view capability = limit ? limit : "";
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (capability == "default") return {"generic", kGenericKernels};
  if (has_avx512 && capability != "avx2")
    return {"avx512", kAvx512Kernels, bool(__builtin_cpu_supports("avx512bf16")),
            bool(__builtin_cpu_supports("amx-bf16"))};
  if (has_avx2) return {"avx2", kAvx2Kernels};
  return {"generic", kGenericKernels};
#elif defined(__aarch64__)
  return {"neon", kGenericKernels};
#else
  return {"generic", kGenericKernels};
#endif
}

const InstructionSet& instruction_set() {
  static const InstructionSet chosen = choose_instruction_set();
  return chosen;
}

const Kernel& kernel_for(DType dtype) {
#if defined(__x86_64__)
  if (dtype == DType::bfloat16 && instruction_set().has_bf16_products) return kAvx512Bf16Kernel;
#endif
  return instruction_set().kernels[static_cast<int>(dtype)];
}

// Memory that grows to the largest request and lives as long as its thread.
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;
  ~ScratchBuffer() { release(); }

  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      release();
      data_ = ::operator new(bytes, std::align_val_t(kScratchAlignment));
      size_ = bytes;
    }
    return data_;
  }

 private:
  void release() {
    ::operator delete(data_, std::align_val_t(kScratchAlignment));
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  int64_t size_ = 0;
};

thread_local ScratchBuffer activation_scratch;
thread_local ScratchBuffer weight_scratch;

// Below this many multiplications a thread costs more than it takes over.
constexpr int64_t kMinWorkPerThread = int64_t{1} << 18;

template <class Body>
void parallel_for(int64_t count, int64_t grain, Body body) {
  const auto call = [](int64_t begin, int64_t end, void* context) { (*static_cast<Body*>(context))(begin, end); };
  if (torch_parallel_for(0, count, grain, call, &body) != 0)
    throw std::runtime_error("fmlp: torch_parallel_for failed");
}

void run_range(const Kernel& kernel, const MlpProblem& problem, const MlpOperands& operands, int64_t first_row,
               int64_t last_row) {
  const int64_t rows = std::min(last_row - first_row, kernel.panel_rows(problem));
  const Scratch scratch = {activation_scratch.at_least(kernel.activation_bytes(problem, rows)),
                           weight_scratch.at_least(kernel.weight_bytes(problem))};
  kernel.run_rows(problem, operands, first_row, last_row, scratch);
}

int64_t multiplications_per_row(const MlpProblem& problem) {
  int64_t sum = 0;
  for (int layer = 0; layer < problem.depth; ++layer) sum += problem.widths[layer] * problem.widths[layer + 1];
  return sum;
}

// All rows in one panel; the outputs of each layer are spread over the threads.
void run_split_by_outputs(const Kernel& kernel, const MlpProblem& problem, const MlpOperands& operands) {
  const Scratch shared = {activation_scratch.at_least(kernel.activation_bytes(problem, problem.rows)), nullptr};
  const int64_t weight_bytes = kernel.weight_bytes(problem);
  kernel.load_rows(problem, operands, 0, problem.rows, shared);
  for (int layer = 0; layer < problem.depth; ++layer) {
    const int64_t outputs = problem.widths[layer + 1];
    const auto body = [&](int64_t begin, int64_t end) {
      const Scratch scratch = {shared.activations, weight_scratch.at_least(weight_bytes)};
      kernel.run_layer(problem, operands, 0, problem.rows, layer, begin * kOutputAlignment,
                       std::min(end * kOutputAlignment, outputs), scratch);
    };
    const int64_t count = divide_up(outputs, kOutputAlignment);
    const int64_t work = std::max<int64_t>(problem.rows, 4) * problem.widths[layer] * kOutputAlignment;
    const int64_t grain = divide_up(kMinWorkPerThread, work);
    if (count > grain) {
      parallel_for(count, grain, body);
    } else {
      body(0, count);
    }
  }
}

// From 32 MiB on, glibc's malloc maps fresh memory for every result, in pages of 4 kB whose first touch costs more than
// writing them (csrc/NOTES.md). Asks the system for large pages, which it is free to refuse.
void ask_for_large_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t page = 4096;
  if (bytes < int64_t{32} << 20) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace

const char* isa() { return instruction_set().name; }

bool covers(const MlpProblem& problem) {
  const int64_t* widths = problem.widths;
  if (!std::all_of(widths, widths + problem.depth + 1, [](int64_t width) { return width >= 1; })) return false;
  // With AMX, torch multiplies bfloat16 matrices far faster than our vectors can: a float32-widening prototype took 1.5
  // times as long as torch for 256-256-256-256 and 256 rows, 3.8 times for 8192 rows, and as long for 48-64-40-24 and
  // 8192 rows. Elsewhere no shape of widths 8 ... 512 and rows 1 ... 65536 was slower than torch again and again (Zen
  // 4, one thread); the closest is bfloat16 with many rows, a tie at worst.
  if (problem.dtype == DType::bfloat16 && instruction_set().has_bf16_tiles) {
    return problem.rows < 32 || widest(problem) < 128;
  }
  return true;
}

void run(const MlpProblem& problem, const MlpOperands& operands) {
  if (problem.rows == 0) return;
  const Kernel& kernel = kernel_for(problem.dtype);
  ask_for_large_pages(operands.y, problem.rows * problem.widths[problem.depth] * element_size(problem.dtype));
  // A weight has to be read for however few rows, which takes about as long as multiplying it with four.
  const int64_t row_work = multiplications_per_row(problem);
  const int64_t work = std::max<int64_t>(problem.rows, 4) * row_work;
  uint32_t threads = 1;
  if (work >= 2 * kMinWorkPerThread) torch_get_num_threads(&threads);
  if (threads == 1) return run_range(kernel, problem, operands, 0, problem.rows);

  const int64_t tile_rows = kernel.tile_rows(problem);
  const int64_t tiles = divide_up(problem.rows, tile_rows);
  if (2 * tiles <= threads) return run_split_by_outputs(kernel, problem, operands);
  parallel_for(tiles, divide_up(kMinWorkPerThread, tile_rows * row_work), [&](int64_t begin, int64_t end) {
    run_range(kernel, problem, operands, begin * tile_rows, std::min(end * tile_rows, problem.rows));
  });
}

}  // namespace fmlp::cpu
