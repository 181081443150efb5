"""Switches the rewrite on for plain `torch.compile(model)`. Start from `enable`; `options` serves one callable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fmlp_op import policy as policies

_BACKEND = "fmlp"
# torch 2.13 brought a default backend one can set; before it, the rewrite goes in as Inductor's pre-grad pass.
_HAS_DEFAULT_BACKEND = hasattr(torch.compiler, "set_default_backend")


def enable(policy: str = "auto") -> None:
    """Make `torch.compile` without `backend=` fuse MLPs, from the next compilation on.

    Code that is already compiled stays as it is until `torch._dynamo.reset()`. A pre-grad pass of your own keeps
    running. Enabling twice changes the policy only.

    Args:
        policy: "auto", "always", "never" or "measure" (see `fmlp_op.policy`).

    Raises:
        RuntimeError: another default backend than Inductor is set; nothing is changed.
        ValueError: the policy does not exist.
    """
    if _HAS_DEFAULT_BACKEND:
        current = torch.compiler.get_default_backend()
        if current not in (None, "inductor", _BACKEND):
            raise RuntimeError(
                f"fmlp_op.enable: the default backend is already {current!r}; "
                'set it back with torch.compiler.set_default_backend("inductor") first'
            )
        policies.set_default_policy(policy)
        torch.compiler.set_default_backend(_BACKEND)
    else:
        from torch._inductor import config

        policies.set_default_policy(policy)
        config.pre_grad_custom_pass = _compose(config.pre_grad_custom_pass, policy)


def disable() -> None:
    """Undo `enable`; harmless where nothing was enabled. Compiled code stays as it is until `torch._dynamo.reset()`."""
    policies.set_default_policy("auto")
    if _HAS_DEFAULT_BACKEND:
        if torch.compiler.get_default_backend() == _BACKEND:
            torch.compiler.set_default_backend("inductor")
    else:
        from torch._inductor import config

        from fmlp_op.inductor_pass import FusePass

        if isinstance(config.pre_grad_custom_pass, FusePass):
            config.pre_grad_custom_pass = config.pre_grad_custom_pass.user_pass


@contextmanager
def enabled(policy: str = "auto") -> Iterator[None]:
    """`enable` for the length of a `with` block, which must hold both `torch.compile` and the first call."""
    was_enabled, before = is_enabled(), policies.default_policy()
    enable(policy)
    try:
        yield
    finally:
        if was_enabled:
            enable(before)
        else:
            disable()


def is_enabled() -> bool:
    """Whether `enable` is in force."""
    if _HAS_DEFAULT_BACKEND:
        return bool(torch.compiler.get_default_backend() == _BACKEND)
    from torch._inductor import config

    from fmlp_op.inductor_pass import FusePass

    return isinstance(config.pre_grad_custom_pass, FusePass)


def options(policy: str = "auto", **inductor_options: Any) -> dict[str, Any]:
    """Inductor options with the rewrite in them, for one `torch.compile(model, options=…)` or for AOTInductor.

    Args:
        policy: as in `enable`.
        inductor_options: further options; a `pre_grad_custom_pass` among them runs before the rewrite.
    """
    from torch._inductor import config

    user_pass = inductor_options.pop("pre_grad_custom_pass", config.pre_grad_custom_pass)
    return {**inductor_options, "pre_grad_custom_pass": _compose(user_pass, policy)}


def _compose(current: Any, policy: str) -> Any:
    from fmlp_op.inductor_pass import FusePass

    return FusePass(policy, current.user_pass if isinstance(current, FusePass) else current)
