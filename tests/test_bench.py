"""The benchmark's own parts: clocks, peers, tables, files. No test asserts a speed."""

from __future__ import annotations

import csv
import ctypes
import functools
import io
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from printed import the_only_line

from fmlp_op.bench import measure, peers, report, suites, timing
from fmlp_op.bench.baselines import BASELINES, compile_baselines
from fmlp_op.bench.networks import CHAINS, NETWORKS
from fmlp_op.bench.peaks import Peaks, float32_precision
from fmlp_op.bench.peers import EAGER, FMLP, INDUCTOR, OPERATOR
from fmlp_op.bench.progress import Progress
from fmlp_op.bench.timing import Timing
from fmlp_op.bench.workload import REFERENCE, Workload
from fmlp_op.cli import main
from fmlp_op.explain import explain
from fmlp_op.plan import DEVICES


@pytest.fixture
def small_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells and no Inductor, which takes long to compile."""
    for name in ("reference", "sweep"):
        cells = (Workload((8, 8, 8, 8), 1), Workload((8, 8, 8, 8), 4))
        small = replace(suites.SUITES[name, "cpu"], cells=cells, peers=(EAGER, FMLP, OPERATOR), quick=lambda _: True)
        monkeypatch.setitem(suites.SUITES, (name, "cpu"), small)
    monkeypatch.setattr(suites, "_QUICK_SECONDS", 0.05)
    monkeypatch.setattr(suites, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(suites, "peaks", lambda workload: Peaks(2e9, "an assumption", 1e9))


def cell(rows: int, seconds: dict[str, float], fused: bool = True) -> measure.Cell:
    timings = {(peer, measure.HOST): Timing((value,)) for peer, value in seconds.items()}
    return measure.Cell(Workload((8, 8, 8, 8), rows, threads=1), timings, fused=fused)


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_rounds_are_interleaved() -> None:
    order: list[str] = []

    def one(name: str) -> float:
        order.append(name)
        return 1.0

    timings = timing.interleave({name: functools.partial(one, name) for name in "ab"}, seconds=0.0, fewest=3)
    assert order == ["a", "b"] * 3
    assert timings["a"].seconds == (1.0, 1.0, 1.0)


def test_a_timing_gives_median_quartiles_and_spread() -> None:
    found = Timing((4.0, 1.0, 2.0, 3.0, 100.0))
    assert (found.median, found.quartiles) == (3.0, (2.0, 4.0))
    assert found.spread == pytest.approx(2 / 3)
    assert Timing((5.0,)).spread == 0


def test_threads_and_precision_are_restored_after_an_error() -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with pytest.raises(ValueError), timing.num_threads(1), float32_precision("tf32"):
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (1, "high")
        raise ValueError
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_a_round_counts_only_its_own_calls() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    count = timing.warm_up(call)
    assert calls == count + 3
    assert 0 < timing.back_to_back(call, 10)() < 1
    assert calls == count + 13


# --- what is compared -------------------------------------------------------------------------------------------------


def test_a_workload_counts_operations_and_bytes() -> None:
    parameters = 48 * 64 + 64 + 64 * 40 + 40 + 40 * 24 + 24
    assert REFERENCE.flops == 2 * 16 * (48 * 64 + 64 * 40 + 40 * 24)
    assert REFERENCE.bytes == 4 * (16 * 48 + parameters + 16 * 24)
    assert replace(REFERENCE, dtype="bfloat16").bytes * 2 == REFERENCE.bytes


@pytest.mark.parametrize(
    "workload",
    [
        Workload((8, 8, 8, 8), 4),
        Workload((8, 16, 4), 4),
        Workload((8, 8, 8, 8), 4, activation="tanh"),
        Workload((8, 16, 16, 8, 4), 4, activation="elu(0.5)", output_activation="sigmoid"),
    ],
    ids=str,
)
def test_every_peer_computes_the_same(workload: Workload) -> None:
    with torch.no_grad():
        model, x = workload.model(), workload.example_input()
        found, missing = peers.build(model, x, (EAGER, FMLP, OPERATOR))
        assert missing == {}
        for peer in found:
            torch.testing.assert_close(peer.call(), model(x))
            assert peer.fused in (None, True)


def test_a_peer_with_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "operator_call", lambda model, x, allow_tf32: lambda: model(x) + 1)
    with torch.no_grad():
        found = measure.cpu_cell(Workload((8, 8, 8, 8), 4), (EAGER, OPERATOR), 0.0, False)
    assert found.peers == [EAGER]
    assert found.missing == {OPERATOR: "its result differs from eager's"}


def test_a_network_agrees_where_all_its_results_do() -> None:
    first, second = torch.randn(3), torch.randn(3)
    assert measure._agrees((first, second), (first.clone(), second.clone()), "float32")
    assert not measure._agrees((first, second + 1), (first, second), "float32")


def test_a_peer_that_cannot_be_built_is_missing_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel\nand a long story")

    monkeypatch.setattr(peers, "operator_call", fail)
    with torch.no_grad():
        model = REFERENCE.model()
        found, missing = peers.build(model, REFERENCE.example_input(), (EAGER, OPERATOR))
    assert [peer.name for peer in found] == [EAGER]
    assert missing == {OPERATOR: "RuntimeError: no such kernel"}


def test_the_sweeps_cover_the_grid_that_was_promised() -> None:
    assert len(suites.SUITES["sweep", "cpu"].cells) == 9 * 8
    assert len(suites.SUITES["sweep", "cuda"].cells) == 11 * 6
    for suite in suites.SUITES.values():
        assert 0 < sum(map(suite.quick, suite.cells)) < len(suite.cells)


def test_the_networks_suite_has_every_network_and_its_mlps_alone() -> None:
    cells = suites.SUITES["networks", "cuda"].cells
    assert {cell.name for cell in cells} == CHAINS.keys() | NETWORKS.keys()
    assert {cell.name for cell in cells if cell.is_network} == NETWORKS.keys() - {"deep_narrow"}


@pytest.mark.parametrize(("name", "chain"), CHAINS.items())
def test_the_mlps_of_the_suite_are_those_of_the_networks(name: str, chain: tuple[tuple[int, ...], str, str]) -> None:
    found = [
        (decision.widths, decision.activation, decision.output_activation)
        for model, x in (make() for make in NETWORKS.values())
        for decision in explain(model, x, policy="always").fused
    ]
    assert chain in found


def test_a_network_counts_its_layers_inputs_and_results() -> None:
    workload = Workload((), 16, name="ppo")
    parameters = (48 * 64 + 64 + 64 * 64 + 64) * 2 + 64 * 12 + 12 + 64 + 1
    assert workload.parameter_bytes == 4 * parameters
    assert workload.bytes == 4 * (16 * (48 + 12 + 12 + 1) + parameters)
    assert workload.flops == 2 * 16 * ((48 * 64 + 64 * 64) * 2 + 64 * 12 + 64)
    assert workload.example_input().shape == (16, 48)


# --- the command ------------------------------------------------------------------------------------------------------


CPU = ["--quick", "--device", "cpu", "--dtype", "float32", "--threads", "1"]


def test_bench_prints_a_table_and_writes_csv(
    small_suites: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "times.csv"
    assert main(["bench", *CPU, "--csv", str(file)]) == 0
    text = capsys.readouterr().out
    for words in (f"torch {torch.__version__}", "8→8→8→8, 4 rows, float32, cpu, 1 thread", "call µs", "% of peak"):
        assert words in text
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["rows"], row["peer"]) for row in rows] == [(r, p) for r in "14" for p in (EAGER, FMLP, OPERATOR)]
    assert all(float(row["fastest_us"]) <= float(row["median_us"]) for row in rows)


def test_bench_sweep_prints_a_line_per_cell_and_a_summary(
    small_suites: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--suite", "sweep", *CPU]) == 0
    text = capsys.readouterr().out
    assert "of 2 cells lost" in text and "Geometric mean of the speed-up" in text


def test_bench_measures_a_network_without_the_operator(
    small_suites: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = replace(suites.SUITES["networks", "cpu"], cells=(Workload((), 4, name="ppo"),))
    monkeypatch.setitem(suites.SUITES, ("networks", "cpu"), suite)
    (found,) = suites.bench("networks", "cpu", threads=[1], peer_names=(EAGER, FMLP, OPERATOR))
    assert found.peers == [EAGER, FMLP] and found.missing == {} and found.fused
    assert "ppo" in capsys.readouterr().out


@pytest.mark.parametrize("suite", ["reference", "sweep"])
def test_bench_draws_a_picture(suite: str, small_suites: None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "times.png"
    assert main(["bench", "--suite", suite, *CPU, "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_sweep_summary_names_losing_cells_and_means_over_fused_ones(capsys: pytest.CaptureFixture[str]) -> None:
    won = cell(1, {EAGER: 4.0, INDUCTOR: 8.0, FMLP: 2.0, OPERATOR: 1.0})
    lost = cell(2, {EAGER: 3.0, INDUCTOR: 2.0, FMLP: 4.0, OPERATOR: 2.0})
    declined = cell(3, {EAGER: 1.0, INDUCTOR: 1.0, FMLP: 1.04, OPERATOR: 9.0}, fused=False)
    report.print_summary([won, lost, declined])
    text = capsys.readouterr().out
    assert "1 of 3 cells lost" in text and "8→8→8→8, 2 rows, float32, cpu, 1 thread: 2.00 times" in text
    assert "over 2 fused cells, compiled: 1.00" in text
    assert "over 2 fused cells, operator called directly: 2.00" in text


def test_a_missing_peer_is_shown_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(cell(1, {EAGER: 1e-6}), missing={INDUCTOR: "no C++ compiler"})
    report.print_cell(found, one_line=False, is_first=True)
    assert f"{INDUCTOR}: no C++ compiler" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["--device", "cpu", "--dtype", "tf32"], 2, "tf32 is a format of GPUs"),
        (["--device", "cpu", "--csv", "/no/such/folder/a.csv"], 2, "cannot write /no/such/folder/a.csv"),
        (["--device", "cpu", "--plot", "picture.mp3"], 2, "the ending must be one of"),
    ],
)
def test_bench_refuses_before_it_measures(
    arguments: list[str], exit_code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    assert main(["bench", *arguments]) == exit_code
    assert words in the_only_line(capsys.readouterr().err)


def test_bench_without_matplotlib_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main(["bench", "--device", "cpu", "--plot", "picture.png"]) == 1
    assert "pip install matplotlib" in the_only_line(capsys.readouterr().err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_bench_on_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cuda"]) == 1
    assert "finds no CUDA GPU" in the_only_line(capsys.readouterr().err)


def test_progress_redraws_a_terminals_line_and_writes_lines_to_a_log() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress(3, "working", stream)
        for step in range(4):
            progress.update(step, "on it")
        progress.close()
    assert "\n" not in terminal.getvalue() and terminal.getvalue().count("\r") == 5
    assert [line[:11] for line in log.getvalue().splitlines()] == ["working 0/3", "working 3/3"]


# --- CUDA -------------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float16"])
def test_a_cuda_cell_has_every_clock_and_both_baselines(dtype: str) -> None:
    workload = replace(REFERENCE, dtype=dtype, device="cuda")
    names = (EAGER, peers.GRAPH_OF_EAGER, FMLP, OPERATOR)
    with torch.no_grad(), float32_precision(dtype):
        found = measure.cuda_cell(workload, names, 0.1, True)
    assert found.missing == {}
    assert found.clocks == [measure.HOST, measure.LATENCY, measure.GPU, measure.GPU_COLD]
    for peer in (EAGER, OPERATOR, FMLP, *BASELINES):
        assert found.seconds(peer, measure.GPU) is not None


def _nvrtc() -> ctypes.CDLL | None:
    """NVRTC of pip's nvidia-cuda-nvrtc, its helper library loaded first."""
    nvidia = find_spec("nvidia")
    for folder in (nvidia and nvidia.submodule_search_locations) or ():
        for library in Path(folder).glob("*/lib/libnvrtc.so.*"):
            for helper in library.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(helper), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(library))
    return None


@pytest.mark.parametrize("arch", list(DEVICES))
@pytest.mark.parametrize("scalar", ["FLOAT32", "FLOAT16", "BFLOAT16"])
def test_the_baseline_kernels_compile(arch: str, scalar: str) -> None:
    nvrtc = _nvrtc()
    if nvrtc is None:
        pytest.skip("needs nvidia-cuda-nvrtc")
    assert b"warp_per_output" in compile_baselines(arch, scalar, nvrtc)
