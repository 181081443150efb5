// The tile kernel: large batches, widths up to 256, tensor cores.
//
// A persistent grid walks over tiles of `rows_per_block` rows. A warp owns `rows_per_warp` of them and keeps their
// activations in registers from x to y: the accumulators of a layer, rounded, are the A operand of the next one
// (tile_shape.cuh says why no lane has to exchange anything). Weights are staged in shared memory once per block, as B
// operands (tile_weights.cuh). x is fetched for the next tile while this one is computed.
//
// Where the weights do not fit in one block's shared memory, the blocks of a cluster work on the same rows: each
// computes its slice of every layer's columns and sends it to the others (tile_exchange.cuh, sm_90a only).
//
// On sm_90a, 16 rows per warp in groups of four warps select wgmma; all else runs on mma.sync (sm_80 and newer).
// Config: threads, rows_per_warp (16 or 32), rows_per_block = threads / 32 * rows_per_warp, cluster_size (1, 2 or 4);
// dynamic shared memory: TileShape<Config>::shared_bytes.
#pragma once

#include "tile_exchange.cuh"
#include "tile_products.cuh"

namespace fmlp {

// What a thread carries from layer to layer.
template <class Config>
struct TileThread {
  const KernelArguments<Config::depth>& arguments;
  const char* shared;  // dynamic shared memory
  int rank;            // of the block in its cluster
  int t;               // lane % 4
  long long row;       // of this tile: row lane / 4 of the warp's first row block
  Exchange<Config> exchange;
};

template <class Config>
using InputWords = RowWords<Config, 0>[TileShape<Config>::row_blocks];

// x of the rows from `row` on, or zeros where there are none.
template <class Config>
__device__ __forceinline__ void load_input(InputWords<Config>& words, const KernelArguments<Config::depth>& arguments,
                                           long long row, int t, int rank) {
  using Shape = TileShape<Config>;
  const long long pitch = arguments.x_row_stride * Shape::element_bytes;
#pragma unroll
  for (int r = 0; r < Shape::row_blocks; ++r) {
    const long long first = row + r * 16;
    const auto* address = static_cast<const char*>(arguments.x) + first * pitch;
    load_rows<Config>(words[r], address, pitch, arguments.rows - first, t, rank);
  }
}

// Layer outputs of one pass, activated and rounded, into the words of the next layer's operand.
template <class Config, int layer, int columns, bool add_bias>
__device__ __forceinline__ void finish_pass(SliceWords<Config, layer + 1>& words, const float (&sums)[columns / 2],
                                            const float* bias, int first_column) {
  using Shape = TileShape<Config>;
  using Function = typename choose<layer + 1 == Config::depth, typename Config::output_activation,
                                   typename Config::activation>::type;
#pragma unroll
  for (int tile = 0; tile < columns / 8; ++tile) {
    float2 pair = make_float2(0, 0);
    if constexpr (add_bias) {
      pair = *reinterpret_cast<const float2*>(bias + tile * 8);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float first = sums[tile * 4 + half * 2], second = sums[tile * 4 + half * 2 + 1];
      if constexpr (add_bias) {
        first += pair.x;
        second += pair.y;
      }
      const int position = first_column / 8 + tile;
      if constexpr (!Shape::is_float) {
        if constexpr (same_type<Function, relu>) {
          words[half][position] = pack<typename Config::scalar, true>(first, second);
        } else {
          words[half][position] =
              pack<typename Config::scalar, false>(activate<Config, layer>(first), activate<Config, layer>(second));
        }
      } else {
        words[half][position * 2] = __float_as_uint(activate<Config, layer>(first));
        words[half][position * 2 + 1] = __float_as_uint(activate<Config, layer>(second));
      }
    }
  }
}

// Columns of the block's slice of layer `layer`, from pass `pass` on. before_others: see multiply_warpgroup;
// after_products: called when `input` is no longer needed.
template <class Config, int layer, int pass, class BeforeOthers, class AfterProducts>
__device__ __forceinline__ void run_passes(TileThread<Config>& thread,
                                           SliceWords<Config, layer + 1> (&output)[TileShape<Config>::row_blocks],
                                           const RowWords<Config, layer> (&input)[TileShape<Config>::row_blocks],
                                           const BeforeOthers& before_others, const AfterProducts& after_products) {
  using Shape = TileShape<Config>;
  constexpr int first_column = pass * Shape::pass_columns(layer);
  constexpr int left = Shape::slice_columns(layer + 1) - first_column;
  constexpr int columns = left < Shape::pass_columns(layer) ? left : Shape::pass_columns(layer);
  constexpr bool biased = has_bias<Config>(layer), starts_at_bias = biased && Shape::bias_first(layer);
  constexpr int bias_offset = Shape::bias_offset(layer), weight_offset = Shape::weight_offset(layer);
  float sums[Shape::row_blocks][columns / 2];
  // This lane's two columns of every column tile.
  const float* bias = reinterpret_cast<const float*>(thread.shared + bias_offset) + first_column + thread.t * 2;
  if constexpr (starts_at_bias) {
#pragma unroll
    for (int tile = 0; tile < columns / 8; ++tile) {
      const float2 pair = *reinterpret_cast<const float2*>(bias + tile * 8);
#pragma unroll
      for (int r = 0; r < Shape::row_blocks; ++r) {
        sums[r][tile * 4] = sums[r][tile * 4 + 2] = pair.x;
        sums[r][tile * 4 + 1] = sums[r][tile * 4 + 3] = pair.y;
      }
    }
  }
  const WeightView<Config, layer> weights{shared_address(thread.shared) + weight_offset + first_column * 16};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (Shape::warpgroups) {
    multiply_warpgroup<Config, layer, columns, !starts_at_bias>(sums, input, weights, [&] {
      if constexpr (pass == 0) before_others();
    });
  } else
#endif
  {
    multiply_warp<Config, layer, columns, !starts_at_bias>(sums, input, weights);
  }
  if constexpr (pass + 1 == Shape::passes(layer)) after_products();
#pragma unroll
  for (int r = 0; r < Shape::row_blocks; ++r) {
    finish_pass<Config, layer, columns, biased && !starts_at_bias>(output[r], sums[r], bias, first_column);
  }
  if constexpr (pass + 1 < Shape::passes(layer)) {
    run_passes<Config, layer, pass + 1>(thread, output, input, before_others, after_products);
  }
}

// Layers `layer` to the last for the thread's rows. In a cluster, `input` holds only the block's own slice at first
// (but all of x). after_first: called when the first layer no longer needs x.
template <class Config, int layer, class AfterFirst>
__device__ __forceinline__ void run_layers(TileThread<Config>& thread,
                                           RowWords<Config, layer> (&input)[TileShape<Config>::row_blocks],
                                           const AfterFirst& after_first) {
  using Shape = TileShape<Config>;
  constexpr bool last = layer + 1 == Config::depth;
  constexpr int next_chunks = Shape::slice_chunks(layer + 1);
  SliceWords<Config, layer + 1> output[Shape::row_blocks];
  run_passes<Config, layer, 0>(
      thread, output, input,
      [&] {
        if constexpr (layer > 0 && Shape::blocks > 1) thread.exchange.template receive<layer>(input[0]);
      },
      [&] {
        if constexpr (layer == 0) after_first();
      });
  if constexpr (last || Config::saves_hidden) {
    auto* target = static_cast<char*>(last ? thread.arguments.y : thread.arguments.hidden[layer]);
    constexpr int row_bytes = width<Config>(layer + 1) * Shape::element_bytes;
#pragma unroll
    for (int r = 0; r < Shape::row_blocks; ++r) {
      const long long row = thread.row + r * 16;
      store_rows<Config, layer + 1>(target + row * row_bytes, thread.arguments.rows - row, output[r], thread.t,
                                    thread.rank);
    }
  }
  if constexpr (!last) {
    RowWords<Config, layer + 1> next[Shape::row_blocks];
#pragma unroll
    for (int r = 0; r < Shape::row_blocks; ++r) {
#pragma unroll
      for (int i = 0; i < 2 * next_chunks; ++i) {
        unsigned& word = output[r][i % 2][i / 2];
        if constexpr (Shape::is_float && !Shape::exact) word = round_tf32(__uint_as_float(word));
        next[r][i % 2][i / 2] = word;
      }
    }
    if constexpr (Shape::blocks > 1) thread.exchange.template send<layer + 1>(output[0]);
    run_layers<Config, layer + 1>(thread, next, after_first);
  }
}

template <class Config>
__device__ void tile(const KernelArguments<Config::depth>& arguments) {
  using Shape = TileShape<Config>;
  static_assert(Config::shared_bytes == Shape::shared_bytes, "the plan counts shared memory differently");
  extern __shared__ __align__(128) char dynamic_shared[];
  constexpr bool rounds = Shape::is_float && !Shape::exact;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = Shape::blocks > 1 ? cluster_rank() : 0;
  const unsigned team = blockIdx.x / Shape::blocks, teams = gridDim.x / Shape::blocks;
  TileThread<Config> thread{arguments, dynamic_shared, rank, lane % 4, 0, {shared_address(dynamic_shared), rank}};
  const long long step = static_cast<long long>(teams) * Config::rows_per_block;
  long long base = static_cast<long long>(team) * Config::rows_per_block;
  const int first_of_group = (Shape::warpgroups ? warp / 4 * 4 : warp) * Config::rows_per_warp;
  const int own = warp * Config::rows_per_warp + lane / 4;

  wait_for_previous_kernel();
  InputWords<Config> fetched;
  if constexpr (Shape::prefetches) load_input<Config>(fetched, arguments, base + own, thread.t, rank);
  stage_layers<Config>(dynamic_shared, arguments, rank);
  publish_to_tensor_cores();
  if constexpr (Shape::blocks > 1) {
    if (threadIdx.x % 128 == 0) thread.exchange.initialize();
    arrive_cluster();
    wait_cluster();
  } else {
    __syncthreads();
  }
  // The warps of a warpgroup, in all blocks of a cluster, leave the loop together.
#pragma unroll 1
  for (; base + first_of_group < arguments.rows; base += step) {
    thread.row = base + own;
    if constexpr (!Shape::prefetches) load_input<Config>(fetched, arguments, thread.row, thread.t, rank);
    InputWords<Config> input;
#pragma unroll
    for (int r = 0; r < Shape::row_blocks; ++r) {
#pragma unroll
      for (int i = 0; i < 2 * Shape::chunks(0); ++i) {
        const unsigned word = fetched[r][i % 2][i / 2];
        input[r][i % 2][i / 2] = rounds ? round_tf32(__uint_as_float(word)) : word;
      }
    }
    run_layers<Config, 0>(thread, input, [&] {
      if constexpr (Shape::prefetches) {
        load_input<Config>(fetched, arguments, thread.row + step, thread.t, rank);
      } else {
        fetch_rows_to_cache<Config>(arguments, base + step + warp * Config::rows_per_warp, lane);
      }
    });
  }
  if constexpr (Shape::blocks > 1) {  // no block may leave while another still writes to it
    arrive_cluster();
    wait_cluster();
  }
}

}  // namespace fmlp
