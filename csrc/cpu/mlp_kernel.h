// The functions of kernel.h, for the instruction set this translation unit is compiled for. Included once per
// kernel_<isa>.cpp; each of those only names the table.
#pragma once

#include "dot.h"
#include "kernel.h"
#include "tile.h"

namespace fmlp::cpu {
namespace {

// The most rows for which dot products are faster than a tile, whose narrowest form takes as long for 1 row as for 4:
// 48-64-40-24 in float32 takes 0.27, 0.82 and 1.0 us for 1, 4 and 5 rows with dot products, 1.27 us as a tile (Zen 4).
// Without wide vectors there are fewer lanes to gain from.
constexpr int64_t kDotRows = kVectorBytes >= 32 ? 4 : 2;

bool uses_dot_products(const MlpProblem& problem) { return problem.rows <= kDotRows; }

// Several tiles share a panel, and each weight that is read, as long as their activations take little of L2.
constexpr int64_t kPanelBytes = 64 << 10;

template <class Storage>
struct MlpKernel {
  using T = Compute<Storage>;

  static int64_t tile_rows(const MlpProblem& problem) {
    return uses_dot_products(problem) ? kDotRows : FullTile<T>::rows;
  }

  static int64_t panel_rows(const MlpProblem& problem) {
    if (uses_dot_products(problem)) return kDotRows;
    const int64_t tile_bytes = TilePanel<Storage, FullTile<T>>(problem, FullTile<T>::rows, nullptr).bytes();
    const int64_t tiles = kPanelBytes / tile_bytes;
    return (tiles < 1 ? 1 : tiles) * FullTile<T>::rows;
  }

  static int64_t activation_bytes(const MlpProblem& problem, int64_t rows) {
    if (uses_dot_products(problem)) return RowPanel<Storage>(problem, rows, nullptr).bytes();
    int64_t bytes = 0;
    with_tile_form<T>(rows,
                      [&](auto form) { bytes = TilePanel<Storage, decltype(form)>(problem, rows, nullptr).bytes(); });
    return bytes;
  }

  static int64_t weight_bytes(const MlpProblem& problem) {
    if (__is_same(typename ArithmeticFor<Storage>::Weight, Storage) || uses_dot_products(problem)) return 0;
    return widest(problem) * TileForm<kLanes<T>, 1>::max_outputs * int64_t(sizeof(T)) + kVectorBytes;
  }

  static void load_rows(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                        const Scratch& scratch) {
    if (uses_dot_products(problem)) {
      return load_dot_rows<Storage>(problem, operands, first_row, rows, scratch.activations);
    }
    with_tile_form<T>(rows, [&](auto form) {
      load_tiles<Storage, decltype(form)>(problem, operands, first_row, rows, scratch.activations);
    });
  }

  static void run_layer(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t rows,
                        int layer, int64_t first_output, int64_t last_output, const Scratch& scratch) {
    if (uses_dot_products(problem)) {
      return run_layer_on_rows<Storage>(problem, operands, first_row, rows, layer, first_output, last_output,
                                        scratch.activations);
    }
    with_tile_form<T>(rows, [&](auto form) {
      run_layer_on_tiles<Storage, decltype(form)>(problem, operands, first_row, rows, layer, first_output, last_output,
                                                  scratch.activations, scratch.weights);
    });
  }

  // Whole tiles first. What is left takes the narrowest tile that holds it, or two: 20 rows are 16 and 4.
  static int64_t next_panel(const MlpProblem& problem, int64_t rows_left) {
    constexpr int64_t tile = FullTile<T>::rows;
    const int64_t most = panel_rows(problem);
    if (rows_left >= most) return most;
    if (rows_left >= tile) return rows_left / tile * tile;
    if (rows_left <= tile / 2 || rows_left > tile / 4 * 3) return rows_left;
    return tile / 2;
  }

  static void run_rows(const MlpProblem& problem, const MlpOperands& operands, int64_t first_row, int64_t last_row,
                       const Scratch& scratch) {
    while (first_row < last_row) {
      const int64_t rows = next_panel(problem, last_row - first_row);
      load_rows(problem, operands, first_row, rows, scratch);
      for (int layer = 0; layer < problem.depth; ++layer) {
        run_layer(problem, operands, first_row, rows, layer, 0, problem.widths[layer + 1], scratch);
      }
      first_row += rows;
    }
  }

  static constexpr Kernel table = {tile_rows, panel_rows, activation_bytes, weight_bytes,
                                   load_rows, run_layer,  run_rows};
};

}  // namespace
}  // namespace fmlp::cpu

// In the order of DType.
#define FMLP_DEFINE_KERNELS(name)                                                                      \
  namespace fmlp::cpu {                                                                                \
  const Kernel name[4] = {MlpKernel<float>::table, MlpKernel<Half>::table, MlpKernel<BFloat16>::table, \
                          MlpKernel<double>::table};                                                   \
  }
