#include "chain.h"

#include <algorithm>

namespace fmlp {
namespace {

TensorInfo inspect(const Tensor& tensor, Layout layout) {
  static const int32_t cpu = aoti_torch_device_type_cpu();
  TensorInfo info;
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  check(aoti_torch_get_dim(tensor.get(), &info.dim), "the rank of a tensor");
  check(aoti_torch_get_sizes(tensor.get(), &sizes), "the sizes of a tensor");
  if (layout == Layout::strided) check(aoti_torch_get_strides(tensor.get(), &strides), "the strides of a tensor");
  check(aoti_torch_get_dtype(tensor.get(), &info.dtype), "the dtype of a tensor");
  check(aoti_torch_get_device_type(tensor.get(), &info.device_type), "the device of a tensor");
  if (info.device_type != cpu)
    check(aoti_torch_get_device_index(tensor.get(), &info.device_index), "the device of a tensor");
  info.sizes = sizes;
  info.strides = strides;
  return info;
}

std::string shape(const TensorInfo& info) {
  std::string text = "[";
  for (int64_t d = 0; d < info.dim; ++d) text += (d ? ", " : "") + std::to_string(info.sizes[d]);
  return text + "]";
}

// What the caller knows an operand as: w1 and b1, or weights[0] and biases[0].
struct Operand {
  const Chain& chain;
  bool is_bias;
  int layer;

  std::string name() const {
    std::string text = chain.numbered ? (is_bias ? "b" : "w") : (is_bias ? "biases[" : "weights[");
    text += std::to_string(chain.numbered ? layer + 1 : layer);
    return chain.numbered ? text : text + "]";
  }
};

void check_dtype_and_device(const Chain& chain, const Operand& operand, const TensorInfo& info) {
  if (info.dtype != chain.x_info.dtype)
    refuse(chain.op, operand.name() + " and x have different dtypes; convert one of them, or use torch.autocast.");
  if (info.device_type != chain.x_info.device_type || info.device_index != chain.x_info.device_index)
    refuse(chain.op, operand.name() + " and x are on different devices; move one of them with .to(device).");
}

bool is_contiguous(const TensorInfo& info) {
  int64_t expected = 1;
  for (int64_t d = info.dim - 1; d >= 0; --d) {
    if (info.sizes[d] != 1 && info.strides[d] != expected) return false;
    expected *= info.sizes[d];
  }
  return true;
}

// Contiguous, with the dtype, device and sizes of `like`, but for the last size.
Tensor empty(const TensorInfo& like, int64_t last_size) {
  constexpr int64_t kMaxDim = 64;  // torch's own limit
  int64_t sizes[kMaxDim], strides[kMaxDim], stride = 1;
  check(like.dim > kMaxDim, "a tensor of more than 64 dimensions");
  for (int64_t d = like.dim - 1; d >= 0; --d) {
    sizes[d] = d == like.dim - 1 ? last_size : like.sizes[d];
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_empty_strided(like.dim, sizes, strides, like.dtype, like.device_type, like.device_index, &handle),
        "memory for a result");
  return Tensor(handle);
}

void replace_by_contiguous_copy(Tensor& tensor, TensorInfo& info) {
  Tensor copy = empty(info, info.last());
  check(aoti_torch_copy_(copy.get(), tensor.get(), 0), "a contiguous copy");
  tensor = std::move(copy);
  info = inspect(tensor, Layout::strided);
}

// Whether the leading dimensions of x step evenly, so that it can be read in place as [rows, in_features].
bool rows_are_regular(const TensorInfo& x, int64_t& row_stride) {
  if (x.last() > 1 && x.strides[x.dim - 1] != 1) return false;
  row_stride = x.last();
  bool is_innermost = true;
  int64_t span = 0;  // elements that one step of the next dimension outside must cover
  for (int64_t d = x.dim - 2; d >= 0; --d) {
    if (x.sizes[d] == 1) continue;
    if (is_innermost) {
      row_stride = x.strides[d];
    } else if (x.strides[d] != span) {
      return false;
    }
    is_innermost = false;
    span = x.strides[d] * x.sizes[d];
  }
  return true;
}

bool find_dtype(int32_t torch_dtype, DType& dtype) {
  static const int32_t float32 = aoti_torch_dtype_float32(), float16 = aoti_torch_dtype_float16();
  static const int32_t bfloat16 = aoti_torch_dtype_bfloat16(), float64 = aoti_torch_dtype_float64();
  if (torch_dtype == float32) {
    dtype = DType::float32;
  } else if (torch_dtype == float16) {
    dtype = DType::float16;
  } else if (torch_dtype == bfloat16) {
    dtype = DType::bfloat16;
  } else if (torch_dtype == float64) {
    dtype = DType::float64;
  } else {
    return false;
  }
  return true;
}

const void* data(const Tensor& tensor) {
  const void* pointer = nullptr;
  check(torch_get_const_data_ptr(tensor.get(), &pointer), "the data of a tensor");
  return pointer;
}

}  // namespace

void refuse(const char* op, const std::string& sentence) {
  throw std::runtime_error(std::string("fmlp::") + op + ": " + sentence);
}

void Chain::check(Layout layout) {
  x_info = inspect(x, layout);
  if (x_info.dim == 0) refuse(op, "x is a scalar; it must be [*, in_features].");
  int64_t features = x_info.last();
  for (int l = 0; l < depth; ++l) {
    const TensorInfo& weight = weight_info[l] = inspect(weights[l], layout);
    const Operand weight_name{*this, false, l}, bias_name{*this, true, l};
    if (weight.dim != 2)
      refuse(op, weight_name.name() + " has shape " + shape(weight) + "; it must be [out_features, in_features].");
    if (weight.sizes[1] != features)
      refuse(op, weight_name.name() + " has shape " + shape(weight) + ", but its input has " +
                     std::to_string(features) + " features; it must be [out_features, " + std::to_string(features) +
                     "].");
    check_dtype_and_device(*this, weight_name, weight);
    features = weight.sizes[0];
    if (!biases[l]) continue;
    const TensorInfo& bias = bias_info[l] = inspect(biases[l], layout);
    if (bias.dim != 1 || bias.sizes[0] != features)
      refuse(op, bias_name.name() + " has shape " + shape(bias) + "; it must be [" + std::to_string(features) +
                     "], like " + weight_name.name() + "'s out_features.");
    check_dtype_and_device(*this, bias_name, bias);
  }
}

bool Chain::describe(MlpProblem& problem, MlpOperands& operands) {
  if (!find_dtype(x_info.dtype, problem.dtype)) return false;
  problem.depth = depth;
  problem.activation = activation;
  problem.output_activation = output_activation;
  problem.allow_tf32 = allow_tf32;
  problem.widths[0] = x_info.last();
  problem.rows = 1;
  for (int64_t d = 0; d < x_info.dim - 1; ++d) problem.rows *= x_info.sizes[d];
  if (!rows_are_regular(x_info, problem.x_row_stride)) {
    replace_by_contiguous_copy(x, x_info);
    problem.x_row_stride = x_info.last();
  }
  operands.x = data(x);
  uintptr_t bits = reinterpret_cast<uintptr_t>(operands.x);
  bits |= static_cast<uintptr_t>(problem.x_row_stride * element_size(problem.dtype));
  bool has_zero_width = problem.widths[0] == 0;
  for (int l = 0; l < depth; ++l) {
    problem.widths[l + 1] = weight_info[l].sizes[0];
    if (!is_contiguous(weight_info[l])) replace_by_contiguous_copy(weights[l], weight_info[l]);
    has_zero_width |= problem.widths[l + 1] == 0;
    operands.weights[l] = data(weights[l]);
    bits |= reinterpret_cast<uintptr_t>(operands.weights[l]);
    if (!biases[l]) continue;
    if (!is_contiguous(bias_info[l])) replace_by_contiguous_copy(biases[l], bias_info[l]);
    problem.bias_mask |= 1u << l;
    operands.biases[l] = data(biases[l]);
    bits |= reinterpret_cast<uintptr_t>(operands.biases[l]);
  }
  problem.alignment = static_cast<int>(std::min<uintptr_t>(16, (bits | 16) & ~((bits | 16) - 1)));
  return !has_zero_width;
}

Tensor Chain::empty_like_x(int64_t last_size) const { return empty(x_info, last_size); }

}  // namespace fmlp
