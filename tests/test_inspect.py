"""`python -m fmlp_op inspect`: what a CUDA kernel is made of, with no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from printed import the_only_line

from fmlp_op.bench import inspect as inspect_module
from fmlp_op.bench.occupancy import occupancy
from fmlp_op.cli import main
from fmlp_op.info import cuda_info
from fmlp_op.plan import DEVICES

needs_nvrtc = pytest.mark.skipif(
    bool(cuda_info()["nvrtc_missing"]), reason="needs NVRTC: pip install nvidia-cuda-nvrtc"
)


@needs_nvrtc
def test_inspect_prints_what_the_kernel_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--dims", "48,64,40,24", "--batch", "16", "--arch", "sm_80"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("48→64→40→24, 16 rows, float32, sm_80: row kernel, because")
    for part in (
        "registers",
        "spills",
        "shared memory",
        "occupancy",
        "bytes needed",
        "bytes requested",
        "instructions",
    ):
        assert part in text


@needs_nvrtc
def test_inspect_knows_depth_and_activation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--dims", "48,64,64,64,12", "--batch", "1", "--activation", "elu(0.5)"]) == 0
    assert capsys.readouterr().out.startswith("48→64→64→64→12, 1 rows, float32, sm_90: row kernel, because")


@needs_nvrtc
def test_inspect_counts_instructions_with_a_disassembler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "cuobjdump"
    lines = ["/*0000*/ LDG.E.128 R4, [R2] ;", "/*0010*/ @!P0 FFMA R1, R2, R3, R1 ;", "/*0020*/ FFMA R1, R4, R5, R1 ;"]
    tool.write_text("#!/bin/sh\ntest -s $2 && cat <<'E'\n" + "\n".join(lines) + "\nE\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(["inspect", "--dims", "8,8,8,8"]) == 0
    assert "3: FFMA 2, LDG.128 1" in capsys.readouterr().out


def test_inspect_without_nvrtc_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_module, "cuda_info", lambda: {"nvrtc_missing": "NVRTC was not found"})
    assert main(["inspect", "--dims", "8,8,8,8"]) == 1
    assert "pip install nvidia-cuda-nvrtc" in the_only_line(capsys.readouterr().err)


def test_inspect_of_what_no_kernel_serves_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--dims", "4096,4096,4096,4096", "--dtype", "float64"]) == 0
    assert "no fused kernel, torch's own operators serve, because" in capsys.readouterr().out


@pytest.mark.parametrize("dims", ["48,x", "48", "48,0,8", ",".join(["8"] * 18)])
def test_inspect_refuses_dims_that_are_no_chain(dims: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", "--dims", dims])
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks", "limited_by"),
    [
        (256, 78, 432, 3, "registers"),  # 78 rounds up to 80: 2560 a warp, 25 warps fit
        (1024, 32, 0, 2, "warps"),
        (32, 16, 0, 32, "blocks"),
        (128, 32, 100_000, 2, "shared memory"),
    ],
)
def test_occupancy_names_the_limit_that_binds(
    threads: int, registers: int, shared_bytes: int, blocks: int, limited_by: str
) -> None:
    found = occupancy(DEVICES["sm_90"], threads, registers, shared_bytes)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
