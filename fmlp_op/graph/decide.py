"""Turns a candidate into the one decision that rewriting, `explain` and the logs read. Start from `decide`."""

from __future__ import annotations

import os
import re

import torch
from torch import fx

from fmlp_op.graph import compat, reasons
from fmlp_op.graph.chains import Candidate
from fmlp_op.graph.facts import Reader, Size
from fmlp_op.graph.links import Obstacle
from fmlp_op.graph.report import Decision
from fmlp_op.problem import Problem

_TORCH_FOLDER = os.path.dirname(torch.__file__)


def decide(candidate: Candidate, graph: str, reader: Reader, policy: str) -> Decision:
    """The decision on `candidate`; `graph` is the name of the graph it is in.

    Raises ValueError for a policy that does not exist.
    """
    layers, ends, obstacle = candidate.layers, candidate.ends, candidate.obstacle
    fusable = ends is not None and obstacle is None
    source, result = (ends.source, ends.result) if ends and fusable else (layers[0].source, layers[-1].node)
    facts, weight = reader.facts(source), reader.facts(layers[0].weight)
    shape = facts.shape
    widths = _widths([reader.facts(layer.weight).shape for layer in layers])
    rows = None if shape is None else _product(shape[:-1])
    dtype, device = facts.dtype or weight.dtype, facts.device or weight.device
    biases = tuple(layer.bias is not None for layer in layers)
    problem = None
    activation, output_activation = candidate.activation, candidate.output_activation
    sized = widths is not None and all(type(w) is int for w in widths)
    if widths is not None and sized and dtype is not None and device is not None and activation is not None:
        problem = Problem(
            rows=rows,
            widths=widths,
            dtype=reader.facts(layers[-1].node).dtype or dtype,  # autocast's, where it is on
            device=device,
            biases=biases,
            activation=activation,
            output_activation=output_activation,
            needs_grad=reader.needs_grad(layers[-1].node),
            allow_tf32=compat.allow_tf32(),
        )
    obstacle = obstacle or _objection(policy, problem)
    if obstacle is None:
        code, sentence = reasons.FUSED, reasons.sentence(reasons.FUSED, layers=len(layers), operator=candidate.operator)
    else:
        code = obstacle.code
        sentence = reasons.sentence(code, found=obstacle.found, where=_where(candidate.between))
    return Decision(
        node=result.name,
        code=code,
        sentence=sentence,
        layers=tuple(layer.node.name for layer in layers),
        graph=graph,
        shape=None if shape is None else tuple(map(_printable, shape)),
        rows=rows,
        widths=None if widths is None else tuple(map(_printable, widths)),
        dtype=dtype,
        device=device,
        biases=biases,
        activation=activation,
        output_activation=output_activation,
        problem=problem,
        location=_location(layers[-1].node),
    )


def _objection(policy: str, problem: Problem | None) -> Obstacle | None:
    """The policy's objection to fusing, or None."""
    if policy == "always":
        return None
    from fmlp_op import policy as policies  # not before it is asked: a policy may measure, which needs the operators

    if problem is None:
        return Obstacle("shapes-unknown", "the layers, which the policy needs")
    verdict = policies.decide(problem, policy)
    return None if verdict.fuse else Obstacle(reasons.POLICY, verdict.reason)


def _widths(shapes: list[tuple[Size, ...] | None]) -> tuple[Size, ...] | None:
    known = [shape for shape in shapes if shape is not None and len(shape) == 2]
    if len(known) < len(shapes):
        return None
    return (known[0][1], *(shape[0] for shape in known))


def _product(sizes: tuple[Size, ...]) -> int | None:
    rows = 1
    for size in sizes:
        if type(size) is not int:
            return None
        rows *= size
    return rows


def _printable(size: Size) -> int | str:
    return size if type(size) is int else str(size)


def _where(between: tuple[int, int] | None) -> str:
    if between is None:
        return "the layers"
    before, after = between
    return f"layers {before} and {after}" if before else f"layer {after} and the one before it"


def _location(node: fx.Node) -> str | None:
    """ "file:line" of the source that a node was traced from, torch's own modules left out."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return next((":".join(line) for line in reversed(lines) if not line[0].startswith(_TORCH_FOLDER)), None)
