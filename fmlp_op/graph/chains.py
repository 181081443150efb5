"""Finds chains of linear layers and judges each: fusable, or the reason why not. Start from `find_chains`.

Three stages. Links join every layer to the one before it (graph/links.py). Layers joined without an obstacle form
runs. From the front of a run the longest chain is taken again and again: layers with the same activation between them,
and `_check` asks of them what no single link can answer: whether their operands agree, and whether computing all of
them where the last one stood is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import fx

from fmlp_op.graph import reasons
from fmlp_op.graph.effects import Effects
from fmlp_op.graph.ends import Ends, find_ends
from fmlp_op.graph.facts import NodeOrAttribute, Reader, same_size
from fmlp_op.graph.linears import Layer, read_layers
from fmlp_op.graph.links import Link, Obstacle, find_links

MIN_DEPTH, MAX_DEPTH = 2, 16  # linear layers in one fused_chain

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_AUTOCAST_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class Candidate:
    """Layers that follow one another. `obstacle` is None where they can be fused; `ends` and `links` are set then.

    `layers` is empty once the candidate has been joined to another. `activation` is the hidden one, as the operators
    spell it, where the layers have one.
    """

    layers: list[Layer]
    links: list[Link] = field(default_factory=list)
    obstacle: Obstacle | None = None
    between: tuple[int, int] | None = None  # numbers of the layers the obstacle stands between, counted from 1
    ends: Ends | None = None
    activation: str | None = None

    @property
    def output_activation(self) -> str:
        """As the operators spell it."""
        return "identity" if self.ends is None or self.ends.activation is None else str(self.ends.activation)

    @property
    def operator(self) -> str:
        """The name of the operator that computes these layers."""
        is_mlp = (len(self.layers), self.activation, self.output_activation) == (3, "relu", "identity")
        return "fused_mlp" if is_mlp else "fused_chain"

    @property
    def erased(self) -> list[fx.Node]:
        """The nodes that the operator takes the place of; their order is not the graph's."""
        nodes = [n for layer in self.layers for n in layer.members]
        nodes += [step.node for link in self.links for step in link.steps]
        return nodes + ([] if self.ends is None else [*self.ends.head, *self.ends.tail])


def find_chains(reader: Reader) -> list[Candidate]:
    """Every candidate of a graph, in the order of its last layers."""
    layers = read_layers(reader)
    if not layers:
        return []
    links = find_links(layers, reader)
    effects: Effects | None = None
    candidates: list[Candidate] = []
    starts: dict[fx.Node, Candidate] = {}  # single layers and what they were joined to, by the node of the first
    stops: dict[fx.Node, Candidate] = {}  # and of their last
    taken: set[fx.Node] = set()  # what the chains so far make unnecessary
    for run in _runs(layers, links):
        if len(run) >= MIN_DEPTH and effects is None:
            effects = Effects(reader, layers)
        pieces = _cut(run, links, reader, effects, taken)
        candidates += pieces
        for piece in pieces:
            if piece.obstacle is not None and piece.obstacle.code == reasons.TOO_SHORT:
                starts[piece.layers[0].node] = stops[piece.layers[-1].node] = piece
    _explain_short_ones(links, starts, stops)
    kept = [c for c in candidates if c.layers and not _stands_alone(c, links)]
    return sorted(kept, key=lambda c: reader.position[c.layers[-1].node])


def _stands_alone(piece: Candidate, links: dict[fx.Node, Link]) -> bool:
    """One linear layer that neither follows another nor leads to one is no candidate."""
    too_short = piece.obstacle is not None and piece.obstacle.code == reasons.TOO_SHORT
    return too_short and len(piece.layers) == 1 and piece.layers[0].node not in links


def _runs(layers: dict[fx.Node, Layer], links: dict[fx.Node, Link]) -> list[list[Layer]]:
    """The layers, grouped so that every one but a group's first follows the one before it with no obstacle."""
    runs: dict[fx.Node, list[Layer]] = {}
    for node, layer in layers.items():
        link = links.get(node)
        if link is not None and link.obstacle is None:
            run = runs.pop(link.before.node)
            run.append(layer)
            runs[node] = run
        else:
            runs[node] = [layer]
    return list(runs.values())


def _cut(
    run: list[Layer], links: dict[fx.Node, Link], reader: Reader, effects: Effects | None, taken: set[fx.Node]
) -> list[Candidate]:
    """A run's chains, each the longest from where the one before ended, and what is left over."""
    pieces: list[Candidate] = []
    left: Candidate | None = None
    start = 0
    ended_by: Obstacle | None = None  # what kept the last chain from being longer
    while start < len(run):
        chain, obstacle = _longest(run[start:], links, reader, effects, taken)
        if chain is not None and chain.obstacle is None:
            pieces += [chain] if left is None else [left, chain]
            taken.update(chain.erased)
            start += len(chain.layers)
            left, ended_by = None, obstacle
            continue
        if left is None:
            reason = obstacle or ended_by or Obstacle(reasons.TOO_SHORT, "1")
            left = Candidate([], obstacle=reason, activation=None if chain is None else chain.activation)
        left.layers.append(run[start])
        start += 1
    return pieces if left is None else [*pieces, left]


def _longest(
    run: list[Layer], links: dict[fx.Node, Link], reader: Reader, effects: Effects | None, taken: set[fx.Node]
) -> tuple[Candidate | None, Obstacle | None]:
    """The longest chain that `run` begins with, and the obstacle to a longer one.

    Where there is none: the two layers that fail, and why, or nothing where one layer stands alone.
    """
    ways = [links[layer.node] for layer in run[1:MAX_DEPTH]]
    activations = [str(way.activation) for way in ways]
    depth = next((i for i, a in enumerate(activations, 1) if a != activations[0]), len(ways) + 1)
    piece: Candidate | None = None
    obstacle: Obstacle | None = None
    for end in range(depth, MIN_DEPTH - 1, -1):
        assert effects is not None
        piece = Candidate(run[:end], ways[: end - 1], activation=activations[0])
        piece.obstacle = _check(piece, reader, effects, taken)
        if piece.obstacle is None:
            break
        obstacle = piece.obstacle
    return piece, obstacle


def _explain_short_ones(
    links: dict[fx.Node, Link],
    starts: dict[fx.Node, Candidate],
    stops: dict[fx.Node, Candidate],
) -> None:
    """Gives a piece that an obstacle made short the obstacle's reason, and joins it to the piece beyond."""
    for link in links.values():
        if link.obstacle is None:
            continue
        first, second = stops.get(link.before.node), starts.get(link.after.node)
        if second is None:
            if first is not None and first.obstacle is not None and first.obstacle.code == reasons.TOO_SHORT:
                first.obstacle, first.between = link.obstacle, (len(first.layers), len(first.layers) + 1)
            continue
        if first is None:
            second.obstacle, second.between = link.obstacle, (0, 1)
            continue
        if first.obstacle is not None and first.obstacle.code == reasons.TOO_SHORT:
            first.obstacle, first.between = link.obstacle, (len(first.layers), len(first.layers) + 1)
        first.layers += second.layers
        second.layers = []
        del stops[link.before.node]
        stops[first.layers[-1].node] = first


def operands(layers: Iterable[Layer]) -> list[NodeOrAttribute]:
    """Weights and biases."""
    return [t for layer in layers for t in (layer.weight, layer.bias) if t is not None]


def _check(piece: Candidate, reader: Reader, effects: Effects, taken: set[fx.Node]) -> Obstacle | None:
    """The reason why the layers of `piece` cannot be one operator, or None; then `piece.ends` is set."""
    first, last = piece.layers[0], piece.layers[-1]
    ends = find_ends(piece.layers, piece.links, reader, effects, taken)
    if isinstance(ends, Obstacle):
        return ends
    piece.ends = ends
    parameters = operands(piece.layers)
    inner = set(piece.erased)
    own = next((p for p in parameters if p in inner), None)
    if own is not None:
        return Obstacle("hidden-value-reused", _name(own))
    vmaps, others = effects.transforms_at(last.node)
    if others:
        return Obstacle("functorch-transform", "grad, vjp, jvp or the like")
    earliest = min((first.reader, *first.members, *ends.head), key=reader.position.__getitem__)
    effect = effects.between(earliest, last.node, [ends.source, *parameters])
    if effect is not None:
        return Obstacle(effect[0], f"`{effect[1].name}`")
    return _check_operands(piece.layers, ends.source, reader, in_vmap=vmaps > 0)


def _check_operands(layers: list[Layer], source: fx.Node, reader: Reader, in_vmap: bool) -> Obstacle | None:
    """Whether input, weights and biases are what the operator takes."""
    parameters = operands(layers)
    for tensor in (source, *parameters):
        facts = reader.facts(tensor)
        if facts.subclass is not None:
            return Obstacle("tensor-subclass", f"{_name(tensor)} ({facts.subclass})")
        if facts.functorch == "grad":
            return Obstacle("functorch-transform", "grad, vjp, jvp or the like")
        if facts.functorch and tensor is not source:
            return Obstacle("weight-batched", _name(tensor))
        if in_vmap and facts.shape is None:
            return Obstacle("functorch-transform", "vmap")
        if facts.layout not in (None, torch.strided):
            return Obstacle("layout-not-strided", _name(tensor))
        if facts.dtype not in (None, *_DTYPES):
            return Obstacle("dtype-unsupported", str(facts.dtype).removeprefix("torch."))
    for layer in layers:
        weight = reader.facts(layer.weight).shape
        if weight is None:
            return Obstacle("shapes-unknown", _name(layer.weight))
        if len(weight) != 2:
            return Obstacle("weight-not-2d", f"({', '.join(map(str, weight))})")
        if layer.bias is None:
            continue
        bias = reader.facts(layer.bias).shape
        if bias is None:
            return Obstacle("shapes-unknown", _name(layer.bias))
        if len(bias) != 1 or not same_size(bias[0], weight[0]):
            return Obstacle("bias-shape", f"({', '.join(map(str, bias))})")
    devices = {facts.device for facts in map(reader.facts, (source, *parameters)) if facts.device is not None}
    if len(devices) > 1:
        return Obstacle("device-mismatch", ", ".join(sorted(map(str, devices))))
    return _check_dtypes(layers, source, reader)


def _check_dtypes(layers: list[Layer], source: fx.Node, reader: Reader) -> Obstacle | None:
    """One dtype throughout, or what autocast makes of mixed operands: one 16-bit dtype after every layer."""
    taken = {reader.facts(t).dtype for t in (source, *operands(layers))} - {None}
    made = {reader.facts(layer.node).dtype for layer in layers} - {None}
    if len(taken | made) <= 1:
        return None
    if len(made) == 1 and made <= set(_AUTOCAST_DTYPES) and torch.float64 not in taken:
        return None
    names = sorted(str(d).removeprefix("torch.") for d in taken | made)
    return Obstacle("dtype-mismatch", ", ".join(names))


def _name(operand: NodeOrAttribute) -> str:
    return f"`{operand}`" if isinstance(operand, str) else f"`{operand.name}`"
