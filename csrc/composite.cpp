#include "composite.h"

#include <string>

namespace fmlp {
namespace {

Tensor linear(Tensor input, const Tensor& weight, const Tensor& bias) {
  StableIValue stack[3] = {to_ivalue(input.release()), to_ivalue(share(weight).release()),
                           give_optional_tensor(share(bias))};
  check(torch_call_dispatcher("aten::linear", "", stack, kShimVersion), "aten::linear for these arguments");
  return Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
}

// The words in which FMLP_ACTIVATIONS writes an activation: operators that take and give tensors. A number is a tensor
// of no dimensions, since the shim of torch 2.10 hands no Scalar on; like a Scalar, it leaves a result's dtype alone.

template <size_t count>
Tensor call(const std::string& op, const char* overload, StableIValue (&&stack)[count]) {
  check(torch_call_dispatcher(("aten::" + op).c_str(), overload, stack, kShimVersion),
        ("aten::" + op + " for these arguments").c_str());
  return Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
}

StableIValue give(const Tensor& tensor) { return to_ivalue(share(tensor).release()); }

StableIValue give(double number) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_scalar_to_tensor_float64(number, &handle), "a number as a tensor");
  return to_ivalue(handle);
}

StableIValue give(const std::string& text) {
  StringHandle handle = nullptr;
  check(torch_new_string_handle(text.data(), text.size(), &handle), "a string");
  return to_ivalue(handle);
}

template <class... Arguments>
Tensor aten(const char* op, const Arguments&... arguments) {
  return call(op, "", {give(arguments)...});
}

Tensor operator*(const Tensor& x, double number) { return call("mul", "Tensor", {give(x), give(number)}); }
Tensor operator/(const Tensor& x, double number) { return call("div", "Tensor", {give(x), give(number)}); }
Tensor operator>(const Tensor& x, double number) { return call("gt", "Tensor", {give(x), give(number)}); }

Tensor where(const Tensor& condition, const Tensor& yes, const Tensor& no) {
  return call("where", "self", {give(condition), give(yes), give(no)});
}

int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype = 0;
  check(aoti_torch_get_dtype(tensor.get(), &dtype), "the dtype of a tensor");
  return dtype;
}

Tensor to_dtype(const Tensor& x, int32_t dtype) {
  const StableIValue no = to_ivalue(false), no_memory_format = 0;
  return call("to", "dtype", {give(x), to_ivalue(dtype), no, no, no_memory_format});
}

Tensor evaluate(const Tensor& x, const Activation& activation) {
  const auto [p, q] = activation.parameters;
  switch (activation.kind) {
#define FMLP_COMPOSITE(name, parameters, first, second, expression) \
  case ActivationKind::name:                                        \
    return expression;
    FMLP_ACTIVATIONS(FMLP_COMPOSITE)
#undef FMLP_COMPOSITE
  }
  throw std::logic_error("fmlp_op: an activation without a composite");
}

// Whether the expression may take several operators, each of which rounds: only activations with parameters need that.
bool takes_several_operators(const Activation& activation) {
  switch (activation.kind) {
#define FMLP_HAS_PARAMETERS(name, parameters, ...) \
  case ActivationKind::name:                       \
    return parameters > 0;
    FMLP_ACTIVATIONS(FMLP_HAS_PARAMETERS)
#undef FMLP_HAS_PARAMETERS
  }
  return false;
}

Tensor activate(Tensor x, const Activation& activation) {
  const int32_t dtype = dtype_of(x);
  const bool is_16_bit = dtype == aoti_torch_dtype_float16() || dtype == aoti_torch_dtype_bfloat16();
  if (!is_16_bit || !takes_several_operators(activation)) return evaluate(x, activation);
  return to_dtype(evaluate(to_dtype(x, aoti_torch_dtype_float32()), activation), dtype);
}

}  // namespace

Tensor run_composite(const Chain& chain, std::vector<Tensor>* hidden) {
  Tensor h = share(chain.x);
  for (int l = 0; l < chain.depth; ++l) {
    const bool is_last = l == chain.depth - 1;
    h = activate(linear(std::move(h), chain.weights[l], chain.biases[l]),
                 is_last ? chain.output_activation : chain.activation);
    if (hidden != nullptr && !is_last) hidden->push_back(share(h));
  }
  return h;
}

}  // namespace fmlp
