// Matrix instructions of one warp (mma.sync, ldmatrix) and the conversions that go with them.
#pragma once

#include "numeric.cuh"

namespace fmlp {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void load_shared(unsigned& first, unsigned& second, unsigned& third, unsigned& fourth,
                                            unsigned address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
               : "r"(address)
               : "memory");
}

// Four 8 × 8 tiles of 16-bit elements, or 8 × 4 of 32-bit ones: lane l gets word l % 4 of row l / 4 of each.
// address: of row l % 8 of tile l / 8, 16 contiguous bytes.
__device__ __forceinline__ void load_matrices(unsigned (&tiles)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(address));
}

#define FMLP_MMA(instruction)                                                                 \
  asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// d[16 rows, 8 columns] += a[16 rows, 8 words] · b[8 words, 8 columns], float accumulation.
template <class Scalar>
__device__ __forceinline__ void multiply_step(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (same_type<Scalar, bfloat16>) {
    FMLP_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
  } else if constexpr (same_type<Scalar, float16>) {
    FMLP_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
  } else {
    FMLP_MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
  }
}
#undef FMLP_MMA

// The nearest TF32 number, as float bits. NaN and infinity stay what they are.
__device__ __forceinline__ unsigned round_tf32(float value) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

// value = high + low, exactly; a product reads 11 bits of either. Rounding `high` makes `low` as often negative as
// positive, so that leaving out low · low adds no bias. Where value is NaN, low is, and high may be anything; where it
// is infinite, high is, and low is NaN.
__device__ __forceinline__ void split_tf32(unsigned& high, unsigned& low, float value) {
  high = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(value - __uint_as_float(high));
}

// The sum of all products from that of the high parts and that of the cross terms, which are NaN beside an infinity.
__device__ __forceinline__ float add_cross_terms(float sum, float cross) {
  return fabsf(sum) == __int_as_float(0x7f800000) ? sum : sum + cross;
}

// Two floats as the two 16-bit halves of a word, the first in the low half; `with_relu` keeps NaN.
template <class Scalar, bool with_relu>
__device__ __forceinline__ unsigned pack(float first, float second) {
  unsigned word;
  if constexpr (same_type<Scalar, bfloat16>) {
    if constexpr (with_relu) {
      asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    }
  } else {
    if constexpr (with_relu) {
      asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    }
  }
  return word;
}

}  // namespace fmlp
