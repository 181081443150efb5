"""How each linear layer follows from the one before it, and what stands between the two. Start from `find_links`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import fx

from fmlp_op.activations import Match
from fmlp_op.graph import dialects, effects
from fmlp_op.graph.dialects import Step
from fmlp_op.graph.facts import Reader
from fmlp_op.graph.linears import Layer

# A layer whose input came from another layer longer ago than this is no candidate worth a report: so many steps, and so
# many of them that stand in the way.
_MAX_STEPS, _MAX_BAD_STEPS = 16, 6
_GOOD_STEPS = ("activation", "same", "reshape", "scale")
_REUSED = "hidden-value-reused"
# torch.export writes it before `to`; what it checks is what the graph was traced with.
_METADATA_CHECK = torch.ops.aten._assert_tensor_metadata.default


@dataclass(frozen=True)
class Obstacle:
    code: str
    found: str = ""


@dataclass(frozen=True)
class Link:
    """What leads from the layer `before` to the layer `after`.

    Attributes:
        steps: the nodes on the way, in graph order, in-place activations whose result nobody reads included.
        activation: the one activation on the way, a constant before it folded in; None where there is an obstacle.
        obstacle: why the two layers can never be fused.
    """

    before: Layer
    after: Layer
    steps: tuple[Step, ...]
    activation: Match | None
    obstacle: Obstacle | None

    @property
    def reshapes(self) -> tuple[fx.Node, ...]:
        return tuple(step.node for step in self.steps if step.kind == "reshape")


def find_links(layers: dict[fx.Node, Layer], reader: Reader) -> dict[fx.Node, Link]:
    """For every layer that follows another, the link to it, by the later layer's node."""
    found = ((layer, _walk_back(layer, layers, reader)) for layer in layers.values())
    return {layer.node: link for layer, link in found if link is not None}


def _walk_back(after: Layer, layers: dict[fx.Node, Layer], reader: Reader) -> Link | None:
    node: fx.Node | None = after.source
    user: fx.Node = after.reader
    steps: list[Step] = []
    reused: Obstacle | None = None
    bad_steps = 0
    while (
        node is not None
        and node.op not in ("placeholder", "get_attr")
        and len(steps) < _MAX_STEPS
        and bad_steps < _MAX_BAD_STEPS
    ):
        hidden, found = _private(node, user, layers, reader)
        steps[:0] = hidden
        reused = reused or found
        if node in layers:
            break
        step = dialects.read_step(node, reader)
        steps.insert(0, step)
        bad_steps += step.kind not in _GOOD_STEPS
        user, node = node, step.source
    if node is None or node not in layers:
        return None
    before = layers[node]
    steps = _with_width(steps, before, reader)
    activation = one_activation(steps, reader) or Obstacle("no-activation-between")
    bad = next((s for s in steps if s.kind not in _GOOD_STEPS), None)
    refusal = after.refusal or before.refusal
    if refusal is not None:
        obstacle: Obstacle | None = Obstacle(*refusal)
    elif bad is not None:
        obstacle = Obstacle(bad.kind, describe(bad.node, reader))
    elif reused is not None:
        obstacle = reused
    else:
        obstacle = activation if isinstance(activation, Obstacle) else None
    return Link(before, after, tuple(steps), activation if isinstance(activation, Match) else None, obstacle)


def _private(
    node: fx.Node, user: fx.Node, layers: dict[fx.Node, Layer], reader: Reader
) -> tuple[list[Step], Obstacle | None]:
    """In-place activations that change `node` before `user` reads it, and the obstacle of any other reader.

    Whoever holds a tensor that an in-place activation rectifies sees it rectified: `user` does, and so would others.
    """
    changes: list[Step] = []
    for other in node.users:
        if other is user or (is_dead(other, reader) and other not in layers):
            continue
        match = dialects.read_activation(other, reader)
        written_first = match is not None and match.inplace and reader.position[other] < reader.position[user]
        if written_first and dialects.tensor_input(other) is node and all(is_dead(u, reader) for u in other.users):
            changes.append(Step(other, "activation", node, match))
            continue
        if other.op != "output" and effects.effect_of(other, reader) == effects.MUTATES:
            return [], Obstacle(effects.MUTATES, describe(other, reader))
        return [], Obstacle(_REUSED, f"`{node.name}`")
    return sorted(changes, key=lambda s: reader.position[s.node]), None


def is_dead(node: fx.Node, reader: Reader, depth: int = 3) -> bool:
    """A node that nobody reads and that does nothing: what autograd saved in a make_fx graph, a check of a dtype.

    Other assertions count as readers.
    """
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(node.target)
    if ("assert" in name or "_check" in name) and node.target is not _METADATA_CHECK:
        return False
    if effects.effect_of(node, reader) is not None:
        return False
    return not node.users or (depth > 0 and all(is_dead(u, reader, depth - 1) for u in node.users))


def _with_width(steps: list[Step], before: Layer, reader: Reader) -> list[Step]:
    """Reads reshapes again that only the layer's width can justify (graphs without shape metadata)."""
    shape = reader.facts(before.weight).shape
    if shape is None or len(shape) != 2 or type(shape[0]) is not int:
        return steps
    return [dialects.read_step(s.node, reader, shape[0]) if s.kind == "view-between" else s for s in steps]


def one_activation(steps: Iterable[Step], reader: Reader) -> Match | Obstacle | None:
    """The activation that steps amount to, None where there is none, or what keeps them from being one."""
    found: Match | None = None
    scale: Step | None = None
    for step in steps:
        if step.kind == "scale":
            if found is not None or scale is not None:
                return Obstacle("other-op-between", describe(step.node, reader))
            scale = step
        if step.activation is None:
            continue
        if not step.activation.exact_gradient and (step.source is None or reader.needs_grad(step.source)):
            return Obstacle("activation-unknown", describe(step.node, reader))
        if found is None:
            found = step.activation
        elif str(found) != str(step.activation) or not found.activation.idempotent:
            return Obstacle("other-op-between", describe(step.node, reader))
        if scale is not None:
            folded = _scaled(found, scale.factor)
            if folded is None:
                break
            found, scale = folded, None
    return found if scale is None else Obstacle("other-op-between", describe(scale.node, reader))


def _scaled(match: Match, factor: float | None) -> Match | None:
    """The activation of `factor` times the value, for an activation that has a frequency; else None."""
    names = [name for name, _ in match.activation.parameters]
    if factor is None or "frequency" not in names:
        return None
    values = (v * factor if name == "frequency" else v for name, v in zip(names, match.values, strict=True))
    return replace(match, values=tuple(values))


def describe(node: fx.Node, reader: Reader) -> str:
    name = dialects.op_name(node, reader)
    return f"{name} (`{node.name}`)" if name != node.name else f"`{name}`"
