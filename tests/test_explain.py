"""`explain` and `assert_fused`."""

from __future__ import annotations

import re

import pytest
import torch
from models import GraphBreak, Surrounded, Towers, mlp
from torch import nn

import fmlp_op
from fmlp_op.testing import assert_fused

CELU = nn.Sequential(nn.Linear(8, 8), nn.CELU(), nn.Linear(8, 8), nn.CELU(), nn.Linear(8, 8))


def test_a_fused_mlp_is_reported_with_shapes_dtype_device_and_kernel() -> None:
    text = str(fmlp_op.explain(Surrounded(), torch.randn(16, 48), policy="always"))
    assert text.startswith("fmlp_op: 1 fused, 0 not, in 1 graph(s)")
    assert "16x48 -> 64 -> 40 -> 24, float32, cpu, bias on 1, 2, 3, relu between" in text
    assert re.search(r"kernel: cpu", text)


def test_an_unfused_mlp_is_reported_with_its_reason() -> None:
    explanation = fmlp_op.explain(CELU, torch.randn(4, 8))
    assert [d.code for d in explanation.rejected] == ["activation-unknown"]
    assert "celu" in str(explanation).lower()


def test_the_policy_is_part_of_the_answer() -> None:
    (decision,) = fmlp_op.explain(mlp(), torch.randn(16, 48), policy="never").rejected
    assert decision.code == "policy" and "never" in decision.sentence


def test_graph_breaks_show_as_separate_graphs() -> None:
    explanation = fmlp_op.explain(GraphBreak(), torch.randn(16, 48), policy="always")
    assert len(explanation.graphs) == 2 and len(explanation.fused) == 2
    assert "graph 2:" in str(explanation)


def test_a_compiled_model_is_explained_too_and_explaining_twice_says_the_same() -> None:
    compiled = torch.compile(Towers(), backend="fmlp")
    x = torch.randn(4, 16)
    compiled(x)
    first, second = (str(fmlp_op.explain(compiled, x, policy="always")) for _ in range(2))
    assert first == second and first.startswith("fmlp_op: 3 fused")


def test_explaining_leaves_compiled_code_alone() -> None:
    compiled = torch.compile(mlp(), backend="fmlp", options={"fmlp.policy": "always"})
    x = torch.randn(16, 48)
    compiled(x)
    fmlp_op.explain(compiled, x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(x)


def test_a_model_with_no_linear_layers_says_so() -> None:
    assert "no two linear layers in a row" in str(fmlp_op.explain(nn.ReLU(), torch.randn(3)))


def test_assert_fused_passes_and_fails_with_the_explanation() -> None:
    assert_fused(Towers(), torch.randn(4, 16), count=3)
    assert_fused(CELU, torch.randn(4, 8), count=0)
    with pytest.raises(AssertionError, match=r"(?s)expected 1 fused, found 0.*activation-unknown"):
        assert_fused(CELU, torch.randn(4, 8))


def test_assert_fused_holds_in_a_training_step() -> None:
    assert_fused(mlp().train(), torch.randn(4, 48))
