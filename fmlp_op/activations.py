"""The activation functions this package knows, one entry each. Start from `ACTIVATIONS` and `read`.

Adding one takes an entry here, one in csrc/activations.h, one in csrc/cpu/activations.h and one in
csrc/cuda/kernels/activations.cuh; a test fails while any of the four lacks it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Values = tuple[float, ...]


@dataclass(frozen=True)
class Spelling:
    """One way in which graphs write an activation.

    Attributes:
        targets: what a node calls: functions, ATen overloads and packets, module classes, or names of Tensor methods.
        arguments: names of the arguments after the tensor, in positional order; for a module, of its attributes.
        inplace: the tensor is overwritten: always, never, or where the argument "inplace" says so.
        read: from the arguments given to the activation's parameter values, or None where they make it another
            function. By default the activation's parameters are looked up by name.
        exact_gradient: the derivative is this activation's too, at every point.
    """

    targets: tuple[Any, ...]
    arguments: tuple[str, ...] = ()
    inplace: bool | str = False
    read: Callable[[Mapping[str, Any]], Values | None] | None = None
    exact_gradient: bool = True


@dataclass(frozen=True)
class Activation:
    """An elementwise function.

    Attributes:
        name: as in the operators' activation strings.
        reference: `(x, *parameters) -> y` in plain torch: the definition.
        backward: `(grad, y, *parameters) -> gradient of the input` in plain torch, y being the output.
        parameters: names and defaults.
        idempotent: applying it twice is applying it once, derivative included.
    """

    name: str
    reference: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    parameters: tuple[tuple[str, float], ...] = ()
    spellings: tuple[Spelling, ...] = ()
    idempotent: bool = False

    def format(self, values: Values = ()) -> str:
        """The operators' string: `relu`, or `leaky_relu(0.2)` where a parameter differs from its default."""
        if not values or values == tuple(default for _, default in self.parameters):
            return self.name
        return f"{self.name}({', '.join(repr(float(v)) for v in values)})"


@dataclass(frozen=True)
class Match:
    """A node that applies `activation` to its first argument."""

    activation: Activation
    values: Values
    inplace: bool
    exact_gradient: bool

    def __str__(self) -> str:
        return self.activation.format(self.values)


_aten = torch.ops.aten


def _is_number(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == number


def _clamp_is_relu(arguments: Mapping[str, Any]) -> Values | None:
    return () if _is_number(arguments.get("min"), 0) and arguments.get("max") is None else None


def _threshold_is_relu(arguments: Mapping[str, Any]) -> Values | None:
    return () if _is_number(arguments.get("threshold"), 0) and _is_number(arguments.get("value"), 0) else None


_IDENTITY = Activation("identity", reference=lambda x: x, backward=lambda grad, y: grad, idempotent=True)

_RELU = Activation(
    "relu",
    reference=torch.relu,
    backward=lambda grad, y: _aten.threshold_backward(grad, y, 0),
    idempotent=True,
    spellings=(
        Spelling((F.relu, nn.ReLU), ("inplace",), inplace="inplace"),
        Spelling((torch.relu, "relu", _aten.relu, _aten.relu.default)),
        Spelling((torch.relu_, F.relu_, "relu_", _aten.relu_, _aten.relu_.default), inplace=True),
        # torch.threshold keeps NaN and has relu's derivative; relu's own backward is threshold's.
        Spelling((F.threshold, nn.Threshold), ("threshold", "value", "inplace"), "inplace", _threshold_is_relu),
        Spelling(
            (torch.threshold, _aten.threshold, _aten.threshold.default), ("threshold", "value"), read=_threshold_is_relu
        ),
        Spelling(
            (F.threshold_, _aten.threshold_, _aten.threshold_.default),  # type: ignore[attr-defined]
            ("threshold", "value"),
            True,
            _threshold_is_relu,
        ),
        # clamp's derivative at its limit is 1, relu's at 0 is 0.
        Spelling(
            (
                torch.clamp,
                torch.clip,
                "clamp",
                "clip",
                _aten.clamp,
                _aten.clamp.default,
                _aten.clip,
                _aten.clip.default,
            ),
            ("min", "max"),
            read=_clamp_is_relu,
            exact_gradient=False,
        ),
        Spelling(
            (
                torch.clamp_,
                torch.clip_,
                "clamp_",
                "clip_",
                _aten.clamp_,
                _aten.clamp_.default,
                _aten.clip_,
                _aten.clip_.default,
            ),
            ("min", "max"),
            True,
            _clamp_is_relu,
            exact_gradient=False,
        ),
        Spelling(
            (torch.clamp_min, "clamp_min", _aten.clamp_min, _aten.clamp_min.default),
            ("min",),
            read=_clamp_is_relu,
            exact_gradient=False,
        ),
        Spelling(
            (torch.clamp_min_, "clamp_min_", _aten.clamp_min_, _aten.clamp_min_.default),
            ("min",),
            True,
            _clamp_is_relu,
            exact_gradient=False,
        ),
    ),
)

ACTIVATIONS: dict[str, Activation] = {a.name: a for a in (_IDENTITY, _RELU)}


@functools.cache
def spellings() -> dict[Any, tuple[Activation, Spelling]]:
    """Every target in the table, with the activation and the spelling it belongs to."""
    return {t: (a, s) for a in ACTIVATIONS.values() for s in a.spellings for t in s.targets}


def read(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Match | None:
    """The activation that calling `target` with these arguments (the tensor left out) applies, or None.

    Example:
        >>> str(read(torch.clamp, (0,), {}))
        'relu'
    """
    found = spellings().get(target)
    if found is None:
        return None
    activation, spelling = found
    if len(args) > len(spelling.arguments):
        return None
    arguments = {**dict(zip(spelling.arguments, args, strict=False)), **kwargs}
    if any(name not in spelling.arguments for name in arguments):
        return None
    inplace = arguments.get(spelling.inplace, False) if isinstance(spelling.inplace, str) else spelling.inplace
    if not isinstance(inplace, bool):
        return None
    if spelling.read is not None:
        values = spelling.read(arguments)
    else:
        values = tuple(arguments.get(name, default) for name, default in activation.parameters)
        if not all(isinstance(v, (int, float)) for v in values):
            values = None
    return None if values is None else Match(activation, values, inplace, spelling.exact_gradient)


def read_module(module: nn.Module) -> Match | None:
    """The activation that a module applies, or None. A subclass may do anything, so only the exact class counts."""
    found = spellings().get(type(module))
    if found is None:
        return None
    return read(type(module), (), {name: getattr(module, name) for name in found[1].arguments})


@functools.cache
def parse(text: str) -> tuple[Activation, Values]:
    """The activation that an operator's string names, with its parameter values.

    Raises ValueError for a name that is not in the table.
    """
    name, _, values = text.partition("(")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation is {text!r}; it must be one of {', '.join(ACTIVATIONS)}")
    activation = ACTIVATIONS[name]
    given = tuple(float(value) for value in values.rstrip(")").split(",")) if values else ()
    return activation, given + tuple(default for _, default in activation.parameters[len(given) :])
