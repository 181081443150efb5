"""The compiled library itself: what it declares, what it links, what it tells when it cannot load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fmlp_op import _library

TESTS = Path(__file__).parent
CSRC = TESTS.parent / "csrc"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def compile_shim_check(header_folder: Path) -> subprocess.CompletedProcess[str]:
    torch_include = Path(torch.__file__).parent / "include"
    command = [
        "g++",
        "-std=c++20",
        "-fsyntax-only",
        f"-I{header_folder}",
        f"-I{torch_include}",
        str(TESTS / "shim_check.cpp"),
    ]
    return subprocess.run(command, capture_output=True, text=True)


@needs_compiler
def test_shim_declarations_agree_with_torch() -> None:
    done = compile_shim_check(CSRC)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_a_wrong_shim_declaration_is_noticed(tmp_path: Path) -> None:
    header = (CSRC / "torch_shim.h").read_text()
    wrong = header.replace(
        "aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret)",
        "aoti_torch_get_dim(AtenTensorHandle tensor, int32_t* ret)",
    )
    assert wrong != header
    (tmp_path / "torch_shim.h").write_text(wrong)
    assert compile_shim_check(tmp_path).returncode != 0


def needed_libraries() -> list[str]:
    listing = subprocess.run(
        ["readelf", "-d", str(_library.library_path())], capture_output=True, text=True, check=True
    )
    return re.findall(r"\(NEEDED\).*\[(.*?)\]", listing.stdout)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_library_links_neither_python_nor_cuda() -> None:
    needed = needed_libraries()
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if re.search("python|cuda|nvrtc|gomp|libtorch_python", name)]


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env})


def test_a_second_copy_is_refused_in_one_sentence(tmp_path: Path) -> None:
    copy = tmp_path / "libfmlp.so"
    shutil.copy(_library.library_path(), copy)
    done = python(f"import torch; torch.ops.load_library({str(copy)!r}); import fmlp_op")
    assert done.returncode == 1
    assert re.search(
        r"ImportError: another copy of fmlp_op is already loaded .* uninstall one", done.stderr.splitlines()[-1]
    )


def test_too_old_a_torch_is_refused_in_one_sentence() -> None:
    done = python("import torch; torch.__version__ = '2.9.1'; import fmlp_op")
    assert done.stderr.splitlines()[-1].startswith("ImportError: fmlp_op needs torch 2.10 or newer and found 2.9.1")


def test_a_missing_torch_is_refused_in_one_sentence() -> None:
    done = python("import sys; sys.modules['torch'] = None; import fmlp_op")
    assert done.stderr.splitlines()[-1] == "ImportError: fmlp_op needs torch 2.10 or newer: pip install torch"


def test_import_is_light_and_changes_nothing() -> None:
    done = python(
        "import torch, sys\n"
        "before = (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.is_grad_enabled())\n"
        "import fmlp_op\n"
        "assert before == (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.is_grad_enabled())\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'torch._inductor' not in sys.modules and 'torch._dynamo' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_operator_works_in_a_forked_child() -> None:
    done = python(
        "import os, torch, fmlp_op\n"
        "args = [torch.randn(s) for s in [(4096, 48), (64, 48), (40, 64), (24, 40)]]\n"
        "expected = torch.ops.fmlp.fused_mlp(*args)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    torch.set_num_threads(1)\n"
        "    os._exit(0 if torch.equal(torch.ops.fmlp.fused_mlp(*args), expected) else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_every_instruction_set_passes_the_operator_tests(capability: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            str(TESTS / "test_ops.py"),
            "-k",
            "accuracy_rule or infinity or strides",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_a_missing_compiler_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", str(CSRC), "-B", str(tmp_path)],
        env={**os.environ, "CXX": "/no/such/compiler"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "fmlp_op needs a C++20 compiler: install g++" in done.stderr


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_code_beyond_the_baseline_stays_in_its_own_functions() -> None:
    """A weak symbol compiled with AVX-512 could replace the baseline's copy and end old CPUs with SIGILL."""
    listing = subprocess.run(
        ["nm", "--demangle", "--defined-only", str(_library.library_path())], capture_output=True, text=True
    ).stdout
    weak = [line for line in listing.splitlines() if re.search(r" [WV] ", line) and "fmlp::cpu" in line]
    assert not weak
