// Runs an AOTInductor package with no Python in the process: aoti_program PACKAGE LIBFMLP INPUT OUTPUT.
// The files hold a float32 matrix: rows and columns as int64, then the values.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <vector>

namespace {

torch::Tensor read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  int64_t sizes[2] = {0, 0};
  file.read(reinterpret_cast<char*>(sizes), sizeof sizes);
  torch::Tensor tensor = torch::empty({sizes[0], sizes[1]});
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  return tensor;
}

void write(const char* path, const torch::Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  const int64_t sizes[2] = {tensor.size(0), tensor.size(1)};
  file.write(reinterpret_cast<const char*>(sizes), sizeof sizes);
  file.write(static_cast<const char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  if (dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::cerr << dlerror() << "\n";
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  std::vector<at::Tensor> inputs = {read(argv[3])};
  write(argv[4], loader.run(inputs)[0].contiguous());
  return 0;
}
