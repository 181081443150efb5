"""`enable`, `disable`, `enabled` and `options`: the rewrite for plain torch.compile."""

from __future__ import annotations

import pytest
import torch
from models import Surrounded, mlp
from test_backend import operator_calls
from torch._dynamo.utils import counters
from torch._inductor import config

import fmlp_op


@pytest.fixture(autouse=True)
def leave_nothing_enabled():
    yield
    fmlp_op.disable()


def fused_calls(compiled) -> int:
    with torch.no_grad():
        compiled(torch.randn(16, 48))
        return sum(operator_calls(lambda: compiled(torch.randn(16, 48))).values())


def test_enable_fuses_what_is_compiled_afterwards() -> None:
    assert not fused_calls(torch.compile(Surrounded()))
    torch._dynamo.reset()
    fmlp_op.enable(policy="always")
    assert fused_calls(torch.compile(Surrounded())) == 1
    fmlp_op.disable()
    torch._dynamo.reset()
    assert not fused_calls(torch.compile(Surrounded()))


def test_enabling_twice_and_disabling_once_leaves_nothing() -> None:
    fmlp_op.enable()
    fmlp_op.enable(policy="always")
    fmlp_op.disable()
    assert config.pre_grad_custom_pass is None
    assert not fused_calls(torch.compile(mlp()))


def test_the_context_manager_ends_where_the_block_ends() -> None:
    with fmlp_op.enabled(policy="always"):
        assert fused_calls(torch.compile(mlp())) == 1
    torch._dynamo.reset()
    assert not fused_calls(torch.compile(mlp()))


def test_the_context_manager_restores_an_outer_policy() -> None:
    fmlp_op.enable(policy="always")
    with fmlp_op.enabled(policy="never"):
        assert not fused_calls(torch.compile(mlp()))
    torch._dynamo.reset()
    assert fused_calls(torch.compile(mlp())) == 1


def test_an_unknown_policy_is_refused_and_changes_nothing() -> None:
    with pytest.raises(ValueError, match="'sometimes'; it must be one of auto, always, never"):
        fmlp_op.enable(policy="sometimes")
    assert not fused_calls(torch.compile(mlp()))


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="torch 2.13 brought default backends")
def test_another_default_backend_is_not_replaced() -> None:
    torch.compiler.set_default_backend("eager")
    try:
        with pytest.raises(RuntimeError, match="default backend is already 'eager'"):
            fmlp_op.enable()
        assert torch.compiler.get_default_backend() == "eager"
    finally:
        torch.compiler.set_default_backend("inductor")


def test_the_users_own_pass_keeps_running() -> None:
    seen = []
    with config.patch(pre_grad_custom_pass=lambda graph: seen.append(len(list(graph.nodes)))):
        with fmlp_op.enabled(policy="always"):
            assert fused_calls(torch.compile(Surrounded())) == 1
        assert seen


def test_options_serve_one_callable_only() -> None:
    model = Surrounded()
    assert fused_calls(torch.compile(model, options=fmlp_op.options(policy="always"))) == 1
    assert not fused_calls(torch.compile(model))


def test_equal_options_do_not_compile_again() -> None:
    model = Surrounded().eval()
    for _ in range(3):
        with torch.no_grad():
            torch.compile(model, options=fmlp_op.options(policy="always"))(torch.ones(16, 48))
    assert counters["stats"]["unique_graphs"] == 1


def test_options_keep_a_pass_given_with_them() -> None:
    seen = []
    options = fmlp_op.options(policy="always", pre_grad_custom_pass=lambda graph: seen.append(1))
    assert fused_calls(torch.compile(Surrounded(), options=options)) == 1
    assert seen == [1]


def test_a_warm_cache_keeps_plain_and_rewritten_code_apart() -> None:
    seen = []
    for policy in ("never", "always") * 2:
        torch._dynamo.reset()
        seen.append(fused_calls(torch.compile(Surrounded(), options=fmlp_op.options(policy=policy))))
    assert seen == [0, 1, 0, 1]
