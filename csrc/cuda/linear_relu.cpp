#include "linear_relu.h"

#include <algorithm>
#include <vector>

#include "driver.h"

namespace fmlp::cuda {
namespace {

using AddmmActivation = AOTITorchError (*)(AtenTensorHandle bias, AtenTensorHandle x, AtenTensorHandle weight,
                                           double beta, double alpha, int32_t use_gelu, AtenTensorHandle* result);

// Of torch's CUDA shim, which only builds with CUDA have.
AddmmActivation addmm_activation() {
  static const auto function =
      reinterpret_cast<AddmmActivation>(torch_cuda_function("aoti_torch_cuda__addmm_activation"));
  return function;
}

struct Geometry {
  std::vector<int64_t> sizes, strides;

  explicit Geometry(const Tensor& tensor) {
    int64_t dim = 0, *size = nullptr, *stride = nullptr;
    check(aoti_torch_get_dim(tensor.get(), &dim), "the rank of a tensor");
    check(aoti_torch_get_sizes(tensor.get(), &size), "the sizes of a tensor");
    check(aoti_torch_get_strides(tensor.get(), &stride), "the strides of a tensor");
    sizes.assign(size, size + dim);
    strides.assign(stride, stride + dim);
  }

  bool is_contiguous() const {
    int64_t expected = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      if (sizes[d] != 1 && strides[d] != expected) return false;
      expected *= sizes[d];
    }
    return true;
  }

  int64_t rows() const {
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < sizes.size(); ++d) rows *= sizes[d];
    return rows;
  }
};

Tensor view(const Tensor& tensor, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch__reinterpret_tensor(tensor.get(), static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                                       0, &handle),
        "a view of a tensor");
  return Tensor(handle);
}

bool is_on_cuda_in_float(const Tensor& tensor) {
  int32_t device_type = 0, dtype = 0, layout = 0;
  check(aoti_torch_get_device_type(tensor.get(), &device_type), "the device of a tensor");
  check(aoti_torch_get_dtype(tensor.get(), &dtype), "the dtype of a tensor");
  check(aoti_torch_get_layout(tensor.get(), &layout), "the layout of a tensor");
  const bool is_float = dtype == aoti_torch_dtype_float32() || dtype == aoti_torch_dtype_float16() ||
                        dtype == aoti_torch_dtype_bfloat16();
  return is_float && device_type == aoti_torch_device_type_cuda() && layout == aoti_torch_layout_strided();
}

}  // namespace

Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  for (const Tensor* tensor : {&x, &weight, &bias}) {
    if (!*tensor || !is_on_cuda_in_float(*tensor)) return Tensor();
  }
  const Geometry of_x(x), of_weight(weight);
  const int64_t rows = of_x.rows(), in = of_weight.sizes[1], out = of_weight.sizes[0];
  const bool is_matrix = of_x.sizes.size() == 2;
  if (rows == 0 || in == 0 || out == 0 || !(is_matrix || of_x.is_contiguous())) return Tensor();
  if (addmm_activation() == nullptr) return Tensor();

  const Tensor matrix = is_matrix ? share(x) : view(x, {rows, in}, {in, 1});
  const Tensor transposed = view(weight, {in, out}, {of_weight.strides[1], of_weight.strides[0]});
  AtenTensorHandle handle = nullptr;
  check(addmm_activation()(bias.get(), matrix.get(), transposed.get(), 1, 1, 0, &handle), "a product of matrices");
  Tensor y(handle);
  if (is_matrix) return y;
  Geometry of_y = of_x;
  of_y.sizes.back() = out;
  int64_t stride = 1;
  for (size_t d = of_y.sizes.size(); d-- > 0; stride *= of_y.sizes[d]) of_y.strides[d] = stride;
  return view(y, of_y.sizes, of_y.strides);
}

bool linear_relu_pays(const MlpProblem& problem) {
  const uint32_t hidden_layers = (1u << (problem.depth - 1)) - 1;
  if (problem.activation.kind != ActivationKind::relu || problem.dtype == DType::float64) return false;
  if ((problem.bias_mask & hidden_layers) != hidden_layers) return false;
  constexpr int64_t widest_measured = 1024;
  double weights = 0;
  for (int l = 0; l < problem.depth; ++l) {
    if (std::max(problem.widths[l], problem.widths[l + 1]) > widest_measured) return false;
    weights += static_cast<double>(problem.widths[l]) * static_cast<double>(problem.widths[l + 1]);
  }
  // In exact float32 the product of wide layers is nearly all of the time, and cuBLAS may have a slower one of it.
  const bool is_exact = problem.dtype == DType::float32 && !problem.allow_tf32;
  return !(is_exact && problem.rows >= 64 && weights > 600.0 * 600.0 * problem.depth);
}

}  // namespace fmlp::cuda
