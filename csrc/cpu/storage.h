// The element types tensors are stored in, and how vectors of them are read into and written from the type the kernels
// compute in: float for the 16-bit types, otherwise the type itself.
#pragma once

#include "vector.h"

namespace fmlp::cpu {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class Storage>
struct ComputeOf {
  using type = Storage;
};
template <>
struct ComputeOf<Half> {
  using type = float;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <class Storage>
using Compute = typename ComputeOf<Storage>::type;

template <class Storage>
constexpr bool kIsNarrow = sizeof(Storage) == 2;

template <int Lanes>
FMLP_INLINE Vector<float, Lanes> widen(const Vector<uint16_t, Lanes>& v, BFloat16) {
  return (Vector<float, Lanes>)(__builtin_convertvector(v, Vector<uint32_t, Lanes>) << 16);
}

// Rounds to nearest even; a NaN stays one (rounding its payload up could carry into the sign).
template <int Lanes>
FMLP_INLINE Vector<uint16_t, Lanes> narrow(const Vector<float, Lanes>& v, BFloat16) {
#if defined(__AVX512BF16__)
  if constexpr (Lanes == 16) return (Vector<uint16_t, Lanes>)_mm512_cvtneps_pbh((__m512)v);
  if constexpr (Lanes == 8) return (Vector<uint16_t, Lanes>)_mm256_cvtneps_pbh((__m256)v);
#endif
  using Bits = Vector<uint32_t, Lanes>;
  const Bits bits = (Bits)v;
  const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return __builtin_convertvector((v == v ? rounded : bits | 0x400000) >> 16, Vector<uint16_t, Lanes>);
}

template <int Lanes>
FMLP_INLINE Vector<float, Lanes> widen(const Vector<uint16_t, Lanes>& v, Half) {
#if defined(__F16C__)
  if constexpr (Lanes == 4) {
    long long low;
    memcpy(&low, &v, sizeof low);
    return (Vector<float, Lanes>)_mm_cvtph_ps(_mm_cvtsi64_si128(low));
  } else if constexpr (Lanes == 8) {
    return (Vector<float, Lanes>)_mm256_cvtph_ps((__m128i)v);
  }
#if defined(__AVX512F__)
  // The masked forms, because GCC 12 warns about the undefined operand inside the plain ones (GCC PR 105593).
  if constexpr (Lanes == 16) return (Vector<float, Lanes>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)v);
#endif
#else
  // Shifting exponent and mantissa into place leaves a float that is 2^112 too small, subnormals included.
  using Bits = Vector<uint32_t, Lanes>;
  const Bits bits = __builtin_convertvector(v, Bits);
  const Bits sign = (bits & 0x8000) << 16;
  const Bits magnitude = bits & 0x7fff;
  const Bits finite = (Bits)((Vector<float, Lanes>)(magnitude << 13) * 0x1p112f);
  const Bits infinite = (magnitude << 13) | 0x7f800000;
  return (Vector<float, Lanes>)((magnitude >= 0x7c00 ? infinite : finite) | sign);
#endif
}

template <int Lanes>
FMLP_INLINE Vector<uint16_t, Lanes> narrow(const Vector<float, Lanes>& v, Half) {
  Vector<uint16_t, Lanes> result;
#if defined(__F16C__)
  if constexpr (Lanes == 4) {
    const long long low = _mm_cvtsi128_si64(_mm_cvtps_ph((__m128)v, _MM_FROUND_TO_NEAREST_INT));
    memcpy(&result, &low, sizeof result);
  } else if constexpr (Lanes == 8) {
    result = (Vector<uint16_t, Lanes>)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  }
#if defined(__AVX512F__)
  if constexpr (Lanes == 16) {
    result = (Vector<uint16_t, Lanes>)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
  }
#endif
#else
  // Adding a power of two whose last place is the half's last place makes the float addition do the rounding
  // (github.com/Maratyszcza/FP16, fp16_ieee_from_fp32_value).
  using Bits = Vector<uint32_t, Lanes>;
  using Floats = Vector<float, Lanes>;
  const Bits bits = (Bits)v;
  const Floats magnitude = (Floats)(bits & 0x7fffffff);
  const Bits exponent = (bits << 1) & 0xff000000;
  const Bits rounder = ((exponent < 0x71000000 ? Bits{} + 0x71000000 : exponent) >> 1) + 0x07800000;
  const Bits rounded = (Bits)((magnitude * 0x1p112f) * 0x1p-110f + (Floats)rounder);
  const Bits finite = ((rounded >> 13) & 0x7c00) + (rounded & 0xfff);
  const Bits half = v == v ? finite : Bits{} + 0x7e00;
  result = __builtin_convertvector(((bits >> 16) & 0x8000) | half, Vector<uint16_t, Lanes>);
#endif
  return result;
}

// `Lanes` stored numbers, as numbers to compute with.
template <int Lanes, class Storage>
FMLP_INLINE Vector<Compute<Storage>, Lanes> load_wide(const Storage* from) {
  if constexpr (kIsNarrow<Storage>) {
    return widen<Lanes>(load<Lanes>(reinterpret_cast<const uint16_t*>(from)), Storage{});
  } else {
    return load<Lanes>(from);
  }
}

template <int Lanes, class Storage>
FMLP_INLINE Vector<Compute<Storage>, Lanes> load_wide_partial(const Storage* from, int64_t count) {
  if constexpr (kIsNarrow<Storage>) {
    return widen<Lanes>(load_partial<Lanes>(reinterpret_cast<const uint16_t*>(from), count), Storage{});
  } else {
    return load_partial<Lanes>(from, count);
  }
}

// Writes the first `count` lanes, all of them where `count` is Lanes or more, rounded to the storage type.
template <int Lanes, class Storage>
FMLP_INLINE void store_rounded(Storage* to, const Vector<Compute<Storage>, Lanes>& v, int64_t count) {
  if constexpr (kIsNarrow<Storage>) {
    const Vector<uint16_t, Lanes> bits = narrow<Lanes>(v, Storage{});
    uint16_t* to_bits = reinterpret_cast<uint16_t*>(to);
    count >= Lanes ? store<Lanes>(to_bits, bits) : store_partial<Lanes>(to_bits, bits, count);
  } else {
    count >= Lanes ? store<Lanes>(to, v) : store_partial<Lanes>(to, v, count);
  }
}

// Copies `count` numbers into an array of the type to compute with, and zeros behind them to make whole vectors.
template <class Storage>
FMLP_INLINE void widen_array(const Storage* from, int64_t count, Compute<Storage>* to) {
  constexpr int lanes = kLanes<Compute<Storage>>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store<lanes>(to + i, load_wide<lanes>(from + i));
  if (i < count) store<lanes>(to + i, load_wide_partial<lanes>(from + i, count - i));
}

}  // namespace
}  // namespace fmlp::cpu
