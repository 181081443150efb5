"""What a benchmark prints and writes: tables, the summary of a sweep, CSV. The picture is in `plot`."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from fmlp_op.bench.baselines import FLOORS
from fmlp_op.bench.measure import GPU, GPU_COLD, HOST, LATENCY, Cell
from fmlp_op.bench.peers import EAGER, FMLP, INDUCTOR, OPERATOR, SWEEP_PEERS
from fmlp_op.bench.workload import Workload
from fmlp_op.cli import CommandError
from fmlp_op.info import cpu_instruction_set, cpu_name, package_version

# A cell is lost where the compiled model is slower than the better of eager and Inductor by more than noise.
LOST = {"cpu": 1.05, "cuda": 1.02}
_TITLES = {HOST: "host", LATENCY: "latency", GPU: "GPU", GPU_COLD: "GPU cold"}
_CLOCKS = {
    "cpu": "call: a call, back to back with the next",
    "cuda": "host: a call, back to back; latency: a call and the wait for its result; GPU: per call in a CUDA graph of "
    "such calls; GPU cold: the same with the L2 cache overwritten before each",
}


def device_name(device: str) -> str:
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
    return f"{cpu_name()} ({cpu_instruction_set()} kernels)"


def print_header(suite: str, first: Workload, quick: bool) -> None:
    """What is measured, where, with what."""
    print(
        f"Suite {suite} on {device_name(first.device)}, torch {torch.__version__}, fmlp_op {package_version()}, ",
        end="",
    )
    print(f"Python {platform.python_version()}; no gradients; medians of interleaved rounds.")
    print(f"{_CLOCKS[first.device]}; spread: distance of the quartiles over the median.")
    print_load()
    if quick:
        print("--quick: few sizes and few rounds, so expect noise.")


def print_load() -> None:
    """Say so where other programs keep the machine busy."""
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > cores / 2:
        print(f"Other programs are running here (load average {busy:.1f} on {cores} cores), so times are unreliable.")


def print_cell(cell: Cell, one_line: bool, is_first: bool) -> None:
    """One cell: a table of its peers, or one line."""
    if one_line:
        if is_first:
            _print_title(cell)
        _print_line(cell)
        return
    workload, limits = cell.workload, cell.peaks
    print(f"\n{workload}: {workload.flops / 1e6:.4g} MFLOP, at least {workload.bytes / 1e3:.4g} kB; {limits}")
    clocks = [f"{'call' if workload.device == 'cpu' else _TITLES[clock]} µs" for clock in cell.clocks]
    rows = [["", *clocks, "spread %", "eager / it", "GFLOP/s", "% of peak", "GB/s", "% of copy"]]
    for peer in cell.peers:
        times = [cell.seconds(peer, clock) for clock in cell.clocks]
        rows.append([_label(cell, peer), *("-" if t is None else f"{t * 1e6:.2f}" for t in times), *_rates(cell, peer)])
    print_table(rows)
    for peer, reason in cell.missing.items():
        print(f"  {peer}: {reason}")


def print_table(rows: Sequence[Sequence[str]], right: bool = True) -> None:
    """Columns under each other, the first to the left, the others to the right unless `right` is false."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(text.rjust(w) if right else text.ljust(w) for text, w in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  " + "  ".join(cells).rstrip(), flush=True)


def _label(cell: Cell, peer: str) -> str:
    return f"{peer} ({'fused' if cell.fused else 'not fused by policy auto'})" if peer == FMLP else peer


def _rates(cell: Cell, peer: str) -> list[str]:
    """Spread, speed-up over eager, and the share of the machine's limits, by the main clock."""
    timing = cell.timings.get((peer, cell.main_clock))
    if timing is None:
        return ["-"] * 6
    if peer in FLOORS:  # they compute nothing
        return [f"{100 * timing.spread:.0f}", *["-"] * 5]
    eager, seconds, limits = cell.seconds(EAGER), timing.median, cell.peaks
    speedup = "-" if eager is None else f"{eager / seconds:.2f}"
    if limits is None or seconds <= 0:
        return [f"{100 * timing.spread:.0f}", speedup, "-", "-", "-", "-"]
    flops, moved = cell.workload.flops / seconds, cell.workload.bytes / seconds
    return [
        f"{100 * timing.spread:.0f}",
        speedup,
        f"{flops / 1e9:.1f}",
        f"{100 * flops / limits.flops:.1f}",
        f"{moved / 1e9:.2f}",
        f"{100 * moved / limits.copy_bytes:.1f}",
    ]


# --- a line a cell ----------------------------------------------------------------------------------------------------

_LINE = "{:>23} {:>7} {:>9} {:>7}  {:>10} {:>11} {:>10} {:>11}  {:>6}  {:>15} {:>15}  {:>9}"


def _print_title(cell: Cell) -> None:
    unit = "µs" if cell.workload.device == "cpu" else "GPU µs"
    print(f"\nTimes in {unit}; best other: the better of eager and Inductor; % of peak: the operator's.")
    print(
        _LINE.format(
            *("name or width", "rows", "dtype", "threads", "eager", "Inductor", "compiled", "operator", "fused"),
            *("best/compiled", "best/operator", "% of peak"),
        )
    )


def _print_line(cell: Cell) -> None:
    workload, limits = cell.workload, cell.peaks
    times = [cell.seconds(peer) for peer in (EAGER, INDUCTOR, FMLP, OPERATOR)]
    operator = times[3]
    share = "-" if operator is None or limits is None else f"{100 * workload.flops / operator / limits.flops:.1f}"
    ratios = [speedup(cell, peer) for peer in (FMLP, OPERATOR)]
    print(
        _LINE.format(
            *(workload.name or workload.widths[0], workload.rows, workload.dtype, workload.threads or "-"),
            *("-" if t is None else f"{t * 1e6:.2f}" for t in times),
            "yes" if cell.fused else "no",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            share,
        ),
        flush=True,
    )
    for peer in SWEEP_PEERS:
        if peer in cell.missing:
            print(f"       {peer}: {cell.missing[peer]}")


def speedup(cell: Cell, peer: str) -> float | None:
    """The better of eager and Inductor over `peer`, by the main clock."""
    others = [seconds for other in (EAGER, INDUCTOR) if (seconds := cell.seconds(other)) is not None]
    own = cell.seconds(peer)
    return None if own is None or own <= 0 or not others else min(others) / own


def print_summary(cells: Sequence[Cell]) -> None:
    """Losing cells, and the mean over fused ones."""
    limit = LOST[cells[0].workload.device]
    ratios = [(cell, ratio) for cell in cells if (ratio := speedup(cell, FMLP)) is not None]
    lost = [(cell, ratio) for cell, ratio in ratios if ratio < 1 / limit]
    print(f"\n{len(lost)} of {len(ratios)} cells lost: compiled over {limit} times the better of eager and Inductor")
    for cell, ratio in sorted(lost, key=lambda pair: pair[1]):
        print(f"  {cell.workload}: {1 / ratio:.2f} times ({'fused' if cell.fused else 'not fused'})")
    fused = [cell for cell in cells if cell.fused]
    for peer, name in ((FMLP, "compiled"), (OPERATOR, "operator called directly")):
        found = [ratio for cell in fused if (ratio := speedup(cell, peer)) is not None]
        if found:
            mean = torch.tensor(found, dtype=torch.float64).log().mean().exp().item()
            print(f"Geometric mean of the speed-up over {len(found)} fused cells, {name}: {mean:.2f}")


# --- CSV --------------------------------------------------------------------------------------------------------------


def check_writable(file: str) -> None:
    """Raises CommandError before minutes are spent on numbers that cannot be kept."""
    try:
        Path(file).touch()
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}", 2) from error


def write_csv(file: str, suite: str, cells: Sequence[Cell]) -> None:
    """One row per cell, peer and clock, with the median, the spread and what it was measured under."""
    rows = [row for cell in cells for row in _csv_rows(suite, cell)]
    with open(file, "w", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _csv_rows(suite: str, cell: Cell) -> list[dict[str, object]]:
    workload, limits = cell.workload, cell.peaks
    shared: dict[str, object] = {
        "suite": suite,
        "device": device_name(workload.device),
        "torch": torch.__version__,
        "fmlp_op": package_version(),
        "name": workload.name,
        "widths": "-".join(map(str, workload.widths)),
        "activation": workload.activation,
        "output_activation": workload.output_activation,
        "rows": workload.rows,
        "dtype": workload.dtype,
        "threads": workload.threads or "",
        "flop": workload.flops,
        "bytes": workload.bytes,
        "peak_flop_per_s": "" if limits is None else f"{limits.flops:.4g}",
        "copy_bytes_per_s": "" if limits is None else f"{limits.copy_bytes:.4g}",
        "fused_by_policy": cell.fused,
    }
    rows = []
    for (peer, clock), timing in cell.timings.items():
        low, high = timing.quartiles
        microseconds = {
            "median": timing.median,
            "low_quartile": low,
            "high_quartile": high,
            "fastest": min(timing.seconds),
        }
        rows.append(
            {**shared, "peer": peer, "clock": clock, "rounds": len(timing.seconds)}
            | {f"{name}_us": f"{value * 1e6:.4g}" for name, value in microseconds.items()}
        )
    return rows
