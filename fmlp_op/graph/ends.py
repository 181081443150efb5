"""Where a fused chain begins and ends, and which reshapes and output activation it takes in. Start from `find_ends`.

ATen's decompositions flatten an N-d input to rows before each layer and unflatten the result after it. Those reshapes
disappear into the operator, which takes any number of leading dimensions. A reshape between layers that does not cancel
is done again on the operator's result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import fx

from fmlp_op.activations import Match
from fmlp_op.graph import dialects
from fmlp_op.graph.dialects import Step
from fmlp_op.graph.effects import Effects
from fmlp_op.graph.facts import Reader, same_shape
from fmlp_op.graph.linears import Layer
from fmlp_op.graph.links import Link, Obstacle, is_dead, one_activation

_MAX_STEPS = 4


@dataclass(frozen=True)
class Ends:
    """The operator reads `source` and its result takes the place of `result`.

    Attributes:
        head: nodes between `source` and the first layer that the operator makes unnecessary.
        tail: the same after the last layer, in graph order; `result` is the last of them, or the last layer.
        replay: reshapes to do again on the operator's result, in order.
        activation: the output activation, one of the tail; None for none.
    """

    source: fx.Node
    result: fx.Node
    head: tuple[fx.Node, ...] = ()
    tail: tuple[fx.Node, ...] = ()
    replay: tuple[fx.Node, ...] = ()
    activation: Match | None = None


@dataclass(frozen=True)
class _Tail:
    """Steps after the last layer that the operator can take in."""

    steps: tuple[Step, ...] = ()
    activation: Match | None = None

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        return tuple(step.node for step in self.steps)

    @property
    def reshapes(self) -> bool:
        return any(step.kind == "reshape" for step in self.steps)


def find_ends(
    layers: list[Layer], links: list[Link], reader: Reader, effects: Effects, taken: set[fx.Node]
) -> Ends | Obstacle:
    """The ends of a chain; nodes in `taken` belong to another."""
    first, last = layers[0], layers[-1]
    inner = [n for link in links for n in link.reshapes]
    inner += [n for layer in layers for n in layer.reshapes]
    inner.sort(key=reader.position.__getitem__)
    heads, tails = _head(first, reader, taken), _tails(last, reader, effects)
    sources = [first.source, *(dialects.tensor_input(n) for n in heads)]
    options = [(h, tail) for tail in tails for h in range(len(heads) + 1)]
    for h, tail in sorted(options, key=lambda option: -option[0] - len(option[1].steps)):
        source, result = sources[h], tail.nodes[-1] if tail.steps else last.node
        reshaped = any(dialects.read_step(n, reader).kind == "reshape" for n in heads[:h])
        if source is not None and reshaped and _same_leading(source, result, reader):
            return Ends(source, result, tuple(heads[:h]), tail.nodes, activation=tail.activation)
    tail = [t for t in tails if not t.reshapes][-1]
    ends = Ends(first.source, tail.nodes[-1] if tail.steps else last.node, (), tail.nodes, (), tail.activation)
    if not inner or _same_leading(ends.source, ends.result, reader):
        return ends
    replay = _replay(inner, reader)
    out = reader.facts(last.weight).shape
    if replay is None or out is None or type(out[0]) is not int or reader.facts(first.source).functorch:
        return Obstacle("view-between", f"`{inner[-1].name}`")
    return replace(ends, replay=replay)


def _same_leading(source: fx.Node, result: fx.Node, reader: Reader) -> bool:
    before, after = reader.facts(source).shape, reader.facts(result).shape
    return before is not None and after is not None and same_shape(before[:-1], after[:-1])


def _head(first: Layer, reader: Reader, taken: set[fx.Node]) -> list[fx.Node]:
    """The steps before the first layer that only it reads, nearest first."""
    nodes: list[fx.Node] = []
    node, user = first.source, first.reader
    while len(nodes) < _MAX_STEPS and node.op in ("call_function", "call_method") and node not in taken:
        step = dialects.read_step(node, reader)
        alone = all(u is user or is_dead(u, reader) for u in node.users)
        if step.kind not in ("same", "reshape") or step.source is None or not alone:
            break
        nodes.append(node)
        node, user = step.source, node
    return nodes


def _tails(last: Layer, reader: Reader, effects: Effects) -> list[_Tail]:
    """What may be taken in after the last layer, nothing first: reshapes and one activation, each the only reader of
    the one before."""
    tails = [_Tail()]
    steps: list[Step] = []
    node = last.node
    while len(steps) < _MAX_STEPS:
        users = [u for u in node.users if not is_dead(u, reader)]
        if len(users) != 1 or users[0].op not in ("call_function", "call_method", "call_module"):
            break
        step = dialects.read_step(users[0], reader)
        taken_in = tails[-1].activation
        more = ("same", "scale", "activation") if taken_in is None else ()
        if step.kind not in ("reshape", *more) or step.source is not node:
            break
        steps.append(step)
        node = step.node
        if step.kind == "activation":
            activation = one_activation(steps, reader)
            if not isinstance(activation, Match) or not _may_run_early(last, node, reader, effects):
                break
            tails.append(_Tail(tuple(steps), activation))
        elif step.kind == "reshape" and (taken_in is not None or all(s.kind != "scale" for s in steps)):
            tails.append(_Tail(tuple(steps), taken_in))
    return tails


def _may_run_early(last: Layer, activation: fx.Node, reader: Reader, effects: Effects) -> bool:
    """Whether an activation after the last layer does the same as a part of the operator, which runs where that layer
    ran. A result that is written to stays outside: the operator's backward may need it."""
    return (
        reader.facts(activation).dtype == reader.facts(last.node).dtype
        and effects.between(last.node, activation, []) is None
        and not effects.writes_after(activation)
    )


def _replay(reshapes: list[fx.Node], reader: Reader) -> tuple[fx.Node, ...] | None:
    """What to do again so that a result with other leading dimensions gets the right ones, if that is known."""
    last = reshapes[-1]
    if dialects.op_name(last, reader) in dialects.RESHAPES_BY_SIZES and _sizes_end_with_width(last):
        return (last,)
    if all(dialects.op_name(n, reader) in dialects.REPLAYABLE and _rows_only(n, reader) for n in reshapes):
        return tuple(reshapes)
    return None


def _sizes_end_with_width(node: fx.Node) -> bool:
    sizes = dialects.sizes_of(node)
    return len(sizes) > 0 and type(sizes[-1]) is int and (sizes[-1] >= 0 or -1 not in sizes[:-1])


def _rows_only(node: fx.Node, reader: Reader) -> bool:
    """Whether doing `node` to rows of another width does the same to their leading dimensions."""
    name = dialects.op_name(node, reader)
    if name in dialects.RESHAPES_BY_SIZES:
        return _sizes_end_with_width(node)
    before, after = reader.facts(dialects.tensor_input(node) or node).shape, reader.facts(node).shape
    args = (*node.args[1:], *node.kwargs.values())
    if name == "flatten":
        end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
        return type(end) is int and (end <= -2 or (end >= 0 and before is not None and end < len(before) - 1))
    if name == "unsqueeze":
        dim = args[0] if args else None
        return type(dim) is int and (dim == 0 or (after is not None and dim % len(after) < len(after) - 1))
    dim = args[0] if args else None
    return type(dim) is int and before is not None and dim % len(before) < len(before) - 1
