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


def _never(*_: float) -> bool:
    return False


def _always(*_: float) -> bool:
    return True


@dataclass(frozen=True)
class Activation:
    """An elementwise function.

    Attributes:
        name: as in the operators' activation strings.
        reference: `(x, *parameters) -> y` in plain torch: the definition.
        backward: `(grad, kept, *parameters) -> gradient of the input` in torch's own operators, so that it equals
            eager's and can be differentiated again; `kept` is the output, or the input where `needs_input`.
        parameters: names and defaults.
        needs_input: `(*parameters) -> bool`: the derivative cannot be told from the output, which is what a forward
            keeps. The input costs a backward one more linear layer.
        idempotent: applying it twice is applying it once, derivative included.
    """

    name: str
    reference: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    parameters: tuple[tuple[str, float], ...] = ()
    needs_input: Callable[..., bool] = _never
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


def _approximates_by(text: str) -> Callable[[Mapping[str, Any]], Values | None]:
    return lambda arguments: () if arguments.get("approximate", "none") == text else None


def _usual_spellings(function: Any, module: type[nn.Module], aten: Any, aten_inplace: Any) -> tuple[Spelling, ...]:
    """Of an activation without parameters whose function and module take `inplace`."""
    return (
        Spelling((function, module), ("inplace",), inplace="inplace"),
        Spelling((aten, aten.default)),
        Spelling((aten_inplace, aten_inplace.default), inplace=True),
    )


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _aten_elu_is_elu(arguments: Mapping[str, Any]) -> Values | None:
    alpha = arguments.get("alpha", 1)
    scales = arguments.get("scale", 1), arguments.get("input_scale", 1)
    is_plain = isinstance(alpha, (int, float)) and all(_is_number(scale, 1) for scale in scales)
    return (alpha,) if is_plain else None


def _aten_elu_is_selu(arguments: Mapping[str, Any]) -> Values | None:
    is_selu = (
        _is_number(arguments.get("alpha"), _SELU_ALPHA)
        and _is_number(arguments.get("scale"), _SELU_SCALE)
        and _is_number(arguments.get("input_scale", 1), 1)
    )
    return () if is_selu else None


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

_LEAKY_RELU = Activation(
    "leaky_relu",
    reference=F.leaky_relu,
    # Where the slope is negative, the output no longer has the input's sign.
    needs_input=lambda negative_slope: not negative_slope >= 0,
    backward=lambda grad, kept, slope: _aten.leaky_relu_backward(grad, kept, slope, slope >= 0),
    parameters=(("negative_slope", 0.01),),
    spellings=(
        Spelling((F.leaky_relu, nn.LeakyReLU), ("negative_slope", "inplace"), inplace="inplace"),
        Spelling((_aten.leaky_relu, _aten.leaky_relu.default), ("negative_slope",)),
        Spelling((F.leaky_relu_, _aten.leaky_relu_, _aten.leaky_relu_.default), ("negative_slope",), inplace=True),
    ),
)

_ELU = Activation(
    "elu",
    reference=F.elu,
    # exp(x) is y + alpha, too, but hardly: of a 16-bit y near -alpha, nothing is left.
    needs_input=_always,
    backward=lambda grad, x, alpha: _aten.elu_backward(grad, alpha, 1, 1, False, x),
    parameters=(("alpha", 1.0),),
    spellings=(
        Spelling((F.elu, nn.ELU), ("alpha", "inplace"), inplace="inplace"),
        Spelling((_aten.elu, _aten.elu.default), ("alpha", "scale", "input_scale"), read=_aten_elu_is_elu),
        Spelling(
            (F.elu_, _aten.elu_, _aten.elu_.default),
            ("alpha", "scale", "input_scale"),
            True,
            _aten_elu_is_elu,
        ),
    ),
)

_SELU = Activation(
    "selu",
    reference=F.selu,
    needs_input=_always,
    backward=lambda grad, x: _aten.elu_backward(grad, _SELU_ALPHA, _SELU_SCALE, 1, False, x),
    spellings=(
        Spelling((F.selu, nn.SELU), ("inplace",), inplace="inplace"),
        Spelling((torch.selu, _aten.selu, _aten.selu.default)),
        Spelling((torch.selu_, F.selu_, _aten.selu_, _aten.selu_.default), inplace=True),
        # What torch.selu becomes below autograd.
        Spelling((_aten.elu, _aten.elu.default), ("alpha", "scale", "input_scale"), read=_aten_elu_is_selu),
        Spelling((_aten.elu_, _aten.elu_.default), ("alpha", "scale", "input_scale"), True, _aten_elu_is_selu),
    ),
)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """As torch's own derivative of silu does it: `silu_backward` has none."""
    if not torch.is_grad_enabled():
        return _aten.silu_backward(grad, x)
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


_SILU = Activation(
    "silu",
    reference=F.silu,
    needs_input=_always,
    backward=_silu_backward,
    spellings=_usual_spellings(F.silu, nn.SiLU, _aten.silu, _aten.silu_),
)


def _gelu(name: str, approximate: str) -> Activation:
    return Activation(
        name,
        reference=lambda x: F.gelu(x, approximate=approximate),
        needs_input=_always,
        backward=lambda grad, x: _aten.gelu_backward(grad, x, approximate=approximate),
        spellings=(
            Spelling(
                (F.gelu, nn.GELU, _aten.gelu, _aten.gelu.default), ("approximate",), read=_approximates_by(approximate)
            ),
            Spelling((_aten.gelu_, _aten.gelu_.default), ("approximate",), True, _approximates_by(approximate)),
        ),
    )


_GELU = _gelu("gelu", "none")

_GELU_TANH = _gelu("gelu_tanh", "tanh")

_TANH = Activation(
    "tanh",
    reference=torch.tanh,
    backward=lambda grad, y: _aten.tanh_backward(grad, y),
    spellings=(
        Spelling((torch.tanh, F.tanh, "tanh", nn.Tanh, _aten.tanh, _aten.tanh.default)),
        Spelling((torch.tanh_, "tanh_", _aten.tanh_, _aten.tanh_.default), inplace=True),
    ),
)

_SIGMOID = Activation(
    "sigmoid",
    reference=torch.sigmoid,
    backward=lambda grad, y: _aten.sigmoid_backward(grad, y),
    spellings=(
        Spelling(
            (
                torch.sigmoid,
                F.sigmoid,
                torch.special.expit,
                "sigmoid",
                nn.Sigmoid,
                _aten.sigmoid,
                _aten.sigmoid.default,
                _aten.special_expit,
                _aten.special_expit.default,
            )
        ),
        Spelling((torch.sigmoid_, "sigmoid_", _aten.sigmoid_, _aten.sigmoid_.default), inplace=True),
    ),
)

_SOFTPLUS = Activation(
    "softplus",
    reference=F.softplus,
    needs_input=_always,
    backward=lambda grad, x, beta, threshold: _aten.softplus_backward(grad, x, beta, threshold),
    parameters=(("beta", 1.0), ("threshold", 20.0)),
    spellings=(Spelling((F.softplus, nn.Softplus, _aten.softplus, _aten.softplus.default), ("beta", "threshold")),),
)

_HARDSWISH = Activation(
    "hardswish",
    reference=F.hardswish,
    needs_input=_always,
    backward=lambda grad, x: _aten.hardswish_backward(grad, x),
    spellings=_usual_spellings(F.hardswish, nn.Hardswish, _aten.hardswish, _aten.hardswish_),
)

_SIN = Activation(
    "sin",
    reference=lambda x, frequency: torch.sin(frequency * x),
    needs_input=_always,
    backward=lambda grad, x, frequency: grad * torch.cos(frequency * x) * frequency,
    parameters=(("frequency", 1.0),),
    # The frequency is a multiplication of its own in every dialect; these are the sine alone.
    spellings=(
        Spelling((torch.sin, "sin", _aten.sin, _aten.sin.default), read=lambda _: (1.0,)),
        Spelling((torch.sin_, "sin_", _aten.sin_, _aten.sin_.default), inplace=True, read=lambda _: (1.0,)),
    ),
)


def _mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return _aten.mish_backward(grad, x)
    # Differentiable again, which mish_backward is not.
    t = torch.tanh(F.softplus(x))
    return grad * (t + x * torch.sigmoid(x) * (1 - t * t))


_MISH = Activation(
    "mish",
    reference=F.mish,
    needs_input=_always,
    backward=_mish_backward,
    spellings=_usual_spellings(F.mish, nn.Mish, _aten.mish, _aten.mish_),
)

# In the order of FMLP_ACTIVATIONS in csrc/activations.h, by which plans number them.
ACTIVATIONS: dict[str, Activation] = {
    a.name: a
    for a in (
        _IDENTITY,
        _RELU,
        _LEAKY_RELU,
        _ELU,
        _SELU,
        _SILU,
        _GELU,
        _GELU_TANH,
        _TANH,
        _SIGMOID,
        _SOFTPLUS,
        _HARDSWISH,
        _SIN,
        _MISH,
    )
}


@functools.cache
def spellings() -> dict[Any, list[tuple[Activation, Spelling]]]:
    """Every target in the table, with the activations it may be, depending on its arguments, and their spellings."""
    found: dict[Any, list[tuple[Activation, Spelling]]] = {}
    for activation in ACTIVATIONS.values():
        for spelling in activation.spellings:
            for target in spelling.targets:
                found.setdefault(target, []).append((activation, spelling))
    return found


def read(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Match | None:
    """The activation that calling `target` with these arguments (the tensor left out) applies, or None.

    Example:
        >>> str(read(torch.clamp, (0,), {}))
        'relu'
        >>> str(read(F.gelu, (), {"approximate": "tanh"}))
        'gelu_tanh'
    """
    matches = (_read_as(a, spelling, args, kwargs) for a, spelling in spellings().get(target, ()))
    return next((match for match in matches if match is not None), None)


def _read_as(
    activation: Activation, spelling: Spelling, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Match | None:
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
    return read(type(module), (), {name: getattr(module, name) for name in found[0][1].arguments})


@functools.cache
def parse(text: str) -> tuple[Activation, Values]:
    """The activation that an operator's string names, with its parameter values: "softplus(2, 10)", "sin(30.0)".

    Raises ValueError for a name that is not in the table, and for parameters it does not take.
    """
    name, bracket, values = text.partition("(")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation is {text!r}; it must be one of {', '.join(ACTIVATIONS)}")
    activation = ACTIVATIONS[name]
    count = len(activation.parameters)
    try:
        given = tuple(float(value) for value in values.removesuffix(")").split(",")) if bracket else ()
    except ValueError:
        given = None
    if given is None or len(given) > count or (bracket and not values.endswith(")")):
        raise ValueError(f"activation is {text!r}; {name} takes at most {count} numbers, as in '{name}(0.1)'")
    return activation, given + tuple(default for _, default in activation.parameters[len(given) :])
