"""`fmlp_op.policy`: whether fusing pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fmlp_op import Problem
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


def test_auto_declines_on_gpus_what_was_not_measured_there() -> None:
    tanh = replace(problem(), activation="tanh")
    assert decide(tanh, "auto").fuse
    verdict = decide(replace(tanh, device=torch.device("cuda")), "auto")
    assert not verdict.fuse and "tanh has not been measured on GPUs" in verdict.reason


def test_auto_declines_a_dtype_without_a_kernel() -> None:
    assert not decide(problem(dtype=torch.complex64), "auto").fuse


def test_always_and_never_ask_no_further() -> None:
    impossible = problem((8192,) * 4, device="mps")
    assert decide(impossible, "always").fuse
    assert not decide(problem(), "never").fuse


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="'somtimes'; it must be one of auto"):
        decide(problem(), "somtimes")
