#include "composite.h"

namespace fmlp {
namespace {

Tensor linear(Tensor input, const Tensor& weight, const Tensor& bias) {
  StableIValue stack[3] = {to_ivalue(input.release()), to_ivalue(share(weight).release()),
                           give_optional_tensor(share(bias))};
  check(torch_call_dispatcher("aten::linear", "", stack, kShimVersion), "aten::linear for these arguments");
  return Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
}

Tensor activate(Tensor input, const Activation& activation) {
  if (activation.kind == ActivationKind::identity) return input;
  StableIValue stack[1] = {to_ivalue(input.release())};
  check(torch_call_dispatcher("aten::relu", "", stack, kShimVersion), "aten::relu for these arguments");
  return Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
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
