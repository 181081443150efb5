"""The benchmark's sizes and its run, cell by cell. Start from `bench`; `SUITES` says what there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import torch

from fmlp_op.bench import measure, peers, plot, report
from fmlp_op.bench.peaks import float32_precision, peaks
from fmlp_op.bench.progress import Progress
from fmlp_op.bench.timing import num_threads
from fmlp_op.bench.workload import REFERENCE, Workload
from fmlp_op.cli import CommandError

# Spent on the rounds of one cell, compilation not counted.
_SECONDS, _SWEEP_SECONDS, _QUICK_SECONDS = 2.0, 0.8, 0.3


@dataclass(frozen=True)
class Suite:
    """Sizes on one kind of device.

    Attributes:
        cells: (width of every layer, or the widths) and rows.
        dtypes: measured where the user names none.
        peers: names of fmlp_op.bench.peers.
        detailed: baseline kernels and cold caches too, on CUDA.
        quick: the places in `cells` that --quick keeps.
    """

    cells: tuple[tuple[tuple[int, ...], int], ...]
    dtypes: tuple[str, ...]
    peers: tuple[str, ...]
    detailed: bool
    quick: tuple[int, ...]


def _grid(widths: Sequence[int], rows: Sequence[int]) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple(((width,) * 4, batch) for width, batch in product(widths, rows))


def _places(
    cells: Sequence[tuple[tuple[int, ...], int]], widths: Sequence[int], rows: Sequence[int]
) -> tuple[int, ...]:
    return tuple(i for i, (cell, batch) in enumerate(cells) if cell[0] in widths and batch in rows)


_W = REFERENCE.widths
_CPU_GRID = _grid((8, 16, 32, 48, 64, 100, 128, 256, 512), (1, 4, 16, 64, 256, 1024, 8192, 65536))
_CUDA_GRID = _grid((16, 32, 48, 64, 100, 128, 200, 256, 384, 512, 1024), (1, 16, 128, 1024, 16384, 262144))
_CPU_LARGE = (((64,) * 4, 1 << 16), ((128,) * 4, 1 << 15), ((256,) * 4, 1 << 13))
_CUDA_LARGE = (((64,) * 4, 1 << 16), ((64,) * 4, 1 << 20), ((128,) * 4, 1 << 20), ((256,) * 4, 1 << 19))
_CUDA_REFERENCE = (
    *((_W, rows) for rows in (1, 16, 64, 256, 1024, 4096)),
    *(((256, 256, 256, 64), b) for b in (1, 16, 128)),
)

SUITES = {
    ("reference", "cpu"): Suite(
        tuple((_W, rows) for rows in (1, 4, 16, 64, 256, 1024)), ("float32",), peers.CPU_PEERS, False, (2,)
    ),
    ("reference", "cuda"): Suite(_CUDA_REFERENCE, ("float32",), peers.CUDA_PEERS, True, (1,)),
    ("throughput", "cpu"): Suite(_CPU_LARGE, ("float32", "bfloat16"), peers.CPU_PEERS, False, (0,)),
    ("throughput", "cuda"): Suite(_CUDA_LARGE, ("bfloat16", "tf32", "float32"), peers.CUDA_PEERS, False, (0,)),
    ("sweep", "cpu"): Suite(
        _CPU_GRID,
        ("float32", "bfloat16"),
        peers.SWEEP_PEERS,
        False,
        _places(_CPU_GRID, (16, 64, 256), (1, 64, 1024)),
    ),
    ("sweep", "cuda"): Suite(
        _CUDA_GRID,
        ("float32", "tf32", "bfloat16", "float16"),
        peers.SWEEP_PEERS,
        False,
        _places(_CUDA_GRID, (16, 64, 256), (1, 128, 16384)),
    ),
}


def bench(
    suite_name: str,
    device: str | None = None,
    dtypes: Sequence[str] | None = None,
    threads: Sequence[int] | None = None,
    *,
    quick: bool = False,
    csv_file: str | None = None,
    plot_file: str | None = None,
) -> list[measure.Cell]:
    """Measure a suite and print it as it goes; write CSV and a picture where a file is named.

    Args:
        suite_name: "reference", "sweep" or "throughput".
        device: "cpu" or "cuda"; None takes cuda where there is one.
        dtypes: names of fmlp_op.bench.workload.DTYPES; None takes the suite's own.
        threads: of torch, on a CPU; None takes 1, and 2 where the machine has them.
        quick: fewer sizes and rounds.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check(device, dtypes, threads, plot_file)
    if csv_file:
        report.check_writable(csv_file)
    suite = SUITES[suite_name, device]
    workloads = list(_workloads(suite, device, dtypes or suite.dtypes, threads, quick))
    report.print_header(suite_name, workloads[0], quick)
    seconds = _QUICK_SECONDS if quick else _SWEEP_SECONDS if suite_name == "sweep" else _SECONDS
    progress = Progress(len(workloads), f"bench {suite_name}")
    cells: list[measure.Cell] = []
    for i, workload in enumerate(workloads):
        progress.update(i, str(workload))
        with _conditions(workload):
            measure_cell = measure.cuda_cell if device == "cuda" else measure.cpu_cell
            cell = measure_cell(workload, suite.peers, seconds, suite.detailed)
        cells.append(replace(cell, peaks=peaks(workload)))
        progress.close()
        report.print_cell(cells[-1], one_line=suite_name == "sweep", is_first=i == 0)
        if csv_file:
            report.write_csv(csv_file, suite_name, cells)
    progress.update(len(workloads), "done")
    progress.close()
    if suite_name == "sweep":
        report.print_sweep_summary(cells)
    if plot_file:
        plot.write_plot(plot_file, suite_name, cells)
    return cells


def _workloads(
    suite: Suite, device: str, dtypes: Sequence[str], threads: Sequence[int] | None, quick: bool
) -> Iterator[Workload]:
    available = torch.get_num_threads()
    counts: Sequence[int | None] = (None,) if device == "cuda" else threads or sorted({1, min(2, available)})
    cells = [suite.cells[i] for i in suite.quick] if quick else suite.cells
    for dtype, count, (widths, rows) in product(dtypes, counts, cells):
        yield Workload(widths, rows, dtype, device, count)


@contextmanager
def _conditions(workload: Workload) -> Iterator[None]:
    """Threads, float32 precision and no gradients, for one cell."""
    with num_threads(workload.threads), float32_precision(workload.dtype), torch.no_grad():
        yield


def _check(device: str, dtypes: Sequence[str] | None, threads: Sequence[int] | None, plot_file: str | None) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise CommandError("torch finds no CUDA GPU here: use --device cpu, or see 'python -m fmlp_op info'")
    if device == "cpu" and dtypes and "tf32" in dtypes:
        raise CommandError("tf32 is a format of GPUs: leave it out of --dtype, or use --device cuda", 2)
    if device == "cuda" and threads:
        raise CommandError("--threads is for --device cpu: leave it out", 2)
    if plot_file:
        plot.check_plot(plot_file)
