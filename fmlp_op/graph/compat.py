"""The private parts of torch that the rewrite needs, all of them here, each with the versions it was tried on.

Tried on torch 2.10, 2.13 and 2.14. Whatever goes missing must fail towards "do not fuse".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as _module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# A tensor of one of these types holds its numbers itself; every other type may mean anything by `linear`.
_PLAIN = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)


def subclass_name(value: Tensor) -> str | None:
    """The type of a tensor that is not a plain one (DTensor, a quantized weight, a nested tensor), else None."""
    if type(value) in _PLAIN and not is_traceable_wrapper_subclass(value) and not value.is_nested:
        return None
    return type(value).__name__


def functorch_kind(value: Tensor) -> str:
    """ "batched" inside torch.vmap, "grad" inside torch.func.grad and its kin, "" outside of both."""
    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(value):
        return ""
    while functorch.is_batchedtensor(value):
        value = functorch.get_unwrapped(value)
    return "grad" if functorch.is_functorch_wrapped_tensor(value) else "batched"


def has_hooks(module: nn.Module) -> bool:
    """Whether calling `module` does more, or other, than its class's `forward`."""
    own = module.__dict__
    return bool(
        "forward" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or _module._has_any_global_hook()
    )


def allow_tf32() -> bool:
    """Whether torch may round float32 products to TF32 now."""
    try:
        return torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # set through the newer switch, which the older ones then refuse to answer for
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def empty_like_with_shape(value: Any, shape: tuple[Any, ...]) -> Tensor | None:
    """A fake tensor of `shape`, otherwise like the fake tensor `value`; None where `value` is no fake tensor."""
    if type(value) is not FakeTensor:
        return None
    with value.fake_mode, torch.no_grad():
        return value.new_empty(shape).requires_grad_(value.requires_grad)
