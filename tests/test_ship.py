"""What leaves Python: torch.export, decomposition to plain ATen, AOTInductor in Python and in a C++ program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from models import Surrounded, mlp
from torch.export import Dim, export

import fmlp_op
from fmlp_op import _library

TESTS = Path(__file__).parent
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def exported(model: torch.nn.Module, strict: bool = True) -> torch.export.ExportedProgram:
    with torch.no_grad():
        program = export(model.eval(), (torch.randn(16, 48),), dynamic_shapes=({0: Dim("rows", min=1)},), strict=strict)
        assert len(fmlp_op.rewrite(program).fused) == 1
    return program


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("model", [mlp, Surrounded])
def test_a_rewritten_export_is_saved_loaded_and_run_at_other_batches(model, strict: bool, tmp_path: Path) -> None:
    plain = model()
    torch.export.save(exported(plain, strict), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for rows in (1, 2, 16, 33):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(loaded(x), plain(x))


def targets(program: torch.export.ExportedProgram) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


def test_decomposition_gives_plain_aten_back() -> None:
    plain = Surrounded()
    program = exported(plain)
    assert "fmlp.fused_chain.default" in targets(program)
    decomposed = program.run_decompositions({**torch.export.default_decompositions(), **fmlp_op.decompositions()})
    assert all(target.startswith(("aten.", "<built-in", "prims.")) for target in targets(decomposed))
    x = torch.randn(5, 48)
    torch.testing.assert_close(decomposed.module()(x), plain(x))


def test_an_operator_called_by_the_model_survives_export_and_decomposes() -> None:
    class Direct(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            a, _, b, _, c = self.layers
            return fmlp_op.fused_mlp(x, a.weight, b.weight, c.weight, a.bias, b.bias, c.bias)

    model, x = Direct(), torch.randn(5, 48)
    program = export(model, (x,))
    assert "fmlp.fused_mlp.default" in targets(program)
    decomposed = program.run_decompositions(fmlp_op.decompositions())
    assert not any(target.startswith("fmlp") for target in targets(decomposed))
    torch.testing.assert_close(decomposed.module()(x), model(x))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, str]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    model = Surrounded()
    path = str(tmp_path_factory.mktemp("package") / "model.pt2")
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(exported(model), package_path=path)
    return model, path


def test_an_aotinductor_package_runs_in_python(package) -> None:
    model, path = package
    runner = torch._inductor.aoti_load_package(path)
    for rows in (1, 16, 40):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(runner(x), model(x))


def write_matrix(path: Path, t: torch.Tensor) -> None:
    path.write_bytes(torch.tensor(t.shape).numpy().tobytes() + t.numpy().tobytes())


def read_matrix(path: Path) -> torch.Tensor:
    data = bytearray(path.read_bytes())
    rows, columns = torch.frombuffer(data[:16], dtype=torch.int64).tolist()
    return torch.frombuffer(data[16:], dtype=torch.float32).reshape(rows, columns)


@needs_compiler
def test_an_aotinductor_package_runs_in_a_program_without_python(package, tmp_path: Path) -> None:
    model, path = package
    torch_folder = Path(torch.__file__).parent
    include, lib = torch_folder / "include", torch_folder / "lib"
    libraries = ["-ltorch", "-ltorch_cpu", "-lc10", *(["-ltorch_cuda", "-lc10_cuda"] if torch.version.cuda else [])]
    program = tmp_path / "aoti_program"
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O0", "-w", str(TESTS / "aoti_program.cpp"), "-o", str(program)),
            *(f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-L{lib}", f"-Wl,-rpath,{lib}"),
            *("-Wl,--no-as-needed", *libraries, "-ldl", "-Wl,--allow-shlib-undefined"),
        ],
        check=True,
    )
    needed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    assert "libpython" not in needed
    x = torch.randn(7, 48)
    write_matrix(tmp_path / "x", x)
    subprocess.run([program, path, _library.library_path(), tmp_path / "x", tmp_path / "y"], check=True)
    torch.testing.assert_close(read_matrix(tmp_path / "y"), model(x).detach())
