// The same chain from torch's own operators: what runs where no kernel of ours serves.
#pragma once

#include <vector>

#include "chain.h"

namespace fmlp {

// Returns y [*, out]. Where `hidden` is given, appends every hidden activation [*, out_l] to it.
Tensor run_composite(const Chain& chain, std::vector<Tensor>* hidden);

}  // namespace fmlp
