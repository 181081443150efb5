// exp, expm1, log1p, tanh, 1 + erf and sin on vectors of numbers.
//
// float has polynomials: arguments are reduced by Cody and Waite's method, and the coefficients are a weighted least
// squares fit, reweighted until the error was level (at most 4e-9 of the function). Results are off by at most 2 ulp,
// those of tanh and of a sigmoid by 2.6. double calls the C library lane by lane. Whether products and sums are
// contracted changes the last bit and nothing else.
#pragma once

#include "vector.h"

namespace fmlp::cpu {
namespace {

template <class V>
constexpr bool kIsFloat = sizeof(V{}[0]) == sizeof(float);

// Integers as wide as the lanes of V. Unsigned, so that what becomes of a NaN's bits may overflow.
template <class V, bool IsFloat = kIsFloat<V>>
struct BitsOf {
  typedef uint32_t type __attribute__((vector_size(sizeof(V))));
};
template <class V>
struct BitsOf<V, false> {
  typedef uint64_t type __attribute__((vector_size(sizeof(V))));
};
template <class V>
using Bits = typename BitsOf<V>::type;

// A NaN passes through every function here, clamps included: each is written so that a comparison with it is false.
template <class V, class T>
FMLP_INLINE V at_least(const V& v, T low) {
  return v < low ? V{} + low : v;
}
template <class V, class T>
FMLP_INLINE V at_most(const V& v, T high) {
  return v > high ? V{} + high : v;
}

template <class V>
FMLP_INLINE V magnitude(const V& v) {
  return (V)((Bits<V>)v << 1 >> 1);
}
// `v`, which must not be negative, with the sign of `sign`.
template <class V>
FMLP_INLINE V with_sign(const V& v, const V& sign) {
  constexpr int top = sizeof(V{}[0]) * 8 - 1;
  return (V)((Bits<V>)v | ((Bits<V>)sign >> top << top));
}

template <class V, class Function>
FMLP_INLINE V lane_by_lane(const V& v, Function function) {
  V result = v;
  for (size_t i = 0; i < sizeof(V) / sizeof(v[0]); ++i) result[i] = function(result[i]);
  return result;
}

// The exponential of float lanes as 2^power * (1 + fraction), |fraction| < 0.42, for |v| < 120.
template <class V>
struct ReducedExp {
  Bits<V> power;
  V fraction;

  explicit FMLP_INLINE ReducedExp(const V& v) {
    constexpr float to_integer = 0x1.8p23f;  // a float this large has no fraction bits: adding it rounds
    const V shifted = v * 0x1.715476p+0f + to_integer;
    const V n = shifted - to_integer;
    const V r = v - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;  // ln 2 in two parts; the first product is exact
    power = (Bits<V>)shifted - (Bits<V>)(V{} + to_integer);
    V q = r * 0x1.6db64cp-10f + 0x1.123cep-7f;
    q = q * r + 0x1.55545cp-5f;
    q = q * r + 0x1.55548cp-3f;
    q = q * r + 0.5f;
    fraction = q * (r * r) + r;
  }
};

// 2^power, for -127 < power < 128.
template <class V>
FMLP_INLINE V power_of_two(const Bits<V>& power) {
  return (V)((power + 127) << 23);
}

// For v <= 0 only, as all callers have it: so there is no overflow to deal with.
template <class V>
FMLP_INLINE V exp_of_negative(const V& v) {
  if constexpr (kIsFloat<V>) {
    const ReducedExp<V> e(at_least(v, -104.0f));  // below, the result is 0
    // In two factors, since 2^-150 is no float. power + 256 is positive.
    const Bits<V> half = ((e.power + 256) >> 1) - 128;
    return (e.fraction + 1.0f) * power_of_two<V>(half) * power_of_two<V>(e.power - half);
  } else {
    return lane_by_lane(v, [](double x) { return __builtin_exp(x); });
  }
}

// float: v is taken for 40 above that, where no caller can tell.
template <class V>
FMLP_INLINE V expm1_of(const V& v) {
  if constexpr (kIsFloat<V>) {
    const ReducedExp<V> e(at_most(at_least(v, -40.0f), 40.0f));
    const V scale = power_of_two<V>(e.power);
    return e.fraction * scale + (scale - 1.0f);
  } else {
    return lane_by_lane(v, [](double x) { return __builtin_expm1(x); });
  }
}

// float: for 0 <= v <= 1 only.
template <class V>
FMLP_INLINE V log1p_of(const V& v) {
  if constexpr (kIsFloat<V>) {
    // log(1 + v) = 2 atanh(s), of which w = s^2 <= 1/9 makes a short series.
    const V s = v / (v + 2.0f), w = s * s;
    V p = w * 0x1.1efa3ap-2f + 0x1.1eb5bcp-2f;
    p = p * w + 0x1.99d28p-2f;
    p = p * w + 0x1.5555p-1f;
    return p * (s * w) + (s + s);
  } else {
    return lane_by_lane(v, [](double x) { return __builtin_log1p(x); });
  }
}

template <class V>
FMLP_INLINE V tanh_of(const V& v) {
  if constexpr (kIsFloat<V>) {
    const V e = expm1_of(at_most(magnitude(v), 10.0f) * 2.0f);  // from 9.1 on, tanh rounds to 1
    return with_sign(e / (e + 2.0f), v);
  } else {
    return lane_by_lane(v, [](double x) { return __builtin_tanh(x); });
  }
}

// 1 + erf(v), by erfc(-v) where the two cancel: off by 6e-6 of itself at most down to v = -2.8, where it is 7e-5, then
// ever more roughly (0.3 % at -4, 20 % at -6).
template <class V>
FMLP_INLINE V one_plus_erf_of(const V& v) {
  if constexpr (kIsFloat<V>) {
    const V a = magnitude(v);
    // Up to 0.92, erf(a) / a - 1 as a polynomial of a^2 …
    const V s = a * a;
    V p = s * 0x1.5e0632p-14f - 0x1.aaa2d8p-11f;
    p = p * s + 0x1.54d42ap-8f;
    p = p * s - 0x1.b80ff2p-6f;
    p = p * s + 0x1.ce2e1cp-4f;
    p = p * s - 0x1.812744p-2f;
    p = p * s + 0x1.06eba8p-3f;
    const V near = with_sign(p * a + a, v) + 1.0f;
    // … and beyond, log(1 - erf(a)) / a as one of a, fitted up to 4.
    V q = a * -0x1.78dbecp-17f + 0x1.527becp-12f;
    q = q * a - 0x1.dd6c9cp-9f;
    q = q * a + 0x1.85514ep-6f;
    q = q * a - 0x1.b32570p-4f;
    q = q * a - 0x1.45328ep-1f;
    q = q * a - 0x1.20ef1cp+0f;
    const V rest = exp_of_negative(q * a);
    return a < 0.92f ? near : v < 0 ? rest : 2.0f - rest;
  } else {
    return lane_by_lane(v, [](double x) { return __builtin_erfc(-x); });
  }
}

template <class V, int... I>
FMLP_INLINE bool any_lane(const V& mask, Indices<I...>) {
  const auto folded =
      __builtin_shufflevector(mask, mask, I...) | __builtin_shufflevector(mask, mask, (I + sizeof...(I))...);
  if constexpr (sizeof...(I) == 1) {
    return folded[0] != 0;
  } else {
    return any_lane(folded, typename CountUp<sizeof...(I) / 2>::type{});
  }
}
template <class V>
FMLP_INLINE bool any_lane(const V& mask) {
  return any_lane(mask, typename CountUp<sizeof(V) / sizeof(mask[0]) / 2>::type{});
}

template <class V>
FMLP_INLINE V sin_of(const V& v) {
  if constexpr (kIsFloat<V>) {
    constexpr int lanes = sizeof(V) / sizeof(float);
    // Beyond, the reduction below would lose bits; this takes infinity and NaN, too.
    if (any_lane(~(magnitude(v) < 0x1p18f))) return lane_by_lane(v, [](float x) { return __builtin_sinf(x); });
    // v - n * pi in double: the first of pi's two parts has 33 bits, so that its product is exact.
    constexpr double to_integer = 0x1.8p52;
    const auto wide = __builtin_convertvector(v, Vector<double, lanes>);
    const auto shifted = wide * 0x1.45f306dc9c883p-2 + to_integer;
    const auto n = shifted - to_integer;
    const V r = __builtin_convertvector(wide - n * 0x1.921fb544p+1 - n * 0x1.0b4611a626331p-33, V);
    // sin(v) is sin(r) times -1 for an odd n, which is the lowest bit of `shifted`.
    using Odd = Vector<uint64_t, lanes>;
    const Bits<V> sign = __builtin_convertvector((Odd)shifted, Bits<V>) << 31;
    const V w = r * r;
    V p = w * -0x1.9ac308p-26f + 0x1.7174cap-19f;
    p = p * w - 0x1.a017fep-13f;
    p = p * w + 0x1.11110cp-7f;
    p = p * w - 0x1.555556p-3f;
    return (V)((Bits<V>)(p * (w * r) + r) ^ sign);
  } else {
    return lane_by_lane(v, [](double x) { return __builtin_sin(x); });
  }
}

}  // namespace
}  // namespace fmlp::cpu
