"""The `fmlp` backend of torch.compile: rewrite Dynamo's graph, then hand the rest to Inductor. Start from `fmlp`.

Found by entry point, so `torch.compile(model, backend="fmlp")` needs no import of this package.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from fmlp_op.graph import RewriteReport, rewrite
from fmlp_op.policy import POLICIES, default_policy
from fmlp_op.straight_line import straight_line

__all__ = ["fmlp"]

log = logging.getLogger("fmlp_op")

_POLICY = "fmlp.policy"
_INNER = "fmlp.inner"


def fmlp(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph: fused MLPs become operators, everything else goes to Inductor.

    Args:
        mode: any mode of torch.compile, for the part that Inductor compiles.
        options: Inductor's options, and our own: `"fmlp.policy"`, one of "auto" (the default: fuse where past
            measurements say it pays), "measure" (time both on this device while compiling), "always", "never";
            `"fmlp.inner"`, the backend for the rest (default "inductor").

    Raises:
        ValueError: an option or a value that does not exist, with the nearest that does.
    """
    own, inductor_options = _split_options(options or {})
    patches = {**(torch._inductor.list_mode_options(mode) if mode else {}), **inductor_options}
    with torch._inductor.config.patch(patches) if patches else nullcontext():  # the policy asks how Inductor is set
        report = rewrite(gm, policy=own.get(_POLICY) or default_policy())
    record(report)
    direct = straight_line(gm, may_call_torch=not (mode or inductor_options or _INNER in own))
    if direct is not None:
        return direct
    inner = torch._dynamo.lookup_backend(own.get(_INNER, "inductor"))
    if own.get(_INNER, "inductor") != "inductor":
        return inner(gm, example_inputs)
    return inner(gm, example_inputs, config_patches=patches)  # type: ignore[call-arg]


def _reset() -> None:
    """What torch._dynamo.reset() calls for the backend `reduce-overhead` runs through."""
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    reset_cudagraph_trees()


fmlp.reset = _reset  # type: ignore[attr-defined]


def record(report: RewriteReport) -> None:
    """Counts and logs what was decided: `torch._dynamo.utils.counters["fmlp"]` and TORCH_LOGS="+fmlp_op"."""
    counters = torch._dynamo.utils.counters["fmlp"]
    for decision in report.fused:
        counters["fused"] += 1
        log.info("%s", decision)
    for decision in report.rejected:
        counters[decision.code] += 1
        log.info("%s", decision)


def _split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our options and Inductor's, each name checked."""
    from torch._inductor import config

    own = {name: value for name, value in options.items() if name.startswith("fmlp.")}
    rest = {name.replace("-", "_"): value for name, value in options.items() if name not in own}
    known = [_POLICY, _INNER, *config.get_config_copy()]
    for name in options:
        if name.replace("-", "_") not in known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"fmlp backend: option {name!r} does not exist{hint}")
    if own.get(_POLICY, POLICIES[0]) not in POLICIES:
        raise ValueError(
            f"fmlp backend: option 'fmlp.policy' is {own[_POLICY]!r}; it must be one of {', '.join(POLICIES)}"
        )
    return own, rest
