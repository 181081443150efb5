"""What `torch.compile(model, backend="fmlp")` runs without a compiler: MLPs, and little beside them on a CPU."""

from __future__ import annotations

import pytest
import torch
from models import Followed, Heads, mlp
from test_backend import ALWAYS, operator_calls
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves


def test_a_graph_of_nothing_but_mlps_skips_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda *a, **k: pytest.fail("Inductor was asked"))
    compiled = torch.compile(mlp(), backend="fmlp", options=ALWAYS)
    with torch.no_grad():
        compiled(torch.randn(16, 48))
        assert operator_calls(lambda: compiled(torch.randn(16, 48))) == {"fused_mlp_inference": 1}
    compiled(torch.randn(16, 48))
    assert operator_calls(lambda: compiled(torch.randn(16, 48))) == {"fused_mlp": 1, "fused_mlp_train": 1}


@pytest.mark.parametrize(
    ("widths", "operator"),
    [
        ((8, 12, 4), "fused_short_chain_inference"),
        ((8, 12, 10, 9, 4), "fused_short_chain_inference"),
        ((8, 12, 10, 9, 7, 4), "fused_chain_inference"),
    ],
)
def test_chains_of_every_depth_are_called_without_gradients_by_their_cheapest_name(widths, operator: str) -> None:
    plain = mlp(widths)
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x = torch.randn(16, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x))
        assert operator_calls(lambda: compiled(x)) == {operator: 1}


def gradients(outputs, model: torch.nn.Module) -> list[torch.Tensor] | None:
    """Of the parameters, where an output has any."""
    differentiable = [y.double().square().sum() for y in tree_leaves(outputs) if y.requires_grad]
    return list(torch.autograd.grad(sum(differentiable), model.parameters())) if differentiable else None


FOLLOWED_BY_LITTLE = {
    "function": torch.exp,
    "method": lambda y: y.exp(),
    "clamp_of_infinity": lambda y: y.clamp(min=-float("inf"), max=0.5),
    "keywords": lambda y: torch.nn.functional.softmax(y, dim=-1, dtype=torch.float64),
    "slices": lambda y: y[..., 3:-1:2, None],
    "index_of_largest": lambda y: y.argmax(-1, keepdim=True),
    "nothing_else_but_twice": lambda y: {"y": y, "both": (y, y.squeeze(0))},
}


@pytest.fixture
def inductor_calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The graphs that go to Inductor (which calls itself where it has options)."""
    import torch._inductor.compile_fx as compile_fx

    calls: list[object] = []
    ask = compile_fx.compile_fx
    monkeypatch.setattr(compile_fx, "compile_fx", lambda gm, *a, **k: calls.append(gm) or ask(gm, *a, **k))
    return calls


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("model", [*(lambda then=then: Followed(then) for then in FOLLOWED_BY_LITTLE.values()), Heads],
                         ids=[*FOLLOWED_BY_LITTLE, "heads"])  # fmt: skip
def test_an_mlp_and_little_else_on_a_cpu_skips_inductor(model, grad: bool, inductor_calls: list[object]) -> None:
    plain = model()
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x = torch.randn(16, 48)
    with torch.set_grad_enabled(grad):
        actual, expected = compiled(x), plain(x)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(gradients(actual, plain), gradients(expected, plain))
    assert counters["fmlp"]["fused"] == 1
    assert not inductor_calls


@pytest.mark.parametrize(
    ("then", "rows", "arguments"),
    [
        (lambda y: y.exp() * 0.5, 16, {}),  # two operators
        (torch.exp, 4096, {}),  # a large one
        (lambda y: y.clamp_(-1, 1), 16, {}),  # a write
        (torch.exp, 16, {"mode": "max-autotune-no-cudagraphs"}),
        (torch.exp, 16, {"options": {"max_autotune": False}}),
        (torch.exp, 16, {"options": {"fmlp.inner": "inductor"}}),
        (torch.exp, 16, {"dynamic": True}),
    ],
)
def test_what_is_more_than_little_goes_to_inductor(then, rows: int, arguments, inductor_calls: list[object]) -> None:
    plain = Followed(then).eval()
    compiled = torch.compile(plain, backend="fmlp", **arguments)
    x = torch.randn(rows, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x))
    assert inductor_calls


def test_straight_line_code_keeps_forward_mode_tangents() -> None:
    from torch.autograd import forward_ad

    plain = mlp()
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x, tangent = torch.randn(16, 48), torch.randn(16, 48)
    with torch.no_grad():
        compiled(x)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            result, expected = forward_ad.unpack_dual(compiled(dual)), forward_ad.unpack_dual(plain(dual))
    torch.testing.assert_close(result.tangent, expected.tangent)
