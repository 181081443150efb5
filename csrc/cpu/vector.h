// Vectors of `Lanes` numbers for the instruction set this translation unit is compiled for.
//
// GCC vector extensions do arithmetic, comparison and shuffling; intrinsics appear only where the extensions have
// no word for the instruction (masked loads and stores, half precision conversions).
//
// This header and all others that end up in a kernel_<isa>.cpp hold everything in an anonymous namespace and include no
// C++ library header: an inline function compiled for AVX-512 must never be the copy the linker keeps for everyone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FMLP_INLINE inline __attribute__((always_inline))

namespace fmlp::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16;
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorBytes = 16;
constexpr int kVectorRegisters = 16;
#endif

template <class T>
constexpr int kLanes = kVectorBytes / int(sizeof(T));

template <class T, int Lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * Lanes)));
};
template <class T, int Lanes>
using Vector = typename VectorOf<T, Lanes>::type;

template <int Lanes, class T>
FMLP_INLINE Vector<T, Lanes> load(const T* from) {
  Vector<T, Lanes> v;
  memcpy(&v, from, sizeof v);
  return v;
}

template <int Lanes, class T>
FMLP_INLINE void store(T* to, Vector<T, Lanes> v) {
  memcpy(to, &v, sizeof v);
}

// Reads `count` < Lanes numbers and nothing behind them; the other lanes are 0.
template <int Lanes, class T>
FMLP_INLINE Vector<T, Lanes> load_partial(const T* from, int64_t count) {
  using V = Vector<T, Lanes>;
  [[maybe_unused]] constexpr int bytes = sizeof(V), element = sizeof(T);
#if defined(__AVX512F__)
  const uint32_t mask = (uint32_t{1} << count) - 1;
  if constexpr (bytes == 64 && element == 8) return (V)_mm512_maskz_loadu_epi64(mask, from);
  if constexpr (bytes == 64 && element == 4) return (V)_mm512_maskz_loadu_epi32(mask, from);
  if constexpr (bytes == 64 && element == 2) return (V)_mm512_maskz_loadu_epi16(mask, from);
  if constexpr (bytes == 32 && element == 8) return (V)_mm256_maskz_loadu_epi64(mask, from);
  if constexpr (bytes == 32 && element == 4) return (V)_mm256_maskz_loadu_epi32(mask, from);
  if constexpr (bytes == 32 && element == 2) return (V)_mm256_maskz_loadu_epi16(mask, from);
  if constexpr (bytes == 16 && element == 8) return (V)_mm_maskz_loadu_epi64(mask, from);
  if constexpr (bytes == 16 && element == 4) return (V)_mm_maskz_loadu_epi32(mask, from);
  if constexpr (bytes == 16 && element == 2) return (V)_mm_maskz_loadu_epi16(mask, from);
#elif defined(__AVX2__)
  if constexpr (bytes == 32 && element == 8) {
    const __m256i mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
    return (V)_mm256_maskload_epi64(reinterpret_cast<const long long*>(from), mask);
  }
  if constexpr (bytes == 32 && element == 4) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count)), lane);
    return (V)_mm256_maskload_epi32(reinterpret_cast<const int*>(from), mask);
  }
#endif
  V v = {};
  for (int i = 0; i < Lanes && i < count; ++i) v[i] = from[i];
  return v;
}

// Writes the first `count` < Lanes numbers and nothing behind them.
template <int Lanes, class T>
FMLP_INLINE void store_partial(T* to, const Vector<T, Lanes>& v, int64_t count) {
#if defined(__AVX512F__)
  constexpr int bytes = sizeof v, element = sizeof(T);
  const uint32_t mask = (uint32_t{1} << count) - 1;
  if constexpr (bytes == 64 && element == 8) return _mm512_mask_storeu_epi64(to, mask, (__m512i)v);
  if constexpr (bytes == 64 && element == 4) return _mm512_mask_storeu_epi32(to, mask, (__m512i)v);
  if constexpr (bytes == 32 && element == 8) return _mm256_mask_storeu_epi64(to, mask, (__m256i)v);
  if constexpr (bytes == 32 && element == 4) return _mm256_mask_storeu_epi32(to, mask, (__m256i)v);
  if constexpr (bytes == 32 && element == 2) return _mm256_mask_storeu_epi16(to, mask, (__m256i)v);
  if constexpr (bytes == 16 && element == 8) return _mm_mask_storeu_epi64(to, mask, (__m128i)v);
  if constexpr (bytes == 16 && element == 4) return _mm_mask_storeu_epi32(to, mask, (__m128i)v);
  if constexpr (bytes == 16 && element == 2) return _mm_mask_storeu_epi16(to, mask, (__m128i)v);
#endif
  for (int i = 0; i < Lanes && i < count; ++i) to[i] = v[i];
}

template <int... I>
struct Indices {};
template <int Count, int... I>
struct CountUp : CountUp<Count - 1, Count - 1, I...> {};
template <int... I>
struct CountUp<0, I...> {
  using type = Indices<I...>;
};

// Swaps the off-diagonal blocks of [[a], [b]] seen as squares of `Distance` lanes: where a lane's index has the bit
// `Distance`, a gets its value from b's lane without the bit, and b's lane without the bit gets a's value with it.
template <int Distance, class V, int... I>
FMLP_INLINE void exchange(V& a, V& b, Indices<I...>) {
  constexpr int lanes = sizeof...(I);
  const V first = __builtin_shufflevector(a, b, ((I & Distance) ? I - Distance + lanes : I)...);
  const V second = __builtin_shufflevector(a, b, ((I & Distance) ? I + lanes : I + Distance)...);
  a = first;
  b = second;
}

template <int Lanes, int Distance = Lanes / 2, class V>
FMLP_INLINE void transpose(V (&square)[Lanes]) {
  if constexpr (Distance > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < Lanes; ++i) {
      if (!(i & Distance)) exchange<Distance>(square[i], square[i + Distance], typename CountUp<Lanes>::type{});
    }
    transpose<Lanes, Distance / 2>(square);
  }
}

template <int Lanes, class V, int... I>
FMLP_INLINE auto add_halves(V v, Indices<I...>) {
  return __builtin_shufflevector(v, v, I...) + __builtin_shufflevector(v, v, (I + Lanes / 2)...);
}

// Adds the 2 * Distance lanes of each of 2 * Distance vectors; the sums end up in the lanes of v[0], in order.
template <int Distance, class V>
FMLP_INLINE void fold(V* v) {
  if constexpr (Distance > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < Distance; ++i) {
      exchange<Distance>(v[i], v[i + Distance], typename CountUp<sizeof(V) / sizeof(v[0][0])>::type{});
      v[i] += v[i + Distance];
    }
    fold<Distance / 2>(v);
  }
}

// Lane i of the result is the sum over the lanes of v[i]. Lanes are added pairwise at distance Lanes / 2, then half of
// that, and so on, whatever `Count` is, so that a sum does not depend on how many are taken together.
template <class T, int Lanes, int Count>
FMLP_INLINE Vector<T, Count> sum_lanes(Vector<T, Lanes> (&v)[Count]) {
  if constexpr (Count < Lanes) {
    Vector<T, Lanes / 2> halves[Count];
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) halves[i] = add_halves<Lanes>(v[i], typename CountUp<Lanes / 2>::type{});
    return sum_lanes<T, Lanes / 2, Count>(halves);
  } else {
    fold<Lanes / 2>(v);
    return v[0];
  }
}

}  // namespace
}  // namespace fmlp::cpu
