"""The rest of torch.compile's surface: caches, threads, other backends, passes, compiled autograd, DDP, CUDA graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from models import Surrounded, Towers, mlp
from test_backend import ALWAYS, operator_calls, step
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import fmlp_op

TESTS = Path(__file__).parent


def assert_same_step(compiled, plain, x: torch.Tensor) -> None:
    torch.testing.assert_close(step(compiled, x), step(plain, x), rtol=1e-4, atol=1e-6)


def run_here(code: str, **environment: str) -> str:
    """What `code` prints, run in a process of its own beside these tests."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_process_with_a_hot_cache_still_fuses_and_explains(tmp_path: Path) -> None:
    code = (
        "import torch; from models import Surrounded; from test_backend import operator_calls\n"
        "import fmlp_op; from torch._dynamo.utils import counters\n"
        "torch.manual_seed(0); model = Surrounded().eval(); x = torch.randn(16, 48)\n"
        "f = torch.compile(model, backend='fmlp', options={'fmlp.policy': 'always'})\n"
        "with torch.no_grad():\n"
        "    torch.testing.assert_close(f(x), model(x))\n"
        "    print(operator_calls(lambda: f(x)), counters['fmlp']['fused'])\n"
        "    print(counters['inductor']['fxgraph_cache_hit'], len(fmlp_op.explain(f, x).fused))\n"
    )
    first = run_here(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).split("\n")
    second = run_here(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).split("\n")
    assert first[0] == second[0] == "{'fused_chain_inference': 1} 1"
    assert (first[1], second[1]) == ("0 1", "1 1")


def test_threads_that_compile_and_run_at_once_get_right_results() -> None:
    def work(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        model = Surrounded().eval()
        compiled = torch.compile(model, backend="fmlp", options={**ALWAYS, "fmlp.inner": "aot_eager"})
        with torch.no_grad():
            inputs = [torch.randn(rows, 48, generator=generator) for rows in (16, 16, 7)]
            return all(torch.allclose(compiled(x), model(x), atol=1e-5) for x in inputs)

    torch._dynamo.lookup_backend("fmlp")  # torch's registry of backends is not made for threads
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_instances_of_one_block_compiled_region_by_region_share_one_graph() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp((16, 16, 16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.layers(x)

    blocks = nn.Sequential(*(Block() for _ in range(16)))
    x = torch.randn(4, 16)
    with torch.no_grad():
        expected = blocks(x)
        for block in blocks:
            block.compile(backend="fmlp", options={**ALWAYS, "fmlp.inner": "aot_eager"})
        torch.testing.assert_close(blocks(x), expected)
    assert counters["stats"]["unique_graphs"] == 1 and counters["fmlp"]["fused"] == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "cudagraphs", "inductor"])
def test_a_rewritten_graph_goes_through_other_backends(backend: str) -> None:
    def rewriting(gm: torch.fx.GraphModule, inputs: list) -> object:
        assert len(fmlp_op.rewrite(gm).fused) == 3
        return torch._dynamo.lookup_backend(backend)(gm, inputs)

    plain = Towers()
    assert_same_step(torch.compile(plain, backend=rewriting), plain, torch.randn(8, 16))


@pytest.mark.parametrize("slot", ["joint_custom_pre_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_a_users_later_pass_sees_the_operator(slot: str) -> None:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    seen: list[str] = []

    class Look(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.extend(str(node.target) for node in graph.nodes)

        def uuid(self) -> None:
            return None

    plain = Surrounded().eval()
    compiled = torch.compile(plain, backend="fmlp", options={**ALWAYS, slot: Look()})
    x = torch.randn(16, 48)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x))
    assert any(target.startswith("fmlp.fused_") for target in seen)


def test_compiled_autograd_gives_the_same_gradients() -> None:
    for plain in (mlp(), Surrounded()):
        compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
        x = torch.randn(16, 48)
        expected = step(plain, x)
        y = compiled(x)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            y.square().mean().backward()
        gradients = [p.grad for p in plain.parameters()]
        torch.testing.assert_close(gradients, expected[2:], rtol=1e-4, atol=1e-6)


def test_checkpointing_inside_and_around_compiled_code_equals_eager() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = Surrounded()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.layers, x, use_reentrant=False)

    x = torch.randn(16, 48)
    plain = Inside()
    assert_same_step(torch.compile(plain, backend="fmlp", options=ALWAYS), plain, x)
    assert counters["fmlp"]["fused"] == 1
    inner = mlp()
    compiled = torch.compile(inner, backend="fmlp", options=ALWAYS)

    def around(t: torch.Tensor) -> torch.Tensor:
        return checkpoint(compiled, t, use_reentrant=False)

    around.parameters = inner.parameters  # type: ignore[attr-defined]
    assert_same_step(around, inner, x)


def test_gradients_accumulate_over_compiled_steps() -> None:
    plain, twin = mlp(), mlp()
    twin.load_state_dict(plain.state_dict())
    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    for _ in range(3):
        x = torch.randn(16, 48)
        compiled(x).square().mean().backward()
        twin(x).square().mean().backward()
    for a, b in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


DDP = """
import torch, torch.distributed as dist, sys
from models import Surrounded
from torch.nn.parallel import DistributedDataParallel
rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
torch.manual_seed(0)
plain, model = Surrounded(), Surrounded()
model.load_state_dict(plain.state_dict())
compiled = torch.compile(DistributedDataParallel(model), backend="fmlp", options={"fmlp.policy": "always"})
batches = torch.randn(2, 16, 48)
compiled(batches[rank]).square().mean().backward()
(sum(plain(b).square().mean() for b in batches) / 2).backward()
for a, b in zip(model.parameters(), plain.parameters()):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
from torch._dynamo.utils import counters
assert counters["fmlp"]["fused"] == 1, counters
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
def test_distributed_data_parallel_on_two_processes_equals_eager(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DDP]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], cwd=TESTS, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors[0] + errors[1]


def test_second_derivatives_under_compile_are_right_or_refused() -> None:
    plain = mlp((6, 8, 8, 2)).double()
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)

    def penalty(model) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(model(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    compiled = torch.compile(plain, backend="fmlp", options=ALWAYS)
    torch.testing.assert_close(penalty(compiled), penalty(plain))


@pytest.mark.cuda
def test_grad_scaler_steps_like_eager() -> None:
    def train(compile_it: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = mlp().cuda()
        run = torch.compile(model, backend="fmlp", options=ALWAYS) if compile_it else model
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = run(torch.ones(16, 48, device="cuda")).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [p.detach() for p in model.parameters()]

    for a, b in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3)


@pytest.mark.cuda
def test_a_captured_graph_replays_forward_and_backward_with_updated_weights() -> None:
    model = mlp().cuda()
    x = torch.randn(16, 48, device="cuda")
    weights = list(model.parameters())
    operands = [x, *weights[0::2], *weights[1::2]]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.autograd.grad(torch.ops.fmlp.fused_mlp(*operands).sum(), weights)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ops.fmlp.fused_mlp(*operands)
        gradients = torch.autograd.grad(y.square().sum(), weights)
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
            for w in weights:
                w.mul_(0.9)
        graph.replay()
        expected = model(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            gradients, torch.autograd.grad(expected.square().sum(), weights), rtol=1e-3, atol=1e-4
        )


@pytest.mark.cuda
def test_the_first_call_of_a_shape_may_fall_into_a_capture() -> None:
    operands = [torch.randn(*s, device="cuda") for s in [(5, 11), (13, 11), (7, 13), (3, 7)]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = torch.ops.fmlp.fused_mlp(*operands)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, fmlp_op.reference.mlp(*operands), rtol=1e-4, atol=1e-5)


@pytest.mark.cuda
def test_work_goes_to_the_current_stream() -> None:
    operands = [torch.randn(*s, device="cuda") for s in [(16, 48), (64, 48), (40, 64), (24, 40)]]
    expected = torch.ops.fmlp.fused_mlp(*operands)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x = operands[0] * 1.0
        y = torch.ops.fmlp.fused_mlp(x, *operands[1:])
    side.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.cuda
def test_cudagraph_trees_return_no_stale_output() -> None:
    plain = Surrounded().eval().cuda()
    compiled = torch.compile(plain, backend="fmlp", mode="reduce-overhead")
    with torch.no_grad():
        for i in range(4):
            plain.mlp[0].weight.mul_(0.9)
            x = torch.randn(16, 48, device="cuda") + i
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x), plain(x))


def test_operator_calls_counts_what_it_says() -> None:
    args = [torch.randn(*s) for s in [(2, 3), (4, 3), (5, 4), (2, 5)]]
    assert operator_calls(lambda: torch.ops.fmlp.fused_mlp.default(*args)) == {"fused_mlp": 1, "fused_mlp_inference": 1}
