"""Graphs that are nothing but fused MLPs run as one generated Python function, with no compiler's wrapper around it.

For a small MLP that wrapper costs more than the arithmetic (csrc/NOTES.md has the table). Start from `straight_line`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from fmlp_op import ops  # noqa: F401  (registers the operators)

# operator -> what to call where no gradient is needed: the same kernel, without the stop at the Autograd key
_INFERENCE: dict[Any, Callable[..., Any]] = {
    torch.ops.fmlp.fused_mlp.default: torch.ops.fmlp.fused_mlp_inference.default._op,
    torch.ops.fmlp.fused_chain.default: torch.ops.fmlp.fused_chain_inference.default._op,
}


def straight_line(gm: fx.GraphModule) -> Callable[..., Any] | None:
    """A function equal to `gm.forward`, or None where `gm` holds anything but fused MLPs of its inputs.

    Dynamo guards on grad mode and on which inputs require gradients, so that is decided here once.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    if not calls or any(node.op != "call_function" or node.target not in _INFERENCE for node in calls):
        return None
    needs_grad = torch.is_grad_enabled() and any(_requires_grad(node) for node in placeholders)
    names: dict[fx.Node, str] = {node: f"a{i}" for i, node in enumerate(placeholders)}
    scope: dict[str, Any] = {"forward_ad": forward_ad, "gm": gm}
    lines = []
    for i, node in enumerate(calls):
        scope[f"op{i}"] = node.target._op if needs_grad else _INFERENCE[node.target]
        arguments = [
            *(_source(a, names) for a in node.args),
            *(f"{k}={_source(v, names)}" for k, v in node.kwargs.items()),
        ]
        names[node] = f"v{i}"
        lines.append(f"v{i} = op{i}({', '.join(arguments)})")
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    parameters = ", ".join(names[node] for node in placeholders)
    if not needs_grad:  # a dual tensor asks for a derivative even where no input requires one
        lines.insert(0, f"if forward_ad._current_level >= 0: return gm.forward({parameters})")
    lines.append(f"return {_source(output.args[0], names)}")
    source = f"def straight_line({parameters}):\n    " + "\n    ".join(lines)
    exec(compile(source, "<fmlp_op straight line>", "exec"), scope)
    function: Callable[..., Any] = scope["straight_line"]
    return function


def _requires_grad(node: fx.Node) -> bool:
    value = node.meta.get("example_value", node.meta.get("val"))
    return isinstance(value, torch.Tensor) and value.requires_grad


def _source(argument: Any, names: dict[fx.Node, str]) -> str:
    """`argument` of a node as Python source."""
    if isinstance(argument, fx.Node):
        return names[argument]
    if isinstance(argument, tuple):
        return "(" + "".join(_source(a, names) + ", " for a in argument) + ")"
    if isinstance(argument, list):
        return "[" + ", ".join(_source(a, names) for a in argument) + "]"
    return repr(argument)
