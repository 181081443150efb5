// Weights and biases on their way from global to shared memory, once per block, in the order the matrix instructions
// read them.
#pragma once

#include "mma.cuh"
#include "tile_memory.cuh"

namespace fmlp {

// Four words of k of one weight row: what one thread moves at a time. The lanes of a quad read 64 contiguous bytes, and
// each word of a warp's items falls on another bank.
template <class Config, int layer>
struct WeightItem {
  using Shape = TileShape<Config>;
  static constexpr int columns = Shape::slice_columns(layer + 1), chunks = Shape::slice_chunks(layer);
  static constexpr int groups = divide_up(chunks, 4);  // of four chunks, in one slice of k
  static constexpr int count = Shape::blocks * groups * columns * 4;

  int t, column, chunk, slice;  // chunk: of the slice
  __device__ __forceinline__ explicit WeightItem(int item) {
    t = item % 4;
    column = item / 4 % columns;
    chunk = item / 4 / columns % groups * 4;
    slice = item / 4 / columns / groups;
  }
  __device__ __forceinline__ bool is_whole() const { return chunk + 4 <= chunks; }  // else two words
  __device__ __forceinline__ int position(int u) const {                            // in words of the layer's weights
    return ((slice * chunks + chunk + u) * columns + column) * 4 + t;
  }
};

// Weights of one layer. weight: [out, in] in global memory; shared: see TileShape; rank: of the block in its cluster.
template <class Config, int layer>
__device__ __forceinline__ void stage_layer(char* shared, const char* weight, int rank) {
  using Shape = TileShape<Config>;
  using Item = WeightItem<Config, layer>;
  constexpr int row_bytes = width<Config>(layer) * Shape::element_bytes, padded = Shape::words(layer) * 4;
  constexpr int access = access_bytes(row_bytes, Config::alignment), slice_bytes = Shape::slice_words(layer) * 4;
  constexpr int rounds = divide_up(Item::count, Config::threads);
  constexpr int batch = rounds < 4 ? rounds : 4;  // independent loads in flight a thread
  auto* high = reinterpret_cast<unsigned*>(shared + Shape::weight_offset(layer));
  unsigned* low = high + Shape::weight_bytes(layer) / 8;  // exact float32 only
#pragma unroll 1
  for (int first = threadIdx.x; first < Item::count; first += Config::threads * batch) {
    unsigned words[batch][4];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const Item item(first + b * Config::threads);
      const int feature = logical_feature<Config, layer + 1>(item.column, rank);
      const bool valid = first + b * Config::threads < Item::count && feature < width<Config>(layer + 1);
      const char* row = weight + static_cast<long long>(feature) * row_bytes;
      const int start = (rank + item.slice) % Shape::blocks * slice_bytes + item.chunk * 16;
      if (item.is_whole()) {
        load_words<4, row_bytes, padded, access>(words[b], row, start + item.t * 16, valid);
      } else {
        load_words<2, row_bytes, padded, access>(words[b], row, start + item.t * 8, valid);
      }
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const Item item(first + b * Config::threads);
      if (first + b * Config::threads >= Item::count) break;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (u >= 2 && !item.is_whole()) break;
        if constexpr (Shape::exact) {
          unsigned large, small;
          split_tf32(large, small, __uint_as_float(words[b][u]));
          high[item.position(u)] = large;
          low[item.position(u)] = round_tf32(__uint_as_float(small));
        } else {
          high[item.position(u)] = Shape::is_float ? round_tf32(__uint_as_float(words[b][u])) : words[b][u];
        }
      }
    }
  }
}

// All weights and biases of the block's columns. Biases become floats in accumulator order.
template <class Config, int layer = 0>
__device__ __forceinline__ void stage_layers(char* shared, const KernelArguments<Config::depth>& arguments, int rank) {
  using Shape = TileShape<Config>;
  stage_layer<Config, layer>(shared, static_cast<const char*>(arguments.weights[layer]), rank);
  if constexpr (has_bias<Config>(layer)) {
    auto* target = reinterpret_cast<float*>(shared + Shape::bias_offset(layer));
    const auto* bias = static_cast<const Storage<Config>*>(arguments.biases[layer]);
    for (int column = threadIdx.x; column < Shape::slice_columns(layer + 1); column += Config::threads) {
      const int feature = logical_feature<Config, layer + 1>(column, rank);
      target[column] = feature < width<Config>(layer + 1) ? Config::scalar::load(bias[feature]) : 0.0f;
    }
  }
  if constexpr (layer + 1 < Config::depth) stage_layers<Config, layer + 1>(shared, arguments, rank);
}

// Makes ordinary stores to shared memory visible to wgmma; a barrier among the threads must follow.
__device__ __forceinline__ void publish_to_tensor_cores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace fmlp
