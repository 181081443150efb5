"""The kernels of baselines.cu as peers of the benchmark. Start from `baselines`."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fmlp_op.bench.peers import Peer
from fmlp_op.bench.workload import Activate

_KERNELS = ("thread_per_output", "warp_per_output", "empty", "load_store")
_SCALARS = {torch.float32: "FLOAT32", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}

FLOORS = ("empty kernel", "load-store kernel")
BASELINES = ("thread per output", "warp per output, 8 warps", "warp per output, 32 warps")


def baselines(model: nn.Module, x: Tensor) -> list[Peer]:
    """The two baseline kernels and the two that compute nothing; none for a model they are not written for.

    They are launched through ctypes, so only their GPU time means something.
    """
    linears = [module for module in model.children() if isinstance(module, nn.Linear)]
    activations = [module.activation for module in model.children() if isinstance(module, Activate)]
    if len(linears) != 3 or activations != ["relu"] * 2 or x.dtype not in _SCALARS:
        return []
    kernels = _load(_SCALARS[x.dtype])
    rows, in_features = x.shape
    widths = [in_features, *(one.out_features for one in linears)]
    y = x.new_empty(rows, widths[-1])
    operands = [x, *(tensor for one in linears for tensor in (one.weight, one.bias)), y, *widths]
    shared_bytes = 2 * 4 * max(widths)
    widest = min(1024, (max(widths) + 31) // 32 * 32)

    def peer(name: str, kernel: str, threads: int, arguments: list[Any], shared: int = 0) -> Peer:
        def call() -> Tensor | None:
            kernels[kernel]((rows, 1, 1), (threads, 1, 1), arguments, shared)
            return y if shared else None

        return Peer(name, call, times_host=False)

    return [
        peer(FLOORS[0], "empty", 256, []),
        peer(FLOORS[1], "load_store", 256, [x, y, in_features, widths[-1]]),
        peer(BASELINES[0], "thread_per_output", widest, operands, shared_bytes),
        peer(BASELINES[1], "warp_per_output", 256, operands, shared_bytes),
        peer(BASELINES[2], "warp_per_output", 1024, operands, shared_bytes),
    ]


@functools.cache
def _load(scalar: str) -> dict[str, Any]:
    from torch.cuda import _utils

    major, minor = torch.cuda.get_device_capability()
    return _utils._cuda_load_module(compile_baselines(f"sm_{major}{minor}", scalar), list(_KERNELS))  # type: ignore[return-value]


def compile_baselines(architecture: str, scalar: str, nvrtc: Any = None) -> bytes:
    """baselines.cu as a cubin.

    torch.cuda._compile_kernel would do, but asks for the headers of a CUDA toolkit, which this text does not need.
    """
    if nvrtc is None:
        from torch.cuda import _utils

        nvrtc = _utils._get_gpu_rtc_library()  # the copy of NVRTC that belongs to this torch
    text = Path(__file__).with_name("baselines.cu").read_bytes()
    options = [f"--gpu-architecture={architecture}", f"-DSCALAR={scalar}", "--std=c++17"]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"baselines.cu", 0, None, None)
    try:
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded) != 0:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"baselines.cu does not compile for {architecture}: {log.value.decode()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
