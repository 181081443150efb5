"""`torch.compile(model, backend="fmlp")`."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys

import pytest
import torch
from models import GraphBreak, Surrounded, Towers, mlp
from torch import nn
from torch._dynamo.utils import counters

ALWAYS = {"fmlp.policy": "always"}


def operator_calls(fn) -> dict[str, int]:
    """How often each of our operators ran inside `fn()`."""
    with torch.profiler.profile() as profile:
        fn()
    return {e.key.removeprefix("fmlp::"): e.count for e in profile.key_averages() if e.key.startswith("fmlp::")}


def step(model, x: torch.Tensor) -> list[torch.Tensor]:
    """Output and all gradients of one training step."""
    x = x.clone().requires_grad_()
    parameters = list(getattr(model, "_orig_mod", model).parameters())
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), [x, *parameters])]


def test_backend_is_found_without_an_import() -> None:
    code = (
        "import torch, sys; from torch import nn\n"
        "m = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 24)).eval()\n"
        "assert 'fmlp_op' not in sys.modules\n"
        "f = torch.compile(m, backend='fmlp'); x = torch.randn(16, 48)\n"
        "torch.testing.assert_close(f(x), m(x))\n"
        "import torch._dynamo.utils as u; assert u.counters['fmlp']['fused'] == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", [mlp, Surrounded, Towers, GraphBreak])
@pytest.mark.parametrize("lead", [(), (1,), (16,), (3, 5)])
def test_inference_equals_eager(model, lead, device: str) -> None:
    plain = model().eval().to(device)
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x = torch.randn(*lead, 16 if model is Towers else 48, device=device)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), plain(x))
    assert counters["fmlp"]["fused"] == {mlp: 1, Surrounded: 1, Towers: 3, GraphBreak: 2}[model]


@pytest.mark.parametrize("model", [mlp, Surrounded, Towers, GraphBreak])
def test_training_step_equals_eager(model, device: str) -> None:
    plain = model().to(device)
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x = torch.randn(16, 16 if model is Towers else 48, device=device)
    torch.testing.assert_close(step(compiled, x), step(plain, x), rtol=1e-4, atol=1e-6)
    assert {"fused_mlp_train", "fused_chain_train"} & operator_calls(lambda: step(compiled, x)).keys()


def test_inference_and_training_alternate() -> None:
    plain = mlp()
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x = torch.randn(16, 48)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), plain(x))
        torch.testing.assert_close(step(compiled, x), step(plain, x), rtol=1e-4, atol=1e-6)


def test_weights_updated_between_calls_take_effect() -> None:
    plain = mlp()
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    x = torch.randn(16, 48)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), plain(x))
    plain.load_state_dict(mlp().state_dict())
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("model", [mlp, Surrounded])
def test_every_mode_equals_eager(mode: str, model, device: str) -> None:
    plain = model().eval().to(device)
    compiled = torch.compile(plain, backend="fmlp", mode=mode)
    x = torch.randn(16, 48, device=device)
    with torch.no_grad():
        outputs = [compiled(x + i).clone() for i in range(3)]
        for i, y in enumerate(outputs):
            torch.testing.assert_close(y, plain(x + i))


@pytest.mark.parametrize("options", [{"freezing": True}, {"cpp_wrapper": True}, {"max_autotune": True}])
def test_inductor_options_pass_through(options: dict) -> None:
    plain = Surrounded().eval()
    compiled = torch.compile(plain, backend="fmlp", options={**ALWAYS, **options})
    x = torch.randn(16, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x))
    assert counters["fmlp"]["fused"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fmlp.polcy": "auto"}, "option 'fmlp.polcy' does not exist; did you mean 'fmlp.policy'"),
        ({"freezin": True}, "option 'freezin' does not exist; did you mean 'freezing'"),
        ({"fmlp.policy": "sometimes"}, "option 'fmlp.policy' is 'sometimes'; it must be one of auto, always, never"),
        ({"fmlp.inner": "inductr"}, "inductr"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        torch.compile(Surrounded(), backend="fmlp", options=options)(torch.randn(16, 48))


def test_never_leaves_the_model_to_inductor() -> None:
    compiled = torch.compile(mlp(), backend="fmlp", options={"fmlp.policy": "never"})
    with torch.no_grad():
        compiled(torch.randn(16, 48))
        assert not operator_calls(lambda: compiled(torch.randn(16, 48)))
    assert counters["fmlp"] == {"policy": 1}


@pytest.mark.parametrize("inner", ["eager", "aot_eager", "inductor"])
def test_the_rest_goes_to_the_inner_backend(inner: str) -> None:
    plain = Surrounded()
    compiled = torch.compile(plain, backend="fmlp", options={**ALWAYS, "fmlp.inner": inner})
    x = torch.randn(16, 48)
    torch.testing.assert_close(step(compiled, x), step(plain, x), rtol=1e-4, atol=1e-6)


def test_counters_name_the_reason_for_what_is_not_fused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.CELU(), nn.Linear(8, 8), nn.CELU(), nn.Linear(8, 8))
    torch.compile(model, backend="fmlp", options={**ALWAYS, "fmlp.inner": "eager"})(torch.randn(4, 8))
    assert counters["fmlp"] == {"activation-unknown": 1}


def test_decisions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fmlp_op"):
        torch.compile(mlp(), backend="fmlp", options=ALWAYS)(torch.randn(16, 48))
    assert "fused" in caplog.text and "16x48 -> 64 -> 40 -> 24" in caplog.text


@pytest.mark.parametrize("model", [mlp, Surrounded])
def test_one_dynamic_graph_serves_every_batch_size(model) -> None:
    plain = model().eval()
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    with torch.no_grad():
        for rows in range(2, 65):
            x = torch.randn(rows, 48)
            torch._dynamo.mark_dynamic(x, 0)
            with torch._dynamo.config.patch(error_on_recompile=rows > 2):
                torch.testing.assert_close(compiled(x), plain(x))
    assert counters["fmlp"]["fused"] == 1


def test_batches_of_zero_and_one_recompile_no_more_than_torch_does() -> None:
    def graphs(backend: str) -> int:
        torch._dynamo.reset()
        counters.clear()
        model = mlp().eval()
        compiled = torch.compile(model, backend=backend, dynamic=True)
        with torch.no_grad():
            for rows in (16, 5, 1, 0, 33):
                x = torch.randn(rows, 48)
                torch.testing.assert_close(compiled(x), model(x))
        return counters["stats"]["unique_graphs"]

    assert graphs("fmlp") <= graphs("eager")


def test_many_instances_of_a_block_share_one_graph() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(mlp((16, 16, 16, 16)) for _ in range(8))
            for block in self.blocks:
                block.compiled = torch.compile(block.forward, backend="fmlp", options=ALWAYS)

        def forward(self, x):
            for block in self.blocks:
                x = block.compiled(x)
            return x

    with torch.no_grad():
        Stack()(torch.randn(4, 16))
    assert counters["stats"]["unique_graphs"] <= 1 or counters["fmlp"]["fused"] == counters["stats"]["unique_graphs"]


def test_deep_copies_are_independent() -> None:
    compiled = torch.compile(mlp(), backend="fmlp", options=ALWAYS)
    x = torch.randn(16, 48)
    with torch.no_grad():
        before = compiled(x)
        twin = copy.deepcopy(compiled)
        for p in twin.parameters():
            p.zero_()
        assert torch.equal(compiled(x), before)
        assert not twin(x).any()


def test_autocast_around_and_inside_equals_eager() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = mlp()

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.mlp(x)

    x = torch.randn(16, 48)
    for plain, context in ((Inside(), torch.no_grad()), (mlp(), torch.autocast("cpu", torch.bfloat16))):
        compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
        with context:
            y, expected = compiled(x), plain(x)
        assert y.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)


def test_changing_matmul_precision_takes_effect_on_compiled_code() -> None:
    before = torch.get_float32_matmul_precision()
    compiled = torch.compile(mlp(), backend="fmlp", options=ALWAYS)
    seen = []
    try:
        for setting in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(setting)
            with torch.no_grad():
                compiled(torch.randn(16, 48))
            seen.append(counters["fmlp"]["fused"])
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == [1, 2, 2]


def test_a_function_of_functional_linears_is_fused() -> None:
    weights = [torch.randn(n, k) for k, n in ((48, 64), (64, 40), (40, 24))]

    def policy(x):
        h = nn.functional.linear(x, weights[0]).relu()
        return nn.functional.linear(nn.functional.linear(h, weights[1]).relu(), weights[2]), h.shape[0]

    y, rows = torch.compile(policy, backend="fmlp", options=ALWAYS)(torch.randn(16, 48))
    assert rows == 16 and y.shape == (16, 24) and counters["fmlp"]["fused"] == 1
