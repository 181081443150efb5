"""The operators' Python side: fake kernels, autograd, autocast and function transforms. Start from `fused_mlp`.

`torch.ops.fmlp.fused_mlp` is what users and graphs hold. Where no derivative can be asked for it becomes
`fused_mlp_inference`, the same kernel with nothing at the Autograd key, which costs what one native operator costs.
Where gradients are needed it becomes `fused_mlp_train`, which also returns the hidden activations, and a backward
of plain torch operators, which a compiler can fuse further. The `fused_chain` operators are the same for any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fmlp_op import _library as _library  # defines the operators
from fmlp_op import reference
from fmlp_op.autograd import FusedChain

__all__ = ["fused_chain", "fused_mlp"]

_ops = torch.ops.fmlp
# `_op` is the bound C++ operator: OpOverload.__call__ adds only a Python frame around it.
_mlp_inference = _ops.fused_mlp_inference.default._op
_chain_inference = _ops.fused_chain_inference.default._op
_mlp_train = _ops.fused_mlp_train.default
_chain_train = _ops.fused_chain_train.default

# Kept for the life of the process: deleting it would withdraw the kernels.
_registrations = torch.library.Library("fmlp", "IMPL")


def fused_mlp(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    b3: Tensor | None = None,
    *,
    allow_tf32: bool = False,
) -> Tensor:
    """Linear → ReLU → Linear → ReLU → Linear as one kernel.

    Args:
        x: `[*, in_features]`, any number of leading dimensions, none and zero rows included.
        w1, w2, w3: `[out_features, in_features]` of each layer, exactly as `nn.Linear` stores them.
        b1, b2, b3: `[out_features]` of each layer; None where a layer has no bias.
        allow_tf32: float32 products may be rounded to TF32 on GPUs that have it.

    Returns:
        `[*, out_features of w3]`, contiguous, with the dtype and device of `x`. float32, float16, bfloat16 and float64
        have fused kernels (16-bit types accumulate in float32); whatever no kernel covers runs torch's own operators.

    Raises:
        RuntimeError: shapes do not chain, or dtypes or devices differ; the message names the argument.

    Differentiable any number of times, in reverse and forward mode, and under `torch.func` transforms.

    Example:
        >>> l1, l2, l3 = nn.Linear(48, 64), nn.Linear(64, 40), nn.Linear(40, 24)
        >>> y = fused_mlp(torch.randn(16, 48), l1.weight, l2.weight, l3.weight, l1.bias, l2.bias, l3.bias)
    """
    return _ops.fused_mlp(x, w1, w2, w3, b1, b2, b3, allow_tf32=allow_tf32)


def fused_chain(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "relu",
    output_activation: str = "identity",
    *,
    allow_tf32: bool = False,
) -> Tensor:
    """Two to sixteen linear layers with an activation between them, as one kernel.

    Args:
        x: `[*, in_features]`.
        weights: `[out_features, in_features]` of each layer, as `nn.Linear` stores it.
        biases: `[out_features]` or None, one entry per layer.
        activation: between the layers: a name of `fmlp_op.activations`, with parameters in brackets where they differ
            from the defaults (`"leaky_relu(0.2)"`).
        output_activation: after the last layer.
        allow_tf32: as in `fused_mlp`.

    Returns:
        `[*, out_features of the last layer]`; otherwise the contract of `fused_mlp`.
    """
    return _ops.fused_chain(x, weights, biases, activation, output_activation, allow_tf32=allow_tf32)


# --- autograd ---------------------------------------------------------------------------------------------------------


def _needs_grad(*tensors: Tensor | None) -> bool:
    return any(t is not None and t.requires_grad for t in tensors)


def _without_gradient(inference: Callable[..., Tensor], otherwise: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Calls `inference` where no derivative can be asked for, else `otherwise`."""
    grad_enabled, dual = torch.is_grad_enabled, forward_ad

    def choose(*args: Any, **kwargs: Any) -> Tensor:
        # A dual level is asked about too, since no_grad does not switch forward-mode differentiation off.
        if not grad_enabled() and dual._current_level < 0:
            return inference(*args, **kwargs)
        return otherwise(*args, **kwargs)

    return choose


def _mlp_differentiable(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    b3: Tensor | None = None,
    *,
    allow_tf32: bool = False,
) -> Tensor:
    if forward_ad._current_level >= 0:
        return reference.mlp(x, w1, w2, w3, b1, b2, b3)
    if not _needs_grad(x, w1, w2, w3, b1, b2, b3):
        return _mlp_inference(x, w1, w2, w3, b1, b2, b3, allow_tf32=allow_tf32)

    def train(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
        return _mlp_train(x, *weights, *biases, allow_tf32=allow_tf32)

    return FusedChain.apply(train, ("relu", "relu", "identity"), x, w1, w2, w3, b1, b2, b3)


def _chain_differentiable(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "relu",
    output_activation: str = "identity",
    *,
    allow_tf32: bool = False,
) -> Tensor:
    if forward_ad._current_level >= 0:
        return reference.chain(x, weights, biases, activation, output_activation)
    if not _needs_grad(x, *weights, *biases):
        return _chain_inference(x, weights, biases, activation, output_activation, allow_tf32=allow_tf32)

    def train(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
        return _chain_train(x, weights, biases, activation, output_activation, allow_tf32=allow_tf32)

    activations = (activation,) * (len(weights) - 1) + (output_activation,)
    return FusedChain.apply(train, activations, x, *weights, *biases)


# --- function transforms, autocast, fake tensors ----------------------------------------------------------------------


def chain_reference(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "relu",
    output_activation: str = "identity",
    *,
    allow_tf32: bool = False,
) -> Tensor:
    """`fused_chain` in plain torch, with the operator's own arguments."""
    return reference.chain(x, weights, biases, activation, output_activation)


def short_chain(chain: Callable[..., Any]) -> Callable[..., Any]:
    """`chain`, a function of `fused_chain`'s arguments, for the arguments of `fused_short_chain_inference`."""

    def function(x: Any, w1: Any, w2: Any, w3: Any, w4: Any, *biases_and_names: Any, **kwargs: Any) -> Any:
        weights = [w for w in (w1, w2, w3, w4) if w is not None]
        return chain(x, weights, list(biases_and_names[: len(weights)]), *biases_and_names[4:], **kwargs)

    return function


def _autocast_kernel(op: Callable[..., Tensor], device_type: str) -> Callable[..., Tensor]:
    """Casts like a linear layer does, to the autocast dtype of the moment (register_autocast would fix one)."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}"))

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device_type)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*torch.amp.autocast_mode._cast(args, device_type, dtype), **kwargs)

    return kernel


def _fake_outputs(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """One empty `[*, out_features]` per layer. Torch's own linear judges the arguments, on one row: no batch guard."""
    reference.chain(x.new_empty((1, x.shape[-1])), weights, biases)
    return [x.new_empty((*x.shape[:-1], weight.shape[0])) for weight in weights]


def _mlp_fake(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    b3: Tensor | None = None,
    *,
    allow_tf32: bool = False,
) -> Tensor:
    return _fake_outputs(x, (w1, w2, w3), (b1, b2, b3))[-1]


def _mlp_train_fake(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, *biases: Tensor | None, **_: Any) -> list[Tensor]:
    *hidden, y = _fake_outputs(x, (w1, w2, w3), (*biases, None, None, None)[:3])
    return [y, *hidden]


def _chain_fake(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], *_: Any, **__: Any) -> Tensor:
    return _fake_outputs(x, weights, biases)[-1]


def _chain_train_fake(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], *_: Any, **__: Any
) -> list[Tensor]:
    *hidden, y = _fake_outputs(x, weights, biases)
    return [y, *hidden]


def _register() -> None:
    for name, fake, plain in (
        ("fused_mlp", _mlp_fake, reference.mlp),
        ("fused_mlp_inference", _mlp_fake, reference.mlp),
        ("fused_chain", _chain_fake, chain_reference),
        ("fused_chain_inference", _chain_fake, chain_reference),
        ("fused_short_chain_inference", short_chain(_chain_fake), short_chain(chain_reference)),
    ):
        torch.library.register_fake(f"fmlp::{name}", fake, lib=_registrations)
        # Under a torch.func transform every plain operator is transformed by itself.
        _registrations.impl(name, plain, "FuncTorchDynamicLayerFrontMode")
        op = getattr(_ops, name).default
        for device_type in ("cpu", "cuda"):
            _registrations.impl(name, _autocast_kernel(op, device_type), f"Autocast{device_type.upper()}")
    torch.library.register_fake("fmlp::fused_mlp_train", _mlp_train_fake, lib=_registrations)
    torch.library.register_fake("fmlp::fused_chain_train", _chain_train_fake, lib=_registrations)

    for name, inference, differentiable in (
        ("fused_mlp", _mlp_inference, _mlp_differentiable),
        ("fused_chain", _chain_inference, _chain_differentiable),
    ):
        _registrations.impl(name, _without_gradient(inference, differentiable), "Autograd")
        # `torch.ops.fmlp.fused_mlp` is a Python object that calls its attribute `_op`. Choosing there, before the
        # dispatcher, saves a no_grad caller the way into the dispatcher and out to Python again (2 µs of 5.5).
        packet = getattr(_ops, name)
        packet._op = _without_gradient(inference, packet._op)
    for name in ("fused_mlp_inference", "fused_chain_inference", "fused_short_chain_inference",
                 "fused_mlp_train", "fused_chain_train"):  # fmt: skip
        _registrations.impl(name, torch.library.fallthrough_kernel, "Autograd")


_register()
