// The `fmlp` operator library: names of the operators, shared by their schemas and their kernels.
#pragma once

namespace fmlp {

// `fused_mlp` is what users call. `fused_mlp_inference` is the same function with no autograd of its own: what
// `fused_mlp` becomes where no gradient can be needed. The chain pair is the same for any depth.
inline constexpr const char* kFusedMlp[] = {"fused_mlp", "fused_mlp_inference"};
inline constexpr const char* kFusedChain[] = {"fused_chain", "fused_chain_inference"};
// A chain of 2 to 4 layers with each tensor an argument of its own: lists cost 0.8 us of a call.
inline constexpr const char* kFusedShortChain = "fused_short_chain_inference";
// Forward for training: [y, hidden activation 1, …, hidden activation depth - 1].
inline constexpr const char* kFusedMlpTrain = "fused_mlp_train";
inline constexpr const char* kFusedChainTrain = "fused_chain_train";

}  // namespace fmlp
