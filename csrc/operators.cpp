// The operators' kernels for CPU, CUDA and every other backend: unpack, check, then run the fused kernel that
// serves the problem or the composite.
#include <string>
#include <vector>

#include "chain.h"
#include "composite.h"
#include "cpu/cpu_mlp.h"
#include "cuda/cuda_mlp.h"
#include "parse_activation.h"
#include "schema.h"

namespace fmlp {
namespace {

enum class Backend { cpu, cuda, other };

bool run_fused(Backend backend, const Chain& chain, const MlpProblem& problem, const MlpOperands& operands) {
  if (backend == Backend::cpu) {
    cpu::run(problem, operands);
    return true;
  }
  DeviceGuardHandle guard_handle = nullptr;
  check(aoti_torch_create_device_guard(chain.x_info.device_index, &guard_handle), "a device guard");
  const DeviceGuard guard(guard_handle);
  return cuda::run(problem, operands, chain.x_info.device_index, nullptr);
}

Tensor forward(Backend backend, Chain& chain, std::vector<Tensor>* hidden) {
  chain.check(backend == Backend::other ? Layout::any : Layout::strided);
  MlpProblem problem;
  MlpOperands operands;
  if (backend == Backend::other || !chain.describe(problem, operands)) return run_composite(chain, hidden);
  problem.saves_hidden = hidden != nullptr;
  if (backend == Backend::cpu && !cpu::covers(problem)) return run_composite(chain, hidden);

  Tensor y = chain.empty_like_x(problem.widths[problem.depth]);
  check(torch_get_mutable_data_ptr(y.get(), &operands.y), "the data of the result");
  if (hidden != nullptr) {
    for (int l = 0; l < problem.depth - 1; ++l) {
      hidden->push_back(chain.empty_like_x(problem.widths[l + 1]));
      check(torch_get_mutable_data_ptr(hidden->back().get(), &operands.hidden[l]), "the data of a hidden activation");
    }
  }
  if (problem.rows == 0 || run_fused(backend, chain, problem, operands)) return y;
  if (hidden != nullptr) hidden->clear();
  return run_composite(chain, hidden);
}

Chain unpack_mlp(const char* op, StableIValue* stack) {
  Chain chain;
  chain.op = op;
  chain.depth = 3;
  chain.x = Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
  for (int l = 0; l < 3; ++l) {
    chain.weights[l] = Tensor(from_ivalue<AtenTensorHandle>(stack[1 + l]));
    chain.biases[l] = take_optional_tensor(stack[4 + l]);
  }
  chain.activation.kind = ActivationKind::relu;
  chain.allow_tf32 = from_ivalue<bool>(stack[7]);
  return chain;
}

Activation activation_of(const char* op, const char* argument, const String& string) {
  const char* text = nullptr;
  check(torch_string_c_str(string.get(), &text), "a string");
  return parse_activation(op, argument, text);
}

Chain unpack_short_chain(StableIValue* stack) {
  Chain chain;
  chain.op = kFusedShortChain;
  chain.x = Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
  for (int l = 0; l < 4; ++l) {
    chain.weights[l] = l < 2 ? Tensor(from_ivalue<AtenTensorHandle>(stack[1 + l])) : take_optional_tensor(stack[1 + l]);
    chain.biases[l] = take_optional_tensor(stack[5 + l]);
  }
  const String activation(from_ivalue<StringHandle>(stack[9]));
  const String output_activation(from_ivalue<StringHandle>(stack[10]));
  if (chain.weights[3] && !chain.weights[2])
    refuse(chain.op, "w4 is given, but w3 is None; pass the weights in order.");
  chain.depth = !chain.weights[2] ? 2 : !chain.weights[3] ? 3 : 4;
  chain.activation = activation_of(chain.op, "activation", activation);
  chain.output_activation = activation_of(chain.op, "output_activation", output_activation);
  chain.allow_tf32 = from_ivalue<bool>(stack[11]);
  return chain;
}

size_t size_of(const List& list) {
  size_t size = 0;
  check(torch_list_size(list.get(), &size), "the length of a list");
  return size;
}

StableIValue item(const List& list, size_t index) {
  StableIValue value = 0;
  check(torch_list_get_item(list.get(), index, &value), "an item of a list");
  return value;
}

Chain unpack_chain(const char* op, StableIValue* stack) {
  Chain chain;
  chain.op = op;
  chain.numbered = false;
  chain.x = Tensor(from_ivalue<AtenTensorHandle>(stack[0]));
  const List weights(from_ivalue<StableListHandle>(stack[1]));
  const List biases(from_ivalue<StableListHandle>(stack[2]));
  const String activation(from_ivalue<StringHandle>(stack[3]));
  const String output_activation(from_ivalue<StringHandle>(stack[4]));
  chain.allow_tf32 = from_ivalue<bool>(stack[5]);

  const size_t depth = size_of(weights);
  if (depth < 2 || depth > kMaxDepth)
    refuse(op,
           "weights holds " + std::to_string(depth) + " tensors; it must hold 2 to " + std::to_string(kMaxDepth) + ".");
  if (size_of(biases) != depth)
    refuse(op, "biases holds " + std::to_string(size_of(biases)) + " entries; it must hold " + std::to_string(depth) +
                   ", one per weight (None where a layer has no bias).");
  chain.depth = static_cast<int>(depth);
  for (size_t l = 0; l < depth; ++l) {
    chain.weights[l] = Tensor(from_ivalue<AtenTensorHandle>(item(weights, l)));
    chain.biases[l] = take_optional_tensor(item(biases, l));
  }
  chain.activation = activation_of(op, "activation", activation);
  chain.output_activation = activation_of(op, "output_activation", output_activation);
  return chain;
}

// Boxed kernels: arguments arrive in `stack`, owned by the callee; results go back to its front.
template <Backend backend>
void mlp_kernel(StableIValue* stack, uint64_t, uint64_t) {
  Chain chain = unpack_mlp(kFusedMlp[0], stack);
  stack[0] = to_ivalue(forward(backend, chain, nullptr).release());
}

template <Backend backend>
void chain_kernel(StableIValue* stack, uint64_t, uint64_t) {
  Chain chain = unpack_chain(kFusedChain[0], stack);
  stack[0] = to_ivalue(forward(backend, chain, nullptr).release());
}

template <Backend backend>
void short_chain_kernel(StableIValue* stack, uint64_t, uint64_t) {
  Chain chain = unpack_short_chain(stack);
  stack[0] = to_ivalue(forward(backend, chain, nullptr).release());
}

StableIValue forward_for_training(Backend backend, Chain& chain) {
  std::vector<Tensor> hidden;
  Tensor y = forward(backend, chain, &hidden);
  StableListHandle results = nullptr;
  check(torch_new_list_reserve_size(hidden.size() + 1, &results), "a list of results");
  check(torch_list_push_back(results, to_ivalue(y.release())), "a list of results");
  for (Tensor& h : hidden) check(torch_list_push_back(results, to_ivalue(h.release())), "a list of results");
  return to_ivalue(results);
}

template <Backend backend>
void mlp_train_kernel(StableIValue* stack, uint64_t, uint64_t) {
  Chain chain = unpack_mlp(kFusedMlp[0], stack);
  stack[0] = forward_for_training(backend, chain);
}

template <Backend backend>
void chain_train_kernel(StableIValue* stack, uint64_t, uint64_t) {
  Chain chain = unpack_chain(kFusedChain[0], stack);
  stack[0] = forward_for_training(backend, chain);
}

template <Backend backend>
bool register_kernels(const char* dispatch_key) {
  TorchLibraryHandle library = nullptr;
  if (aoti_torch_library_init_impl("fmlp", dispatch_key, __FILE__, __LINE__, &library) != 0) return false;
  bool ok = true;
  const auto implement = [&](const char* name, void (*kernel)(StableIValue*, uint64_t, uint64_t)) {
    ok &= torch_library_impl(library, name, kernel, kShimVersion) == 0;
  };
  for (const char* name : kFusedMlp) implement(name, mlp_kernel<backend>);
  for (const char* name : kFusedChain) implement(name, chain_kernel<backend>);
  implement(kFusedShortChain, short_chain_kernel<backend>);
  implement(kFusedMlpTrain, mlp_train_kernel<backend>);
  implement(kFusedChainTrain, chain_train_kernel<backend>);
  return ok;
}

[[maybe_unused]] const bool registered = register_kernels<Backend::cpu>("CPU") &&
                                         register_kernels<Backend::cuda>("CUDA") &&
                                         register_kernels<Backend::other>("CompositeExplicitAutograd");

}  // namespace
}  // namespace fmlp
