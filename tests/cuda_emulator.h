// A GPU on one CPU thread, for cuda_emulator.py: each CUDA thread is a coroutine that runs until it has to wait for
// others. Warps take turns in random order; within a warp, lanes run one after the other. What PTX instructions do is
// written down here for those that the kernels use, with their layouts of matrices in registers.
//
// Not modelled: time, memory order (what a thread wrote is seen by all at once), instructions that still run after
// their issue (wgmma is done at once), and how tensor cores cut sums (these are rounded). Shared memory starts as NaN.
#pragma once

#include <math.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace emulator {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// ---- threads, warps, blocks, clusters ----

struct Index {
  int x;
};

// Threads that meet, each with operands of its own.
struct Meeting {
  int arrived = 0;
  long phase = 0;
  std::vector<void*> operands = std::vector<void*>(1024);
};

struct Barrier {  // an mbarrier
  int arrivals = 0, pending = 0;
  long bytes = 0, phase = 0;
};

constexpr unsigned kFirstAddress = 1024, kBlockShift = 24;  // shared addresses: block of the cluster, then offset
constexpr size_t kSlack = 64;  // what ldmatrix may read behind the end (../csrc/cuda/kernels/tile_products.cuh)

struct Block;

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::map<unsigned, Barrier> barriers;
  long arrived = 0, phase = 0, threads = 0;
};

struct Thread {
  static constexpr size_t kStackBytes = 256 << 10;
  Thread(Block* block, int x, int block_x) : block(block), index{x}, block_index{block_x} {}
  Block* block;
  Index index, block_index;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool is_done = false;
  long cluster_phase = 0;
};

struct Block {
  Block(Cluster* cluster, unsigned rank, int dynamic_bytes)
      : cluster(cluster), rank(rank), dynamic_shared(dynamic_bytes + kSlack + 128, '\xff') {}
  // Aligned to 128 bytes.
  char* shared() { return dynamic_shared.data() + (128 - reinterpret_cast<size_t>(dynamic_shared.data()) % 128) % 128; }
  // Static shared memory, by the number of the variable.
  template <class Type>
  Type& variable(int number) {
    auto& storage = variables[number];
    if (storage.empty()) storage.assign(sizeof(Type) + 16, '\xff');
    return *reinterpret_cast<Type*>(storage.data() + (16 - reinterpret_cast<size_t>(storage.data()) % 16) % 16);
  }

  Cluster* cluster;
  unsigned rank;
  std::vector<char> dynamic_shared;
  std::map<int, std::vector<char>> variables;
  std::vector<std::unique_ptr<Thread>> threads;
  Meeting meeting, warps[32], warpgroups[8];
};

inline Thread* current;
inline int grid_size;
inline ucontext_t scheduler;
inline void (*kernel)();

inline const char* failure;  // what a kernel did that no GPU would do well

inline Block& block() { return *current->block; }
inline void yield() { swapcontext(&current->context, &scheduler); }

// Ends the launch.
[[noreturn]] inline void fail(const char* what) {
  failure = what;
  while (true) yield();
}

// When all `size` threads are here, one of them calls action(operands of all).
template <class Action>
void meet(Meeting& meeting, int size, void* operands, Action action) {
  meeting.operands[current->index.x % size] = operands;
  if (++meeting.arrived == size) {
    action(meeting.operands);
    meeting.arrived = 0;
    ++meeting.phase;
  } else {
    for (const long phase = meeting.phase; meeting.phase == phase;) yield();
  }
}

template <class Operands, class Action>
void meet_warp(Operands& own, Action action) {
  meet(block().warps[current->index.x / 32], 32, &own, [&](std::vector<void*>& operands) {
    action([&](int lane) -> Operands& { return *static_cast<Operands*>(operands[lane]); });
  });
}

inline void run_thread() {
  kernel();
  current->is_done = true;
  while (true) yield();
}

inline void run_cluster(Cluster& cluster, std::mt19937& random) {
  std::vector<std::vector<Thread*>> warps;
  for (auto& block : cluster.blocks) {
    for (size_t t = 0; t < block->threads.size(); ++t) {
      if (t % 32 == 0) warps.emplace_back();
      warps.back().push_back(block->threads[t].get());
    }
  }
  const Thread* slow_warp = nullptr;
  const Block* slow_block = nullptr;
  for (long round = 0; !warps.empty() && failure == nullptr; ++round) {
    if (round > 1'000'000) failure = "all threads wait for each other";
    std::shuffle(warps.begin(), warps.end(), random);
    if (round % 16 == 0) {  // for a while, perhaps one warp falls behind, or one block
      slow_warp = random() % 2 ? warps.front().front() : nullptr;
      slow_block = random() % 2 ? warps.back().front()->block : nullptr;
    }
    for (auto& warp : warps) {
      if (warp.front() == slow_warp || warp.front()->block == slow_block) continue;
      for (Thread* thread : warp) {
        if (thread->is_done) continue;
        current = thread;
        swapcontext(&scheduler, &thread->context);
      }
    }
    std::erase_if(
        warps, [](auto& warp) { return std::all_of(warp.begin(), warp.end(), [](Thread* t) { return t->is_done; }); });
  }
}

// Returns what went wrong, or null.
inline const char* launch(int blocks, int threads, int cluster_size, int shared_bytes, unsigned seed,
                          void (*function)()) {
  std::mt19937 random(seed);
  grid_size = blocks;
  kernel = function;
  failure = nullptr;
  for (int first = 0; first < blocks && failure == nullptr; first += cluster_size) {
    Cluster cluster;
    cluster.threads = static_cast<long>(cluster_size) * threads;
    for (int rank = 0; rank < cluster_size; ++rank) {
      cluster.blocks.push_back(std::make_unique<Block>(&cluster, rank, shared_bytes));
      Block* block = cluster.blocks.back().get();
      for (int t = 0; t < threads; ++t) {
        block->threads.push_back(std::make_unique<Thread>(block, t, first + rank));
        Thread* thread = block->threads.back().get();
        getcontext(&thread->context);
        thread->context.uc_stack.ss_sp = thread->stack.get();
        thread->context.uc_stack.ss_size = Thread::kStackBytes;
        makecontext(&thread->context, run_thread, 0);
      }
    }
    run_cluster(cluster, random);
  }
  return failure;
}

// ---- shared memory and barriers ----

inline unsigned shared_address(const void* pointer) {
  const long offset = static_cast<const char*>(pointer) - block().shared();
  return static_cast<unsigned>(offset) + kFirstAddress + (block().rank << kBlockShift);
}

inline unsigned remote_address(unsigned address, unsigned rank) {
  return (address & ((1u << kBlockShift) - 1)) | rank << kBlockShift;
}

// 16 bytes of shared memory, of any block of the cluster.
inline char* shared_memory(unsigned address) {
  auto& blocks = block().cluster->blocks;
  const unsigned rank = address >> kBlockShift, offset = (address & ((1u << kBlockShift) - 1)) - kFirstAddress;
  if (rank >= blocks.size()) fail("a shared address names no block of the cluster");
  if (offset + 16 > blocks[rank]->dynamic_shared.size() - 128) fail("a shared address lies outside of the block's");
  return blocks[rank]->shared() + offset;
}

inline void synchronize_threads() {
  meet(block().meeting, static_cast<int>(block().threads.size()), nullptr, [](auto&) {});
}
inline void synchronize_warp() {
  meet(block().warps[current->index.x / 32], 32, nullptr, [](auto&) {});
}

inline void arrive_at_cluster() {
  Cluster& cluster = *block().cluster;
  current->cluster_phase = cluster.phase;
  if (++cluster.arrived == cluster.threads) cluster.arrived = 0, ++cluster.phase;
}
inline void wait_for_cluster() {
  while (block().cluster->phase == current->cluster_phase) yield();
}

inline Barrier& barrier(unsigned address) {
  const auto found = block().cluster->barriers.find(address);
  if (found == block().cluster->barriers.end()) fail("a barrier is used before it is initialized");
  return found->second;
}
inline void initialize_barrier(unsigned address, int arrivals) {
  block().cluster->barriers[address] = {arrivals, arrivals, 0, 0};
}
// arrivals: threads that arrive now; bytes: how many more are expected, or, negative, have come.
inline void change_barrier(unsigned address, int arrivals, long bytes) {
  Barrier& changed = barrier(address);
  changed.pending -= arrivals;
  changed.bytes += bytes;
  if (changed.pending < 0) fail("more arrivals at a barrier than it was initialized for");
  if (changed.pending == 0 && changed.bytes == 0) changed.pending = changed.arrivals, ++changed.phase;
}
inline void arrive_and_expect(unsigned address, int bytes) { change_barrier(address, 1, bytes); }
inline void wait_for_barrier(unsigned address, unsigned parity) {
  while ((barrier(address).phase & 1) == static_cast<long>(parity)) yield();
}

// ---- numbers ----

inline float from_half(unsigned short bits) { return bits_as<_Float16>(bits); }
inline unsigned short to_half(float value) { return bits_as<unsigned short>(static_cast<_Float16>(value)); }
inline float from_bfloat16(unsigned short bits) { return bits_as<float>(static_cast<unsigned>(bits) << 16); }
inline unsigned short to_bfloat16(float value) {
  const auto bits = bits_as<unsigned>(value);
  return isnan(value) ? 0x7fff : static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned to_tf32(float value) {
  const auto bits = bits_as<unsigned>(value);
  return isfinite(value) ? (bits + 0x1000) & 0xffffe000 : bits;
}

// The words of a matrix operand: two 16-bit elements, or a float of which 13 bits are not read.
struct f16 {
  static unsigned short from(float value) { return to_half(value); }
  static double product(unsigned a, unsigned b) {
    return double(from_half(a)) * from_half(b) + double(from_half(a >> 16)) * from_half(b >> 16);
  }
};
struct bf16 {
  static unsigned short from(float value) { return to_bfloat16(value); }
  static double product(unsigned a, unsigned b) {
    return double(from_bfloat16(a)) * from_bfloat16(b) + double(from_bfloat16(a >> 16)) * from_bfloat16(b >> 16);
  }
};
struct tf32 {
  static double product(unsigned a, unsigned b) {
    return double(bits_as<float>(a & 0xffffe000)) * bits_as<float>(b & 0xffffe000);
  }
};

// cvt.rn(.relu).f16x2 and .bf16x2
template <class Type, bool with_relu = false>
unsigned pack(float high, float low) {
  if (with_relu) high = high < 0 ? 0 : high, low = low < 0 ? 0 : low;  // NaN stays
  return static_cast<unsigned>(Type::from(high)) << 16 | Type::from(low);
}

// ---- memory ----

template <class... Words>
void load(const void* address, Words*... words) {
  const char* from = static_cast<const char*>(address);
  ((std::memcpy(words, from, sizeof *words), from += sizeof *words), ...);
}

template <class... Words>
void store(void* address, Words... words) {
  char* to = static_cast<char*>(address);
  ((std::memcpy(to, &words, sizeof words), to += sizeof words), ...);
}

// st.async: words, and last the barrier that counts them.
template <class... Words>
void send(unsigned address, Words... words) {
  const unsigned all[] = {words...};
  constexpr int bytes = (sizeof...(words) - 1) * 4;
  std::memcpy(shared_memory(address), all, bytes);
  change_barrier(all[bytes / 4], 0, -bytes);
}

// ---- instructions of a warp or a warpgroup ----

template <class Value>
Value shuffle(Value value, int from) {
  struct {
    Value value;
    int from;
    Value result;
  } own = {value, from, value};
  meet_warp(own, [](auto lane) {
    for (int i = 0; i < 32; ++i) lane(i).result = lane(lane(i).from).value;
  });
  return own.result;
}

// ldmatrix.m8n8.x4: lane l gives the address of row l % 8 of tile l / 8 and gets word l % 4 of row l / 4 of each tile.
inline void load_matrices(unsigned* (&&words)[4], unsigned address) {
  struct {
    unsigned** words;
    unsigned address;
  } own = {words, address};
  meet_warp(own, [](auto lane) {
    for (int l = 0; l < 32; ++l) {
      for (int tile = 0; tile < 4; ++tile) {
        const char* row = shared_memory(lane(tile * 8 + l / 4).address);
        std::memcpy(lane(l).words[tile], row + l % 4 * 4, 4);
      }
    }
  });
}

// A of 16 rows and 8 words: a[i] of lane l is word l % 4 + i / 2 * 4 of row l / 4 + i % 2 * 8.
// D of 16 rows and 8 columns a tile: d[i] of lane l is column l % 4 * 2 + i % 2 of row l / 4 + i / 2 * 8.
struct MatrixPlace {
  int lane, index;
};
inline MatrixPlace place_in_a(int row, int word) { return {row % 8 * 4 + word % 4, row / 8 + word / 4 * 2}; }
inline MatrixPlace place_in_d(int row, int column) {
  return {row % 8 * 4 + column % 8 / 2, column / 8 * 4 + row / 8 * 2 + column % 2};
}

// mma.m16n8: B of 8 words and 8 columns; b[i] of lane l is word l % 4 + i * 4 of column l / 4.
template <class Type>
void multiply(float* (&&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  struct {
    float** d;
    unsigned a[4], b[2];
  } own = {d, {a0, a1, a2, a3}, {b0, b1}};
  meet_warp(own, [](auto lane) {
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        double sum = 0;
        for (int word = 0; word < 8; ++word) {
          const auto [from, index] = place_in_a(row, word);
          sum += Type::product(lane(from).a[index], lane(column * 4 + word % 4).b[word / 4]);
        }
        const auto [to, index] = place_in_d(row, column);
        float& result = *lane(to).d[index];
        result = static_cast<float>(result + sum);
      }
    }
  });
}

// wgmma.m64: warp w has rows 16w to 16w + 15. B in shared memory, not swizzled, by its descriptor: core matrices of 8
// columns by 16 bytes of k.
template <class Type, int columns>
void multiply_warpgroup(float* (&&d)[columns / 2], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                        unsigned long long b, int adds) {
  struct Own {
    float** d;
    unsigned a[4];
    unsigned long long b;
    int adds;
  } own = {d, {a0, a1, a2, a3}, b, adds};
  meet(block().warpgroups[current->index.x / 128], 128, &own, [](std::vector<void*>& operands) {
    const auto thread = [&](int index) -> Own& { return *static_cast<Own*>(operands[index]); };
    const unsigned long long b = thread(0).b;
    const int adds = thread(0).adds;
    for (int i = 1; i < 128; ++i) {
      if (thread(i).b != b || thread(i).adds != adds) fail("threads of a warpgroup disagree about wgmma's operands");
    }
    const auto field = [&](int bit) { return static_cast<unsigned>(b >> bit & 0x3fff) << 4; };
    const unsigned start = field(0) | block().rank << kBlockShift, next_k = field(16), next_columns = field(32);
    for (int column = 0; column < columns; ++column) {
      unsigned words[8];
      for (int half = 0; half < 2; ++half) {
        const unsigned address = start + half * next_k + column / 8 * next_columns + column % 8 * 16;
        std::memcpy(words + half * 4, shared_memory(address), 16);
      }
      for (int row = 0; row < 64; ++row) {
        double sum = 0;
        for (int word = 0; word < 8; ++word) {
          const auto [from, index] = place_in_a(row % 16, word);
          sum += Type::product(thread(row / 16 * 32 + from).a[index], words[word]);
        }
        const auto [to, index] = place_in_d(row % 16, column);
        float& result = *thread(row / 16 * 32 + to).d[index];
        result = static_cast<float>(adds ? result + sum : sum);
      }
    }
  });
}

}  // namespace emulator

// ---- what CUDA C++ calls them ----

#define threadIdx emulator::current->index
#define blockIdx emulator::current->block_index
#define gridDim (emulator::Index{emulator::grid_size})
#define __syncthreads emulator::synchronize_threads
#define __syncwarp emulator::synchronize_warp
#define __cvta_generic_to_shared emulator::shared_address
#define __float_as_uint emulator::bits_as<unsigned>
#define __uint_as_float emulator::bits_as<float, unsigned>
#define __int_as_float emulator::bits_as<float, int>

template <class Value>
Value __shfl_sync(unsigned, Value value, int lane) {
  return emulator::shuffle(value, lane);
}
template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
  return emulator::shuffle(value, threadIdx.x % 32 ^ mask);
}
inline double __hiloint2double(int high, int low) {
  return emulator::bits_as<double>(static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 |
                                   static_cast<unsigned>(low));
}
