// The geometry of a tile kernel: how features are padded, and in which order they lie in registers and shared memory.
//
// Everything is counted in words of 4 bytes (two 16-bit elements or one float). A matrix instruction consumes 8 words
// of k (one `step`), as two `chunks` of 4 words, and lane t of a quad (t = lane % 4) holds word t of a chunk: of row
// lane / 4 in the A operand, of column lane / 4 in the B operand. That is true of m16n8k16 (16-bit), of m16n8k8 (TF32)
// and of their wgmma forms alike. The accumulators of column tile j, columns 2t and 2t + 1, become as A operand of
// the next layer either word t of chunk j (16-bit) or word t of chunks 2j and 2j + 1 (float).
//
// Which feature sits at which (chunk, t) is free as long as both sides of a product agree. We choose: lane t holds 16
// contiguous bytes of every 64 (word 16g + 4t + u at chunk 4g + u), so that x is read and y written in 16-byte
// vectors straight from and to registers. A last group of 32 bytes is split among the quad by 8.
//
// Weights that do not fit in one multiprocessor's shared memory are shared by a cluster: of S blocks, block `rank` owns
// the columns of slice `rank` (one S-th) of every layer. Feature vectors are padded to S equal slices, the order above
// holds within each, and a block counts them from its own: its slice p is slice (rank + p) % S of the row.
#pragma once

#include "interface.cuh"

namespace fmlp {

// A power of two: the widest access (at most 16 bytes) that fits every row of `row_bytes` contiguous bytes exactly.
constexpr int access_bytes(int row_bytes, int alignment) {
  int bytes = alignment < 16 ? alignment : 16;
  while (row_bytes % bytes) bytes /= 2;
  return bytes;
}

template <class Config>
struct TileShape {
  static constexpr int element_bytes = sizeof(Storage<Config>);
  static constexpr int per_word = 4 / element_bytes;
  static constexpr bool is_float = per_word == 1;
  static constexpr bool exact = is_float && !Config::allow_tf32;  // float32 products as three TF32 products
  static constexpr int copies = exact ? 2 : 1;                    // of a weight: high part and low part

  // Padded sizes of feature vector `i` (0: x, depth: y).
  static constexpr int blocks = Config::cluster_size;  // S
  static constexpr int words(int i) { return round_up(width<Config>(i), 8 * per_word * blocks) / per_word; }
  static constexpr int chunks(int i) { return words(i) / 4; }
  static constexpr int steps(int i) { return words(i) / 8; }
  static constexpr int slice_words(int i) { return words(i) / blocks; }
  static constexpr int slice_chunks(int i) { return words(i) / 4 / blocks; }
  static constexpr int slice_columns(int i) { return words(i) / blocks * per_word; }  // what a block computes
  static constexpr int row_blocks = Config::rows_per_warp / 16;                       // of 16 rows, owned by one warp
  static_assert(Config::rows_per_block == Config::threads / 32 * Config::rows_per_warp);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static constexpr bool warpgroups = Config::rows_per_warp == 16 && Config::threads % 128 == 0;
#else
  static constexpr bool warpgroups = false;
#endif
  static_assert(blocks == 1 || warpgroups, "only warpgroups exchange activations within a cluster");

  // Columns of one pass over k: what one set of accumulators covers. Exact products need three sets, which wide
  // layers leave less room for.
  static constexpr bool is_wide() {
    for (int l = 0; l < Config::depth; ++l) {
      if (2 * (chunks(l) + slice_chunks(l + 1)) > 72) return true;
    }
    return false;
  }
  static constexpr int pass_limit = !exact ? 256 / row_blocks : !warpgroups ? 32 / row_blocks : is_wide() ? 32 : 64;
  // Steps of k whose products the tensor core may sum by itself where they must be exact (tile_products.cuh). One is
  // the most accurate; sums over a long k err more anyway, in torch too.
  static constexpr int exact_steps = warpgroups && !is_wide() ? 1 : 2;
  static constexpr int pass_columns(int layer) {
    return slice_columns(layer + 1) < pass_limit ? slice_columns(layer + 1) : pass_limit;
  }
  static constexpr int passes(int layer) { return divide_up(slice_columns(layer + 1), pass_limit); }
  // Whether accumulators start at the bias; more than one matrix instruction wide, adding it at the end is better.
  static constexpr bool bias_first(int layer) {
    int columns = slice_columns(layer + 1);
    return columns <= 64 && (columns & (columns - 1)) == 0 && passes(layer) == 1;
  }

  // Shared memory. Weights: per layer [chunk][column][4 words], which every matrix instruction reads with no bank
  // conflict, then the low parts alike. Biases. In a cluster, per warpgroup: the other blocks' slices of a layer,
  // [slice][chunk][row][4 words], and two barriers of 8 bytes.
  static constexpr int weight_bytes(int layer) { return chunks(layer) * slice_columns(layer + 1) * 16 * copies; }
  static constexpr int weight_offset(int layer) {
    int offset = 0;
    for (int l = 0; l < layer; ++l) offset += weight_bytes(l);
    return offset;
  }
  static constexpr int bias_offset(int layer) {
    int offset = weight_offset(Config::depth);
    for (int l = 0; l < layer; ++l) offset += slice_columns(l + 1) * 4;
    return offset;
  }
  static constexpr int exchanged_chunks() {
    int most = 0;
    for (int i = 1; i < Config::depth; ++i) most = most < slice_chunks(i) ? slice_chunks(i) : most;
    return most;
  }
  static constexpr int exchange_slice_bytes = exchanged_chunks() * 64 * 16;
  static constexpr int exchange_bytes = (blocks - 1) * exchange_slice_bytes;  // of one warpgroup
  static constexpr int exchange_offset = bias_offset(Config::depth);
  static constexpr int barrier_offset = exchange_offset + Config::threads / 128 * exchange_bytes;
  static constexpr int shared_bytes = barrier_offset + (blocks > 1 ? Config::threads / 128 * 16 : 0);

  // Registers a thread may use, and whether the next tile's x has room among them beside what a layer keeps.
  static constexpr int registers() { return Config::threads <= 256 ? 255 : 65536 / Config::threads / 8 * 8; }
  static constexpr int live_registers(int layer) {
    int accumulators = pass_columns(layer) / 2 * (exact ? 3 : 1) * row_blocks, words = 2 * chunks(layer) * row_blocks;
    if (passes(layer) > 1) words += 2 * slice_chunks(layer + 1) * row_blocks;
    return accumulators + words + (exact ? 16 * row_blocks : 0);
  }
  static constexpr bool fits_prefetch() {
    for (int l = 0; l < Config::depth; ++l) {
      int fetched = l == 0 && !is_float ? 0 : 2 * chunks(0) * row_blocks;
      const int others = (blocks > 1 || exact ? 64 : 36) + (Config::saves_hidden ? 28 : 0);
      if (live_registers(l) + fetched + others > registers()) return false;
    }
    return true;
  }
  static constexpr bool prefetches = fits_prefetch();
};

template <bool condition, class First, class Second>
struct choose {
  using type = First;
};
template <class First, class Second>
struct choose<false, First, Second> {
  using type = Second;
};

// Word `t` of chunk `chunk` of a slice of `words` padded words → index of the word in the slice.
__host__ __device__ constexpr int logical_word(int chunk, int t, int words) {
  const int group = chunk / 4, u = chunk % 4;
  return (group + 1) * 16 <= words ? group * 16 + t * 4 + u : group * 16 + t * 2 + u;
}

// Accumulator column of block `rank` → index of the feature, for feature vector `i`.
template <class Config, int i>
__device__ __forceinline__ int logical_feature(int column, int rank) {
  using Shape = TileShape<Config>;
  constexpr int words = Shape::slice_words(i);
  const int tile = column / 8, t = column % 8 / 2, odd = column % 2;
  return rank * words * Shape::per_word +
         (Shape::is_float ? logical_word(tile * 2 + odd, t, words) : logical_word(tile, t, words) * 2 + odd);
}

}  // namespace fmlp
