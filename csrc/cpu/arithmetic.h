// How a tile multiplies: what it keeps activations and weights as, and the multiplication itself.
#pragma once

#include "storage.h"

namespace fmlp::cpu {
namespace {

// Activations and weights in the type to compute with; 16-bit weights are widened before use.
template <class Storage>
struct PlainArithmetic {
  using Input = Compute<Storage>;
  using Weight = Compute<Storage>;
  using Output = Compute<Storage>;
  static constexpr int features_per_step = 1;
  static constexpr bool output_is_input = true;

  static FMLP_INLINE Weight read(const Weight* weight) { return *weight; }
  static FMLP_INLINE Weight read_last(const Weight* weight) { return *weight; }

  // `weight` is one for all lanes or a vector of them.
  template <class V, class W>
  static FMLP_INLINE V multiply_add(const V& sum, const V& input, const W& weight) {
    return sum + input * weight;
  }

  template <int Lanes>
  static FMLP_INLINE Vector<Input, Lanes> load_features(const Storage* from, int64_t count) {
    return count >= Lanes ? load_wide<Lanes>(from) : load_wide_partial<Lanes>(from, count);
  }
};

template <class Storage>
struct ArithmeticOf {
  using type = PlainArithmetic<Storage>;
};

#if defined(__AVX512BF16__)
// Two neighbouring features of a row in one 32-bit lane, as the AVX512-BF16 dot product instruction takes them. Two
// neighbouring weights are such a pair as they lie in memory. Hidden activations are rounded to bfloat16, as in torch.
// The instruction takes subnormal numbers for zero.
struct PairArithmetic {
  using Input = uint32_t;
  using Weight = BFloat16;
  using Output = float;
  static constexpr int features_per_step = 2;
  static constexpr bool output_is_input = false;

  static FMLP_INLINE uint32_t read(const BFloat16* weight) {
    uint32_t pair;
    memcpy(&pair, weight, sizeof pair);
    return pair;
  }
  static FMLP_INLINE uint32_t read_last(const BFloat16* weight) { return weight->bits; }

  // `weight` is one pair for all lanes or a vector of them.
  template <class V, class Pairs, class W>
  static FMLP_INLINE V multiply_add(const V& sum, const Pairs& input, const W& weight) {
    const Pairs w = Pairs{} + weight;
    if constexpr (sizeof(V) == 64) {
      return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)input, (__m512bh)w);
    } else if constexpr (sizeof(V) == 32) {
      return (V)_mm256_dpbf16_ps((__m256)sum, (__m256bh)input, (__m256bh)w);
    } else {
      return (V)_mm_dpbf16_ps((__m128)sum, (__m128bh)input, (__m128bh)w);
    }
  }

  template <int Lanes>
  static FMLP_INLINE Vector<uint32_t, Lanes> load_features(const BFloat16* from, int64_t count) {
    const uint16_t* bits = reinterpret_cast<const uint16_t*>(from);
    return (Vector<uint32_t, Lanes>)(count >= 2 * Lanes ? load<2 * Lanes>(bits) : load_partial<2 * Lanes>(bits, count));
  }

  // Rounds features [first, last) of a row, both multiples of 16, into pairs.
  static void round_row(const float* row, int64_t first, int64_t last, uint32_t* pairs) {
    for (int64_t n = first; n < last; n += 16) {
      store<16>(reinterpret_cast<uint16_t*>(pairs) + n, narrow<16>(load<16>(row + n), BFloat16{}));
    }
  }

  // Rounds features [first, last) of a tile, which begin at an even one, into pairs.
  template <class Form>
  static void pack(const float* tile, int64_t first, int64_t last, uint32_t* pairs) {
    constexpr int Lanes = Form::Lanes;
    using Bits = Vector<uint32_t, Lanes>;
    const auto round = [&](int64_t offset) __attribute__((always_inline)) {
      return __builtin_convertvector(narrow<Lanes>(load<Lanes>(tile + offset), BFloat16{}), Bits);
    };
    for (int64_t n = first; n < last; n += 2) {
      for (int v = 0; v < Form::rows; v += Lanes) {
        Bits pair = round(n * Form::rows + v);
        if (n + 1 < last) pair |= round((n + 1) * Form::rows + v) << 16;
        store<Lanes>(pairs + n / 2 * Form::rows + v, pair);
      }
    }
  }
};

template <>
struct ArithmeticOf<BFloat16> {
  using type = PairArithmetic;
};
#endif

template <class Storage>
using ArithmeticFor = typename ArithmeticOf<Storage>::type;

}  // namespace
}  // namespace fmlp::cpu
