"""CUDA kernels, as far as they can be judged without a GPU: each compiles for every architecture and spills nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fmlp_op import Problem
from fmlp_op._library import library
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
]


def nvrtc_missing() -> str:
    return json.loads(call_text(library.fmlp_cuda_info_json))["nvrtc_missing"]


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("index", range(len(ROW)))
def test_row_kernel_compiles_without_spills(arch: str, index: int) -> None:
    assert not nvrtc_missing()
    device = DEVICES[arch]
    if plan(ROW[index], device).kernel == "none":
        pytest.fail(f"no kernel is planned: {plan(ROW[index], device).reason}")
    result = compile_kernel(ROW[index], device)
    assert result["error"] == ""
    assert result["spill_bytes"] == 0


def test_reference_workload_is_served_by_the_row_kernel() -> None:
    chosen = plan(problem(), DEVICES["sm_90"])
    assert chosen.kernel == "row" and chosen.details["grid"] == 16


def test_an_old_gpu_is_left_to_torch() -> None:
    from dataclasses import replace

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
