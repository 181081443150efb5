// Matrix instructions of a warpgroup (wgmma, sm_90a): A in registers, B in shared memory, float accumulators.
//
// The instruction runs by itself: its registers must not be touched from `warpgroup_arrive` to the `warpgroup_wait`
// that covers it. `keep_accumulators` behind a wait keeps the compiler from reading them earlier.
#pragma once

#include "mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace fmlp {

__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most `pending` of the committed groups still run.
template <int pending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

template <int count>
__device__ __forceinline__ void keep_accumulators(float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// B operand: [chunk][column][16 bytes] in shared memory, `columns` columns a chunk; address: of the first column used.
// In a cluster, the upper bits of a shared address name the block; they have no place in a descriptor.
__device__ __forceinline__ unsigned long long shared_operand(unsigned address, int columns) {
  return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(columns) << 16 | 8ull << 32;
}

#define FMLP_D2(i) "+f"(d[i]), "+f"(d[i + 1])
#define FMLP_D4(i) FMLP_D2(i), FMLP_D2(i + 2)
#define FMLP_D8(i) FMLP_D4(i), FMLP_D4(i + 4)
#define FMLP_D16(i) FMLP_D8(i), FMLP_D8(i + 8)
#define FMLP_D32(i) FMLP_D16(i), FMLP_D16(i + 16)
#define FMLP_D64(i) FMLP_D32(i), FMLP_D32(i + 32)
#define FMLP_D128(i) FMLP_D64(i), FMLP_D64(i + 64)
#define FMLP_PLACES_8 "%0, %1, %2, %3"
#define FMLP_PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FMLP_PLACES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FMLP_PLACES_64                                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FMLP_PLACES_128                                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63"
#define FMLP_PLACES_256                                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "     \
  "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "     \
  "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The numbers behind the accumulators' places differ with their count, so each size spells its own.
#define FMLP_WGMMA_8(shape, types, last)                                                                     \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8" shape ".f32" types \
               " {" FMLP_PLACES_8 "}, {%4, %5, %6, %7}, %8, p, 1, 1" last "; }"                              \
               : FMLP_D4(0)                                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define FMLP_WGMMA_16(shape, types, last)                                                                      \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16" shape ".f32" types \
               " {" FMLP_PLACES_16 "}, {%8, %9, %10, %11}, %12, p, 1, 1" last "; }"                            \
               : FMLP_D8(0)                                                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define FMLP_WGMMA_32(shape, types, last)                                                                      \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32" shape ".f32" types \
               " {" FMLP_PLACES_32 "}, {%16, %17, %18, %19}, %20, p, 1, 1" last "; }"                          \
               : FMLP_D16(0)                                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define FMLP_WGMMA_64(shape, types, last)                                                                      \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64" shape ".f32" types \
               " {" FMLP_PLACES_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1" last "; }"                          \
               : FMLP_D32(0)                                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define FMLP_WGMMA_128(shape, types, last)                                                                      \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128" shape ".f32" types \
               " {" FMLP_PLACES_128 "}, {%64, %65, %66, %67}, %68, p, 1, 1" last "; }"                          \
               : FMLP_D64(0)                                                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define FMLP_WGMMA_256(shape, types, last)                                                                       \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256" shape ".f32" types \
               " {" FMLP_PLACES_256 "}, {%128, %129, %130, %131}, %132, p, 1, 1" last "; }"                      \
               : FMLP_D128(0)                                                                                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define FMLP_WGMMA(shape, types, last)   \
  if constexpr (columns == 256) {        \
    FMLP_WGMMA_256(shape, types, last);  \
  } else if constexpr (columns == 128) { \
    FMLP_WGMMA_128(shape, types, last);  \
  } else if constexpr (columns == 64) {  \
    FMLP_WGMMA_64(shape, types, last);   \
  } else if constexpr (columns == 32) {  \
    FMLP_WGMMA_32(shape, types, last);   \
  } else if constexpr (columns == 16) {  \
    FMLP_WGMMA_16(shape, types, last);   \
  } else {                               \
    static_assert(columns == 8);         \
    FMLP_WGMMA_8(shape, types, last);    \
  }

// d[64 rows, columns] = (add ? d : 0) + a[64 rows, 8 words] · b[8 words, columns]; d holds columns / 2 values a lane.
template <class Scalar, int columns>
__device__ __forceinline__ void warpgroup_step(float* d, const unsigned (&a)[4], unsigned long long b, int add) {
  if constexpr (same_type<Scalar, bfloat16>) {
    FMLP_WGMMA("k16", ".bf16.bf16", ", 0");
  } else if constexpr (same_type<Scalar, float16>) {
    FMLP_WGMMA("k16", ".f16.f16", ", 0");
  } else {
    FMLP_WGMMA("k8", ".tf32.tf32", "");
  }
}

// The same for any multiple of 8 columns, in pieces of a power of two.
template <class Scalar, int columns>
__device__ __forceinline__ void warpgroup_steps(float* d, const unsigned (&a)[4], unsigned long long b, int add) {
  constexpr int piece = columns >= 256   ? 256
                        : columns >= 128 ? 128
                        : columns >= 64  ? 64
                        : columns >= 32  ? 32
                        : columns >= 16  ? 16
                                         : 8;
  warpgroup_step<Scalar, piece>(d, a, b, add);
  if constexpr (columns > piece) warpgroup_steps<Scalar, columns - piece>(d + piece / 2, a, b + piece, add);
}

}  // namespace fmlp
#endif
