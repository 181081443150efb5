// One layer of the row kernel: a thread's share of the weights, its part of the dot products, and their reduction.
#pragma once

#include "interface.cuh"
#include "row_load.cuh"
#include "row_tiling.cuh"

namespace fmlp {

// One layer as one thread sees it.
template <class Config, int layer>
struct RowLayer {
  using Scalar = typename Config::scalar;
  using Value = Accumulate<Config>;

  static constexpr int in_features = width<Config>(layer), out_features = width<Config>(layer + 1);
  static constexpr int element_bytes = sizeof(Storage<Config>), elements = 16 / element_bytes;
  static constexpr RowTiling tiling = row_tiling(in_features, out_features, elements, Config::threads);
  static constexpr int lanes = tiling.lanes, outputs = tiling.outputs, chunks = tiling.chunks;
  static constexpr int groups = Config::threads / lanes;
  static constexpr int rows = Config::rows_per_block;
  static constexpr bool is_last = layer + 1 == Config::depth;

  static constexpr int row_bytes = in_features * element_bytes;
  static constexpr int load_bytes = row_load_bytes(in_features, element_bytes, Config::alignment);

  // Chunks of each weight row held at one time: all, but of a first layer too large for that the next Config::stages.
  static constexpr int held = layer == 0 && Config::stages > 1 ? Config::stages : chunks;

  RowChunk weight[outputs][held];  // chunk c is at c % held
  Value bias[outputs];

  static __device__ __forceinline__ int lane() { return threadIdx.x % lanes; }
  static __device__ __forceinline__ int output(int index) { return threadIdx.x / lanes + groups * index; }
  static __device__ __forceinline__ bool output_exists(int index) {
    return groups * (index + 1) <= out_features || output(index) < out_features;
  }
  static __device__ __forceinline__ int readable_output(int index) { return output_exists(index) ? output(index) : 0; }
  // Warps with no output skip the layer; inside a warp all lanes take part in the shuffles.
  static __device__ __forceinline__ bool warp_has_outputs(int warp) {
    return groups <= out_features || warp * 32 < out_features * lanes;
  }

  // This lane's chunk `index` of the row, of the matrix or of x, whose chunk 0 for this lane is at `own`.
  static __device__ __forceinline__ RowChunk load_own_chunk(const char* own, int index, const char* anywhere) {
    const int offset = 16 * lanes * index;
    if ((index + 1) * lanes * elements <= in_features) return load_chunk<load_bytes>(own + offset);
    return load_partial_chunk<load_bytes>(own + offset, row_bytes - 16 * lane() - offset, anywhere);
  }

  // Loads chunks `begin` to `end` of this thread's weight rows. Threads of a group with no output load another output's
  // weights: no branch, and memory that a neighbour reads anyway.
  __device__ __forceinline__ void load(const KernelArguments<Config::depth>& arguments, int begin = 0, int end = held) {
    const char* matrix = static_cast<const char*>(arguments.weights[layer]);
    const char* own = base_address(matrix + readable_output(0) * row_bytes + 16 * lane());
#pragma unroll
    for (int o = 0; o < outputs; ++o) {
      const char* own_row = own + o * groups * row_bytes;
      if (o > 0 && groups * (o + 1) > out_features)
        own_row = base_address(matrix + readable_output(o) * row_bytes + 16 * lane());
#pragma unroll
      for (int c = begin; c < end; ++c) weight[o][c % held] = load_own_chunk(own_row, c, matrix);
    }
  }

  __device__ __forceinline__ void load_bias(const KernelArguments<Config::depth>& arguments) {
    if constexpr (has_bias<Config>(layer)) {
#pragma unroll
      for (int o = 0; o < outputs; ++o) {
        unsigned words[4];
        load_words<element_bytes>(
            static_cast<const char*>(arguments.biases[layer]) + readable_output(o) * element_bytes, words);
        bias[o] = RowChunk{{words[0], words[1], 0, 0}}.template element<Scalar>(0);
      }
    }
  }

  // Keeps the conversion of 16-bit weights inside the loop over rows: ahead of it, each would take a register of its
  // own.
  __device__ __forceinline__ void keep_packed() {
    if constexpr (element_bytes == 2) {
#pragma unroll
      for (int o = 0; o < outputs; ++o) {
#pragma unroll
        for (int c = 0; c < held; ++c) {
#pragma unroll
          for (int word = 0; word < 4; ++word) asm volatile("" : "+r"(weight[o][c].words[word]));
        }
      }
    }
  }

  // `activation(row, chunk, values)` gives the elements of this lane's chunk; `store(row, output, value)` takes each
  // finished value exactly once in the group.
  template <class Activation, class Store>
  __device__ __forceinline__ void run(const KernelArguments<Config::depth>& arguments, Activation activation,
                                      Store store) {
    constexpr int partial_sums = 4 > elements ? elements : 4;
    Value sums[rows][outputs][partial_sums];
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        Value values[elements];
        activation(r, c, values);
#pragma unroll
        for (int o = 0; o < outputs; ++o) {
#pragma unroll
          for (int e = 0; e < elements; ++e) {
            Value& sum = sums[r][o][e % partial_sums];
            const Value factor = weight[o][c % held].template element<Scalar>(e);
            sum = c == 0 && e < partial_sums ? factor * values[e] : fma(factor, values[e], sum);
          }
        }
      }
      if (c + held < chunks) load(arguments, c + held, c + held + 1);
    }
    Value totals[rows][outputs];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
      for (int o = 0; o < outputs; ++o) {
        if constexpr (partial_sums == 4) {
          totals[r][o] = (sums[r][o][0] + sums[r][o][1]) + (sums[r][o][2] + sums[r][o][3]);
        } else {
          totals[r][o] = sums[r][o][0] + sums[r][o][1];
        }
      }
    }
    reduce(totals, store);
  }

  // Bias, activation and store for the first `kept` rows of `totals`, which are the block's rows from `first_row` on.
  template <class Store>
  __device__ __forceinline__ void finish(const Value (&totals)[rows][outputs], int first_row, int kept, bool stores,
                                         Store store) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (r < kept) {
#pragma unroll
        for (int o = 0; o < outputs; ++o) {
          Value value = totals[r][o];
          if constexpr (has_bias<Config>(layer)) value += bias[o];
          value = activate<Config, layer>(value);
          if (stores && output_exists(o)) store(first_row + r, output(o), value);
        }
      }
    }
  }

  // Sums over the lanes of a group. While a lane holds several rows, an exchange hands half of them to its partner,
  // so that the lanes end with different rows; after that every lane of the rest holds the same sum.
  template <class Store>
  __device__ __forceinline__ void reduce(Value (&totals)[rows][outputs], Store store) const {
    constexpr int shared_steps = rows < lanes ? rows : lanes;  // lanes that end with different rows
    int first_row = 0;
#pragma unroll
    for (int mask = 1; mask < lanes; mask *= 2) {
      if (mask < shared_steps) {
        const int half = rows / (2 * mask);
        const bool upper = lane() & mask;
        first_row += upper ? half : 0;
#pragma unroll
        for (int r = 0; r < rows / 2; ++r) {
          if (r < half) {
#pragma unroll
            for (int o = 0; o < outputs; ++o) {
              const Value sent = upper ? totals[r][o] : totals[r + half][o];
              const Value kept = upper ? totals[r + half][o] : totals[r][o];
              totals[r][o] = kept + __shfl_xor_sync(0xffffffffu, sent, mask);
            }
          }
        }
      } else {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          if (r < rows / shared_steps) {
#pragma unroll
            for (int o = 0; o < outputs; ++o) totals[r][o] += __shfl_xor_sync(0xffffffffu, totals[r][o], mask);
          }
        }
      }
    }
    const bool stores = shared_steps == lanes || lane() < shared_steps;
    finish(totals, first_row, rows / shared_steps, stores, store);
  }
};

}  // namespace fmlp
