"""Every way in which graphs write an activation is read, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fmlp_op import activations, reference

aten = torch.ops.aten


def read_last(function) -> str | None:
    """What `activations.read` makes of the last call in a function's graph."""
    node = [n for n in torch.fx.symbolic_trace(function).graph.nodes if n.op.startswith("call")][-1]
    match = activations.read(node.target, tuple(node.args[1:]), node.kwargs)
    return match and str(match)


FUNCTIONS = {
    "leaky_relu": [F.leaky_relu, lambda x: F.leaky_relu(x, 0.01, True), lambda x: F.leaky_relu_(x)],
    "leaky_relu(0.2)": [lambda x: F.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, negative_slope=0.2)],
    "elu": [F.elu, lambda x: F.elu(x, 1.0, True), lambda x: F.elu_(x)],
    "elu(0.5)": [lambda x: F.elu(x, 0.5), lambda x: F.elu(x, alpha=0.5, inplace=True), lambda x: F.elu_(x, 0.5)],
    "selu": [F.selu, torch.selu, lambda x: F.selu(x, inplace=True), lambda x: torch.selu_(x)],
    "silu": [F.silu, lambda x: F.silu(x, inplace=True)],
    "gelu": [F.gelu, lambda x: F.gelu(x, approximate="none")],
    "gelu_tanh": [lambda x: F.gelu(x, approximate="tanh")],
    "tanh": [torch.tanh, F.tanh, lambda x: x.tanh(), lambda x: x.tanh_(), lambda x: torch.tanh_(x)],
    "sigmoid": [
        torch.sigmoid,
        F.sigmoid,
        torch.special.expit,
        lambda x: x.sigmoid(),
        lambda x: x.sigmoid_(),
        lambda x: torch.sigmoid_(x),
    ],
    "softplus": [F.softplus, lambda x: F.softplus(x, 1, 20)],
    "softplus(2.0, 20.0)": [lambda x: F.softplus(x, 2)],
    "softplus(2.0, 5.0)": [lambda x: F.softplus(x, beta=2, threshold=5), lambda x: F.softplus(x, 2, 5)],
    "hardswish": [F.hardswish, lambda x: F.hardswish(x, True)],
    "mish": [F.mish, lambda x: F.mish(x, inplace=True)],
    "sin": [torch.sin, lambda x: x.sin(), lambda x: x.sin_(), lambda x: torch.sin_(x)],
}


@pytest.mark.parametrize(("expected", "function"), [(name, f) for name, fs in FUNCTIONS.items() for f in fs])
def test_functions_and_methods_are_read(expected: str, function) -> None:
    assert read_last(lambda x: function(x)) == expected


@pytest.mark.parametrize(("expected", "function"), [(name, f) for name, fs in FUNCTIONS.items() for f in fs])
def test_aten_overloads_are_read(expected: str, function) -> None:
    """As make_fx and export leave them."""
    graph = make_fx(lambda x: function(x.clone()))(torch.randn(3)).graph
    nodes = [n for n in graph.nodes if n.op == "call_function" and n.target is not aten.clone.default]
    match = activations.read(nodes[-1].target, tuple(nodes[-1].args[1:]), nodes[-1].kwargs)
    assert len(nodes) == 1
    assert str(match) == expected


@pytest.mark.parametrize(
    ("expected", "module"),
    [
        ("leaky_relu", nn.LeakyReLU()),
        ("leaky_relu(0.2)", nn.LeakyReLU(0.2, inplace=True)),
        ("elu", nn.ELU()),
        ("elu(0.5)", nn.ELU(0.5, True)),
        ("selu", nn.SELU()),
        ("silu", nn.SiLU(inplace=True)),
        ("gelu", nn.GELU()),
        ("gelu_tanh", nn.GELU("tanh")),
        ("tanh", nn.Tanh()),
        ("sigmoid", nn.Sigmoid()),
        ("softplus", nn.Softplus()),
        ("softplus(2.0, 10.0)", nn.Softplus(2, 10)),
        ("hardswish", nn.Hardswish()),
    ],
    ids=str,
)
def test_modules_are_read_and_compute_what_was_read(expected: str, module: nn.Module) -> None:
    match = activations.read_module(module)
    assert str(match) == expected
    assert match.inplace == getattr(module, "inplace", False)
    x = torch.randn(100)
    assert torch.equal(module(x.clone()), reference.activate(expected, x))


OTHER_FUNCTIONS = [
    lambda x: F.gelu(x, approximate="sigmoid"),
    lambda x: F.leaky_relu(x, x),
    lambda x: F.rrelu(x),
    lambda x: F.celu(x, 0.5),
    lambda x: F.softplus(x, x),
    lambda x: F.silu(x, x),
    lambda x: F.softshrink(x),
    lambda x: F.hardsigmoid(x),
    lambda x: F.hardtanh(x),
    lambda x: F.logsigmoid(x),
    lambda x: torch.tanh(x, out=x),
    lambda x: torch.sin(x, out=x),
    lambda x: torch.cos(x),
    lambda x: torch.sinc(x),
    lambda x: aten.elu.default(x, 1.0, 2.0),
    lambda x: aten.elu.default(x, 1.0, 1.0, 0.5),
    lambda x: aten.elu.default(x, 1.6732632423543772, 1.05),
]


@pytest.mark.parametrize("function", OTHER_FUNCTIONS)
def test_other_functions_are_not_read(function) -> None:
    assert read_last(function) is None


def test_subclass_of_a_module_is_not_read() -> None:
    class Loud(nn.Tanh):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert activations.read_module(Loud()) is None


@pytest.mark.parametrize("module", [nn.GELU(approximate="none"), nn.Hardsigmoid(), nn.CELU(), nn.RReLU()])
def test_only_known_modules_are_read(module: nn.Module) -> None:
    assert (activations.read_module(module) is None) == (not isinstance(module, nn.GELU))
