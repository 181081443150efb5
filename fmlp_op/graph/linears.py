"""Reads linear layers from a graph: F.linear, nn.Linear, and the products and sums they are decomposed into.

Start from `read_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import fx, nn

from fmlp_op.graph import compat, dialects
from fmlp_op.graph.facts import NodeOrAttribute, Reader, same_shape, same_size


@dataclass(frozen=True)
class Layer:
    """`node` computes `source @ weight.T + bias`.

    Attributes:
        reader: the node that takes `source` in.
        members: the nodes that make the layer up, in graph order.
        reshapes: those of the members that change leading dimensions.
        refusal: code of the reason why this layer can never be part of a fused one, with what was found.
    """

    node: fx.Node
    reader: fx.Node
    source: fx.Node
    weight: NodeOrAttribute
    bias: NodeOrAttribute | None
    members: tuple[fx.Node, ...]
    reshapes: tuple[fx.Node, ...] = ()
    refusal: tuple[str, str] | None = None


def read_layers(reader: Reader) -> dict[fx.Node, Layer]:
    """Every linear layer of a graph, by the node that holds its result, in graph order."""
    layers: dict[fx.Node, Layer] = {}
    for node in reader.nodes:
        if node.op == "call_module":
            layer = _module(node, reader)
        elif node.op in ("call_function", "call_method"):
            target = node.target
            if target in dialects.LINEAR:
                layer = _linear(node)
            elif target in dialects.ADDMM:
                layer = _addmm(node, reader)
            elif target in dialects.MATMUL:
                layer = _matmul(node, reader)
            elif layers and target in dialects.ADD:
                layer = _with_bias(node, layers, reader)
            else:
                continue
        else:
            continue
        if layer is not None:
            layers[node] = layer
    return layers


def _bind(node: fx.Node, names: tuple[str, ...]) -> dict[str, object]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _linear(node: fx.Node) -> Layer | None:
    given = _bind(node, ("input", "weight", "bias"))
    x, weight, bias = given.get("input"), given.get("weight"), given.get("bias")
    if not isinstance(x, fx.Node) or not isinstance(weight, fx.Node) or not isinstance(bias, fx.Node | None):
        return None
    return Layer(node, node, x, weight, bias, (node,))


def _module(node: fx.Node, reader: Reader) -> Layer | None:
    module = reader.module(node)
    if not isinstance(module, nn.Linear):
        return None
    x = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(x, fx.Node):
        return None
    bias = None if module.bias is None else f"{node.target}.bias"
    refusal = None
    if type(module) is not nn.Linear:
        refusal = ("linear-subclass", f"{type(module).__name__} `{node.target}`")
    elif compat.has_hooks(module):
        refusal = ("module-hooks", f"`{node.target}`")
    return Layer(node, node, x, f"{node.target}.weight", bias, (node,), refusal=refusal)


def _addmm(node: fx.Node, reader: Reader) -> Layer | None:
    names = dialects.ADDMM[node.target]
    given = _bind(node, (*names, "beta", "alpha"))
    bias, x, matrix = (given.get(name) for name in names)
    if not isinstance(x, fx.Node) or not isinstance(matrix, fx.Node) or not isinstance(bias, fx.Node):
        return None
    layer = _product(node, x, matrix, reader)
    if layer is None:
        return None
    scale = {k: given.get(k, 1) for k in ("alpha", "beta")}
    if any(isinstance(v, fx.Node) or v != 1 for v in scale.values()):
        refusal = ("addmm-scaled", ", ".join(f"{k}={v}" for k, v in scale.items()))
        layer = replace(layer, refusal=layer.refusal or refusal)
    return replace(layer, bias=bias)


def _matmul(node: fx.Node, reader: Reader) -> Layer | None:
    operands = [a for a in node.args if isinstance(a, fx.Node)]
    operands += [a for k, a in node.kwargs.items() if k in dialects.MATMUL_KEYWORDS and isinstance(a, fx.Node)]
    if len(operands) != 2 or len(node.args) + len(node.kwargs) != 2:
        return None
    return _product(node, operands[0], operands[1], reader)


def _product(node: fx.Node, x: fx.Node, matrix: fx.Node, reader: Reader) -> Layer | None:
    """The layer `x @ matrix`; matrix has to be the transpose of a weight."""
    weight, transposed, members = matrix, False, [node]
    shape, rows = reader.facts(matrix).shape, reader.facts(x).shape
    if shape is not None and len(shape) > 2 and rows is not None and same_shape(shape[:-2], rows[:-2]):
        # ATen's batched product repeats one matrix: expand, view, then the transposed weight.
        while len(shape) > 2 and dialects.op_name(weight, reader) in ("expand", "view", "clone", "contiguous"):
            below = dialects.tensor_input(weight)
            under = None if below is None else reader.facts(below).shape
            if below is None or under is None or not same_shape(under[-2:], shape[-2:]):
                break
            members.insert(0, weight)
            weight, shape = below, under
    while (below := dialects.transposes(weight, reader)) is not None:
        members.insert(0, weight)
        weight, transposed = below, not transposed
    facts = reader.facts(weight)
    if facts.shape is None:
        return None
    layer = Layer(node, node, x, weight, None, tuple(members))
    if len(facts.shape) != 2:
        batched = weight.op in ("placeholder", "get_attr") and len(facts.shape) > 2
        return replace(layer, refusal=("weight-not-2d", f"{tuple(facts.shape)}")) if batched else None
    if transposed:
        return layer
    return replace(layer, refusal=("weight-not-transposed", f"`{weight.name}`")) if _is_parameter(weight) else None


def _is_parameter(node: fx.Node) -> bool:
    return node.op in ("placeholder", "get_attr")


def _with_bias(node: fx.Node, layers: dict[fx.Node, Layer], reader: Reader) -> Layer | None:
    """`layer + bias` as one layer; the layer leaves `layers`."""
    if len(node.args) != 2 or node.kwargs:
        return None
    for product, bias in (node.args, node.args[::-1]):
        if not isinstance(product, fx.Node) or not isinstance(bias, fx.Node):
            continue
        between: list[fx.Node] = []
        below: fx.Node | None = product
        while below is not None and below not in layers and len(between) < 4 and len(below.users) == 1:
            step = dialects.read_step(below, reader)
            if step.kind not in ("same", "reshape"):
                break
            between.insert(0, below)
            below = step.source
        layer = None if below is None else layers.get(below)
        if layer is None or layer.bias is not None or layer.refusal or len(layer.node.users) != 1:
            continue
        if isinstance(layer.weight, str):
            continue
        addend, result, width = reader.facts(bias), reader.facts(layer.node), reader.facts(layer.weight).shape
        if width is None or addend.shape is None or len(addend.shape) != 1 or not same_size(addend.shape[0], width[0]):
            continue
        if result.dtype is None or {addend.dtype, reader.facts(node).dtype} != {result.dtype}:
            continue
        reshapes = tuple(n for n in between if dialects.read_step(n, reader).kind == "reshape")
        del layers[layer.node]
        return replace(
            layer,
            node=node,
            bias=bias,
            members=(*layer.members, *between, node),
            reshapes=(*layer.reshapes, *reshapes),
        )
    return None
