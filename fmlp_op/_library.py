"""Finds and loads the compiled library; `library` is its ctypes handle, for the plain C functions."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from pathlib import Path

try:
    import torch
except ImportError as error:
    raise ImportError("fmlp_op needs torch 2.10 or newer: pip install torch") from error

OLDEST_TORCH = (2, 10)


def _torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def library_path() -> Path:
    """Where the compiled library is.

    An editable install keeps it in its build folder, which the import system knows. In the source folder itself, where
    `import fmlp_op` takes the sources, it is the installed package's.
    """
    spec = importlib.util.find_spec("fmlp_op.libfmlp")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin)
    try:
        files = importlib.metadata.files("fmlp_op") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "libfmlp.so":
            return Path(file.locate())
    raise ImportError("fmlp_op is not installed, only its sources are on the path: run 'pip install .' in their folder")


def _load() -> ctypes.CDLL:
    if _torch_version() < OLDEST_TORCH:
        raise ImportError(f"fmlp_op needs torch 2.10 or newer and found {torch.__version__}: pip install -U torch")
    path = library_path()
    already_loaded = str(path) in torch.ops.loaded_libraries
    if not already_loaded and hasattr(torch.ops.fmlp, "fused_mlp"):
        raise ImportError(
            f"another copy of fmlp_op is already loaded in this process, besides {path}; "
            "uninstall one of the two with 'pip uninstall fmlp_op'"
        )
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(
            f"fmlp_op cannot load {path} with torch {torch.__version__} ({error.__cause__ or error}); "
            "build it again with 'pip install --force-reinstall --no-deps .'"
        ) from error
    return ctypes.CDLL(str(path))


library = _load()
