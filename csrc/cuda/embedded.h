// The device code that the build put into this library (embed.cmake).
#pragma once

namespace fmlp::cuda {

struct EmbeddedFile {
  const char* name;  // as kernels include it: "row.cuh"
  const char* text;
};

extern const EmbeddedFile kEmbeddedFiles[];
extern const int kEmbeddedFileCount;

}  // namespace fmlp::cuda
