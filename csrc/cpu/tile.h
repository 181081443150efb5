// The kernel for all but the smallest batches: lanes are rows.
//
// A tile holds Lanes * Vectors rows of activations as [feature][row]. A block of outputs keeps one accumulator per
// output and vector in registers and walks over the input features, broadcasting weights read in place, in nn.Linear's
// layout: nothing is packed, and one layer's result is the next one's input as it stands. Each output is summed in the
// order of the input features, starting from the bias, in every tile form, so a row's result is the same wherever it
// sits.
#pragma once

#include "../problem.h"
#include "activations.h"
#include "arithmetic.h"
#include "sizes.h"
#include "storage.h"

namespace fmlp::cpu {
namespace {

template <int Lanes_, int Vectors_>
struct TileForm {
  static constexpr int Lanes = Lanes_;
  static constexpr int Vectors = Vectors_;
  static constexpr int rows = Lanes * Vectors;
  // Accumulators must leave registers for the input vectors and a broadcast weight.
  static constexpr int max_outputs = Vectors == 1 || kVectorRegisters == 32 ? 12 : 6;
};

template <class T>
using FullTile = TileForm<kLanes<T>, 2>;

// Calls body(TileForm) with the narrowest form that holds `rows` rows, or the widest there is.
template <class T, class Body>
FMLP_INLINE void with_tile_form(int64_t rows, const Body& body) {
  constexpr int lanes = kLanes<T>;
  if (rows > lanes) return body(TileForm<lanes, 2>{});
  if constexpr (kVectorBytes >= 64) {
    if (rows <= lanes / 4) return body(TileForm<lanes / 4, 1>{});
  }
  if constexpr (kVectorBytes >= 32) {
    if (rows <= lanes / 2) return body(TileForm<lanes / 2, 1>{});
  }
  body(TileForm<lanes, 1>{});
}

// out[n][row] = bias[n] + sum over k of weight[n][k] * in[k][row], for `Outputs` outputs n; added to what is there if
// `accumulate`.
template <class Arithmetic, class Form, int Outputs>
void run_block(const typename Arithmetic::Input* in, const typename Arithmetic::Weight* weight, int64_t weight_stride,
               const typename Arithmetic::Output* bias, int64_t in_features, bool accumulate, bool relu,
               typename Arithmetic::Output* out) {
  constexpr int Lanes = Form::Lanes, Vectors = Form::Vectors, step = Arithmetic::features_per_step;
  using V = Vector<typename Arithmetic::Output, Lanes>;
  V sum[Outputs][Vectors];
#pragma GCC unroll 12
  for (int n = 0; n < Outputs; ++n) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) sum[n][v] = V{} + bias[n];
  }
  const auto add_products = [&](auto read_weight) __attribute__((always_inline)) {
    Vector<typename Arithmetic::Input, Lanes> input[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) input[v] = load<Lanes>(in + v * Lanes);
#pragma GCC unroll 12
    for (int n = 0; n < Outputs; ++n) {
      const auto w = read_weight(weight + n * weight_stride);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[n][v] = Arithmetic::multiply_add(sum[n][v], input[v], w);
    }
  };
  for (int64_t k = 0; k + step <= in_features; k += step) {
    add_products(Arithmetic::read);
    in += Form::rows;
    weight += step;
  }
  if (in_features % step) add_products(Arithmetic::read_last);
  if (accumulate) {
#pragma GCC unroll 12
    for (int n = 0; n < Outputs; ++n) {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[n][v] += load<Lanes>(out + n * Form::rows + v * Lanes);
    }
  }
  if (relu) {
#pragma GCC unroll 12
    for (int n = 0; n < Outputs; ++n) {
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) sum[n][v] = functors::relu{}(sum[n][v], bias);
    }
  }
#pragma GCC unroll 12
  for (int n = 0; n < Outputs; ++n) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) store<Lanes>(out + n * Form::rows + v * Lanes, sum[n][v]);
  }
}

template <class Arithmetic>
using RunBlock = decltype(&run_block<Arithmetic, TileForm<4, 1>, 1>);

// Entry n serves n + 1 outputs.
template <class Arithmetic, class Form, class Counts = typename CountUp<Form::max_outputs>::type>
struct Blocks;
template <class Arithmetic, class Form, int... Count>
struct Blocks<Arithmetic, Form, Indices<Count...>> {
  static constexpr RunBlock<Arithmetic> run[] = {run_block<Arithmetic, Form, Count + 1>...};
};

// Rows past the end are replaced by the last one: reading it again is safe, and its lanes are never stored.
template <class Storage, class Form>
void load_tile(const Storage* x, int64_t row_stride, int64_t rows, int64_t features,
               typename ArithmeticFor<Storage>::Input* tile) {
  using Arithmetic = ArithmeticFor<Storage>;
  constexpr int Lanes = Form::Lanes, step = Arithmetic::features_per_step;
  for (int v = 0; v < Form::Vectors; ++v) {
    for (int64_t k = 0; k < features; k += Lanes * step) {
      const int64_t columns = features - k;
      Vector<typename Arithmetic::Input, Lanes> square[Lanes];
#pragma GCC unroll 16
      for (int i = 0; i < Lanes; ++i) {
        const int64_t row = v * Lanes + i < rows ? v * Lanes + i : rows - 1;
        square[i] = Arithmetic::template load_features<Lanes>(x + row * row_stride + k, columns);
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < Lanes; ++i) {
        if (i * step < columns) store<Lanes>(tile + (k / step + i) * Form::rows + v * Lanes, square[i]);
      }
    }
  }
}

// Writes features [first, last) of a tile to rows of `row_stride` elements.
template <class Storage, class Form>
void store_tile(const Compute<Storage>* tile, int64_t rows, int64_t first, int64_t last, Storage* y,
                int64_t row_stride) {
  constexpr int Lanes = Form::Lanes;
  for (int v = 0; v * Lanes < rows && v < Form::Vectors; ++v) {
    for (int64_t n = first; n < last; n += Lanes) {
      const int64_t columns = last - n;
      Vector<Compute<Storage>, Lanes> square[Lanes] = {};
#pragma GCC unroll 16
      for (int i = 0; i < Lanes; ++i) {
        if (i < columns) square[i] = load<Lanes>(tile + (n + i) * Form::rows + v * Lanes);
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < Lanes; ++i) {
        const int64_t row = v * Lanes + i;
        if (row < rows) store_rounded<Lanes>(y + row * row_stride + n, square[i], columns);
      }
    }
  }
}

// The activations of a panel: what each layer reads and what it computes, as [tile][feature][row]. Where the two have
// the same type, one layer's output is the next one's input.
template <class Storage, class Form>
struct TilePanel {
  using Arithmetic = ArithmeticFor<Storage>;
  using Input = typename Arithmetic::Input;
  using Output = typename Arithmetic::Output;

  int64_t tiles;
  int64_t input_size;
  int64_t output_size;
  Input* inputs[2];
  Output* outputs;

  TilePanel(const MlpProblem& problem, int64_t rows, void* activations)
      : tiles(divide_up(rows, Form::rows)),
        input_size(divide_up(widest(problem), Arithmetic::features_per_step) * Form::rows),
        output_size(widest(problem) * Form::rows) {
    inputs[0] = static_cast<Input*>(activations);
    inputs[1] = inputs[0] + tiles * input_size;
    outputs = reinterpret_cast<Output*>(inputs[1] + tiles * input_size);
  }

  int64_t bytes() const {
    const int64_t tile_bytes = 2 * input_size * int64_t(sizeof(Input)) +
                               (Arithmetic::output_is_input ? 0 : output_size * int64_t(sizeof(Output)));
    return tiles * tile_bytes;
  }
  Input* input(int layer, int64_t index) const { return inputs[layer & 1] + index * input_size; }
  Output* output(int layer, int64_t index) const {
    if constexpr (Arithmetic::output_is_input) return input(layer + 1, index);
    return outputs + index * output_size;
  }
};

template <class Storage, class Form>
void load_tiles(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                void* activations) {
  const TilePanel<Storage, Form> panel(problem, rows, activations);
  const Storage* x = static_cast<const Storage*>(operands.x) + first_row * problem.x_row_stride;
  for (int64_t i = 0; i < panel.tiles; ++i) {
    load_tile<Storage, Form>(x + i * Form::rows * problem.x_row_stride, problem.x_row_stride, rows - i * Form::rows,
                             problem.widths[0], panel.input(0, i));
  }
}

// Longer sums are cut into parts: rounding errors of one long running sum grow faster than those of torch, whose matrix
// products work on a part of the features at a time.
constexpr int64_t kLongestSum = 128;

// Outputs [first_output, last_output) of one layer, for all rows of the panel.
template <class Storage, class Form>
void run_layer_on_tiles(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                        int layer, int64_t first_output, int64_t last_output, void* activations, void* weight_scratch) {
  using Arithmetic = ArithmeticFor<Storage>;
  using T = typename Arithmetic::Output;
  const TilePanel<Storage, Form> panel(problem, rows, activations);
  const int64_t in_features = problem.widths[layer], out_features = problem.widths[layer + 1];
  const Storage* weight = static_cast<const Storage*>(operands.weights[layer]);
  const Storage* bias = static_cast<const Storage*>(operands.biases[layer]);
  const bool is_last = layer + 1 == problem.depth;
  const Activation& activation = is_last ? problem.output_activation : problem.activation;
  const bool relu = activation.kind == ActivationKind::relu;

  // Blocks of nearly equal size: 64 outputs are better cut into six than into five of 12 and one of 4.
  const T zeros[16] = {};
  const int64_t outputs = last_output - first_output;
  const int64_t blocks = divide_up(outputs, Form::max_outputs);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = first_output + outputs * block / blocks;
    const int64_t count = first_output + outputs * (block + 1) / blocks - begin;
    T bias_block[16] = {};
    if (bias) widen_array(bias + begin, count, bias_block);
    const typename Arithmetic::Weight* weight_block;
    if constexpr (__is_same(typename Arithmetic::Weight, Storage)) {
      weight_block = weight + begin * in_features;
    } else {
      // Widened here, a few rows at a time and used while in L1, because a broadcast cannot widen.
      T* wide = static_cast<T*>(weight_scratch);
      widen_array(weight + begin * in_features, count * in_features, wide);
      weight_block = wide;
    }
    const auto run = Blocks<Arithmetic, Form>::run[count - 1];
    for (int64_t i = 0; i < panel.tiles; ++i) {
      T* out = panel.output(layer, i) + begin * Form::rows;
      for (int64_t k = 0; k < in_features; k += kLongestSum) {
        const bool is_last_part = in_features - k <= kLongestSum;
        run(panel.input(layer, i) + k / Arithmetic::features_per_step * Form::rows, weight_block + k, in_features,
            k == 0 ? bias_block : zeros, is_last_part ? in_features - k : kLongestSum, k > 0, relu && is_last_part,
            out);
      }
    }
  }

  Storage* result = static_cast<Storage*>(is_last                ? operands.y
                                          : problem.saves_hidden ? operands.hidden[layer]
                                                                 : nullptr);
  for (int64_t i = 0; i < panel.tiles; ++i) {
    T* tile = panel.output(layer, i);
    if (!relu) apply_activation(activation, tile + first_output * Form::rows, outputs * Form::rows);
    if constexpr (!Arithmetic::output_is_input) {
      if (!is_last) Arithmetic::template pack<Form>(tile, first_output, last_output, panel.input(layer + 1, i));
    }
    if (result) {
      store_tile<Storage, Form>(tile, rows - i * Form::rows, first_output, last_output,
                                result + (first_row + i * Form::rows) * out_features, out_features);
    }
  }
}

}  // namespace
}  // namespace fmlp::cpu
