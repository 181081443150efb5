"""How each graph dialect spells a linear layer, an activation and a step that changes no value.

The dialects: Dynamo's torch IR, `symbolic_trace` with its call_module nodes, and ATen as `make_fx` and `torch.export`
leave it, decomposed or not. Spellings stand here and in `fmlp_op.activations`, nowhere else. Start from `read_step`;
`graph/linears.py` reads linear layers with the tables below.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from fmlp_op import activations
from fmlp_op.graph import compat
from fmlp_op.graph.facts import Reader, same_shape, same_size

aten = torch.ops.aten


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# target -> names of its tensor arguments in positional order
LINEAR: dict[Any, tuple[str, ...]] = dict.fromkeys(
    (F.linear, aten.linear, aten.linear.default), ("input", "weight", "bias")
)
ADDMM: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((torch.addmm, "addmm"), ("input", "mat1", "mat2")),
    **dict.fromkeys((aten.addmm, aten.addmm.default), ("self", "mat1", "mat2")),
}
MATMUL: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm, "matmul", "mm", "bmm", "__matmul__"), ("input", "other")),
    **dict.fromkeys((operator.matmul,), ("a", "b")),
    **dict.fromkeys((aten.matmul, aten.matmul.default), ("self", "other")),
    **dict.fromkeys((aten.mm, aten.mm.default, aten.bmm, aten.bmm.default), ("self", "mat2")),
}
MATMUL_KEYWORDS = ("input", "self", "other", "mat2", "tensor2")
ADD: frozenset[Any] = frozenset((torch.add, operator.add, "add", "__add__", aten.add, aten.add.Tensor))
_MULTIPLY: frozenset[Any] = frozenset(
    (
        *(torch.mul, torch.multiply, operator.mul, "mul", "multiply", "__mul__", "__rmul__"),
        *(aten.mul, aten.mul.Tensor, aten.mul.Scalar, aten.multiply, aten.multiply.Tensor, aten.multiply.Scalar),
    )
)

# Names that one function, method, ATen operator and module share are written once.
_TRANSPOSES = frozenset(("t", "T", "mT", "H", "mH", "adjoint", "numpy_T", "matrix_H"))
_SWAPS = frozenset(("transpose", "swapaxes", "swapdims"))
_NO_OPS = frozenset(("contiguous", "clone", "alias", "Identity"))
_CASTS = frozenset(("to", "_to_copy", "type_as", "float", "half", "bfloat16", "double", "cpu", "cuda"))
_DROPOUTS = {
    # name: (names of the arguments after the tensor, whether dropping is the default)
    "dropout": (("p", "training", "inplace"), True),
    "dropout_": (("p", "training"), True),
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d"), (("p", "training", "inplace"), True)),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), (("p", "training", "inplace"), False)),
    **dict.fromkeys(("alpha_dropout_", "feature_alpha_dropout_"), (("p", "training"), True)),
    **dict.fromkeys(("feature_dropout", "feature_dropout_", "native_dropout"), (("p", "training"), True)),
}
_DROPOUT_MODULES = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
# The elements keep their row-major order; only the shape differs.
RESHAPES_BY_SIZES = frozenset(("view", "reshape", "_unsafe_view"))
REPLAYABLE = frozenset((*RESHAPES_BY_SIZES, "flatten", "unflatten", "unsqueeze"))
_RESHAPES = frozenset((*REPLAYABLE, "squeeze", "view_as", "reshape_as", "expand", "expand_as", "Flatten", "Unflatten"))
_REORDERS = (
    _TRANSPOSES
    | _SWAPS
    | words(
        "permute movedim moveaxis rot90 flip roll getitem select slice narrow chunk split unbind index_select gather "
        "as_strided unfold repeat tile repeat_interleave"
    )
)
# Functions of one element that stand where an activation would; only their names matter, for the sentence.
_ELEMENTWISE = words(
    "abs absolute atan celu clamp clamp_ clamp_max clamp_min clip cos elu elu_ erf exp expit gelu glu hardshrink "
    "hardsigmoid hardswish hardswish_ hardtanh hardtanh_ leaky_relu leaky_relu_ log_sigmoid log_softmax logsigmoid "
    "maximum max minimum min mish neg pow prelu _prelu_kernel relu relu_ relu6 relu6_ rrelu selu selu_ sigmoid "
    "sigmoid_ sign silu silu_ sin softmax softmin softplus softshrink softsign special_expit sqrt square tanh tanh_ "
    "tanhshrink _threshold threshold threshold_ where"
)


def is_torch_function(target: Any) -> bool:
    """A function of torch or Python itself, as opposed to a user's function of the same name."""
    module = getattr(target, "__module__", None) or ""
    return module == "_operator" or module == "builtins" or module == "torch" or module.startswith("torch.")


def op_name(node: fx.Node, reader: Reader) -> str:
    """The bare name of what a node calls: "linear", "relu_", "view", "LayerNorm"; for `getattr` the attribute."""
    target = node.target
    if node.op == "call_method":
        return str(target)
    if node.op == "call_module":
        return type(reader.module(node)).__name__
    if node.op != "call_function":
        return node.op
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).rpartition("::")[2]
    if target is getattr and len(node.args) > 1:
        return str(node.args[1])
    return str(getattr(target, "__name__", target))


def tensor_input(node: fx.Node) -> fx.Node | None:
    """The first tensor a node takes."""
    first = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("self"))
    if isinstance(first, fx.Node):
        return first
    return next(iter(node.all_input_nodes), None)


def _arguments(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A node's arguments without the tensor it acts on."""
    if node.args:
        return tuple(node.args[1:]), dict(node.kwargs)
    return (), {k: v for k, v in node.kwargs.items() if k not in ("input", "self")}


def read_activation(node: fx.Node, reader: Reader) -> activations.Match | None:
    """The activation a node applies, or None."""
    if node.op == "call_module":
        module = reader.module(node)
        return None if module is None or compat.has_hooks(module) else activations.read_module(module)
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target not in activations.spellings():
        return None
    return activations.read(node.target, *_arguments(node))


@dataclass(frozen=True)
class Step:
    """One node between two linear layers.

    Attributes:
        kind: "activation"; "same" (the value itself); "reshape" (rows intact, leading dimensions changed); "scale" (the
            value times a constant); otherwise a reason code of graph/reasons.py.
        source: the tensor it acts on.
        factor: of a "scale".
    """

    node: fx.Node
    kind: str
    source: fx.Node | None
    activation: activations.Match | None = None
    factor: float | None = None


def read_step(node: fx.Node, reader: Reader, width: int | None = None) -> Step:
    """What a node does to the rows that pass through it. `width` is their length where metadata does not tell."""
    step = reader.steps.get((node, width))
    if step is None:
        step = reader.steps[node, width] = _read_step(node, reader, width)
    return step


def _read_step(node: fx.Node, reader: Reader, width: int | None) -> Step:
    source = tensor_input(node)
    match = read_activation(node, reader)
    if match is not None:
        return Step(node, "activation", source, match)
    factor = _factor(node)
    if factor is not None:
        return Step(node, "scale", source, factor=factor)
    name = op_name(node, reader)
    module = reader.module(node) if node.op == "call_module" else None
    if module is not None and compat.has_hooks(module):
        return Step(node, "module-hooks", source)
    known = node.op == "call_method" or is_torch_function(node.target if module is None else type(module))
    if source is None or not known:
        return Step(node, "other-op-between", source)
    return Step(node, _kind(node, name, source, reader, width), source)


def _factor(node: fx.Node) -> float | None:
    """The constant that a node multiplies a tensor by, or None."""
    if node.op not in ("call_function", "call_method") or node.target not in _MULTIPLY:
        return None
    operands = (*node.args, *node.kwargs.values())
    numbers = [a for a in operands if type(a) in (int, float)]
    if len(operands) != 2 or len(numbers) != 1 or not isinstance(numbers[0], (int, float)):
        return None
    return float(numbers[0]) if math.isfinite(numbers[0]) else None


def _kind(node: fx.Node, name: str, source: fx.Node, reader: Reader, width: int | None) -> str:
    if name in _NO_OPS:
        return "same"
    if name in _CASTS:
        before, after = reader.facts(source), reader.facts(node)
        stays = before.dtype is not None and (before.dtype, before.device) == (after.dtype, after.device)
        return "same" if stays and before.device is not None else "cast-between"
    if name in ("detach", "detach_"):
        return "detach-between" if reader.needs_grad(source) else "same"
    dropping = _drops(node, name, reader)
    if dropping is not None:
        return "dropout-active" if dropping else "same"
    if name in _RESHAPES:
        return "reshape" if _keeps_rows(node, name, source, reader, width) else "view-between"
    if name in _REORDERS:
        return "view-between"
    return "activation-unknown" if name in _ELEMENTWISE or _is_activation_module(node, reader) else "other-op-between"


def _is_activation_module(node: fx.Node, reader: Reader) -> bool:
    return node.op == "call_module" and type(reader.module(node)).__module__ == "torch.nn.modules.activation"


def _drops(node: fx.Node, name: str, reader: Reader) -> bool | None:
    """Whether a dropout drops anything; None for what is no dropout."""
    if node.op == "call_module":
        module = reader.module(node)
        if type(module) not in _DROPOUT_MODULES:
            return None
        return bool(module.training and module.p != 0)  # type: ignore[union-attr]
    if name not in _DROPOUTS:
        return None
    names, default = _DROPOUTS[name]
    args, kwargs = _arguments(node)
    given: Mapping[str, Any] = {
        **dict(zip(names, args, strict=False)),
        "training": kwargs.get("train", default),
        **kwargs,
    }
    if len(args) > 1:
        given = {**given, "training": args[1]}
    return not (given["training"] is False or (type(given.get("p")) in (int, float) and given["p"] == 0))


def sizes_of(node: fx.Node) -> tuple[Any, ...]:
    """The sizes that a `view`, `reshape` or `expand` asks for."""
    given = node.args[1:] or tuple(v for k, v in node.kwargs.items() if k in ("size", "shape"))
    if len(given) == 1 and isinstance(given[0], (tuple, list)):
        return tuple(given[0])
    return tuple(given)


def _keeps_rows(node: fx.Node, name: str, source: fx.Node, reader: Reader, width: int | None) -> bool:
    """Whether a reshape provably leaves each row whole and the rows in their order."""
    before, after = reader.facts(source), reader.facts(node)
    if before.shape is not None and after.shape is not None:
        if before.dtype != after.dtype:  # view(dtype)
            return False
        if name in ("expand", "expand_as"):
            return same_shape(before.shape, after.shape)
        return same_size(before.last, after.last)
    if name in RESHAPES_BY_SIZES:
        sizes = sizes_of(node)
        return bool(sizes) and type(sizes[-1]) is int and sizes[-1] == width
    args, kwargs = _arguments(node)
    if name == "flatten":
        end = args[1] if len(args) > 1 else kwargs.get("end_dim", -1)
        return type(end) is int and end <= -2
    if name == "unsqueeze":
        return (args[0] if args else kwargs.get("dim")) == 0
    return False


def transposes(node: fx.Node, reader: Reader) -> fx.Node | None:
    """The tensor of which `node` is the matrix transpose (its last two dimensions swapped), or None."""
    if node.op not in ("call_function", "call_method"):
        return None
    if node.op == "call_function" and not is_torch_function(node.target):
        return None
    name, source = op_name(node, reader), tensor_input(node)
    if source is None:
        return None
    shape = reader.facts(source).shape
    rank = None if shape is None else len(shape)
    if name in _TRANSPOSES:
        return source if rank == 2 or (name in ("mT", "adjoint", "mH") and rank is not None) else None
    args, kwargs = _arguments(node)
    given = (*args, *kwargs.values())
    if len(given) == 1 and isinstance(given[0], (tuple, list)):
        given = tuple(given[0])
    if rank is None or not all(type(d) is int for d in given):
        return None
    dims = [d + rank if d < 0 else d for d in given]
    if name in _SWAPS:
        return source if sorted(dims) == [rank - 2, rank - 1] else None
    if name == "permute":
        return source if dims == [*range(rank - 2), rank - 1, rank - 2] else None
    return None
