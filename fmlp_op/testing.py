"""For users' test suites: `assert_fused`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmlp_op.explain import explain

__all__ = ["assert_fused"]


def assert_fused(model: Callable[..., Any], *args: Any, count: int = 1, policy: str = "always", **kwargs: Any) -> None:
    """Fail unless exactly `count` MLPs of `model` would be fused on these inputs.

    Args:
        model: a module or function, compiled or not; `args` and `kwargs` are what it is called with.
        policy: "always" asks whether the rewrite understands the model, "auto" whether it would also pay here.

    Raises:
        AssertionError: with the explanation as its message.
    """
    __tracebackhide__ = True
    explanation = explain(model, *args, policy=policy, **kwargs)
    if len(explanation.fused) != count:
        raise AssertionError(f"expected {count} fused, found {len(explanation.fused)}\n{explanation}")
