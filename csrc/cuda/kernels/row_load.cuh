// How the row kernel reads global memory: chunks of 16 bytes, in the widest loads that the alignment allows.
#pragma once

#include "interface.cuh"

namespace fmlp {

// 16 bytes of a matrix: 2, 4 or 8 elements.
struct RowChunk {
  unsigned words[4];

  template <class Scalar>
  __device__ __forceinline__ typename Scalar::accumulate element(int index) const {
    if constexpr (sizeof(typename Scalar::storage) == 8) {
      return __hiloint2double(words[2 * index + 1], words[2 * index]);
    } else if constexpr (sizeof(typename Scalar::storage) == 4) {
      return __uint_as_float(words[index]);
    } else {
      return Scalar::load(static_cast<unsigned short>(words[index / 2] >> (index % 2 * 16)));
    }
  }
};

// Loads `bytes` bytes. Inline assembly for two reasons: volatile, so that the loads of all layers stand before the
// first use of any; and plain (not .nc), since x may have been written by a kernel that this one overlaps with.
template <int bytes>
__device__ __forceinline__ void load_words(const char* pointer, unsigned* words) {
  if constexpr (bytes == 16) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(pointer));
  } else if constexpr (bytes == 8) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(pointer));
  } else if constexpr (bytes == 4) {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(words[0]) : "l"(pointer));
  } else {
    unsigned short bits;
    asm volatile("ld.global.b16 %0, [%1];" : "=h"(bits) : "l"(pointer));
    words[0] = bits;
  }
}

// The same pointer, computed once: constant offsets from it become part of the load instructions.
__device__ __forceinline__ const char* base_address(const char* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// The chunk at `pointer`, in loads of `bytes` bytes.
template <int bytes>
__device__ __forceinline__ RowChunk load_chunk(const char* pointer) {
  RowChunk chunk;
#pragma unroll
  for (int part = 0; part < 16 / bytes; ++part) {
    unsigned loaded[4];
    load_words<bytes>(pointer + part * bytes, loaded);
    if constexpr (bytes == 2) {
      chunk.words[part / 2] = part % 2 ? chunk.words[part / 2] | loaded[0] << 16 : loaded[0];
    } else {
#pragma unroll
      for (int word = 0; word < bytes / 4; ++word) chunk.words[part * (bytes / 4) + word] = loaded[word];
    }
  }
  return chunk;
}

// The same where only the first `valid_bytes` bytes of the chunk exist (it may be none); the others are zero. No load
// is skipped, for a branch costs more: what does not exist is read from `anywhere`.
template <int bytes>
__device__ __forceinline__ RowChunk load_partial_chunk(const char* pointer, int valid_bytes, const char* anywhere) {
  RowChunk chunk;
#pragma unroll
  for (int part = 0; part < 16 / bytes; ++part) {
    unsigned loaded[4];
    const bool exists = part * bytes < valid_bytes;
    load_words<bytes>(exists ? pointer + part * bytes : anywhere, loaded);
#pragma unroll
    for (int word = 0; word < divide_up(bytes, 4); ++word) {
      const unsigned value = exists ? loaded[word] : 0;
      if constexpr (bytes == 2) {
        chunk.words[part / 2] = part % 2 ? chunk.words[part / 2] | value << 16 : value;
      } else {
        chunk.words[part * (bytes / 4) + word] = value;
      }
    }
  }
  return chunk;
}

}  // namespace fmlp
