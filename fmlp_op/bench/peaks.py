"""What the machine can do at best, measured in the same run: multiply-adds or matrix products, and copies."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fmlp_op.bench.timing import back_to_back, num_threads
from fmlp_op.bench.workload import DTYPES, Workload

_ROUNDS = 15


@dataclass(frozen=True)
class Peaks:
    """`flops` and `copy_bytes` per second (a copy reads and writes: both count); `flops_by` says what reached it."""

    flops: float
    flops_by: str
    copy_bytes: float

    def __str__(self) -> str:
        return f"peak {self.flops / 1e9:.0f} GFLOP/s ({self.flops_by}), copy {self.copy_bytes / 1e9:.1f} GB/s"


@contextmanager
def float32_precision(dtype: str) -> Iterator[None]:
    """Whether torch may round float32 products to TF32 inside a `with` block: only where `dtype` is "tf32"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def peaks(workload: Workload) -> Peaks:
    """The limits for a workload's dtype, device and threads; measured once per process for each."""
    return _peaks(workload.dtype, workload.device, workload.threads)


@functools.cache
def _peaks(dtype: str, device: str, threads: int | None) -> Peaks:
    with num_threads(threads), torch.no_grad(), float32_precision(dtype):
        copy = _copy_bytes(device)
        if device == "cpu" and dtype == "float32":
            multiply_adds = _cpu_multiply_adds(torch.get_num_threads())
            if multiply_adds is not None:
                return Peaks(multiply_adds, "multiply-adds on registers", copy)
        return Peaks(_matmul_flops(DTYPES[dtype], device), f"torch.mm in {dtype}", copy)


def _best_rate(work: float, call: Callable[[], object], device: str) -> float:
    """`work` per second, of the fastest call."""
    for _ in range(2):
        call()
    if device == "cuda":
        return work / min(_cuda_seconds(call) for _ in range(_ROUNDS))
    return work / min(back_to_back(call, 1)() for _ in range(_ROUNDS))


def _cuda_seconds(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def _matmul_flops(dtype: torch.dtype, device: str) -> float:
    n = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return _best_rate(2.0 * n**3, lambda: torch.mm(a, b, out=out), device)


def _copy_bytes(device: str) -> float:
    source = torch.zeros((1 << 28) if device == "cuda" else (1 << 25))  # 1 GiB or 128 MiB, past every cache
    source = source.to(device)
    target = torch.empty_like(source)
    return _best_rate(2.0 * source.nbytes, lambda: target.copy_(source), device)


def _cpu_multiply_adds(threads: int) -> float | None:
    """fma_peak.cpp on every thread at once; None where it cannot be compiled."""
    loop = _multiply_add_loop()
    if loop is None:
        return None
    iterations = 2_000_000

    def one_thread(_: int) -> float:
        return float(loop(ctypes.c_long(iterations), ctypes.byref(ctypes.c_float())))

    with ThreadPoolExecutor(threads) as pool:
        work = sum(pool.map(one_thread, range(threads)))
        return _best_rate(work, lambda: list(pool.map(one_thread, range(threads))), "cpu")


@functools.cache
def _multiply_add_loop() -> Any:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        return None
    source = Path(__file__).with_name("fma_peak.cpp")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "fma_peak.so"
        command = [
            compiler,
            "-O3",
            "-march=native",
            "-ffp-contract=fast",
            "-shared",
            "-fPIC",
            "-o",
            str(target),
            str(source),
        ]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        loop = ctypes.CDLL(str(target)).multiply_add
    loop.restype = ctypes.c_double
    return loop
