// How the row kernel spreads one layer over the threads of a block. Plain C++: the plan (../plan_row.cpp) includes this
// file too, to count registers and shared memory without a compiler.
#pragma once

namespace fmlp {

// A thread holds `outputs` x `chunks` chunks of 16 bytes of the weight matrix: rows g, g + groups, g + 2 groups, …
// of it (g is its group's number), and of each of those rows the chunks s, s + lanes, … (s is its place in the group).
struct RowTiling {
  int lanes;    // threads that share an output, a power of two up to 32; a group is that many neighbouring threads
  int outputs;  // outputs of a thread
  int chunks;   // 16-byte chunks of each of its weight rows that a thread holds
};

// The split with the least work on the way from the first activation to the last sum. Counted in issue slots of two
// warps that share a scheduler: two for each product, two for each 16 bytes of activations read, and a latency for
// each exchange between lanes. It depends on nothing but the layer, the element and the block: every batch size
// sums in the same order.
constexpr RowTiling row_tiling(int in_features, int out_features, int elements_per_chunk, int threads) {
  const int chunks = (in_features + elements_per_chunk - 1) / elements_per_chunk;
  RowTiling best = {1, 1, 1};
  int best_cost = 0x7fffffff;
  int exchanges = 0;
  for (int lanes = 1; lanes <= 32 && lanes < 2 * chunks; lanes *= 2, ++exchanges) {
    const int groups = threads / lanes;
    const int outputs = (out_features + groups - 1) / groups;
    const int own_chunks = (chunks + lanes - 1) / lanes;
    const int products = outputs * own_chunks * elements_per_chunk;
    const int cost = 2 * products + own_chunks * elements_per_chunk / 2 + exchanges * (20 + 8 * outputs);
    if (cost < best_cost) {
      best_cost = cost;
      best = {lanes, outputs, own_chunks};
    }
  }
  return best;
}

// The widest load, in bytes, that every row of a layer's matrix (and of x) allows.
constexpr int row_load_bytes(int in_features, int element_bytes, int alignment) {
  const int common = in_features * element_bytes | alignment | 16;
  return common & -common;
}

// Elements from one row to the next of the shared buffer that feeds a layer: all chunks of all lanes, and with more
// than one row a distance that spreads the rows which one warp writes together over different banks.
constexpr int row_shared_stride(RowTiling reader, int elements_per_chunk, int writer_lanes, int rows_per_block) {
  int stride = reader.lanes * reader.chunks * elements_per_chunk;
  if (rows_per_block > 1) {
    const int shift = writer_lanes >= 8 ? 4 : 32 / writer_lanes % 32;
    while (stride % 32 != shift) stride += 4 - stride % 4;
  }
  return stride;
}

// Whether x goes through shared memory. With few chunks each thread reads its own instead, which saves a barrier.
constexpr bool row_stages_x(RowTiling first_layer, int rows_per_block, bool persistent) {
  return persistent || rows_per_block > 2 || first_layer.chunks * rows_per_block > 8;
}

}  // namespace fmlp
