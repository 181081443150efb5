"""What is known about the tensor a node computes, from the metadata its dialect leaves. Start from `Reader.facts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from fmlp_op.graph import compat

Size = Any  # int or torch.SymInt
NodeOrAttribute = fx.Node | str  # a string is the dotted path of a parameter that only a module reads so far


@dataclass(frozen=True)
class TensorFacts:
    """None stands for "not known"."""

    shape: tuple[Size, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    layout: torch.layout | None = None
    requires_grad: bool | None = None
    subclass: str | None = None
    functorch: str = ""

    @property
    def last(self) -> Size | None:
        return self.shape[-1] if self.shape else None


UNKNOWN = TensorFacts()


def same_size(a: Size | None, b: Size | None) -> bool:
    """Provably the same size; adds no guard to a symbolic one."""
    if a is None or b is None:
        return False
    if type(a) is int and type(b) is int:
        return a == b
    return type(a) is type(b) and str(a) == str(b)


def same_shape(a: tuple[Size, ...] | None, b: tuple[Size, ...] | None) -> bool:
    return a is not None and b is not None and len(a) == len(b) and all(map(same_size, a, b))


class Reader:
    """Reads one GraphModule: modules, attributes and tensor facts by node.

    Args:
        may_train: whether a graph without gradient metadata may be run with gradients.
    """

    def __init__(self, gm: fx.GraphModule, may_train: bool = True) -> None:
        self.gm = gm
        self.may_train = may_train
        self.nodes: list[fx.Node] = list(gm.graph.nodes)
        self.position: dict[fx.Node, int] = {node: i for i, node in enumerate(self.nodes)}
        self._facts: dict[NodeOrAttribute, TensorFacts] = {}
        self.steps: dict[tuple[fx.Node, int | None], Any] = {}  # what graph/dialects.py has read so far
        self._modules: dict[str, nn.Module | None] = {}

    def attribute(self, path: str) -> Any:
        """The object at a dotted path of the module, or None."""
        value: Any = self.gm
        for part in path.split("."):
            value = getattr(value, part, None)
        return value

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a call_module node calls."""
        path = str(node.target)
        if path not in self._modules:
            value = self.attribute(path)
            self._modules[path] = value if isinstance(value, nn.Module) else None
        return self._modules[path]

    def facts(self, what: NodeOrAttribute) -> TensorFacts:
        found = self._facts.get(what)
        if found is None:
            found = self._facts[what] = self._read(what)
        return found

    def _read(self, what: NodeOrAttribute) -> TensorFacts:
        value: Any
        if isinstance(what, str):
            value = self.attribute(what)
        else:
            value = what.meta.get("example_value", what.meta.get("val"))
            if value is None and what.op == "get_attr":
                value = self.attribute(str(what.target))
        if isinstance(value, Tensor):
            return TensorFacts(
                shape=tuple(value.shape),
                dtype=value.dtype,
                device=value.device,
                layout=value.layout,
                requires_grad=value.requires_grad,
                subclass=compat.subclass_name(value),
                functorch=compat.functorch_kind(value),
            )
        recorded = None if isinstance(what, str) else what.meta.get("tensor_meta")
        if recorded is not None and hasattr(recorded, "shape"):  # left by ShapeProp
            return TensorFacts(shape=tuple(recorded.shape), dtype=recorded.dtype)
        return UNKNOWN

    def needs_grad(self, node: fx.Node) -> bool:
        """Whether a gradient may flow through the value of `node`; True where that is not known.

        Dynamo says so for each value. Other graphs may be run either way, so there it depends on the grad mode in which
        the graph is rewritten.
        """
        facts = self.facts(node)
        if "example_value" in node.meta and not facts.functorch and facts.requires_grad is not None:
            return facts.requires_grad
        return self.may_train or bool(facts.functorch)
