"""Puts operators into a graph where chains of linear layers were. Start from `replace_chains`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fmlp_op.graph import compat, dialects
from fmlp_op.graph.chains import Candidate
from fmlp_op.graph.ends import Ends
from fmlp_op.graph.facts import NodeOrAttribute, Reader, Size
from fmlp_op.graph.links import is_dead

# Metadata that says which operator a node was traced from, which is no longer so.
_STALE_META = ("source_fn_stack", "torch_fn", "original_aten")


def replace_chains(chains: list[Candidate], reader: Reader) -> None:
    """Replace each of `chains`, which are in graph order, by one operator."""
    if not chains:
        return
    replaced: dict[fx.Node, fx.Node] = {}
    for chain in chains:
        if chain.layers[-1].node in reader.position:  # else it was dead code that hung from an earlier chain
            _replace(chain, reader, replaced)
    reader.gm.graph.lint()
    reader.gm.recompile()


def _replace(chain: Candidate, reader: Reader, replaced: dict[fx.Node, fx.Node]) -> None:
    """Put the operator where the last layer is, and erase what it replaces. `replaced` has the results so far."""
    ends, layers, graph = chain.ends, chain.layers, reader.gm.graph
    assert ends is not None
    result = ends.result

    def operand(what: NodeOrAttribute) -> fx.Node:
        """The node that holds it now; a parameter that a module read gets one."""
        return replaced.get(what, what) if isinstance(what, fx.Node) else graph.get_attr(what)

    with graph.inserting_before(layers[-1].node):
        source, weights = operand(ends.source), [operand(layer.weight) for layer in layers]
        biases = [None if layer.bias is None else operand(layer.bias) for layer in layers]
        arguments = _arguments(chain, source, weights, biases)
        in_float32 = reader.facts(layers[-1].node).dtype in (None, torch.float32)
        keywords: dict[str, Any] = {"allow_tf32": True} if in_float32 and compat.allow_tf32() else {}
        operator = getattr(torch.ops.fmlp, chain.operator).default
        new = graph.call_function(operator, arguments, keywords)
        new.meta = {k: v for k, v in result.meta.items() if k not in _STALE_META}
        for reshape in ends.replay:
            new = _reshape_again(reshape, new, ends, reader, reader.facts(layers[-1].weight).shape)
    # The new node takes over the name, so that the names of a graph's outputs, which torch.export keeps, never change.
    new.name, result.name = result.name, f"{result.name}_unfused"
    result.replace_all_uses_with(new)
    replaced[result] = new
    for node in sorted(reader.position.keys() & chain.erased, key=reader.position.__getitem__, reverse=True):
        _erase(node, graph, reader)


def _arguments(
    chain: Candidate, source: fx.Node, weights: list[fx.Node], biases: list[fx.Node | None]
) -> tuple[Any, ...]:
    """The operator's positional arguments, without trailing ones that are the defaults."""
    if chain.operator == "fused_chain":
        output = () if chain.output_activation == "identity" else (chain.output_activation,)
        return (source, weights, biases, chain.activation, *output)
    while biases and biases[-1] is None:
        biases = biases[:-1]
    return (source, *weights, *biases)


def _reshape_again(
    reshape: fx.Node, new: fx.Node, ends: Ends, reader: Reader, weight: tuple[Size, ...] | None
) -> fx.Node:
    """Do a reshape that stood between layers on `new`, whose rows have another width."""
    assert weight is not None
    again = reader.gm.graph.node_copy(reshape)
    if dialects.op_name(reshape, reader) in dialects.RESHAPES_BY_SIZES:
        sizes = dialects.sizes_of(reshape)
        if sizes[-1] != -1:
            sizes = (*sizes[:-1], weight[0])
        as_list = reshape.kwargs or isinstance(reshape.args[1], (tuple, list))
        again.args, again.kwargs = (new, list(sizes)) if as_list else (new, *sizes), {}
    else:
        again.replace_input_with(dialects.tensor_input(reshape) or new, new)
    again.meta = dict(new.meta)
    source = reader.facts(ends.source).shape
    key = "example_value" if "example_value" in new.meta else "val"
    if key in new.meta and reshape is ends.replay[0] and source is not None:
        value = compat.empty_like_with_shape(new.meta[key], (*source[:-1], weight[0]))
        new.meta = {**new.meta, key: value}
    return again


def _erase(node: fx.Node, graph: fx.Graph, reader: Reader) -> None:
    """Erase a node that nobody needs any more, with what autograd saved of it and the sizes it was given."""
    for user in list(node.users):
        if user in reader.position and is_dead(user, reader):
            _erase(user, graph, reader)
    if node.users or node not in reader.position:
        return
    inputs = node.all_input_nodes
    graph.erase_node(node)
    del reader.position[node]
    for operand in inputs:
        if operand in reader.position and not operand.users and is_dead(operand, reader):
            _erase(operand, graph, reader)
