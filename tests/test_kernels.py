"""CUDA kernels, as far as they can be judged without a GPU: each compiles for every architecture and spills nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from samples import Sample, assert_within_rule, poison

from fmlp_op import Problem
from fmlp_op._library import library
from fmlp_op.bench.peaks import float32_precision
from fmlp_op.plan import DEVICES, call_text, compile_kernel, plan

CUDA = torch.device("cuda", 0)
TESTS = Path(__file__).parent


def problem(
    widths: tuple[int, ...] = (48, 64, 40, 24),
    rows: int = 16,
    dtype: torch.dtype = torch.float32,
    bias: bool = True,
    **fields,
) -> Problem:
    settings = dict(activation="relu", output_activation="identity", needs_grad=False, allow_tf32=False)
    return Problem(rows, widths, dtype, CUDA, (bias,) * (len(widths) - 1), **{**settings, **fields})


ROW = [
    *(
        problem(dtype=dtype, bias=bias)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for bias in (True, False)
    ),
    problem(rows=1),
    problem(rows=512),
    problem(rows=4096),
    problem(needs_grad=True),
    problem((3, 17, 63, 5)),
    problem((64, 64, 64, 64), dtype=torch.bfloat16),
    problem((8, 32, 32, 4)),
    problem((16, 16), rows=3),
    problem((10, 12, 14, 16, 18, 20), dtype=torch.float16),
    problem((32, 32, 16), dtype=torch.float64),
    # The first layer is streamed.
    problem((1000, *(50,) * 8, 10), rows=1),
    problem((1000, *(50,) * 8, 10), rows=1, dtype=torch.bfloat16, needs_grad=True),
    problem((1024, 64, 64, 64), rows=1),
]


# Per architecture what serves it, in the order of DEVICES: sm_80, sm_90, sm_100, sm_120.
TILE = [
    (problem((64,) * 4, 65536, torch.bfloat16), "tile tile tile tile"),
    (problem((64,) * 4, 2**20, torch.bfloat16, needs_grad=True), "tile tile tile tile"),
    (problem((128,) * 4, 2**20, torch.float16), "tile tile tile tile"),
    (problem((17, 100, 31, 5), 2**20, torch.float16, bias=False), "tile tile tile tile"),
    (problem((64,) * 4, 2**20), "tile tile tile tile"),
    (problem((33, 65, 20), 2**20, needs_grad=True), "tile tile tile tile"),
    (problem((128,) * 4, 2**20, allow_tf32=True), "none tile tile none"),
    (problem((256,) * 4, 2**19, torch.bfloat16, needs_grad=True), "none tile none none"),
]
CLUSTER = [
    (problem((256, 256, 256, 64)), "none cluster cluster cluster"),
    (problem((256, 256, 256, 64), 128, torch.bfloat16, needs_grad=True), "none cluster cluster cluster"),
    (problem((131, 260, 300), 50, torch.float16, bias=False), "none cluster cluster cluster"),
    (problem((512,) * 4, allow_tf32=True), "none cluster cluster none"),
]


def nvrtc_missing() -> str:
    return json.loads(call_text(library.fmlp_cuda_info_json))["nvrtc_missing"]


def assert_compiles_without_spills(problem: Problem, arch: str, kernel: str) -> None:
    chosen = plan(problem, DEVICES[arch])
    assert chosen.kernel == kernel, chosen.reason
    if kernel == "none":
        return
    assert not nvrtc_missing()
    result = compile_kernel(problem, DEVICES[arch])
    assert result["error"] == ""
    assert result["spill_bytes"] == 0


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("index", range(len(ROW)))
def test_row_kernel_compiles_without_spills(arch: str, index: int) -> None:
    assert_compiles_without_spills(ROW[index], arch, "row")


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("index", range(len(TILE)))
def test_tile_kernel_compiles_without_spills(arch: str, index: int) -> None:
    problem, kernels = TILE[index]
    assert_compiles_without_spills(problem, arch, dict(zip(DEVICES, kernels.split(), strict=True))[arch])


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("index", range(len(CLUSTER)))
def test_cluster_kernel_compiles_without_spills(arch: str, index: int) -> None:
    problem, kernels = CLUSTER[index]
    assert_compiles_without_spills(problem, arch, dict(zip(DEVICES, kernels.split(), strict=True))[arch])


# On an H200: every kernel, with rows that fill no tile, and every way it is put together.
RUNS = [
    ("row", problem(rows=1)),
    ("row", problem(rows=4099)),
    ("row", problem((32, 32, 16), rows=70, dtype=torch.float64)),
    ("row", problem((1000, *(50,) * 8, 10), rows=3)),
    ("row", problem((1000, *(50,) * 8, 10), rows=1, dtype=torch.bfloat16)),
    ("row", problem((1024, 64, 64, 64), rows=2)),
    ("row", problem((2008, 50, 50, 50, 10), rows=2, dtype=torch.float16, bias=False)),
    ("cluster", problem((256, 256, 256, 64), rows=1, activation="elu(0.5)")),
    ("cluster", problem((256, 256, 256, 64), rows=37)),
    ("cluster", problem((256, 256, 256, 64), rows=128, allow_tf32=True)),
    ("cluster", problem((256, 256, 256, 64), rows=19, dtype=torch.bfloat16)),
    ("cluster", problem((131, 260, 300), rows=50, dtype=torch.float16, bias=False)),
    ("cluster", problem((48, 512, 256, 128, 12), rows=1, activation="tanh", output_activation="sigmoid")),
    ("cluster", problem((1024,) * 4, rows=16, dtype=torch.bfloat16)),
    ("tile", problem((64,) * 4, rows=8209, dtype=torch.bfloat16)),
    ("tile", problem((64,) * 4, rows=42221, dtype=torch.float16, activation="silu")),  # five warpgroups
    ("tile", problem((17, 100, 31, 5), rows=16411, dtype=torch.float16, bias=False)),
    ("tile", problem((64,) * 4, rows=16411, activation="gelu")),
    ("tile", problem((64,) * 4, rows=16411, allow_tf32=True)),
    ("tile", problem((128,) * 4, rows=16411)),  # two blocks share the columns
    ("tile", problem((256,) * 4, rows=16411, dtype=torch.bfloat16)),
]


@pytest.mark.cuda
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)
@pytest.mark.parametrize(
    ("kernel", "wanted"), RUNS, ids=lambda value: value if isinstance(value, str) else str(value.widths)
)
def test_every_kernel_is_within_the_accuracy_rule(kernel: str, wanted: Problem) -> None:
    depth = len(wanted.widths) - 1
    sample = Sample((wanted.rows,), wanted.widths, wanted.dtype, wanted.biases)
    x, *rest = sample.tensors("cuda")
    weights, biases = rest[:depth], rest[depth:]
    activations = wanted.activation, wanted.output_activation
    assert plan(wanted).kernel == kernel

    with float32_precision("tf32" if wanted.allow_tf32 else "float32"):
        for op in (torch.ops.fmlp.fused_chain_inference, torch.ops.fmlp.fused_chain_train):
            poison("cuda", *(wanted.rows * width for width in wanted.widths))
            results = op(x, weights, biases, *activations, allow_tf32=wanted.allow_tf32)
            y, *hidden = results if isinstance(results, list) else [results]
            assert_within_rule(y, x, weights, biases, *activations)
            for layer, h in enumerate(hidden, 1):
                assert_within_rule(h, x, weights[:layer], biases[:layer], activations[0], activations[0])


# Beside the kernels, torch's own operators: cuBLAS products that end in a ReLU would lose a NaN of such sizes.
NONE = [
    ("none", problem((200,) * 4, rows=1024, allow_tf32=True)),
    ("none", problem((1200, 300, 300, 70), rows=3, dtype=torch.bfloat16)),
]


@pytest.mark.cuda
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs an H100 or H200"
)
@pytest.mark.parametrize(("kernel", "wanted"), RUNS + NONE, ids=str)
def test_nan_fills_its_row_and_no_other(kernel: str, wanted: Problem) -> None:
    wanted = replace(wanted, activation="relu", output_activation="identity")
    assert plan(wanted).kernel == kernel
    depth = len(wanted.widths) - 1
    x, *rest = Sample((wanted.rows,), wanted.widths, wanted.dtype, wanted.biases).tensors("cuda")
    x[wanted.rows // 2, wanted.widths[0] // 2] = float("nan")
    with float32_precision("tf32" if wanted.allow_tf32 else "float32"):
        y = torch.ops.fmlp.fused_chain(x, rest[:depth], rest[depth:], allow_tf32=wanted.allow_tf32)
    row_of_nan = torch.arange(wanted.rows, device="cuda") == wanted.rows // 2
    assert torch.equal(y.isnan(), row_of_nan[:, None].expand_as(y))


@pytest.mark.parametrize("arch", DEVICES)
def test_every_plan_can_be_launched(arch: str) -> None:
    device = DEVICES[arch]
    widths = (1, 8, 17, 48, 64, 100, 128, 160, 200, 256, 257, 512, 1000, 1024, 5000)
    dtypes = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.float64, False))
    for width, rows, (dtype, tf32) in product(widths, (1, 16, 113, 128, 129, 1024, 5000, 2**16, 2**24), dtypes):
        for shape in ((width,) * 4, (width, 64, 3), (20, width), (width,) * 10):
            wanted = problem(shape, rows, dtype, allow_tf32=tf32)
            chosen = plan(wanted, device)
            details = chosen.details
            assert chosen.reason, wanted
            if chosen.kernel == "none":
                continue
            assert details["threads"] % 32 == 0 and 32 <= details["threads"] <= 1024, wanted
            assert details["shared_bytes"] <= device.shared_bytes_per_block_optin, wanted
            assert 1 <= details["grid"] < 2**31 and details["grid"] % details["cluster_size"] == 0, wanted
            assert (
                details["persistent"] or details["grid"] // details["cluster_size"] * details["rows_per_block"] >= rows
            )
            assert details["arch_specific"] == (chosen.kernel == "tile" and arch == "sm_90"), wanted


@pytest.mark.parametrize(
    ("widths", "dtype", "kernels"),
    [
        # Measured on an H200: csrc/cuda/plan.cpp has the figures.
        ((48, 64, 40, 24), torch.float32, {1: "row", 16: "row", 1024: "row", 4096: "row", 2**20: "tile"}),
        ((16,) * 4, torch.float32, {16: "row", 1024: "row", 16384: "tile"}),
        ((64,) * 4, torch.bfloat16, {16: "row", 1024: "row", 4096: "tile", 65536: "tile", 2**20: "tile"}),
        ((128,) * 4, torch.float32, {16: "cluster", 1024: "row", 2**20: "tile"}),
        ((128, 128, 128, 64), torch.bfloat16, {16: "row", 1024: "row", 2**20: "tile"}),
        ((256,) * 4, torch.bfloat16, {16: "cluster", 128: "cluster", 256: "none", 2**19: "tile"}),
        ((256,) * 4, torch.float32, {16: "cluster", 128: "cluster", 129: "none", 2**20: "none"}),
        ((512,) * 4, torch.float32, {1: "cluster", 16: "cluster", 128: "cluster", 1024: "none"}),
        ((1024,) * 4, torch.bfloat16, {16: "cluster", 2**16: "none"}),
        ((1000, *(50,) * 8, 10), torch.float32, {1: "row", 16: "row", 4096: "none"}),
        ((235, 128, 128, 128, 12), torch.float32, {1: "cluster", 16: "cluster", 4096: "none"}),
        ((64,) * 4, torch.float64, {16: "row", 2**16: "none"}),
    ],
)
def test_the_kernel_measured_fastest_is_chosen(
    widths: tuple[int, ...], dtype: torch.dtype, kernels: dict[int, str]
) -> None:
    chosen = {rows: plan(problem(widths, rows, dtype), DEVICES["sm_90"]).kernel for rows in kernels}
    assert chosen == kernels


@pytest.mark.parametrize(
    ("widths", "rows", "dtype", "arch", "reason"),
    [
        ((512,) * 4, 4096, torch.bfloat16, "sm_90", "wider than 256"),
        ((256,) * 4, 4096, torch.float32, "sm_90", "unless TF32 is allowed"),
        ((256,) * 4, 2**20, torch.bfloat16, "sm_80", "do not fit"),
        ((2048,) * 4, 16, torch.bfloat16, "sm_90", "too wide for a cluster"),
        ((512,) * 4, 16, torch.float32, "sm_120", "too wide for a cluster"),
        ((256,) * 4, 256, torch.bfloat16, "sm_90", "torch's own operators are faster"),
        ((256,) * 4, 16, torch.float64, "sm_90", "registers of one block"),
        ((0, 4), 16, torch.float32, "sm_90", "width 0"),
    ],
)
def test_what_no_kernel_serves_has_its_reason(
    widths: tuple[int, ...], rows: int, dtype: torch.dtype, arch: str, reason: str
) -> None:
    chosen = plan(problem(widths, rows, dtype), DEVICES[arch])
    assert chosen.kernel == "none" and reason in chosen.reason


def test_reference_workload_is_served_by_the_row_kernel() -> None:
    chosen = plan(problem(), DEVICES["sm_90"])
    assert chosen.kernel == "row" and chosen.details["grid"] == 16


def test_clusters_of_16_need_a_whole_gpu() -> None:
    whole = DEVICES["sm_90"]
    part = replace(whole, multiprocessors=60)
    assert [plan(problem((256,) * 4), device).details["cluster_size"] for device in (whole, part)] == [16, 8]


def test_an_old_gpu_is_left_to_torch() -> None:
    chosen = plan(problem(), replace(DEVICES["sm_80"], major=7, minor=5))
    assert chosen.kernel == "none" and "8.0 or newer" in chosen.reason


def run_here(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in another process beside this file, with another kernel cache."""
    environment = {**os.environ, "FMLP_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, check=True)


def test_a_second_process_takes_the_kernel_from_disk(tmp_path: Path) -> None:
    code = (
        "from test_kernels import DEVICES, compile_kernel, problem\n"
        "r = compile_kernel(problem((5, 6, 7, 9)), DEVICES['sm_90']); print(r['from_disk'], r['registers'], r['error'])"
    )

    def compile_once() -> list[str]:
        return run_here(code, tmp_path).stdout.split()

    first, second = compile_once(), compile_once()
    assert (first[0], second[0]) == ("False", "True") and first[1:] == second[1:]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert compile_once() == first, "a truncated file is compiled again"
    file.write_bytes(b"not a kernel")
    assert compile_once() == first, "a foreign file is compiled again"
    assert compile_once() == second, "and repaired"


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_an_unwritable_cache_is_one_warning_and_no_error() -> None:
    code = (
        "from test_kernels import DEVICES, compile_kernel, problem\n"
        "assert not any(compile_kernel(problem((n, 6, 9)), DEVICES['sm_80'])['error'] for n in (5, 6))"
    )
    done = run_here(code, Path("/proc/fmlp_op"))
    assert len(done.stderr.strip().splitlines()) == 1 and "/proc/fmlp_op" in done.stderr
