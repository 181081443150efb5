// The element types a kernel is generated for: how each is stored, in which type it is accumulated, and the
// conversions between the two. NVRTC has no cuda_fp16.h here, so 16-bit values are plain `unsigned short` bits.
#pragma once

namespace fmlp {

struct float32 {
  using storage = float;
  using accumulate = float;
  static __device__ __forceinline__ float load(float value) { return value; }
  static __device__ __forceinline__ float round(float value) { return value; }
};

struct float64 {
  using storage = double;
  using accumulate = double;
  static __device__ __forceinline__ double load(double value) { return value; }
  static __device__ __forceinline__ double round(double value) { return value; }
};

struct float16 {
  using storage = unsigned short;
  using accumulate = float;
  static __device__ __forceinline__ float load(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ __forceinline__ unsigned short round(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

struct bfloat16 {
  using storage = unsigned short;
  using accumulate = float;
  static __device__ __forceinline__ float load(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
  static __device__ __forceinline__ unsigned short round(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

template <class First, class Second>
inline constexpr bool same_type = false;
template <class Type>
inline constexpr bool same_type<Type, Type> = true;

constexpr int lowest_bit(int value) { return value & -value; }
constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

}  // namespace fmlp
