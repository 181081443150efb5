"""The public rewrite. Start from `rewrite`; `find` decides without changing anything."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.export import ExportedProgram

from fmlp_op.graph.chains import Candidate, find_chains
from fmlp_op.graph.decide import decide
from fmlp_op.graph.facts import Reader
from fmlp_op.graph.report import Decision, RewriteReport
from fmlp_op.graph.surgery import replace_chains

_GRAD_SWITCHES = ("_set_grad_enabled", "wrap_with_set_grad_enabled")


def rewrite(graph_module: fx.GraphModule | ExportedProgram, *, policy: str = "always") -> RewriteReport:
    """Fuse every MLP of a graph, in place, where that is provably the same function.

    An MLP is 2 to 16 linear layers with the same activation between them, one of `fmlp_op.activations`, and perhaps one
    after the last: the longest such chain becomes one operator. Another activation between layers ends a chain, as its
    output activation, and whatever else stands there ends it with a reason.

    Takes graphs of Dynamo, `torch.fx.symbolic_trace`, `make_fx` and `torch.export`, decomposed or not, with all the
    GraphModules inside. Names of the nodes that hold results stay, so an ExportedProgram can still be saved.
    A graph that carries no gradient metadata (any but Dynamo's) is taken to run with gradients unless it is rewritten
    under `torch.no_grad()`; that decides whether `clamp(min=0)`, whose gradient at 0 is not ReLU's, and `detach` may be
    fused. Dropout and modules count as they stand now: call `eval()` before, and not `train()` after.

    Args:
        graph_module: the graph.
        policy: "always" fuses whatever can be; any other is put to `fmlp_op.policy.decide`.

    Returns:
        The decisions; `print(report)` shows them as a table.

    Raises:
        TypeError: `graph_module` is neither a GraphModule nor an ExportedProgram.
        ValueError: the policy does not exist.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 24))
        >>> gm = torch.fx.symbolic_trace(mlp)
        >>> len(rewrite(gm).fused)
        1
    """
    decisions: list[Decision] = []
    for name, reader in _readers(graph_module):
        plan = _plan(name, reader, policy)
        decisions += [decision for _, decision in plan]
        replace_chains([candidate for candidate, decision in plan if decision.is_fused], reader)
    return RewriteReport(
        fused=tuple(d for d in decisions if d.is_fused), rejected=tuple(d for d in decisions if not d.is_fused)
    )


def find(graph_module: fx.GraphModule | ExportedProgram, *, policy: str = "always") -> tuple[Decision, ...]:
    """The decisions `rewrite` would make, in graph order, and nothing else. Arguments and errors are `rewrite`'s."""
    return tuple(d for name, reader in _readers(graph_module) for _, d in _plan(name, reader, policy))


def _readers(graph_module: fx.GraphModule | ExportedProgram) -> Iterator[tuple[str, Reader]]:
    """A reader for the graph and one for every graph inside, with their names."""
    root = graph_module.graph_module if isinstance(graph_module, ExportedProgram) else graph_module
    if not isinstance(root, fx.GraphModule):
        raise TypeError(
            f"rewrite: given a {type(root).__name__}; a torch.fx.GraphModule or an ExportedProgram is needed"
        )
    graphs = [(name, gm) for name, gm in root.named_modules() if isinstance(gm, fx.GraphModule)]
    may_train = torch.is_grad_enabled() or any(
        getattr(node.target, "__name__", "") in _GRAD_SWITCHES
        for _, gm in graphs
        for node in gm.graph.nodes
        if node.op == "call_function"
    )
    for name, gm in graphs:
        yield name, Reader(gm, may_train)


def _plan(graph: str, reader: Reader, policy: str) -> list[tuple[Candidate, Decision]]:
    return [(candidate, decide(candidate, graph, reader, policy)) for candidate in find_chains(reader)]
