"""Which kernel serves a problem, and what it is made of: the library's own answers, with no GPU needed.

Start from `plan`. `explain`, the policy and the tests read the same answer that the launcher acts on.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from fmlp_op._library import library
from fmlp_op.activations import ACTIVATIONS, parse
from fmlp_op.problem import Problem

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_MAX_DEPTH = 16


class _Problem(ctypes.Structure):
    """fmlp_problem of csrc/c_api.h."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("x_row_stride", ctypes.c_int64),
        ("widths", ctypes.c_int64 * (_MAX_DEPTH + 1)),
        ("activation_parameters", ctypes.c_double * 2),
        ("output_activation_parameters", ctypes.c_double * 2),
        ("depth", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("bias_mask", ctypes.c_uint32),
        ("alignment", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("output_activation", ctypes.c_int32),
        ("allow_tf32", ctypes.c_int32),
        ("saves_hidden", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Device:
    """What a plan depends on of a CUDA device; sizes in bytes."""

    major: int
    minor: int
    multiprocessors: int
    shared_bytes_per_block_optin: int
    shared_bytes_per_multiprocessor: int
    supports_dependent_launch: bool

    @property
    def arch(self) -> str:
        return f"sm_{self.major}{self.minor}"


class _Device(ctypes.Structure):
    """fmlp_device of csrc/c_api.h."""

    _fields_ = [(field.name, ctypes.c_int32) for field in fields(Device)]


# One device of each supported architecture: A100, H200, B200, RTX 5090.
DEVICES = {
    "sm_80": Device(8, 0, 108, 166_912, 167_936, False),
    "sm_90": Device(9, 0, 132, 232_448, 233_472, True),
    "sm_100": Device(10, 0, 148, 232_448, 233_472, True),
    "sm_120": Device(12, 0, 170, 101_376, 102_400, True),
}


@dataclass(frozen=True)
class Plan:
    """How a problem is computed.

    Attributes:
        kernel: "cpu", "row", "tile", "cluster", or "none" where torch's own operators serve.
        reason: a sentence: why this kernel, or why none.
        details: block, grid and tile of a CUDA kernel, as csrc/cuda/plan.h names them.
    """

    kernel: str
    reason: str
    details: dict[str, Any]


def plan(problem: Problem, device: Device | None = None) -> Plan:
    """The kernel for `problem`.

    Args:
        problem: `rows` must be known.
        device: for a CUDA problem: one of `DEVICES`, or None for the device of the problem, which must then be present.

    Raises:
        ValueError: rows, dtype or depth are none a kernel could have.
    """
    if problem.dtype not in _DTYPES:
        return Plan("none", f"no kernel has dtype {problem.dtype}", {})
    if problem.device.type == "cpu":
        covered = library.fmlp_cpu_covers(ctypes.byref(_pack(problem)))
        if covered:
            return Plan("cpu", "the CPU kernel serves it", {})
        return Plan("none", "torch's own operators are faster for it on this CPU", {})
    if problem.device.type != "cuda":
        return Plan("none", f"no kernel runs on {problem.device.type}", {})
    device = device or device_properties(problem.device)
    answer = json.loads(
        call_text(library.fmlp_plan_json, ctypes.byref(_pack(problem)), ctypes.byref(_pack_device(device)))
    )
    return Plan(answer.pop("kernel"), answer.pop("reason"), answer)


def kernel_source(problem: Problem, device: Device) -> str:
    """The CUDA C++ text generated for the planned kernel, which includes files of csrc/cuda/kernels; "" for none."""
    return call_text(library.fmlp_kernel_source, ctypes.byref(_pack(problem)), ctypes.byref(_pack_device(device)))


def compile_kernel(problem: Problem, device: Device) -> dict[str, Any]:
    """Compile the planned CUDA kernel with NVRTC for an architecture, present or not.

    Returns:
        `kernel`, `registers` per thread, `spill_bytes`, `shared_bytes`, `milliseconds`, `from_disk`, and `error`, which
        is empty on success.
    """
    answer = call_text(library.fmlp_compile_json, ctypes.byref(_pack(problem)), ctypes.byref(_pack_device(device)))
    return dict(json.loads(answer))


def device_properties(device: torch.device) -> Device:
    """Of a CUDA device that is present."""
    properties = torch.cuda.get_device_properties(device)
    return Device(
        properties.major,
        properties.minor,
        properties.multi_processor_count,
        getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_multiprocessor - 1024),
        properties.shared_memory_per_multiprocessor,
        properties.major >= 9,
    )


def call_text(function: Callable[..., int], *arguments: Any) -> str:
    """The text that a function of csrc/c_api.h writes."""
    capacity = 4096
    while True:
        text = ctypes.create_string_buffer(capacity)
        function.restype = ctypes.c_int64  # type: ignore[attr-defined]
        needed = function(*arguments, text, ctypes.c_int64(capacity))
        if needed < capacity:
            return text.value.decode()
        capacity = needed + 1


def _pack(problem: Problem) -> _Problem:
    depth = len(problem.widths) - 1
    if problem.rows is None:
        raise ValueError("a plan needs the number of rows")
    if not 1 <= depth <= _MAX_DEPTH:
        raise ValueError(f"widths names {depth} layers; a chain has 1 to {_MAX_DEPTH}")
    packed = _Problem(
        rows=problem.rows,
        x_row_stride=problem.widths[0],
        depth=depth,
        dtype=_DTYPES.index(problem.dtype),
        bias_mask=sum(has << layer for layer, has in enumerate(problem.biases)),
        alignment=_alignment(problem),
        allow_tf32=problem.allow_tf32,
        saves_hidden=problem.needs_grad,
    )
    packed.widths[: depth + 1] = problem.widths
    names = list(ACTIVATIONS)
    for field in ("activation", "output_activation"):
        activation, values = parse(getattr(problem, field))
        setattr(packed, field, names.index(activation.name))
        getattr(packed, f"{field}_parameters")[: len(values)] = values
    return packed


def _alignment(problem: Problem) -> int:
    """Of a contiguous x; tensors of their own are aligned to 16 bytes and more."""
    row_bytes = problem.widths[0] * problem.dtype.itemsize
    return min(16, row_bytes & -row_bytes) if row_bytes else 16


def _pack_device(device: Device) -> _Device:
    return _Device(*(int(getattr(device, field.name)) for field in fields(device)))
