// The geometry of the cluster kernel: which part of a layer a block, a warp and a lane compute.
//
// A cluster of S blocks serves 16 rows. Block `rank` computes columns [rank, rank + 1) · block_columns of every layer;
// its warps split k in units of 16 words (4 bytes each), unit `warp · units_per_warp + u`. Of a unit, lane t of a quad
// holds words 4t to 4t + 3 of weight row lane / 4 of every column tile, and of rows lane / 4 and lane / 4 + 8 of the
// activations: 16 contiguous bytes each, which make the operands of two matrix steps (words 2s and 2s + 1 of step s).
#pragma once

#include "interface.cuh"

namespace fmlp {

template <class Config>
struct ClusterShape {
  static constexpr int element_bytes = sizeof(Storage<Config>), per_word = 4 / element_bytes;
  static constexpr bool is_float = per_word == 1;
  // float32 products as three TF32 products, even where one is allowed: torch keeps float32 for so few rows, and one
  // product saves 6 % of the time.
  static constexpr bool exact = is_float;
  static constexpr int blocks = Config::cluster_size, warps = Config::threads / 32, rows = 16;
  static_assert(blocks == 1 || blocks == 2 || blocks == 4 || blocks == 8 || blocks == 16);

  // Feature vector `i` (0: x, depth: y), padded so that every block gets whole column tiles and k whole units.
  static constexpr int unit_features = 16 * per_word;
  static constexpr int features(int i) {
    return round_up(width<Config>(i), 8 * blocks > unit_features ? 8 * blocks : unit_features);
  }
  static constexpr int block_columns(int layer) { return features(layer + 1) / blocks; }
  static constexpr int column_tiles(int layer) { return block_columns(layer) / 8; }
  static constexpr int units(int layer) { return divide_up(width<Config>(layer), unit_features); }
  static constexpr int units_per_warp(int layer) { return divide_up(units(layer), warps); }

  static constexpr bool fills_units(int layer) { return units_per_warp(layer) * warps == units(layer); }

  // A slab: a warp's weights of one unit, all column tiles. A lane keeps `ring` of them in registers ahead of their
  // use, counted through all layers, so that as many loads as possible share one memory latency.
  static constexpr int slab_count(int layers) {
    int count = 0;
    for (int l = 0; l < layers; ++l) count += units_per_warp(l);
    return count;
  }
  static constexpr int most_column_tiles() {
    int most = 1;
    for (int l = 0; l < Config::depth; ++l) most = most < column_tiles(l) ? column_tiles(l) : most;
    return most;
  }
  // Two bytes at a time take a register each until they are packed.
  static constexpr bool loads_halves() {
    for (int l = 0; l < Config::depth; ++l) {
      if (width<Config>(l) * element_bytes % 4) return true;
    }
    return Config::alignment == 2;
  }
  static constexpr int ring_registers() {
    const int accumulators = most_column_tiles() * 4 * (exact ? 2 : 1);
    const int left = (Config::threads <= 256 ? 255 : 65536 / Config::threads) - accumulators - (exact ? 112 : 80);
    const int most = loads_halves() ? 64 : 128;
    return left < 32 ? 32 : left > most ? most : left;
  }
  static constexpr int ring() {
    const int fitting = ring_registers() / (most_column_tiles() * 4), all = slab_count(Config::depth);
    return fitting < 1 ? 1 : fitting < all ? fitting : all;
  }
  static constexpr int slab_layer(int slab) {
    int layer = 0;
    while (slab >= slab_count(layer + 1)) ++layer;
    return layer;
  }

  // Whether the TF32 parts of a layer's weights are separated before its activations arrive: if registers allow.
  static constexpr bool splits_early(int layer) {
    return exact && slab_count(Config::depth) <= ring() && units_per_warp(layer) * column_tiles(layer) * 4 <= 64;
  }

  // Shared memory: two buffers of activations, [row][activation_pitch] words; two of the warps' partial sums,
  // [warp][row][sum_pitch] floats; the biases of the block's columns; one barrier of 8 bytes per hidden layer. The
  // pitches avoid bank conflicts.
  static constexpr int pitch(int count, int remainder) { return count + (remainder - count % 32 + 32) % 32; }
  static constexpr int activation_pitch() {
    int most = 0;
    for (int i = 1; i < Config::depth; ++i) most = most < features(i) / per_word ? features(i) / per_word : most;
    return pitch(most, 16);
  }
  static constexpr int activation_bytes = rows * activation_pitch() * 4;
  static constexpr int sum_pitch(int layer) { return pitch(block_columns(layer), 8); }
  static constexpr int sum_bytes() { return warps * rows * pitch(most_column_tiles() * 8, 8) * 4; }
  static constexpr int sum_offset(int layer) { return 2 * activation_bytes + layer % 2 * sum_bytes(); }
  static constexpr int bias_offset(int layer) {
    int offset = 2 * activation_bytes + 2 * sum_bytes();
    for (int l = 0; l < layer; ++l) offset += block_columns(l) * 4;
    return offset;
  }
  static constexpr int barrier_offset = bias_offset(Config::depth);
  static constexpr int shared_bytes = barrier_offset + 8 * Config::depth;
};

}  // namespace fmlp
