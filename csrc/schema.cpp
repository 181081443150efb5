// Every schema of the `fmlp` library, and nothing else.
#include "schema.h"

#include <cstdio>
#include <string>

#include "torch_shim.h"

namespace fmlp {
namespace {

constexpr const char* kMlpArguments =
    "(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor? b1=None, Tensor? b2=None, Tensor? b3=None, "
    "*, bool allow_tf32=False) -> Tensor";
constexpr const char* kChainArguments =
    "(Tensor x, Tensor[] weights, Tensor?[] biases, str activation=\"relu\", str output_activation=\"identity\", "
    "*, bool allow_tf32=False) -> Tensor";

constexpr const char* kShortChainArguments =
    "(Tensor x, Tensor w1, Tensor w2, Tensor? w3, Tensor? w4, Tensor? b1, Tensor? b2, Tensor? b3, Tensor? b4, "
    "str activation=\"relu\", str output_activation=\"identity\", *, bool allow_tf32=False) -> Tensor";

bool define_all() {
  TorchLibraryHandle library = nullptr;
  if (aoti_torch_library_init_def("fmlp", __FILE__, __LINE__, &library) != 0) {
    std::fprintf(stderr,
                 "fmlp_op: this process already holds another copy of the library; uninstall one of the two "
                 "(pip uninstall fmlp_op) and start again.\n");
    return false;
  }
  bool ok = true;
  const auto define = [&](const char* name, const char* arguments) {
    ok &= aoti_torch_library_def(library, (std::string(name) + arguments).c_str()) == 0;
  };
  for (const char* name : kFusedMlp) define(name, kMlpArguments);
  for (const char* name : kFusedChain) define(name, kChainArguments);
  define(kFusedShortChain, kShortChainArguments);
  define(kFusedMlpTrain, (std::string(kMlpArguments) + "[]").c_str());
  define(kFusedChainTrain, (std::string(kChainArguments) + "[]").c_str());
  return ok;
}

// Static initialisation, because loading the library is what registers it; the handle lives as long as the process.
[[maybe_unused]] const bool defined = define_all();

}  // namespace
}  // namespace fmlp
