"""Whole graphs after the rewrite, one text on every torch. `EXPECTTEST_ACCEPT=1 pytest` rewrites the expectations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from expecttest import TestCase
from graph_tools import Net, chain, decomposed, dynamo, symbolic, text
from torch import Tensor, nn


class TestGraphsAfterRewriting(TestCase):
    def test_a_dynamo_graph_with_all_biases(self) -> None:
        def f(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor) -> Tensor:
            return F.linear(F.relu(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)), w3, b3).exp()

        shapes = ((5, 4), (3, 4), (3,), (6, 3), (6,), (2, 6), (2,))
        self.assertExpectedInline(
            text(dynamo(f, *map(torch.randn, shapes)).graph_module),
            """\
v0 = fmlp.fused_mlp.default(i0, i1, i3, i5, i2, i4, i6)
v1 = .exp(v0)
return([v1])""",
        )

    def test_a_dynamo_graph_with_some_biases(self) -> None:
        def f(x: Tensor, w1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor) -> Tensor:
            return F.linear(F.relu(F.linear(F.relu(F.linear(x, w1)), w2, b2)), w3)

        shapes = ((5, 4), (3, 4), (6, 3), (6,), (2, 6))
        self.assertExpectedInline(
            text(dynamo(f, *map(torch.randn, shapes)).graph_module),
            """\
v0 = fmlp.fused_mlp.default(i0, i1, i2, i4, None, i3)
return([v0])""",
        )

    def test_a_symbolic_trace_fetches_weights_from_its_modules(self) -> None:
        self.assertExpectedInline(
            text(symbolic(chain(4)).graph_module),
            """\
v0 = self.0.weight
v1 = self.2.weight
v2 = self.4.weight
v3 = self.6.weight
v4 = self.0.bias
v5 = self.2.bias
v6 = self.4.bias
v7 = self.6.bias
v8 = fmlp.fused_chain.default(i0, [v0, v1, v2, v3], [v4, v5, v6, v7], 'relu')
return(v8)""",
        )

    def test_a_decomposed_graph_loses_its_transposes_and_views(self) -> None:
        model, x = Net(biases=(True, False, True)), torch.randn(2, 3, 12)
        self.assertExpectedInline(
            text(decomposed(model, x).graph_module),
            """\
v0 = fmlp.fused_mlp.default(i5, i0, i2, i3, i1, None, i4)
return([v0])""",
        )

    def test_an_autocast_region_keeps_the_operator_inside(self) -> None:
        def f(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = F.linear(F.relu(F.linear(F.relu(F.linear(x, a)), b)), c)
            return y + 1

        shapes = ((5, 4), (3, 4), (6, 3), (2, 6))
        self.assertExpectedInline(
            text(dynamo(f, *map(torch.randn, shapes)).graph_module),
            """\
v0 = _enter_autocast('cpu', torch.bfloat16, True, None)
v1 = fmlp.fused_mlp.default(i0, i1, i2, i3)
v2 = _exit_autocast(v0)
v3 = add(v1, 1)
return([v3])""",
        )

    def test_a_reshape_between_layers_moves_behind_the_operator(self) -> None:
        def f(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
            return F.linear(F.relu(F.linear(F.relu(F.linear(x, w1)).view(-1, 3), w2)), w3)

        shapes = ((2, 3, 4), (3, 4), (6, 3), (2, 6))
        self.assertExpectedInline(
            text(dynamo(f, *map(torch.randn, shapes)).graph_module),
            """\
v0 = fmlp.fused_mlp.default(i0, i1, i2, i3)
v1 = .view(v0, -1, 2)
return([v1])""",
        )

    def test_two_towers_with_in_place_relus_whose_layers_alternate(self) -> None:
        class Twins(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.f = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(6))

            def forward(self, x: Tensor) -> Tensor:
                a, b = self.f[0](x).relu_(), self.f[1](x).relu_()
                a, b = self.f[2](a).relu_(), self.f[3](b).relu_()
                return torch.minimum(self.f[4](a), self.f[5](b))

        self.assertExpectedInline(
            text(symbolic(Twins()).graph_module),
            """\
v0 = self.f.0.weight
v1 = self.f.2.weight
v2 = self.f.4.weight
v3 = fmlp.fused_mlp.default(i0, v0, v1, v2)
v4 = self.f.1.weight
v5 = self.f.3.weight
v6 = self.f.5.weight
v7 = fmlp.fused_mlp.default(i0, v4, v5, v6)
v8 = minimum(v3, v7)
return(v8)""",
        )
