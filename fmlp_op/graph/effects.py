"""Which nodes do more than compute a value, and whether they may be moved past. Start from `Effects`.

A fused MLP runs where its last layer ran, so everything that stood between the first layer and the last is overtaken.
What is not known to be harmless counts as harmful.
"""

from __future__ import annotations

import bisect
import functools
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from fmlp_op.graph import dialects
from fmlp_op.graph.facts import NodeOrAttribute, Reader
from fmlp_op.graph.linears import Layer

MUTATES, SWITCHES, TRANSFORMS, UNKNOWN = (
    "mutation-between", "mode-switch-between", "functorch-transform", "unknown-call-between",
)  # fmt: skip

_INPLACE_OPERATORS = frozenset(
    f"{under}i{name}{under}"
    for name in dialects.words("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift concat")
    for under in ("", "__")
) | {"setitem", "delitem", "__setitem__", "__delitem__", "setattr", "delattr"}
_SWITCHES = dialects.words(
    "_set_grad_enabled _enter_autocast _exit_autocast _enter_inference_mode _exit_inference_mode set_grad_enabled "
    "_saved_tensors_hooks_disable _saved_tensors_hooks_enable _set_fwd_grad_enabled _enter_dual_level _exit_dual_level "
    "_make_dual _unpack_dual set_autocast_enabled set_autocast_dtype set_deterministic_debug_mode "
    "use_deterministic_algorithms set_float32_matmul_precision set_default_dtype set_default_device"
)
# Running statistics are written in training.
_NORMS = dialects.words("batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm sync_batch_norm")
_METHODS_WITH_EFFECTS = dialects.words(
    "backward register_hook register_post_accumulate_grad_hook retain_grad record_stream"
)
_QUIET_MODULES = dialects.words(
    "torch._C torch._C._nn torch._C._linalg torch._C._fft torch._C._special torch._C._sparse torch torch.functional "
    "torch.nn.functional torch._tensor torch._refs torch._jit_internal torch.fx.experimental.sym_node _operator "
    "builtins math"
)
_DEPTHS = {
    f"_{kind}_{change}_nesting": (kind == "vmap", 1 if change == "increment" else -1)
    for kind in ("vmap", "grad", "jvp", "func")
    for change in ("increment", "decrement")
}


@functools.cache
def _of_target(target: Any) -> tuple[str | None, int | None]:
    """The effect of calling a function at all, and the position of its `inplace` argument."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace in ("streams", "profiler"):
            return SWITCHES, None
        return (MUTATES if target._schema.is_mutable or _writes(target._opname) else None), None
    if isinstance(target, torch._ops.OpOverloadPacket):
        return (MUTATES if _writes(target.__name__) else None), None
    name, module = getattr(target, "__name__", ""), getattr(target, "__module__", None) or ""
    if name in _INPLACE_OPERATORS and module in ("_operator", "builtins"):
        return MUTATES, None
    if name in _SWITCHES or module.startswith(("torch.autograd", "torch.cuda", "torch.accelerator", "torch.amp")):
        return SWITCHES, None
    if module.startswith(("torch._functorch", "torch._C._functorch")):
        return TRANSFORMS, None
    if module not in _QUIET_MODULES:
        return UNKNOWN, None
    if _writes(name) or name in _NORMS:
        return MUTATES, None
    if module == "torch.nn.functional":
        names = list(inspect.signature(target).parameters)
        return None, names.index("inplace") if "inplace" in names else None
    return None, None


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def effect_of(node: fx.Node, reader: Reader) -> str | None:
    """The reason code of what a node does beside computing its value; None for nothing."""
    if node.op == "call_function":
        effect, inplace = _of_target(node.target)
        if getattr(node.target, "__name__", "") in _NORMS and _is_false(node, "training", "use_input_stats"):
            return None
        if effect is None and (
            node.kwargs.get("out") is not None
            or node.kwargs.get("inplace", False) is not False
            or (inplace is not None and len(node.args) > inplace and node.args[inplace] is not False)
        ):
            return MUTATES
        return effect
    if node.op == "call_method":
        name = str(node.target)
        if _writes(name) or name in _INPLACE_OPERATORS:
            return MUTATES
        return None if name not in _METHODS_WITH_EFFECTS and hasattr(torch.Tensor, name) else UNKNOWN
    if node.op == "call_module":
        return _of_module(reader.module(node))
    return None


def _is_false(node: fx.Node, *names: str) -> bool:
    return any(node.kwargs.get(name) is False for name in names) or (len(node.args) > 5 and node.args[5] is False)


def _of_module(module: nn.Module | None) -> str | None:
    if module is None or not type(module).__module__.startswith("torch.nn.modules."):
        return UNKNOWN
    if any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        return UNKNOWN
    for m in module.modules():
        if getattr(m, "inplace", False) or (m.training and getattr(m, "track_running_stats", False)):
            return MUTATES
    return None


def _first_inside(positions: list[int], start: int, end: int) -> int | None:
    """The first of the sorted `positions` from `start` up to, and without, `end`."""
    i = bisect.bisect_left(positions, start)
    return positions[i] if i < len(positions) and positions[i] < end else None


class Effects:
    """The effects of one graph, ready to be asked about any span of it.

    A write to a tensor that this graph made itself (an in-place ReLU on another tower's layer) is harmless to a chain
    none of whose operands can share that tensor's memory; every other effect in a span forbids the chain.
    """

    def __init__(self, reader: Reader, layers: dict[fx.Node, Layer]) -> None:
        self._reader, self._layers = reader, layers
        self._roots: dict[fx.Node, fx.Node | None] = {}
        self._hard: list[tuple[int, str]] = []
        self._writes: dict[fx.Node, list[int]] = {}
        self._all_writes: list[int] = []
        self._depths: list[tuple[int, int, int]] = []  # position, depth of vmap, depth of the other transforms
        for position, node in enumerate(reader.nodes):
            effect = effect_of(node, reader)
            if effect is None:
                continue
            if effect == TRANSFORMS and node.op == "call_function":
                self._record_depth(position, getattr(node.target, "__name__", ""))
            root = self._written_root(node) if effect == MUTATES else None
            if root is None:
                self._hard.append((position, effect))
            else:
                self._writes.setdefault(root, []).append(position)
                self._all_writes.append(position)

    def _record_depth(self, position: int, name: str) -> None:
        is_vmap, change = _DEPTHS.get(name, (False, 0))
        _, vmap, other = self._depths[-1] if self._depths else (0, 0, 0)
        self._depths.append((position, vmap + change * is_vmap, other + change * (not is_vmap)))

    def transforms_at(self, node: fx.Node) -> tuple[int, int]:
        """How many torch.vmap, and how many other torch.func transforms, surround `node` in this graph."""
        i = bisect.bisect(self._depths, (self._reader.position[node], 1 << 30, 0))
        return self._depths[i - 1][1:] if i else (0, 0)

    def between(self, first: fx.Node, last: fx.Node, operands: Iterable[NodeOrAttribute]) -> tuple[str, fx.Node] | None:
        """The first effect from `first` to `last` that forbids reading `operands` at `last` instead of before."""
        start, end = self._reader.position[first], self._reader.position[last]
        i = bisect.bisect(self._hard, (start, ""))
        if i < len(self._hard) and self._hard[i][0] < end:
            return self._hard[i][1], self._reader.nodes[self._hard[i][0]]
        found = _first_inside(self._all_writes, start, end)
        if found is None:
            return None
        for operand in operands:
            if isinstance(operand, str) or operand.op in ("placeholder", "get_attr"):
                continue
            root = self._root(operand)
            written = found if root is None else _first_inside(self._writes.get(root, []), start, end)
            if written is not None:
                return MUTATES, self._reader.nodes[written]
        return None

    def writes_after(self, node: fx.Node) -> bool:
        """Whether anything writes to the memory of `node` after it; True where that is not known."""
        root = self._root(node)
        start, end = self._reader.position[node] + 1, len(self._reader.nodes)
        return root is None or _first_inside(self._writes.get(root, []), start, end) is not None

    def _written_root(self, node: fx.Node) -> fx.Node | None:
        """The node that made the memory this node writes to, where that is known and within this graph."""
        written = dialects.tensor_input(node)
        if node.kwargs.get("out") is not None or written is None or (node.args and node.args[0] is not written):
            return None
        name = getattr(node.target, "__name__", str(node.target))
        if name in _NORMS or (node.op == "call_module" and dialects.read_activation(node, self._reader) is None):
            return None
        if isinstance(node.target, torch._ops.OpOverload):
            arguments = node.target._schema.arguments
            if [a.alias_info is not None and a.alias_info.is_write for a in arguments].index(True) != 0:
                return None
            if any(a.alias_info is not None and a.alias_info.is_write for a in arguments[1:]):
                return None
        return self._root(written)

    def _root(self, node: fx.Node) -> fx.Node | None:
        """The node in this graph whose fresh memory `node` lies in; None where that is not known."""
        trail = []
        root: fx.Node | None = node
        while root is not None and root not in self._roots:
            trail.append(root)
            below = self._alias_of(root)
            if below is root:
                break
            root = below
        found = self._roots.get(root, root) if root is not None else None
        self._roots.update(dict.fromkeys(trail, found))
        return found

    def _alias_of(self, node: fx.Node) -> fx.Node | None:
        """`node` itself where its memory is its own, the node it may be a view of, or None where that is not known."""
        if node in self._layers:
            return node
        if node.op not in ("call_function", "call_method", "call_module"):
            return None
        match = dialects.read_activation(node, self._reader)
        if match is not None:
            return dialects.tensor_input(node) if match.inplace else node
        step = dialects.read_step(node, self._reader)
        if step.kind == "scale":
            return node
        if step.kind in ("same", "reshape", "view-between", "detach-between", "cast-between", "dropout-active"):
            return step.source
        if isinstance(node.target, torch._ops.OpOverload):
            schema = node.target._schema
            if not schema.is_mutable and all(r.alias_info is None for r in schema.returns):
                return node
        return None
