// The row kernel: small batches of small networks, bound by latency.
//
// A block works on rows_per_block rows at a time. Every thread loads its share of ALL layers' weights into registers
// before anything else, so the whole network costs one memory latency; of a first layer too large for that, it loads
// the rest while it multiplies. The threads of a group split each dot product, exchange partial sums by shuffles, and
// pass activations on through shared memory, one barrier a layer. Hidden activations stay in the accumulation type:
// 16-bit networks round only what they write to global memory.
#pragma once

#include "interface.cuh"
#include "row_layer.cuh"
#include "row_tiling.cuh"

namespace fmlp {

// Layers `layer` to the last.
template <class Config, int layer>
struct RowLayers {
  RowLayer<Config, layer> first;
  RowLayers<Config, layer + 1> rest;
};
template <class Config>
struct RowLayers<Config, Config::depth> {};

// Where the activations that feed a layer lie in shared memory: [rows_per_block, stride].
template <class Config>
struct RowShared {
  static constexpr int elements = 16 / sizeof(Storage<Config>);

  static constexpr RowTiling tiling(int layer) {
    return row_tiling(width<Config>(layer), width<Config>(layer + 1), elements, Config::threads);
  }
  static constexpr int stride(int layer) {
    return row_shared_stride(tiling(layer), elements, layer == 0 ? 1 : tiling(layer - 1).lanes, Config::rows_per_block);
  }
  static constexpr int first_layer = row_stages_x(tiling(0), Config::rows_per_block, Config::persistent) ? 0 : 1;
  static constexpr int offset(int layer) {
    int total = 0;
    for (int l = first_layer; l < layer; ++l) total += Config::rows_per_block * stride(l);
    return total;
  }
};

// Zeroes what stands behind a row's last activation: lanes read it and multiply it with zero weights.
template <class Config, int layer>
__device__ __forceinline__ void zero_row_padding(Accumulate<Config>* shared) {
  if constexpr (layer < Config::depth) {
    constexpr int stride = RowShared<Config>::stride(layer), elements = RowShared<Config>::elements;
    // x arrives in whole chunks, the other activations one by one.
    constexpr int used = layer == 0 ? round_up(width<Config>(0), elements) : width<Config>(layer);
    constexpr int padding = RowLayer<Config, layer>::lanes * RowLayer<Config, layer>::chunks * elements - used;
    if constexpr (padding > 0) {
      for (int i = threadIdx.x; i < padding * Config::rows_per_block; i += Config::threads) {
        shared[RowShared<Config>::offset(layer) + i / padding * stride + used + i % padding] = Accumulate<Config>(0);
      }
    }
    zero_row_padding<Config, layer + 1>(shared);
  }
}

template <class Config, int layer>
__device__ __forceinline__ void load_row_layers(const KernelArguments<Config::depth>& arguments, int warp,
                                                RowLayers<Config, layer>& layers) {
  if constexpr (layer < Config::depth) {
    if (layers.first.warp_has_outputs(warp)) layers.first.load(arguments);
    layers.first.load_bias(arguments);
    load_row_layers<Config, layer + 1>(arguments, warp, layers.rest);
  }
}

template <class Config, int layer>
__device__ __forceinline__ void keep_packed(RowLayers<Config, layer>& layers) {
  if constexpr (layer < Config::depth) {
    layers.first.keep_packed();
    keep_packed<Config, layer + 1>(layers.rest);
  }
}

// The rows a block is at: rows before `rows` exist.
template <class Config>
struct RowPosition {
  long long row;
  long long rows;

  __device__ __forceinline__ bool exists(int r) const {
    return (Config::rows_per_block == 1 && !Config::persistent) || row + r < rows;
  }
  // An existing row to read from in place of one behind the end.
  __device__ __forceinline__ long long readable(int r) const { return exists(r) ? row + r : rows - 1; }
};

// Threads bring x into shared memory together, in two steps so that the loads of the next rows fly while the current
// ones are computed.
template <class Config>
struct RowStagedInput {
  using Layer = RowLayer<Config, 0>;
  static constexpr int row_chunks = divide_up(Layer::in_features, Layer::elements);
  static constexpr int total = row_chunks * Config::rows_per_block;
  static constexpr int own = divide_up(total, Config::threads);
  RowChunk chunk[own];

  __device__ __forceinline__ void load(const KernelArguments<Config::depth>& arguments, RowPosition<Config> position) {
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const int index = threadIdx.x + i * Config::threads;
      const int r = index < total ? index / row_chunks : 0;
      const char* row =
          static_cast<const char*>(arguments.x) + position.readable(r) * arguments.x_row_stride * Layer::element_bytes;
      const int offset = index < total ? index % row_chunks * 16 : 0;
      chunk[i] = Layer::in_features % Layer::elements == 0
                     ? load_chunk<Layer::load_bytes>(row + offset)
                     : load_partial_chunk<Layer::load_bytes>(row + offset, Layer::row_bytes - offset, row);
    }
  }

  __device__ __forceinline__ void store(Accumulate<Config>* shared) const {
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const int index = threadIdx.x + i * Config::threads;
      if (index < total) {
        Accumulate<Config>* to =
            shared + index / row_chunks * RowShared<Config>::stride(0) + index % row_chunks * Layer::elements;
        alignas(16) Accumulate<Config> values[Layer::elements];
#pragma unroll
        for (int e = 0; e < Layer::elements; ++e) values[e] = chunk[i].template element<typename Config::scalar>(e);
        copy_vectors<Layer::elements>(to, values);
      }
    }
  }

  template <int count, class Value>
  static __device__ __forceinline__ void copy_vectors(Value* to, const Value* from) {
#pragma unroll
    for (int i = 0; i < count * static_cast<int>(sizeof(Value)) / 16; ++i) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  }
};

// The chunks of x that this thread multiplies in layer 0, straight from global memory.
template <class Config>
struct RowDirectInput {
  using Layer = RowLayer<Config, 0>;
  RowChunk chunk[Config::rows_per_block][Layer::chunks];

  __device__ __forceinline__ void load(const KernelArguments<Config::depth>& arguments, RowPosition<Config> position) {
#pragma unroll
    for (int r = 0; r < Config::rows_per_block; ++r) {
      const char* row =
          static_cast<const char*>(arguments.x) + position.readable(r) * arguments.x_row_stride * Layer::element_bytes;
      const char* own = base_address(row + 16 * Layer::lane());
#pragma unroll
      for (int c = 0; c < Layer::chunks; ++c) chunk[r][c] = Layer::load_own_chunk(own, c, row);
    }
  }
};

// Layers `layer` and later of the rows at `position`. `input` holds x for layer 0, or is unused when x is staged;
// `before_last_barrier` runs once, when no thread reads the activations of layer 0 any more.
template <class Config, int layer, class Input, class BeforeLastBarrier>
__device__ __forceinline__ void run_row_layers(const KernelArguments<Config::depth>& arguments,
                                               RowLayers<Config, layer>& layers, Accumulate<Config>* shared, int warp,
                                               RowPosition<Config> position, const Input& input,
                                               BeforeLastBarrier before_last_barrier) {
  using Layer = RowLayer<Config, layer>;
  using Shared = RowShared<Config>;
  using Value = Accumulate<Config>;
  if (layers.first.warp_has_outputs(warp)) {
    auto activation = [&](int r, int c, Value(&values)[Layer::elements]) {
      if constexpr (layer < Shared::first_layer) {
#pragma unroll
        for (int e = 0; e < Layer::elements; ++e)
          values[e] = input.chunk[r][c].template element<typename Config::scalar>(e);
      } else {
        const Value* from = shared + Shared::offset(layer) + r * Shared::stride(layer) +
                            (Layer::lane() + Layer::lanes * c) * Layer::elements;
        alignas(16) Value copy[Layer::elements];
        RowStagedInput<Config>::template copy_vectors<Layer::elements>(copy, from);
#pragma unroll
        for (int e = 0; e < Layer::elements; ++e) values[e] = copy[e];
      }
    };
    auto store = [&](int r, int output, Value value) {
      if constexpr (!Layer::is_last) {
        shared[Shared::offset(layer + 1) + r * Shared::stride(layer + 1) + output] = value;
      }
      if constexpr (Layer::is_last || Config::saves_hidden) {
        void* to = Layer::is_last ? arguments.y : arguments.hidden[layer];
        if (position.exists(r)) {
          static_cast<Storage<Config>*>(to)[(position.row + r) * Layer::out_features + output] =
              Config::scalar::round(value);
        }
      }
    };
    layers.first.run(arguments, activation, store);
  }
  if constexpr (!Layer::is_last) {
    if constexpr (layer == 1) before_last_barrier();
    // Here the next kernel's blocks find room and the launch still overlaps; at the start they crowd this one's.
    if constexpr (Config::dependent_launch && layer + 2 == Config::depth) allow_next_kernel();
    __syncthreads();
    run_row_layers<Config, layer + 1>(arguments, layers.rest, shared, warp, position, input, before_last_barrier);
  }
}

template <class Config>
__device__ __forceinline__ void row(const KernelArguments<Config::depth>& arguments) {
  using Value = Accumulate<Config>;
  using Shared = RowShared<Config>;
  __shared__ alignas(16) Value shared[Shared::offset(Config::depth) + 4];
  constexpr bool staged = Shared::first_layer == 0;

  RowPosition<Config> position = {static_cast<long long>(blockIdx.x) * Config::rows_per_block, arguments.rows};
  RowLayers<Config, 0> layers;
  // The shuffle tells the compiler that all lanes of a warp agree, so that skipping a layer is a uniform branch.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  if constexpr (Config::dependent_launch) wait_for_previous_kernel();
  if constexpr (!staged) {
    RowDirectInput<Config> input;
    input.load(arguments, position);
    load_row_layers<Config, 0>(arguments, warp, layers);
    zero_row_padding<Config, 1>(shared);
    run_row_layers<Config, 0>(arguments, layers, shared, warp, position, input, [] {});
  } else {
    RowStagedInput<Config> input;
    input.load(arguments, position);
    load_row_layers<Config, 0>(arguments, warp, layers);
    zero_row_padding<Config, 0>(shared);
    input.store(shared);
    __syncthreads();
    if constexpr (!Config::persistent) {
      run_row_layers<Config, 0>(arguments, layers, shared, warp, position, input, [] {});
    } else {
      const long long step = static_cast<long long>(gridDim.x) * Config::rows_per_block;
      // With two layers there is one barrier between them, too few to reuse the buffers without one more.
      constexpr bool barriers_suffice = Config::depth > 2;
      while (true) {
        RowPosition<Config> next = {position.row + step, arguments.rows};
        const bool more = next.row < next.rows;
        if (more) input.load(arguments, next);
        keep_packed<Config, 0>(layers);
        run_row_layers<Config, 0>(arguments, layers, shared, warp, position, input, [&] {
          if (barriers_suffice && more) input.store(shared);
        });
        if (!more) break;
        if constexpr (!barriers_suffice) {
          __syncthreads();
          input.store(shared);
          __syncthreads();
        }
        position = next;
      }
    }
  }
}

}  // namespace fmlp
