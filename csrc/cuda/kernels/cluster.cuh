// The cluster kernel: small batches, widths beyond what one block can read quickly, sm_90 and newer.
//
// A cluster of `cluster_size` blocks takes 16 rows, one tile of the tensor cores; block after block owns a slice of
// every layer's columns, so the cluster reads each weight once (cluster_shape.cuh). Weights go from global memory
// straight to the registers of the lane that multiplies with them, as far ahead as registers allow: the first loads of
// all layers are under way before the first product. Per layer: every warp multiplies its part of k, the block adds up
// the warps' partial sums through shared memory, and the threads that hold results write them into the shared memory
// of every block of the cluster.
//
// Config: threads (a multiple of 32), cluster_size; a grid of cluster_size blocks per 16 rows; dynamic shared memory:
// ClusterShape<Config>::shared_bytes.
#pragma once

#include "cluster_memory.cuh"
#include "cluster_shape.cuh"
#include "mma.cuh"
#include "tile_memory.cuh"

namespace fmlp {

template <class Config>
struct ClusterThread {
  using Shape = ClusterShape<Config>;
  const KernelArguments<Config::depth>& arguments;
  char* shared;         // dynamic shared memory
  int rank;             // of the block in its cluster
  int warp, group, t;   // group = lane / 4, t = lane % 4
  long long first_row;  // of the cluster's 16
  int existing_rows;    // of the 16; what the others hold is never stored, nor read by a row that exists
  // The ring: per slab in it the weights and, of the first layer, the x that goes with them.
  unsigned weights[Shape::ring()][Shape::most_column_tiles()][4];
  unsigned input[Shape::ring()][2][4];
};

// The warp's activations of one unit: words[half][word] of rows group and group + 8.
using UnitWords = unsigned[2][4];

// Of x, from global memory; zeros where there is no row or no feature.
template <class Config>
__device__ __forceinline__ void load_input_unit(UnitWords& words, const ClusterThread<Config>& thread, int unit) {
  using Shape = ClusterShape<Config>;
  constexpr int row_bytes = width<Config>(0) * Shape::element_bytes, padded = Shape::units(0) * 64;
  constexpr int access = access_bytes(row_bytes, Config::alignment), units = Shape::units(0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long long row = thread.first_row + thread.group + half * 8;
    const char* address =
        static_cast<const char*>(thread.arguments.x) + row * thread.arguments.x_row_stride * Shape::element_bytes;
    load_words<4, row_bytes, padded, access>(words[half], address, unit * 64 + thread.t * 16,
                                             (Shape::fills_units(0) || unit < units) && row < thread.arguments.rows);
  }
}

// Requests slab `slab`, if there is one, into its place in the ring, and the x that goes with it.
template <class Config, int slab>
__device__ __forceinline__ void load_slab(ClusterThread<Config>& thread) {
  using Shape = ClusterShape<Config>;
  if constexpr (slab < Shape::slab_count(Config::depth)) {
    constexpr int layer = Shape::slab_layer(slab), u = slab - Shape::slab_count(layer);
    constexpr int row_bytes = width<Config>(layer) * Shape::element_bytes, padded = Shape::units(layer) * 64;
    constexpr int access = access_bytes(row_bytes, Config::alignment), out_features = width<Config>(layer + 1);
    constexpr int block_columns = Shape::block_columns(layer), units = Shape::units(layer);
    const int unit = thread.warp * Shape::units_per_warp(layer) + u;
    if constexpr (layer == 0) load_input_unit(thread.input[slab % Shape::ring()], thread, unit);
    const char* weight = static_cast<const char*>(thread.arguments.weights[layer]);
#pragma unroll
    for (int tile = 0; tile < block_columns / 8; ++tile) {
      const int feature = thread.rank * block_columns + tile * 8 + thread.group;
      const bool valid = (Shape::fills_units(layer) || unit < units) &&
                         (Shape::features(layer + 1) == out_features || feature < out_features);
      load_words<4, row_bytes, padded, access>(thread.weights[slab % Shape::ring()][tile],
                                               weight + static_cast<long long>(feature) * row_bytes,
                                               unit * 64 + thread.t * 16, valid);
    }
  }
}

template <class Config, int slab, int end>
__device__ __forceinline__ void load_slabs(ClusterThread<Config>& thread) {
  if constexpr (slab < end) {
    load_slab<Config, slab>(thread);
    load_slabs<Config, slab + 1, end>(thread);
  }
}

// Low parts of a layer's weights, where they are split ahead of time.
template <class Config, int layer>
using LowParts = unsigned[ClusterShape<Config>::splits_early(layer) ? ClusterShape<Config>::units_per_warp(layer) : 1]
                         [ClusterShape<Config>::column_tiles(layer)][4];

// sums += four floats in shared memory.
__device__ __forceinline__ void add_four(float (&sums)[4], const void* address) {
  const float4 four = *static_cast<const float4*>(address);
  sums[0] += four.x;
  sums[1] += four.y;
  sums[2] += four.z;
  sums[3] += four.w;
}

// sums, and for exact products cross (the small terms): += activations · slab `slab`.
template <class Config, int slab, bool is_split, int column_tiles>
__device__ __forceinline__ void multiply_slab(float (&sums)[column_tiles][4], float (&cross)[column_tiles][4],
                                              const UnitWords& words, const unsigned (&low_weights)[column_tiles][4],
                                              const ClusterThread<Config>& thread) {
  using Shape = ClusterShape<Config>;
  using Scalar = typename Config::scalar;
  const auto& weights = thread.weights[slab % Shape::ring()];
  unsigned a[2][4], low_a[2][4];
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned word = words[i % 2][step * 2 + i / 2];
      if constexpr (Shape::exact) {
        split_tf32(a[step][i], low_a[step][i], __uint_as_float(word));
      } else {
        a[step][i] = Shape::is_float ? round_tf32(__uint_as_float(word)) : word;
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < column_tiles; ++tile) {
    if constexpr (Shape::exact) {
      // The tensor core cuts its sums instead of rounding them: let it add up two steps only (tile_products.cuh).
      float part[4] = {0, 0, 0, 0};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        unsigned high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          high[i] = weights[tile][step * 2 + i];
          low[i] = low_weights[tile][step * 2 + i];
          if constexpr (!is_split) split_tf32(high[i], low[i], __uint_as_float(high[i]));
        }
        multiply_step<Scalar>(part, a[step], high[0], high[1]);
        multiply_step<Scalar>(cross[tile], a[step], low[0], low[1]);
        multiply_step<Scalar>(cross[tile], low_a[step], high[0], high[1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile][i] += part[i];
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        unsigned b[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const unsigned word = weights[tile][step * 2 + i];
          b[i] = Shape::is_float ? round_tf32(__uint_as_float(word)) : word;
        }
        multiply_step<Scalar>(sums[tile], a[step], b[0], b[1]);
      }
    }
  }
}

// Results of layer `layer`: adds the warps' partial sums and hands the activated values on, four columns a thread.
template <class Config, int layer>
__device__ __forceinline__ void finish_layer(const ClusterThread<Config>& thread) {
  using Shape = ClusterShape<Config>;
  constexpr int columns = Shape::block_columns(layer), pitch = Shape::sum_pitch(layer), quads = columns / 4;
  constexpr int out_features = width<Config>(layer + 1), row_bytes = out_features * Shape::element_bytes;
  constexpr int padded = Shape::features(layer + 1) * Shape::element_bytes;
  constexpr int access = access_bytes(row_bytes, Config::alignment), quad_words = 4 / Shape::per_word;
  constexpr int bias_offset = Shape::bias_offset(layer), pitch_bytes = Shape::activation_pitch() * 4;
  constexpr int sum_offset = Shape::sum_offset(layer);
  constexpr bool last = layer + 1 == Config::depth;
  const auto* partial = reinterpret_cast<const float*>(thread.shared + sum_offset);
  const unsigned shared = shared_address(thread.shared);
  const unsigned barrier = shared + Shape::barrier_offset + layer * 8;
  const unsigned next = shared + (layer + 1) % 2 * Shape::activation_bytes;
#pragma unroll
  for (int round = 0; round < divide_up(Shape::rows * quads, Config::threads); ++round) {
    const int item = threadIdx.x + round * Config::threads, row = item / quads, column = item % quads * 4;
    if (item >= thread.existing_rows * quads) break;
    float sums[4] = {0, 0, 0, 0};
    if constexpr (has_bias<Config>(layer)) add_four(sums, thread.shared + bias_offset + column * 4);
#pragma unroll
    for (int warp = 0; warp < Shape::warps; ++warp) {
      add_four(sums, partial + (warp * Shape::rows + row) * pitch + column);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = activate<Config, layer>(sums[i]);
    unsigned words[quad_words];
#pragma unroll
    for (int i = 0; i < quad_words; ++i) {
      if constexpr (Shape::is_float) {
        words[i] = __float_as_uint(sums[i]);
      } else {
        words[i] = pack<typename Config::scalar, false>(sums[i * 2], sums[i * 2 + 1]);
      }
    }
    const int offset = (thread.rank * columns + column) * Shape::element_bytes;
    if constexpr (!last) {
#pragma unroll
      for (int other = 0; other < Shape::blocks; ++other) {
        const int block = (thread.rank + other) % Shape::blocks;
        send_words<quad_words>(remote_address(next + row * pitch_bytes + offset, block), words,
                               remote_address(barrier, block));
      }
    }
    if constexpr (last || Config::saves_hidden) {
      auto* tensor = static_cast<char*>(last ? thread.arguments.y : thread.arguments.hidden[layer]);
      store_words<quad_words, row_bytes, padded, access>(tensor + (thread.first_row + row) * row_bytes, offset, words);
    }
  }
}

// Prepares the weights of layer `layer` that are in registers for products, while the activations are still on their
// way: rounds them to TF32, and keeps in `low` what that cuts off.
template <class Config, int layer, int u, int tiles>
__device__ __forceinline__ void split_weights(ClusterThread<Config>& thread, LowParts<Config, layer>& low) {
  using Shape = ClusterShape<Config>;
  constexpr int slab = Shape::slab_count(layer) + u;
#pragma unroll
  for (int i = 0; i < tiles * 4; ++i) {
    unsigned& word = thread.weights[slab % Shape::ring()][i / 4][i % 4];
    split_tf32(word, low[u][i / 4][i % 4], __uint_as_float(word));
  }
  if constexpr (u + 1 < Shape::units_per_warp(layer)) split_weights<Config, layer, u + 1, tiles>(thread, low);
}

// Units `u` and on of the warp's part of k.
template <class Config, int layer, int u, int tiles>
__device__ __forceinline__ void multiply_units(float (&sums)[tiles][4], float (&cross)[tiles][4],
                                               const LowParts<Config, layer>& low, ClusterThread<Config>& thread) {
  using Shape = ClusterShape<Config>;
  constexpr int count = Shape::units_per_warp(layer), slab = Shape::slab_count(layer) + u, units = Shape::units(layer);
  constexpr int pitch_bytes = Shape::activation_pitch() * 4;
  constexpr bool is_split = Shape::splits_early(layer);
  if constexpr (layer == 0) {
    multiply_slab<Config, slab, is_split>(sums, cross, thread.input[slab % Shape::ring()], low[is_split ? u : 0],
                                          thread);
  } else {
    const int unit = thread.warp * count + u;
    const char* address =
        thread.shared + layer % 2 * Shape::activation_bytes + thread.group * pitch_bytes + unit * 64 + thread.t * 16;
    UnitWords words;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 four = make_uint4(0, 0, 0, 0);
      if (Shape::fills_units(layer) || unit < units) {
        four = *reinterpret_cast<const uint4*>(address + half * 8 * pitch_bytes);
      }
      words[half][0] = four.x;
      words[half][1] = four.y;
      words[half][2] = four.z;
      words[half][3] = four.w;
    }
    multiply_slab<Config, slab, is_split>(sums, cross, words, low[is_split ? u : 0], thread);
  }
  load_slab<Config, slab + Shape::ring()>(thread);
  if constexpr (u + 1 < count) multiply_units<Config, layer, u + 1>(sums, cross, low, thread);
}

template <class Config, int layer>
__device__ __forceinline__ void run_cluster_layers(ClusterThread<Config>& thread) {
  using Shape = ClusterShape<Config>;
  constexpr int tiles = Shape::column_tiles(layer), pitch = Shape::sum_pitch(layer);
  constexpr int sum_offset = Shape::sum_offset(layer);
  float sums[tiles][4], cross[tiles][4];
#pragma unroll
  for (int i = 0; i < tiles * 4; ++i) sums[i / 4][i % 4] = cross[i / 4][i % 4] = 0;
  LowParts<Config, layer> low;
  if constexpr (Shape::splits_early(layer)) split_weights<Config, layer, 0, tiles>(thread, low);
  if constexpr (layer > 0) {
    wait_cluster_barrier(shared_address(thread.shared) + Shape::barrier_offset + (layer - 1) * 8, 0);
  }
  multiply_units<Config, layer, 0>(sums, cross, low, thread);
  auto* partial = reinterpret_cast<float*>(thread.shared + sum_offset) + thread.warp * Shape::rows * pitch;
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 pair = make_float2(sums[tile][half * 2], sums[tile][half * 2 + 1]);
      if constexpr (Shape::exact) {
        pair.x = add_cross_terms(pair.x, cross[tile][half * 2]);
        pair.y = add_cross_terms(pair.y, cross[tile][half * 2 + 1]);
      }
      *reinterpret_cast<float2*>(partial + (thread.group + half * 8) * pitch + tile * 8 + thread.t * 2) = pair;
    }
  }
  __syncthreads();
  if constexpr (layer == 0) wait_cluster();  // for the others' barriers
  finish_layer<Config, layer>(thread);
  if constexpr (layer + 1 < Config::depth) run_cluster_layers<Config, layer + 1>(thread);
}

// One barrier per hidden layer: it opens when all blocks have sent their part of the layer's activations.
template <class Config, int layer = 0>
__device__ __forceinline__ void initialize_barriers(unsigned shared, int existing_rows) {
  using Shape = ClusterShape<Config>;
  if constexpr (layer + 1 < Config::depth) {
    constexpr int barrier = Shape::barrier_offset + layer * 8;
    constexpr int row_bytes = Shape::features(layer + 1) * Shape::element_bytes;
    initialize_barrier(shared + barrier, 1);
    expect_bytes(shared + barrier, existing_rows * row_bytes);
    initialize_barriers<Config, layer + 1>(shared, existing_rows);
  }
}

// The biases of the block's columns, as floats, 0 where there is none.
template <class Config, int layer = 0>
__device__ __forceinline__ void stage_biases(const ClusterThread<Config>& thread) {
  using Shape = ClusterShape<Config>;
  if constexpr (has_bias<Config>(layer)) {
    constexpr int columns = Shape::block_columns(layer), offset = Shape::bias_offset(layer);
    auto* target = reinterpret_cast<float*>(thread.shared + offset);
    const auto* bias = static_cast<const Storage<Config>*>(thread.arguments.biases[layer]);
#pragma unroll 1
    for (int column = threadIdx.x; column < columns; column += Config::threads) {
      const int feature = thread.rank * columns + column;
      target[column] = feature < width<Config>(layer + 1) ? Config::scalar::load(bias[feature]) : 0.0f;
    }
  }
  if constexpr (layer + 1 < Config::depth) stage_biases<Config, layer + 1>(thread);
}

template <class Config>
__device__ void cluster(const KernelArguments<Config::depth>& arguments) {
  using Shape = ClusterShape<Config>;
  static_assert(Config::shared_bytes == Shape::shared_bytes, "the plan counts shared memory differently");
  extern __shared__ __align__(128) char dynamic_shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long first_row = static_cast<long long>(blockIdx.x / Shape::blocks) * Shape::rows;
  const long long left = arguments.rows - first_row;
  ClusterThread<Config> thread{arguments,
                               dynamic_shared,
                               static_cast<int>(cluster_rank()),
                               warp,
                               lane / 4,
                               lane % 4,
                               first_row,
                               left < Shape::rows ? static_cast<int>(left) : Shape::rows,
                               {},
                               {}};
  wait_for_previous_kernel();
  load_slabs<Config, 0, Shape::ring()>(thread);
  if (threadIdx.x == 0) initialize_barriers<Config>(shared_address(dynamic_shared), thread.existing_rows);
  __syncthreads();
  arrive_cluster();
  stage_biases<Config>(thread);
  run_cluster_layers<Config, 0>(thread);
}

}  // namespace fmlp
