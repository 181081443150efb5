// Activations between the blocks of a cluster, when its blocks share the weights of a tile kernel.
//
// After a hidden layer, a thread sends its part of the block's slice to the same thread of every other block, and
// receives theirs: whoever holds a word needs it at the same place of the matrix operand. Two barriers a warpgroup:
// `full` counts the bytes that have come, `empty` the warps that have read what this block sent before.
#pragma once

#include "cluster_memory.cuh"
#include "tile_weights.cuh"

namespace fmlp {

template <class Config>
struct Exchange {
  using Shape = TileShape<Config>;
  static constexpr int others = Shape::blocks - 1;
  unsigned buffer;  // shared address: [slice from rank + 1 on][two chunks, two halves][thread][16 bytes]
  unsigned full;    // shared address; `empty` lies 8 bytes behind
  int rank;
  unsigned sent_parity = 1, received_parity = 0;

  __device__ __forceinline__ Exchange(unsigned shared, int rank) : rank(rank) {
    const int warpgroup = threadIdx.x / 128;
    buffer = shared + Shape::exchange_offset + warpgroup * Shape::exchange_bytes + threadIdx.x % 128 * 16;
    full = shared + Shape::barrier_offset + warpgroup * 16;
  }

  // By one thread of every warpgroup; the cluster must synchronize before the first use.
  __device__ __forceinline__ void initialize() const {
    initialize_barrier(full, 1);
    initialize_barrier(full + 8, others * 4);
  }

  template <int index>
  __device__ __forceinline__ void send(const SliceWords<Config, index>& words) {
    constexpr int chunks = Shape::slice_chunks(index);
    if (threadIdx.x % 128 == 0) expect_bytes(full, others * chunks * 1024);
    wait_cluster_barrier(full + 8, sent_parity);
    sent_parity ^= 1;
#pragma unroll
    for (int other = 1; other <= others; ++other) {
      // Seen from block rank + other, this block comes `blocks - other` places behind it.
      const unsigned block = (rank + other) % Shape::blocks;
      const unsigned target = remote_address(buffer + (others - other) * Shape::exchange_slice_bytes, block);
      const unsigned barrier = remote_address(full, block);
#pragma unroll
      for (int chunk = 0; chunk < chunks; chunk += 2) {
        const unsigned four[4] = {words[0][chunk], words[1][chunk], words[0][chunk + 1], words[1][chunk + 1]};
        send_words<4>(target + chunk * 1024, four, barrier);
      }
    }
  }

  // The other blocks' slices of feature vector `index`, behind the block's own.
  template <int index>
  __device__ __forceinline__ void receive(RowWords<Config, index>& words) {
    constexpr int chunks = Shape::slice_chunks(index);
    const int lane = threadIdx.x % 32;
    wait_cluster_barrier(full, received_parity);
    received_parity ^= 1;
#pragma unroll
    for (int other = 0; other < others; ++other) {
#pragma unroll
      for (int chunk = 0; chunk < chunks; chunk += 2) {
        const int at = (other + 1) * chunks + chunk;
        load_shared(words[0][at], words[1][at], words[0][at + 1], words[1][at + 1],
                    buffer + other * Shape::exchange_slice_bytes + chunk * 1024);
      }
    }
    __syncwarp();
    if (lane < others) arrive_remote(remote_address(full + 8, (rank + 1 + lane) % Shape::blocks));
  }
};

}  // namespace fmlp
