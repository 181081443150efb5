"""Graphs of fused MLPs and little else run as one generated Python function, with no compiler's wrapper around it.

For a small MLP that wrapper costs more than the arithmetic (csrc/NOTES.md has the table). Start from `straight_line`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from fmlp_op import ops  # noqa: F401  (registers the operators)
from fmlp_op.graph.effects import effect_of
from fmlp_op.graph.facts import Reader

_ops = torch.ops.fmlp
_FUSED = (_ops.fused_mlp.default, _ops.fused_chain.default)

# Results up to this size: beyond, a compiler's loops gain more than its wrapper costs (csrc/NOTES.md, "Host time").
_MOST_ELEMENTS = 4096


def straight_line(gm: fx.GraphModule, *, may_call_torch: bool) -> Callable[..., Any] | None:
    """A function equal to `gm.forward`, or None where a compiler should see to the rest of `gm`.

    Args:
        may_call_torch: whether a few small operators of torch's own may be called too, beside fused MLPs.

    Dynamo guards on grad mode and on which inputs require gradients, so that is decided here once.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    rest = [node for node in calls if node.op != "call_function" or node.target not in _FUSED]
    if len(rest) == len(calls) or (rest and not (may_call_torch and _is_little(rest, gm))):
        return None
    needs_grad = torch.is_grad_enabled() and any(_requires_grad(node) for node in placeholders)
    code = _Code(gm, placeholders)
    if not needs_grad:  # a dual tensor asks for a derivative even where no input requires one
        code.lines.append(f"if forward_ad._current_level >= 0: return gm.forward({code.parameters})")
    for node in calls:
        if node in rest:
            code.add_call(node, node.target, node.args)
        elif needs_grad:
            code.add_call(node, node.target._op, node.args)
        else:
            code.add_call(node, *_inference(node))
    return code.function()


def _inference(node: fx.Node) -> tuple[Any, tuple[Any, ...]]:
    """The same kernel without the stop at the Autograd key, for where no gradient is needed, and its arguments."""
    if node.target is _ops.fused_mlp.default:
        return _ops.fused_mlp_inference.default._op, node.args
    x, weights, biases, *names = node.args
    assert isinstance(weights, (list, tuple)) and isinstance(biases, (list, tuple))
    if len(weights) > 4:
        return _ops.fused_chain_inference.default._op, node.args
    missing = (None,) * (4 - len(weights))
    return _ops.fused_short_chain_inference.default._op, (x, *weights, *missing, *biases, *missing, *names)


def _is_little(rest: list[fx.Node], gm: fx.GraphModule) -> bool:
    """Whether calling `rest` one by one on a CPU is quicker than a compiler's code for it, and the same.

    Inductor's wrapper costs as much as one operator of torch's, and one more for every linear layer it calls.
    """
    linears = sum(getattr(node.target, "__name__", "") == "linear" for node in rest)
    if len(rest) - linears > 1 + linears:
        return False
    reader = Reader(gm)
    return all(effect_of(node, reader) is None and _is_small_on_cpu(node) for node in rest)


def _is_small_on_cpu(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return (
        node.op in ("call_function", "call_method")
        and isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and isinstance(value.numel(), int)  # a symbolic size may turn out to be any
        and value.numel() <= _MOST_ELEMENTS
    )


def _requires_grad(node: fx.Node) -> bool:
    value = node.meta.get("example_value", node.meta.get("val"))
    return isinstance(value, torch.Tensor) and value.requires_grad


class _Code:
    """The function's source as it is written, and the objects it names."""

    def __init__(self, gm: fx.GraphModule, placeholders: list[fx.Node]) -> None:
        self.names = {node: f"a{i}" for i, node in enumerate(placeholders)}
        self.parameters = ", ".join(self.names.values())
        self.scope: dict[str, Any] = {"forward_ad": forward_ad, "gm": gm}
        self.lines: list[str] = []
        (self.output,) = (node for node in gm.graph.nodes if node.op == "output")

    def add_call(self, node: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
        """`target` is a function, or a method's name; keyword arguments are those of `node`."""
        arguments = [self._source(a) for a in args]
        called = f"{arguments.pop(0)}.{target}" if node.op == "call_method" else self._constant(target)
        arguments += [f"{name}={self._source(value)}" for name, value in node.kwargs.items()]
        self.names[node] = f"v{len(self.names)}"
        self.lines.append(f"{self.names[node]} = {called}({', '.join(arguments)})")

    def function(self) -> Callable[..., Any]:
        body = "\n    ".join([*self.lines, f"return {self._source(self.output.args[0])}"])
        source = f"def straight_line({self.parameters}):\n    {body}"
        exec(compile(source, "<fmlp_op straight line>", "exec"), self.scope)
        function: Callable[..., Any] = self.scope["straight_line"]
        return function

    def _source(self, argument: Any) -> str:
        """`argument` of a node as Python source."""
        if isinstance(argument, fx.Node):
            return self.names[argument]
        if isinstance(argument, tuple):
            return "(" + "".join(self._source(a) + ", " for a in argument) + ")"
        if isinstance(argument, list):
            return "[" + ", ".join(self._source(a) for a in argument) + "]"
        if isinstance(argument, dict):
            return "{" + ", ".join(f"{key!r}: {self._source(value)}" for key, value in argument.items()) + "}"
        if isinstance(argument, slice):
            parts = (argument.start, argument.stop, argument.step)
            return f"slice({', '.join(self._source(part) for part in parts)})"
        if argument is None or isinstance(argument, (bool, int, str)):
            return repr(argument)
        return self._constant(argument)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name
