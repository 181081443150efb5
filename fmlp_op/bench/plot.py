"""The picture of a benchmark: times of every peer, or a map of a sweep's speed-ups. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from fmlp_op.bench.measure import Cell
from fmlp_op.bench.peers import FMLP, OPERATOR
from fmlp_op.bench.report import device_name, speedup
from fmlp_op.cli import CommandError

Key = TypeVar("Key", bound=Hashable)


def check_plot(file: str) -> None:
    """Raises CommandError where `file` could not be drawn, before anything is measured."""
    figure, canvas = _matplotlib()
    known = canvas(figure()).get_supported_filetypes()
    ending = file.rpartition(".")[2].lower()
    if ending not in known:
        raise CommandError(f"--plot {file}: the ending must be one of {', '.join(sorted(known))}", 2)


def write_plot(file: str, suite: str, cells: Sequence[Cell]) -> None:
    """Draw `cells` into `file`, one panel per dtype and number of threads."""
    figure_class, canvas = _matplotlib()
    panels = _group(cells, lambda cell: (cell.workload.dtype, cell.workload.threads))
    figure = figure_class(figsize=(6.5 * len(panels), 5.5), layout="constrained")
    canvas(figure)
    figure.suptitle(f"fmlp_op bench {suite}: {device_name(cells[0].workload.device)}")
    for axes, ((dtype, threads), group) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        axes.set_title(dtype if threads is None else f"{dtype}, {threads} thread{'s' if threads > 1 else ''}")
        (_draw_map if suite == "sweep" else _draw_times)(axes, group)
    figure.savefig(file, dpi=150)
    print(f"Picture: {file}")


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandError("--plot needs matplotlib: pip install matplotlib") from error
    return Figure, FigureCanvasAgg


def _group(cells: Sequence[Cell], key: Callable[[Cell], Key]) -> dict[Key, list[Cell]]:
    groups: dict[Key, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def _draw_times(axes: Any, cells: Sequence[Cell]) -> None:
    """A line per peer over the cells, with bars from quartile to quartile."""
    labels = [
        f"{cell.workload.name or '-'.join(map(str, cell.workload.widths))}\n{cell.workload.rows} rows" for cell in cells
    ]
    for peer in dict.fromkeys(peer for cell in cells for peer in cell.peers):
        found = [
            (i, cell.timings[peer, cell.main_clock]) for i, cell in enumerate(cells) if cell.seconds(peer) is not None
        ]
        if not found:
            continue
        medians = [timing.median * 1e6 for _, timing in found]
        below = [(timing.median - timing.quartiles[0]) * 1e6 for _, timing in found]
        above = [(timing.quartiles[1] - timing.median) * 1e6 for _, timing in found]
        width = 2.5 if peer in (FMLP, OPERATOR) else 1.2
        axes.errorbar(
            [i for i, _ in found], medians, (below, above), label=peer, marker="o", capsize=3, linewidth=width
        )
    axes.set_yscale("log")
    axes.set_ylabel("GPU time per call, µs" if cells[0].workload.device == "cuda" else "time per call, µs")
    axes.set_xticks(range(len(cells)), labels, rotation=45, fontsize=7)
    axes.grid(axis="y", which="both", alpha=0.3)
    axes.legend(fontsize=8)


def _draw_map(axes: Any, cells: Sequence[Cell]) -> None:
    """Speed-up of the compiled model over the better of eager and Inductor, width against rows."""
    widths = sorted({cell.workload.widths[0] for cell in cells})
    rows = sorted({cell.workload.rows for cell in cells})
    ratios = {(cell.workload.widths[0], cell.workload.rows): (speedup(cell, FMLP), cell.fused) for cell in cells}
    values = [[ratios.get((width, batch), (None, False))[0] or float("nan") for batch in rows] for width in widths]
    axes.imshow(values, cmap="RdYlGn", vmin=0, vmax=2, aspect="auto", origin="lower")
    for i, width in enumerate(widths):
        for j, batch in enumerate(rows):
            ratio, fused = ratios.get((width, batch), (None, False))
            if ratio is not None:
                axes.text(j, i, f"{ratio:.2f}{'' if fused else '*'}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(rows)), rows)
    axes.set_yticks(range(len(widths)), widths)
    axes.set_xlabel("rows")
    axes.set_ylabel("width of every layer")
    axes.text(1, 1.01, "best other / compiled; * not fused", transform=axes.transAxes, ha="right", fontsize=7)
