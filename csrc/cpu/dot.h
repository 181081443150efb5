// The kernel for a handful of rows: lanes are input features, and each output is the dot product of a row of the weight
// and a row of the input. Weights are read once per pair of rows, in place; a 16-bit weight is widened as it is read.
//
// The features are summed in another order than tile.h does, so a row may come out differently here by rounding errors.
#pragma once

#include "../problem.h"
#include "activations.h"
#include "arithmetic.h"
#include "sizes.h"
#include "storage.h"

namespace fmlp::cpu {
namespace {

// The activations of the rows: what each layer reads and what it computes, as [row][feature]. Where the two have the
// same type, one layer's output is the next one's input. Rows are padded with zeros to whole vectors.
template <class Storage>
struct RowPanel {
  using Arithmetic = ArithmeticFor<Storage>;
  using Input = typename Arithmetic::Input;
  using Output = typename Arithmetic::Output;
  static constexpr int padding = kLanes<Output> * Arithmetic::features_per_step;

  int64_t rows;
  int64_t row_size;
  Input* inputs[2];
  Output* outputs;

  RowPanel(const MlpProblem& problem, int64_t rows_, void* activations)
      : rows(rows_), row_size(divide_up(widest(problem), padding) * padding) {
    inputs[0] = static_cast<Input*>(activations);
    inputs[1] = inputs[0] + rows * row_size;
    outputs = reinterpret_cast<Output*>(inputs[1] + rows * row_size);
  }

  int64_t bytes() const {
    return rows * row_size * int64_t(2 * sizeof(Input) + (Arithmetic::output_is_input ? 0 : sizeof(Output)));
  }
  Input* input(int layer, int64_t row) const { return inputs[layer & 1] + row * row_size; }
  Output* output(int layer, int64_t row) const {
    if constexpr (Arithmetic::output_is_input) return input(layer + 1, row);
    return outputs + row * row_size;
  }
};

// `Outputs` outputs of `Rows` rows; all pointers are at the first of them, `bias` may be null.
template <class Storage, int Lanes, int Outputs, int Rows>
__attribute__((noinline)) void run_dots(const typename ArithmeticFor<Storage>::Input* in, int64_t row_size,
                                        const Storage* weight, const Storage* bias, int64_t in_features,
                                        typename ArithmeticFor<Storage>::Output* out) {
  using Arithmetic = ArithmeticFor<Storage>;
  using T = typename Arithmetic::Output;
  constexpr int step = Arithmetic::features_per_step;
  Vector<T, Lanes> sum[Rows][Outputs] = {};
  const auto add_products = [&](int64_t k, int64_t features) __attribute__((always_inline)) {
    Vector<typename Arithmetic::Input, Lanes> input[Rows];
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) input[r] = load<Lanes>(in + r * row_size + k / step);
#pragma GCC unroll 8
    for (int i = 0; i < Outputs; ++i) {
      const auto w = Arithmetic::template load_features<Lanes>(weight + i * in_features + k, features);
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) sum[r][i] = Arithmetic::multiply_add(sum[r][i], input[r], w);
    }
  };
  int64_t k = 0;
  for (; k + Lanes * step <= in_features; k += Lanes * step) add_products(k, Lanes * step);
  if (k < in_features) add_products(k, in_features - k);

  Vector<T, Outputs> start = {};
  if (bias) {
    if constexpr (Outputs == 1) {
      start[0] = load_wide_partial<Lanes>(bias, 1)[0];
    } else {
      start = load_wide<Outputs>(bias);
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < Rows; ++r) {
    store<Outputs>(out + r * row_size, start + sum_lanes<T, Lanes, Outputs>(sum[r]));
  }
}

// Outputs [n, n + Outputs) of all rows; with registers to spare, two rows share each weight that is read.
template <class Storage, int Lanes, int Outputs>
FMLP_INLINE void run_dots_of_all_rows(const RowPanel<Storage>& panel, int layer, const Storage* weight,
                                      const Storage* bias, int64_t in_features, int64_t n) {
  weight += n * in_features;
  bias = bias ? bias + n : nullptr;
  int64_t row = 0;
  if constexpr (kVectorRegisters == 32) {
    for (; row + 2 <= panel.rows; row += 2) {
      run_dots<Storage, Lanes, Outputs, 2>(panel.input(layer, row), panel.row_size, weight, bias, in_features,
                                           panel.output(layer, row) + n);
    }
  }
  for (; row < panel.rows; ++row) {
    run_dots<Storage, Lanes, Outputs, 1>(panel.input(layer, row), panel.row_size, weight, bias, in_features,
                                         panel.output(layer, row) + n);
  }
}

// Outputs [first, last) by groups; the last group moves back over outputs already computed, to the same result.
template <class Storage, int Lanes>
void run_dot_groups(const RowPanel<Storage>& panel, int layer, const Storage* weight, const Storage* bias,
                    int64_t in_features, int64_t first, int64_t last) {
  constexpr int group = Lanes < 8 ? Lanes : 8;
  if (last - first < group) {
    for (int64_t n = first; n < last; ++n) {
      run_dots_of_all_rows<Storage, Lanes, 1>(panel, layer, weight, bias, in_features, n);
    }
    return;
  }
  for (int64_t n = first; n < last; n += group) {
    const int64_t begin = n + group <= last ? n : last - group;
    run_dots_of_all_rows<Storage, Lanes, group>(panel, layer, weight, bias, in_features, begin);
  }
}

template <class Storage>
void load_dot_rows(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                   void* activations) {
  using Arithmetic = ArithmeticFor<Storage>;
  constexpr int lanes = kLanes<typename Arithmetic::Input>, step = Arithmetic::features_per_step;
  const RowPanel<Storage> panel(problem, rows, activations);
  for (int64_t row = 0; row < rows; ++row) {
    const Storage* x = static_cast<const Storage*>(operands.x) + (first_row + row) * problem.x_row_stride;
    for (int64_t k = 0; k < problem.widths[0]; k += lanes * step) {
      store<lanes>(panel.input(0, row) + k / step,
                   Arithmetic::template load_features<lanes>(x + k, problem.widths[0] - k));
    }
  }
}

// Outputs [first_output, last_output) of one layer, for all rows.
template <class Storage>
void run_layer_on_rows(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                       int layer, int64_t first_output, int64_t last_output, void* activations) {
  using Arithmetic = ArithmeticFor<Storage>;
  using T = typename Arithmetic::Output;
  constexpr int lanes = kLanes<T>;
  const RowPanel<Storage> panel(problem, rows, activations);
  const int64_t in_features = problem.widths[layer], out_features = problem.widths[layer + 1];
  const Storage* weight = static_cast<const Storage*>(operands.weights[layer]);
  const Storage* bias = static_cast<const Storage*>(operands.biases[layer]);
  const bool is_last = layer + 1 == problem.depth;
  const Activation& activation = is_last ? problem.output_activation : problem.activation;

  // Short sums are dominated by adding up the lanes, of which AVX-512 then had better take half.
  constexpr int few_lanes = kVectorBytes == 64 ? lanes / 2 : lanes;
  if (in_features < 8 * lanes) {
    run_dot_groups<Storage, few_lanes>(panel, layer, weight, bias, in_features, first_output, last_output);
  } else {
    run_dot_groups<Storage, lanes>(panel, layer, weight, bias, in_features, first_output, last_output);
  }

  Storage* result = static_cast<Storage*>(is_last                ? operands.y
                                          : problem.saves_hidden ? operands.hidden[layer]
                                                                 : nullptr);
  for (int64_t row = 0; row < rows; ++row) {
    T* values = panel.output(layer, row);
    apply_activation(activation, values + first_output, last_output - first_output);
    int64_t end = last_output;
    // A later vector load takes the padding too, and times a zero in place of the weight, a stale NaN would still be
    // one.
    if (last_output == out_features) {
      while (end % panel.padding) values[end++] = 0;
    }
    if constexpr (!Arithmetic::output_is_input) {
      if (!is_last) Arithmetic::round_row(values, first_output, end, panel.input(layer + 1, row));
    }
    if (result) {
      Storage* to = result + (first_row + row) * out_features;
      for (int64_t n = first_output; n < last_output; n += lanes) {
        store_rounded<lanes>(to + n, load<lanes>(values + n), last_output - n);
      }
    }
  }
}

}  // namespace
}  // namespace fmlp::cpu
