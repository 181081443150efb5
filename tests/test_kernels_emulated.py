"""The CUDA kernels' results with no GPU: cuda_emulator.py runs them on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cuda_emulator import run
from samples import Sample, assert_within_rule
from test_kernels import RUNS, problem
from torch import Tensor

from fmlp_op import Problem
from fmlp_op.plan import DEVICES, plan

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

BF16, F16 = torch.bfloat16, torch.float16
LARGE = 2**17

# Beside the cases that GPU tests run on sm_90: hidden activations kept, long runs of equal layers, other architectures.
CASES = [
    *(("sm_90", kernel, wanted) for kernel, wanted in RUNS),
    ("sm_90", "row", problem(rows=4099, needs_grad=True)),
    ("sm_90", "cluster", problem((131, 260, 300), 50, BF16, needs_grad=True)),
    ("sm_90", "tile", problem((256,) * 4, LARGE, BF16, needs_grad=True)),
    ("sm_90", "tile", problem((17, *(33,) * 6, 3), LARGE, BF16, needs_grad=True)),
    ("sm_90", "tile", problem((256,) * 6, LARGE, BF16)),
    ("sm_90", "tile", problem((64,) * 9, LARGE, allow_tf32=True)),
    ("sm_90", "tile", problem((48, *(64,) * 5, 24), LARGE, bias=False)),
    ("sm_80", "row", problem((33, 65, 20), 1024, F16)),
    ("sm_80", "tile", problem((64,) * 9, LARGE, BF16, needs_grad=True)),
    ("sm_80", "tile", problem((33, 65, 20), LARGE, needs_grad=True)),
    ("sm_80", "tile", problem((17, 100, 31, 5), LARGE, F16, bias=False)),
    ("sm_100", "cluster", problem((256, 256, 256, 64), 19, BF16)),
]


class Operands:
    """Fresh ones for a few rows of a problem, so many that tiles repeat and the last is not full."""

    def __init__(self, wanted: Problem, arch: str) -> None:
        details = plan(wanted, DEVICES[arch]).details
        rows = min(wanted.rows, details["rows_per_block"] * 2 + 37)
        # TF32 has the precision of float16, so that torch's error with float16 is what a TF32 product may have too.
        dtype = torch.float16 if wanted.allow_tf32 else wanted.dtype
        self.x, *rest = Sample((rows,), wanted.widths, dtype, wanted.biases).tensors()
        self.depth = len(wanted.widths) - 1
        self.weights, self.biases = rest[: self.depth], rest[self.depth :]
        self.wanted = wanted

    def as_arguments(self) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
        def convert(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(self.wanted.dtype)

        return convert(self.x), [convert(w) for w in self.weights], [convert(b) for b in self.biases]

    def check(self, result: Tensor, layers: int, output_activation: str) -> None:
        """Holds the result after so many layers to the accuracy rule."""
        chain = self.weights[:layers], self.biases[:layers], self.wanted.activation, output_activation
        assert_within_rule(result.to(self.x.dtype), self.x, *chain)


@pytest.mark.parametrize(("arch", "kernel", "wanted"), CASES, ids=str)
def test_every_kernel_is_within_the_accuracy_rule(arch: str, kernel: str, wanted: Problem, tmp_path: Path) -> None:
    assert plan(wanted, DEVICES[arch]).kernel == kernel
    operands = Operands(wanted, arch)
    y, *hidden = run(wanted, arch, *operands.as_arguments(), tmp_path)
    assert len(hidden) == (operands.depth - 1) * wanted.needs_grad
    operands.check(y, operands.depth, wanted.output_activation)
    for layer, h in enumerate(hidden, 1):
        operands.check(h, layer, wanted.activation)
    again = run(wanted, arch, *operands.as_arguments(), tmp_path, seed=1)
    assert all(map(torch.equal, again, [y, *hidden])), "the result depends on which warp is first"


@pytest.mark.parametrize(
    ("wanted", "call"),
    [
        (problem(), "__syncthreads();"),
        (problem((256, 256, 256, 64)), "emulator::wait_for_barrier(barrier, parity);"),
        (problem((128,) * 4, LARGE), "emulator::wait_for_barrier(barrier, parity);"),
        (problem((64,) * 4, LARGE, BF16), "__syncthreads();"),
    ],
    ids=str,
)
def test_a_kernel_that_does_not_wait_is_found_out(wanted: Problem, call: str, tmp_path: Path) -> None:
    def without(source: str) -> str:
        assert call in source
        return source.replace(call, "")

    operands = Operands(wanted, "sm_90")
    (y,) = run(wanted, "sm_90", *operands.as_arguments(), tmp_path, edit=without)
    with pytest.raises(AssertionError):
        operands.check(y, operands.depth, "identity")
