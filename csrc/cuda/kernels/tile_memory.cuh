// Global memory for tile kernels: pieces of a row to and from registers, in the widest accesses the layout allows.
#pragma once

#include "tile_shape.cuh"

namespace fmlp {

// Loads of 4, 8 or 16 bytes into words; two bytes by load_half. Not ld.global.nc, for the sake of dependent launches
// (interface.cuh).
template <int bytes>
__device__ __forceinline__ void load_piece(unsigned* words, const char* address) {
  if constexpr (bytes == 16) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address));
  } else if constexpr (bytes == 8) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(address));
  } else {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(words[0]) : "l"(address));
  }
}

__device__ __forceinline__ unsigned load_half(const char* address) {
  unsigned short bits;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(bits) : "l"(address));
  return bits;
}

// `count` words of a row of `row_bytes` valid bytes, from byte `offset` on; what lies behind the row's end reads as 0.
// row: the row in global memory, aligned to `access`, or anything when not `valid` (then all words are 0).
template <int count, int row_bytes, int padded_bytes, int access>
__device__ __forceinline__ void load_words(unsigned* words, const char* row, int offset, bool valid) {
  constexpr int piece = access < count * 4 ? access : count * 4;
#pragma unroll
  for (int i = 0; i < count; ++i) words[i] = 0;
  if constexpr (piece == 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int at = offset + i * 4;
      const unsigned low = valid && at < row_bytes ? load_half(row + at) : 0;
      const unsigned high = valid && at + 2 < row_bytes ? load_half(row + at + 2) : 0;
      words[i] = low | high << 16;
    }
  } else {
#pragma unroll
    for (int i = 0; i < count; i += piece / 4) {
      const int at = offset + i * 4;
      if (valid && (row_bytes == padded_bytes || at < row_bytes)) load_piece<piece>(words + i, row + at);
    }
  }
}

template <int bytes>
__device__ __forceinline__ void store_piece(char* address, const unsigned* words) {
  if constexpr (bytes == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
  } else if constexpr (bytes == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1]) : "memory");
  } else {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(words[0]) : "memory");
  }
}

// The reverse of load_words: writes the words that lie inside the row.
template <int count, int row_bytes, int padded_bytes, int access>
__device__ __forceinline__ void store_words(char* row, int offset, const unsigned* words) {
  constexpr int piece = access < count * 4 ? access : count * 4;
  if constexpr (piece == 2) {
#pragma unroll
    for (int i = 0; i < count * 2; ++i) {
      const int at = offset + i * 2;
      const auto bits = static_cast<unsigned short>(words[i / 2] >> i % 2 * 16);
      if (at < row_bytes) *reinterpret_cast<unsigned short*>(row + at) = bits;
    }
  } else {
#pragma unroll
    for (int i = 0; i < count; i += piece / 4) {
      const int at = offset + i * 4;
      if (row_bytes == padded_bytes || at < row_bytes) store_piece<piece>(row + at, words + i);
    }
  }
}

// A warp's share of feature vector `index` for 16 rows: words[half][chunk] of row `lane / 4 + 8 * half`.
template <class Config, int index>
using RowWords = unsigned[2][TileShape<Config>::chunks(index)];
// The same, of the block's own slice.
template <class Config, int index>
using SliceWords = unsigned[2][TileShape<Config>::slice_chunks(index)];

// first: row lane / 4 of the 16; rows_left: how many rows, from that one on, exist. pitch: bytes from row to row.
template <class Config>
__device__ __forceinline__ void load_rows(RowWords<Config, 0>& words, const char* first, long long pitch,
                                          long long rows_left, int t, int rank) {
  using Shape = TileShape<Config>;
  constexpr int row_bytes = width<Config>(0) * Shape::element_bytes, padded = Shape::words(0) * 4;
  constexpr int access = access_bytes(row_bytes, Config::alignment), chunks = Shape::slice_chunks(0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const char* row = first + half * 8 * pitch;
    const bool valid = half * 8 < rows_left;
#pragma unroll
    for (int slice = 0; slice < Shape::blocks; ++slice) {
      const int start = (rank + slice) % Shape::blocks * (chunks * 16);
      unsigned* target = words[half] + slice * chunks;
#pragma unroll
      for (int chunk = 0; chunk < chunks; chunk += 4) {
        if (chunk + 4 <= chunks) {
          load_words<4, row_bytes, padded, access>(target + chunk, row, start + chunk * 16 + t * 16, valid);
        } else {
          load_words<2, row_bytes, padded, access>(target + chunk, row, start + chunk * 16 + t * 8, valid);
        }
      }
    }
  }
}

// Writes the block's slice of feature vector `index`; arguments as for load_rows, rows contiguous.
template <class Config, int index>
__device__ __forceinline__ void store_rows(char* first, long long rows_left, const SliceWords<Config, index>& words,
                                           int t, int rank) {
  using Shape = TileShape<Config>;
  constexpr int row_bytes = width<Config>(index) * Shape::element_bytes, padded = Shape::words(index) * 4;
  constexpr int access = access_bytes(row_bytes, Config::alignment), chunks = Shape::slice_chunks(index);
  const int start = rank * chunks * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 >= rows_left) continue;
    char* row = first + half * 8 * row_bytes;
#pragma unroll
    for (int chunk = 0; chunk < chunks; chunk += 4) {
      if (chunk + 4 <= chunks) {
        store_words<4, row_bytes, padded, access>(row, start + chunk * 16 + t * 16, words[half] + chunk);
      } else {
        store_words<2, row_bytes, padded, access>(row, start + chunk * 16 + t * 8, words[half] + chunk);
      }
    }
  }
}

// Asks for the x of a warp's rows from `row` on to be brought to the L2 cache.
template <class Config>
__device__ __forceinline__ void fetch_rows_to_cache(const KernelArguments<Config::depth>& arguments, long long row,
                                                    int lane) {
  using Shape = TileShape<Config>;
  constexpr int row_bytes = width<Config>(0) * Shape::element_bytes, lines = divide_up(row_bytes, 128);
#pragma unroll
  for (int i = lane; i < lines * Config::rows_per_warp; i += 32) {
    const long long at = row + i / lines;
    if (at >= arguments.rows) break;
    const char* address =
        static_cast<const char*>(arguments.x) + at * arguments.x_row_stride * Shape::element_bytes + i % lines * 128;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
  }
}

}  // namespace fmlp
