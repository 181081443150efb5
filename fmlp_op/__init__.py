"""Small MLPs as one kernel: a torch.compile backend, an operator, and a graph rewrite.

model = torch.compile(model, backend="fmlp")                  # finds the MLPs in a model
y = torch.ops.fmlp.fused_mlp(x, w1, w2, w3, b1, b2, b3)       # the operator itself
report = fmlp_op.rewrite(graph_module)                        # the rewrite alone
print(fmlp_op.explain(model, x))                              # what is fused, and why the rest is not
"""

from fmlp_op import _library as _library  # first, since it says what is missing
from fmlp_op import flops as flops
from fmlp_op import testing
from fmlp_op.autograd import recompute_hidden
from fmlp_op.decompose import decompositions
from fmlp_op.enable import disable, enable, enabled, options
from fmlp_op.explain import explain
from fmlp_op.graph import rewrite
from fmlp_op.ops import fused_chain, fused_mlp
from fmlp_op.plan import plan
from fmlp_op.problem import Problem

__all__ = [
    "Problem",
    "decompositions",
    "disable",
    "enable",
    "enabled",
    "explain",
    "fused_chain",
    "fused_mlp",
    "options",
    "plan",
    "recompute_hidden",
    "rewrite",
    "testing",
]
