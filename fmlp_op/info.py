"""`python -m fmlp_op info` and `cache`: what is here, and what to do about what is not."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fmlp_op._library import library, library_path
from fmlp_op.cli import CommandError
from fmlp_op.plan import call_text

# As csrc/cuda/disk_cache.cpp names and marks its files.
_KERNEL_FILE = re.compile(r"[0-9a-f]{32}\.bin")
_UNFINISHED_FILE = re.compile(r"\.writing-\w{6}")
_MAGIC = b"fmlpjit1"


def info() -> None:
    """Print versions, library, devices, NVRTC and kernel cache, a line each."""
    cuda = cuda_info()
    lines = [
        ("fmlp_op", package_version()),
        ("torch", f"{torch.__version__}, built {_built_for()}"),
        ("Python", platform.python_version()),
        ("library", str(library_path())),
        ("CPU", f"{cpu_name()}, {torch.get_num_threads()} threads, kernels for {cpu_instruction_set()}"),
        *(("GPU", line) for line in _gpus(cuda)),
        ("NVRTC", cuda["nvrtc"] if not cuda["nvrtc_missing"] else _without_nvrtc(cuda["nvrtc_missing"])),
        ("C++ compiler", _compiler()),
        ("kernel cache", _cache_line()),
    ]
    for name, text in lines:
        print(f"{name:<13} {text}")


def package_version() -> str:
    try:
        return version("fmlp_op")
    except PackageNotFoundError:
        return "not installed, run from its source"


def cuda_info() -> dict[str, Any]:
    """What csrc/c_api.h says of NVRTC, the driver and the cache folder."""
    return json.loads(call_text(library.fmlp_cuda_info_json))


def cpu_instruction_set() -> str:
    """Which of its CPU kernels the library uses on this machine: "avx512", say."""
    function = library.fmlp_cpu_instruction_set
    function.restype = ctypes.c_char_p
    return str(function().decode())


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cache_folder() -> Path:
    """Where compiled CUDA kernels are kept: the library's own answer."""
    folder = cuda_info()["cache_folder"]
    if not folder:
        raise CommandError("there is no place for a kernel cache: set FMLP_CACHE_DIR to a writable folder")
    return Path(folder)


def cached_files(folder: Path) -> list[Path]:
    """The files in `folder` that this package wrote, left-overs of interrupted writes included."""

    def is_ours(path: Path) -> bool:
        if _UNFINISHED_FILE.fullmatch(path.name):
            return True
        if not _KERNEL_FILE.fullmatch(path.name):
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC

    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink() and is_ours(path))


def clear_cache() -> None:
    """Delete the compiled kernels, nothing else, and print what that freed."""
    folder = cache_folder()
    try:
        files = cached_files(folder)
        freed = sum(path.stat().st_size for path in files)
        for path in files:
            path.unlink()
    except OSError as error:
        raise CommandError(f"cannot clear {folder}: {error.strerror}; delete the folder by hand") from error
    print(f"{folder}: {len(files)} file{'' if len(files) == 1 else 's'} deleted, {_size(freed)} freed")


def _cache_line() -> str:
    try:
        folder = cache_folder()
        files = cached_files(folder)
        line = f"{folder}, {_kernels(len(files))}, {_size(sum(path.stat().st_size for path in files))}"
    except CommandError as error:
        return str(error)
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror}): set FMLP_CACHE_DIR to a writable folder"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        line += "; not writable, so kernels are compiled anew by every process: set FMLP_CACHE_DIR to a writable folder"
    return line


def _kernels(count: int) -> str:
    return f"{count} kernel" + ("" if count == 1 else "s")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _built_for() -> str:
    return f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"


def _gpus(cuda: dict[str, Any]) -> list[str]:
    if torch.cuda.is_available():
        return [_gpu(i) for i in range(torch.cuda.device_count())]
    if torch.version.cuda is None:
        return [
            "none: this torch is built without CUDA; for a GPU, install torch as https://pytorch.org/get-started says"
        ]
    if cuda["driver_missing"]:
        return [f"none: {cuda['driver_missing']}; to use a GPU, install the NVIDIA driver"]
    return [f"none found by torch (driver for CUDA {cuda['driver']}); look at nvidia-smi and CUDA_VISIBLE_DEVICES"]


def _gpu(index: int) -> str:
    device = torch.cuda.get_device_properties(index)
    line = f"{index}: {device.name}, sm_{device.major}{device.minor}, {device.total_memory / 1e9:.0f} GB"
    if device.major < 8:
        line += "; older than sm_80, so torch's own operators serve there"
    return line


def _without_nvrtc(missing: str) -> str:
    if torch.version.cuda is None:
        return "none, and not needed without a GPU (to compile kernels all the same: pip install nvidia-cuda-nvrtc)"
    package = "nvidia-cuda-nvrtc" if torch.version.cuda >= "13" else "nvidia-cuda-nvrtc-cu12"
    return f"{missing}; so torch's own operators serve on GPUs: pip install {package}"


def _compiler() -> str:
    found = [name for name in (os.environ.get("CXX", ""), "g++", "clang++") if name and shutil.which(name)]
    return found[0] if found else "none: Inductor needs one for what is not fused (Debian, Ubuntu: apt install g++)"
