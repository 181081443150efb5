"""`fmlp_op.policy`: whether fusing pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from fmlp_op import Problem, backend, explain, measure
from fmlp_op.policy import decide


def problem(widths=(48, 64, 40, 24), rows: int | None = 16, dtype=torch.float32, device="cpu") -> Problem:
    return Problem(
        rows, widths, dtype, torch.device(device), (True,) * 3, "relu", "identity", needs_grad=False, allow_tf32=False
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("rows", [1, 16, 1024, None])
def test_auto_fuses_the_reference_workload(device: str, rows: int | None) -> None:
    assert decide(problem(rows=rows, device=device), "auto").fuse


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_auto_declines_with_a_reason_where_no_kernel_serves(device: str) -> None:
    verdict = decide(problem((8192, 8192, 8192, 8192), device=device), "auto")
    assert not verdict.fuse and "no kernel" in verdict.reason


def no_kernel_serves() -> Problem:
    return problem((1024,) * 4, device="cuda")


@pytest.mark.parametrize(("one_by_one", "fuse"), [(25e-6, True), (31.9e-6, False), (40e-6, False)])
def test_auto_takes_the_faster_of_torchs_two_ways_where_no_kernel_serves(
    one_by_one: float, fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "times_of_products", lambda problem: measure.Times(one_by_one, 32e-6))
    verdict = decide(no_kernel_serves(), "auto")
    assert verdict.fuse == fuse and "no kernel pays" in verdict.reason
    assert ("25 µs one by one, 32 µs as Inductor calls them" in verdict.reason) == fuse
    assert not decide(replace(no_kernel_serves(), needs_grad=True), "auto").fuse
    torch.use_deterministic_algorithms(True)
    try:
        assert not decide(no_kernel_serves(), "auto").fuse
    finally:
        torch.use_deterministic_algorithms(False)


def cannot_time(problem: Problem) -> measure.Times:
    raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize("times", [lambda problem: None, cannot_time])
def test_auto_leaves_to_inductor_what_no_kernel_serves_and_nothing_can_time(
    times, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "times_of_products", times)
    assert not decide(no_kernel_serves(), "auto").fuse


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "max-autotune"},
        {"mode": "reduce-overhead"},
        {"options": {"max_autotune": True}},
        {"options": {"triton.cudagraphs": True}},
        {},
    ],
    ids=str,
)
def test_auto_takes_no_product_from_an_inductor_asked_for_more_than_its_default(
    settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(backend, "rewrite", lambda gm, policy: seen.append(decide(no_kernel_serves(), policy)))
    monkeypatch.setattr(backend, "record", lambda report: None)
    monkeypatch.setattr(measure, "times_of_products", lambda problem: measure.Times(1e-6, 2e-6))
    torch.compile(torch.sin, backend="fmlp", **settings)(torch.ones(4))
    assert [verdict.fuse for verdict in seen] == [not settings]


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [16, 1024])
def test_products_are_timed_on_the_gpu_and_kept(rows: int) -> None:
    one = replace(no_kernel_serves(), rows=rows)
    found = measure.times_of_products(one)
    assert found is not None and 1e-6 < found.fused < 1e-2 and 1e-6 < found.plain < 1e-2
    assert measure.times_of_products(one) is found


@pytest.mark.cuda
@pytest.mark.parametrize("sizes", [(17, 1024), (16, 1023), (1 << 28, 1024)], ids=str)
def test_products_that_inductor_pads_or_that_would_fill_the_memory_are_not_timed(sizes: tuple[int, int]) -> None:
    rows, width = sizes
    assert measure.times_of_products(problem((width,) * 4, rows=rows, device="cuda")) is None


@pytest.mark.cuda
def test_nothing_is_timed_while_a_graph_is_captured() -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        assert not decide(replace(no_kernel_serves(), rows=64), "auto").fuse
    graph.replay()
    assert torch.equal(y, torch.full_like(x, 2))


@pytest.mark.cuda
@pytest.mark.parametrize("one_by_one", [1e-6, 3e-6])
def test_either_way_computes_what_eager_does(one_by_one: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "times_of_products", lambda problem: measure.Times(one_by_one, 2e-6))
    model = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
    x = torch.randn(1024, 1024, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="fmlp")(x), model(x))
    assert counters["fmlp"]["fused"] == (one_by_one < 2e-6)


@pytest.mark.parametrize("activation", ["tanh", "elu", "sin(30.0)"])
def test_auto_fuses_every_activation_on_gpus(activation: str) -> None:
    assert decide(replace(problem(device="cuda"), activation=activation), "auto").fuse


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("activation", "output_activation", "fuse"),
    [
        ("relu", "identity", True),
        ("tanh", "sigmoid", True),
        ("leaky_relu(0.2)", "identity", True),
        ("gelu", "identity", False),
        ("elu", "identity", False),
        ("relu", "silu", False),
    ],
)
def test_auto_leaves_training_to_torch_where_a_backward_would_repeat_products(
    activation: str, output_activation: str, fuse: bool, device: str
) -> None:
    one = replace(problem(device=device), activation=activation, output_activation=output_activation)
    assert decide(one, "auto").fuse
    verdict = decide(replace(one, needs_grad=True), "auto")
    assert verdict.fuse == fuse
    blamed = output_activation if output_activation == "silu" else activation
    assert verdict.reason.startswith(f"in training, {blamed} would have") == (not fuse)
    assert decide(replace(one, needs_grad=True), "always").fuse


def test_auto_declines_a_dtype_without_a_kernel() -> None:
    assert not decide(problem(dtype=torch.complex64), "auto").fuse


def test_always_and_never_ask_no_further() -> None:
    impossible = problem((8192,) * 4, device="mps")
    assert decide(impossible, "always").fuse
    assert not decide(problem(), "never").fuse


@pytest.mark.parametrize(("fused", "plain"), [(1e-6, 2e-6), (3e-6, 2e-6)])
def test_measure_fuses_what_was_faster_and_says_both_times(
    fused: float, plain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "times", lambda problem: measure.Times(fused, plain))
    verdict = decide(problem(), "measure")
    assert verdict.fuse == (fused < plain)
    assert verdict.reason == f"measured {fused * 1e6:.3g} µs fused, 2 µs not, for 16 rows"


@pytest.mark.parametrize("won", [16, 1024])
def test_measure_has_to_win_at_every_typical_batch(won: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "times", lambda problem: measure.Times(1.0 if problem.rows == won else 3.0, 2.0))
    assert decide(problem(rows=won), "measure").fuse
    assert not decide(problem(rows=None), "measure").fuse


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_measure_falls_back_where_nothing_can_be_timed() -> None:
    assert decide(problem(device="cuda"), "measure").reason == "the row kernel serves it"


@pytest.mark.parametrize("needs_grad", [False, True])
def test_measuring_is_cached_and_leaves_the_caller_alone(needs_grad: bool, device: str) -> None:
    one = replace(problem(widths=(8, 16, 8, 4), device=device), needs_grad=needs_grad)
    state = torch.get_rng_state()
    with torch.inference_mode():
        found = measure.times(one)
        assert torch.is_inference_mode_enabled()
    assert found.fused > 0 and found.plain > 0
    assert measure.times(one) is found
    assert torch.equal(torch.get_rng_state(), state)


def test_measure_decides_while_compiling(device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval().to(device)
    x = torch.randn(4, 8, device=device)
    with torch.no_grad():
        compiled = torch.compile(model, backend="fmlp", options={"fmlp.policy": "measure", "fmlp.inner": "aot_eager"})
        torch.testing.assert_close(compiled(x), model(x))
        found = explain(model, x, policy="measure")
    assert counters["fmlp"]["fused"] == len(found.fused)
    assert sum(counters["fmlp"].values()) == 1


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="'somtimes'; it must be one of auto"):
        decide(problem(), "somtimes")
