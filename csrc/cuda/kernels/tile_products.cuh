// The products of one pass over k: sums += activations (registers) · weights (shared memory), by wgmma where the
// target has it and by mma.sync elsewhere; float32 to full accuracy as three TF32 products.
//
// A tensor core cuts the sum it keeps instead of rounding it, always toward zero; over a chain of layers that bias
// adds up. So exact products keep the two small cross terms in accumulators of their own, let the tensor core sum only
// `exact_steps` steps of the large term, and add those with ordinary rounding.
#pragma once

#include "tile_shape.cuh"
#include "wgmma.cuh"

namespace fmlp {

// The A operand of one step, for 16 rows.
template <int chunks>
__device__ __forceinline__ void take_step(unsigned (&a)[4], const unsigned (&words)[2][chunks], int step) {
  a[0] = words[0][step * 2];
  a[1] = words[1][step * 2];
  a[2] = words[0][step * 2 + 1];
  a[3] = words[1][step * 2 + 1];
}

template <int chunks>
__device__ __forceinline__ void take_split_step(unsigned (&high)[4], unsigned (&low)[4],
                                                const unsigned (&words)[2][chunks], int step) {
  unsigned a[4];
  take_step(a, words, step);
#pragma unroll
  for (int i = 0; i < 4; ++i) split_tf32(high[i], low[i], __uint_as_float(a[i]));
}

// The weights of one layer and pass in shared memory.
template <class Config, int layer>
struct WeightView {
  using Shape = TileShape<Config>;
  static constexpr int columns = Shape::slice_columns(layer + 1);  // of a chunk
  static constexpr int step_bytes = columns * 32, low_offset = Shape::weight_bytes(layer) / 2;
  unsigned address;  // shared address of the first column of the pass
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// before_others: called when the products of the block's own slice of k are under way; brings the other slices.
template <class Config, int layer, int columns, bool zero_start, class BeforeOthers>
__device__ __forceinline__ void multiply_warpgroup(float (&sums)[1][columns / 2],
                                                   const unsigned (&words)[1][2][TileShape<Config>::chunks(layer)],
                                                   const WeightView<Config, layer>& weights,
                                                   const BeforeOthers& before_others) {
  using Shape = TileShape<Config>;
  using Scalar = typename Config::scalar;
  using View = WeightView<Config, layer>;
  constexpr int steps = Shape::steps(layer), own_steps = steps / Shape::blocks, step_size = View::step_bytes / 16;
  constexpr int exact_steps = Shape::exact_steps;
  const unsigned long long b = shared_operand(weights.address, View::columns);
  if constexpr (!Shape::exact) {
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (Shape::blocks > 1 && step == own_steps) {
        warpgroup_commit();
        before_others();
        warpgroup_arrive();
      }
      unsigned a[4];
      take_step(a, words[0], step);
      warpgroup_steps<Scalar, columns>(sums[0], a, b + step * step_size, !zero_start || step > 0);
    }
    warpgroup_commit();
    warpgroup_wait<0>();
    keep_accumulators(sums[0]);
  } else {
    const unsigned long long low_b = shared_operand(weights.address + View::low_offset, View::columns);
    float cross[columns / 2], part[columns / 2];
    if constexpr (zero_start) {
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) sums[0][i] = 0;
    }
#pragma unroll
    for (int slice = 0; slice < Shape::blocks; ++slice) {
      if (slice == 1) before_others();
#pragma unroll
      for (int first = slice * own_steps; first < (slice + 1) * own_steps; first += exact_steps) {
        const int left = (slice + 1) * own_steps - first, count = left < exact_steps ? left : exact_steps;
        unsigned high[exact_steps][4], low[exact_steps][4];
#pragma unroll
        for (int i = 0; i < count; ++i) take_split_step(high[i], low[i], words[0], first + i);
        warpgroup_arrive();
#pragma unroll
        for (int i = 0; i < count; ++i) {
          warpgroup_steps<Scalar, columns>(part, high[i], b + (first + i) * step_size, i);
        }
        warpgroup_commit();
#pragma unroll
        for (int i = 0; i < count; ++i) {
          warpgroup_steps<Scalar, columns>(cross, high[i], low_b + (first + i) * step_size, first + i);
          warpgroup_steps<Scalar, columns>(cross, low[i], b + (first + i) * step_size, 1);
        }
        warpgroup_commit();
        warpgroup_wait<1>();
        keep_accumulators(part);
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) sums[0][i] += part[i];
      }
    }
    warpgroup_wait<0>();
    keep_accumulators(cross);
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) sums[0][i] = add_cross_terms(sums[0][i], cross[i]);
  }
}

#endif

// The same by the warp's own matrix instructions; each B operand serves all row blocks of the warp.
template <class Config, int layer, int columns, bool zero_start, int row_blocks>
__device__ __forceinline__ void multiply_warp(float (&sums)[row_blocks][columns / 2],
                                              const unsigned (&words)[row_blocks][2][TileShape<Config>::chunks(layer)],
                                              const WeightView<Config, layer>& weights) {
  using Shape = TileShape<Config>;
  using Scalar = typename Config::scalar;
  using View = WeightView<Config, layer>;
  constexpr int steps = Shape::steps(layer), exact_steps = Shape::exact_steps;
  // ldmatrix brings two column tiles (lanes 16 and up: the second) and the step's two chunks at once. Of an odd last
  // tile, the second half is not used; what it reads is the next chunk or the biases.
  const int lane = threadIdx.x % 32;
  const unsigned b = weights.address + (lane / 8 % 2 * View::columns + lane / 16 * 8 + lane % 8) * 16;
  float cross[row_blocks][Shape::exact ? columns / 2 : 1];
#pragma unroll
  for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) {
      if constexpr (zero_start) sums[r][i] = 0;
      if constexpr (Shape::exact) cross[r][i] = 0;
    }
  }
  if constexpr (!Shape::exact) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      unsigned a[row_blocks][4];
#pragma unroll
      for (int r = 0; r < row_blocks; ++r) take_step(a[r], words[r], step);
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        unsigned tiles[4];
        load_matrices(tiles, b + step * View::step_bytes + n * 16);
#pragma unroll
        for (int r = 0; r < row_blocks; ++r) {
          multiply_step<Scalar>(sums[r] + n / 2, a[r], tiles[0], tiles[1]);
          if (n + 8 < columns) multiply_step<Scalar>(sums[r] + n / 2 + 4, a[r], tiles[2], tiles[3]);
        }
      }
    }
  } else {
#pragma unroll
    for (int first = 0; first < steps; first += exact_steps) {
      unsigned high[row_blocks][exact_steps][4], low[row_blocks][exact_steps][4];
#pragma unroll
      for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
        for (int i = 0; i < exact_steps && first + i < steps; ++i) {
          take_split_step(high[r][i], low[r][i], words[r], first + i);
        }
      }
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        float part[row_blocks][8];
#pragma unroll
        for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
          for (int i = 0; i < 8; ++i) part[r][i] = 0;
        }
#pragma unroll
        for (int i = 0; i < exact_steps && first + i < steps; ++i) {
          unsigned high_b[4], low_b[4];
          const unsigned address = b + (first + i) * View::step_bytes + n * 16;
          load_matrices(high_b, address);
          load_matrices(low_b, address + View::low_offset);
#pragma unroll
          for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
            for (int tile = 0; tile < 2 && n + tile * 8 < columns; ++tile) {
              float* small = cross[r] + n / 2 + tile * 4;
              multiply_step<Scalar>(part[r] + tile * 4, high[r][i], high_b[tile * 2], high_b[tile * 2 + 1]);
              multiply_step<Scalar>(small, high[r][i], low_b[tile * 2], low_b[tile * 2 + 1]);
              multiply_step<Scalar>(small, low[r][i], high_b[tile * 2], high_b[tile * 2 + 1]);
            }
          }
        }
#pragma unroll
        for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
          for (int i = 0; i < 8 && n + i / 4 * 8 < columns; ++i) sums[r][n / 2 + i] += part[r][i];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) sums[r][i] = add_cross_terms(sums[r][i], cross[r][i]);
    }
  }
}

}  // namespace fmlp
