"""The command line: what every command prints, and how each ends when it cannot do its work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from printed import the_only_line

from fmlp_op import demo
from fmlp_op.bench.peers import EAGER, FMLP, OPERATOR
from fmlp_op.cli import main
from fmlp_op.info import cache_folder

MODEL = """
import torch
from torch import nn

not_a_function = 3

def network():
    return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 24)).eval()

def with_args():
    return network(), (torch.randn(16, 48),)

def with_kwargs():
    return network(), (), {"input": torch.randn(16, 48)}

def with_attribute():
    model = network()
    model.example_inputs = torch.randn(16, 48)
    return model

def returns_a_number():
    return 3

def fails():
    raise OSError("no such data")

def wrong_input():
    return network(), (torch.randn(16, 47),)
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "some_model", raising=False)
    return Path("some_model.py")


# --- as a whole -------------------------------------------------------------------------------------------------------


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fmlp_op", "cache", "path"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.rstrip()) == cache_folder()


@pytest.mark.parametrize("arguments", [[], ["dance"], ["cache"], ["inspect"], ["bench", "--suite", "none"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


# --- info and cache ---------------------------------------------------------------------------------------------------


def test_info_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    parts = ["fmlp_op", "torch", "Python", "library", "CPU", "GPU", "NVRTC", "C++ compiler", "kernel cache"]
    assert [part for part in parts if not any(line.startswith(part + " ") for line in lines)] == []


def test_info_says_what_to_do_without_a_place_for_the_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FMLP_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["info"]) == 0
    assert "set FMLP_CACHE_DIR" in capsys.readouterr().out


def test_cache_path_follows_the_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMLP_CACHE_DIR", "/somewhere/else")
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == "/somewhere/else\n"


def test_cache_path_without_a_place_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FMLP_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert main(["cache", "path"]) == 1
    assert "set FMLP_CACHE_DIR" in the_only_line(capsys.readouterr().err)


def test_cache_clear_deletes_kernels_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMLP_CACHE_DIR", str(tmp_path))
    kernel, unfinished = tmp_path / ("0123456789abcdef" * 2 + ".bin"), tmp_path / ".writing-a1B2c3"
    foreign, named_alike = tmp_path / "notes.txt", tmp_path / ("f" * 32 + ".bin")
    kernel.write_bytes(b"fmlpjit1" + bytes(992))
    for path in (unfinished, foreign, named_alike):
        path.write_bytes(b"something else")
    assert main(["cache", "clear"]) == 0
    assert sorted(tmp_path.iterdir()) == sorted([foreign, named_alike])
    assert "2 files deleted, 1.0 kB freed" in the_only_line(capsys.readouterr().out)


def test_clearing_a_cache_that_was_never_made_frees_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMLP_CACHE_DIR", str(tmp_path / "absent"))
    assert main(["cache", "clear"]) == 0
    assert "0 files deleted" in capsys.readouterr().out
    assert not (tmp_path / "absent").exists()


# --- explain ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["some_model.py", "some_model"])
@pytest.mark.parametrize("factory", ["with_args", "with_kwargs", "with_attribute"])
def test_explain_prints_what_is_fused(
    place: str, factory: str, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{place}:{factory}", "--policy", "always"]) == 0
    assert capsys.readouterr().out.startswith("fmlp_op: 1 fused, 0 not")


@pytest.mark.parametrize(
    ("target", "exit_code", "words"),
    [
        ("some_model.py", 2, "names no factory"),
        ("other_model.py:with_args", 2, "no file other_model.py"),
        ("other_model:with_args", 2, "no module other_model"),
        ("some_model.py:other", 2, "defines no 'other'"),
        ("some_model.py:not_a_function", 2, "is a int, not a function"),
        ("some_model.py:returns_a_number", 2, "must return (model, args)"),
        ("some_model.py:fails", 1, "OSError: no such data"),
        ("some_model.py:wrong_input", 1, "does not run on its inputs: RuntimeError"),
    ],
)
def test_explain_ends_in_one_sentence(
    target: str, exit_code: int, words: str, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", target]) == exit_code
    assert words in the_only_line(capsys.readouterr().err)


def test_explain_of_a_file_that_is_not_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def (:")
    assert main(["explain", f"{file}:factory"]) == 1
    assert "cannot be run: SyntaxError" in the_only_line(capsys.readouterr().err)


# --- demo -------------------------------------------------------------------------------------------------------------


def test_demo_reports_accuracy_what_was_fused_and_times(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(demo, "_EPOCHS", 8)
    monkeypatch.setattr(demo, "_PEERS", (EAGER, FMLP, OPERATOR))
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    for words in ("accuracy 9", "every prediction is eager's", "1 fused, 0 not", "digits 64→64→40→10", "operator µs"):
        assert words in captured.out
    assert "training 8/8" in captured.err


def test_demo_goes_on_without_a_compiler_for_inductor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(demo, "_EPOCHS", 1)
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        assert main(["demo"]) == 0
    assert "Inductor: no C++ compiler" in capsys.readouterr().out


def test_demo_without_scikit_learn_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo"]) == 1
    assert 'pip install "fmlp_op[demo]"' in the_only_line(capsys.readouterr().err)
