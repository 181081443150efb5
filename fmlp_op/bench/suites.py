"""The benchmark's sizes and its run, cell by cell. Start from `bench`; `SUITES` says what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import torch

from fmlp_op.bench import measure, peers, plot, report
from fmlp_op.bench.networks import CHAINS, NETWORKS
from fmlp_op.bench.peaks import float32_precision, peaks
from fmlp_op.bench.progress import Progress
from fmlp_op.bench.timing import num_threads
from fmlp_op.bench.workload import REFERENCE, Workload
from fmlp_op.cli import CommandError

# Spent on the rounds of one cell, compilation not counted.
_SECONDS, _SWEEP_SECONDS, _QUICK_SECONDS = 2.0, 0.4, 0.3


@dataclass(frozen=True)
class Suite:
    """Sizes on one kind of device.

    Attributes:
        cells: workloads, whose dtype, device and threads are filled in later.
        dtypes: measured where the user names none.
        peers: names of fmlp_op.bench.peers.
        quick: which cells --quick keeps.
        detailed: baseline kernels and cold caches too, on CUDA.
        one_line: a cell is printed as one line, and a summary follows the last.
    """

    cells: tuple[Workload, ...]
    dtypes: tuple[str, ...]
    peers: tuple[str, ...]
    quick: Callable[[Workload], bool]
    detailed: bool = False
    one_line: bool = False


def _grid(widths: Sequence[int], rows: Sequence[int]) -> tuple[Workload, ...]:
    return tuple(Workload((width,) * 4, batch) for width, batch in product(widths, rows))


def _networks(rows: Sequence[int]) -> tuple[Workload, ...]:
    """The MLPs of CHAINS alone, then the networks of NETWORKS whole, as far as they are more than one of those MLPs."""
    chains = [
        Workload(widths, batch, activation=activation, output_activation=output_activation, name=name)
        for (name, (widths, activation, output_activation)), batch in product(CHAINS.items(), rows)
    ]
    whole = [Workload((), batch, name=name) for name, batch in product(NETWORKS, rows) if name not in CHAINS]
    return (*chains, *whole)


_CPU_GRID = _grid((8, 16, 32, 48, 64, 100, 128, 256, 512), (1, 4, 16, 64, 256, 1024, 8192, 65536))
_CUDA_GRID = _grid((16, 32, 48, 64, 100, 128, 200, 256, 384, 512, 1024), (1, 16, 128, 1024, 16384, 262144))
_CPU_LARGE = tuple(Workload((width,) * 4, rows) for width, rows in ((64, 1 << 16), (128, 1 << 15), (256, 1 << 13)))
_CUDA_LARGE = tuple(
    Workload((width,) * 4, rows) for width, rows in ((64, 1 << 16), (64, 1 << 20), (128, 1 << 20), (256, 1 << 19))
)
_CUDA_REFERENCE = (
    *(replace(REFERENCE, rows=rows) for rows in (1, 16, 64, 256, 1024, 4096)),
    *(Workload((256, 256, 256, 64), rows) for rows in (1, 16, 128)),
)


def _is_coarse(workload: Workload) -> bool:
    return workload.widths[0] in (16, 64, 256) and workload.rows in (1, 64, 128, 1024, 16384)


SUITES = {
    ("reference", "cpu"): Suite(
        tuple(replace(REFERENCE, rows=rows) for rows in (1, 4, 16, 64, 256, 1024)),
        ("float32",),
        peers.CPU_PEERS,
        quick=lambda w: w == REFERENCE,
    ),
    ("reference", "cuda"): Suite(
        _CUDA_REFERENCE, ("float32",), peers.CUDA_PEERS, detailed=True, quick=lambda w: w == REFERENCE
    ),
    ("throughput", "cpu"): Suite(
        _CPU_LARGE, ("float32", "bfloat16"), peers.CPU_PEERS, quick=lambda w: w.widths[0] == 64
    ),
    ("throughput", "cuda"): Suite(
        _CUDA_LARGE, ("bfloat16", "tf32", "float32"), peers.CUDA_PEERS, quick=lambda w: w.rows == 1 << 16
    ),
    ("networks", "cpu"): Suite(
        _networks((1, 16, 1024)), ("float32",), peers.SWEEP_PEERS, one_line=True, quick=lambda w: w.rows == 1
    ),
    ("networks", "cuda"): Suite(
        _networks((1, 16, 4096)), ("float32",), peers.SWEEP_PEERS, one_line=True, quick=lambda w: w.rows == 1
    ),
    ("sweep", "cpu"): Suite(_CPU_GRID, ("float32", "bfloat16"), peers.SWEEP_PEERS, one_line=True, quick=_is_coarse),
    ("sweep", "cuda"): Suite(
        _CUDA_GRID,
        ("float32", "tf32", "bfloat16", "float16"),
        peers.SWEEP_PEERS,
        one_line=True,
        quick=_is_coarse,
    ),
}


def bench(
    suite_name: str,
    device: str | None = None,
    dtypes: Sequence[str] | None = None,
    threads: Sequence[int] | None = None,
    *,
    peer_names: Sequence[str] | None = None,
    quick: bool = False,
    csv_file: str | None = None,
    plot_file: str | None = None,
) -> list[measure.Cell]:
    """Measure a suite and print it as it goes; write CSV and a picture where a file is named.

    Args:
        suite_name: "reference", "networks", "sweep" or "throughput".
        device: "cpu" or "cuda"; None takes cuda where there is one.
        dtypes: names of fmlp_op.bench.workload.DTYPES; None takes the suite's own.
        threads: of torch, on a CPU; None takes 1, and 2 where the machine has them.
        peer_names: of fmlp_op.bench.peers, to measure no others; None takes the suite's own.
        quick: fewer sizes and rounds.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check(device, dtypes, threads, plot_file)
    if csv_file:
        report.check_writable(csv_file)
    suite = SUITES[suite_name, device]
    workloads = list(_workloads(suite, device, dtypes or suite.dtypes, threads, quick))
    report.print_header(suite_name, workloads[0], quick)
    seconds = _QUICK_SECONDS if quick else _SWEEP_SECONDS if suite.one_line else _SECONDS
    progress = Progress(len(workloads), f"bench {suite_name}")
    cells: list[measure.Cell] = []
    for i, workload in enumerate(workloads):
        progress.update(i, str(workload))
        with _conditions(workload):
            measure_cell = measure.cuda_cell if device == "cuda" else measure.cpu_cell
            names = [name for name in suite.peers if name in (peer_names or suite.peers)]
            if workload.is_network:  # which is more than one call of the operator
                names = [name for name in names if name != peers.OPERATOR]
            cell = measure_cell(workload, names, seconds, suite.detailed)
        cells.append(replace(cell, peaks=peaks(workload)))
        progress.close()
        report.print_cell(cells[-1], one_line=suite.one_line, is_first=i == 0)
        if csv_file:
            report.write_csv(csv_file, suite_name, cells)
    progress.update(len(workloads), "done")
    progress.close()
    if suite.one_line:
        report.print_summary(cells)
    if plot_file:
        plot.write_plot(plot_file, suite_name, cells)
    return cells


def _workloads(
    suite: Suite, device: str, dtypes: Sequence[str], threads: Sequence[int] | None, quick: bool
) -> Iterator[Workload]:
    available = torch.get_num_threads()
    counts: Sequence[int | None] = (None,) if device == "cuda" else threads or sorted({1, min(2, available)})
    cells = [cell for cell in suite.cells if suite.quick(cell) or not quick]
    for dtype, count, cell in product(dtypes, counts, cells):
        yield replace(cell, dtype=dtype, device=device, threads=count)


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
