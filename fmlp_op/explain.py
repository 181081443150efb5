"""What would be fused in a model, and why the rest would not: a dry run. Start from `explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fmlp_op.graph import Decision, find
from fmlp_op.plan import plan
from fmlp_op.policy import default_policy

_visited: ContextVar[list[fx.GraphModule] | None] = ContextVar("fmlp_op_explain", default=None)


@dataclass(frozen=True)
class Explanation:
    """The decisions on each graph that Dynamo made of the model, in the order the graphs ran; `str()` is a report."""

    graphs: tuple[tuple[Decision, ...], ...]

    @property
    def fused(self) -> tuple[Decision, ...]:
        return tuple(d for graph in self.graphs for d in graph if d.is_fused)

    @property
    def rejected(self) -> tuple[Decision, ...]:
        return tuple(d for graph in self.graphs for d in graph if not d.is_fused)

    def __str__(self) -> str:
        lines = [f"fmlp_op: {len(self.fused)} fused, {len(self.rejected)} not, in {len(self.graphs)} graph(s)"]
        for i, graph in enumerate(self.graphs):
            if len(self.graphs) > 1:
                lines.append(f"graph {i + 1}:")
            for decision in graph:
                lines.append(f"  {decision}")
                if decision.is_fused:
                    lines.append(f"    kernel: {_kernel(decision)}")
            if not graph:
                lines.append("  no two linear layers in a row")
        return "\n".join(lines)

    __repr__ = __str__


def _kernel(decision: Decision) -> str:
    """Which kernel will run, and why."""
    if decision.problem is None or decision.problem.rows is None:
        return "chosen when it runs, by the number of rows"
    if decision.problem.device.type == "cuda" and not torch.cuda.is_available():
        return "chosen when it runs, by the GPU"
    chosen = plan(decision.problem)
    if chosen.kernel == "none":
        return f"none: torch's own operators, one by one ({chosen.reason})"
    return f"{chosen.kernel} ({chosen.reason})"


def explain(model: Callable[..., Any], *args: Any, policy: str | None = None, **kwargs: Any) -> Explanation:
    """Trace `model` on the given inputs as torch.compile would and report every candidate.

    Nothing is compiled and the model runs once, uncompiled. A model that is already compiled is explained as it was
    before. Call it under the grad mode and autocast in which the model will run: they are part of the answer.

    Args:
        model: a module or function, compiled or not.
        policy: as in `fmlp_op.enable`; None is the policy in force.

    Returns:
        An Explanation: print it.
    """
    plain = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    visited: list[fx.GraphModule] = []
    token = _visited.set(visited)
    try:
        torch.compile(plain, backend=_dry_run)(*args, **kwargs)
    finally:
        _visited.reset(token)
    return Explanation(tuple(find(gm, policy=policy or default_policy()) for gm in visited))


def _dry_run(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    # The returned function notes that it ran, so that a graph Dynamo already has is explained again.
    def run(*args: Any) -> Any:
        visited = _visited.get()
        if visited is not None:
            visited.append(gm)
        return gm.forward(*args)

    return run
