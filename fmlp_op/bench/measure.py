"""One cell of a benchmark: build the peers, run their clocks interleaved. Start from `cpu_cell` and `cuda_cell`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fmlp_op.bench import timing
from fmlp_op.bench.baselines import baselines
from fmlp_op.bench.peaks import Peaks
from fmlp_op.bench.peers import FMLP, Peer, build
from fmlp_op.bench.timing import Round, Timing
from fmlp_op.bench.workload import Workload
from fmlp_op.plan import plan

HOST, LATENCY, GPU, GPU_COLD = "host", "latency", "gpu", "gpu cold"
_COLD_CALLS = 20
_FLUSH = "flush alone"


@dataclass(frozen=True)
class Cell:
    """What was measured of one workload.

    Attributes:
        timings: by peer and clock. "host": time of the caller's thread per call, back to back, which on a CPU is all;
            "latency": a call and the wait for its result; "gpu": inside a CUDA graph of such calls; "gpu cold": the
            same with the L2 cache overwritten before each.
        missing: why a peer is not in `timings`.
        fused: whether the policy of the `fmlp` backend fused this MLP into a kernel.
    """

    workload: Workload
    timings: dict[tuple[str, str], Timing]
    missing: dict[str, str] = field(default_factory=dict)
    fused: bool = False
    peaks: Peaks | None = None

    @property
    def peers(self) -> list[str]:
        return list(dict.fromkeys(peer for peer, _ in self.timings))

    @property
    def clocks(self) -> list[str]:
        return [clock for clock in (HOST, LATENCY, GPU, GPU_COLD) if any(found == clock for _, found in self.timings)]

    @property
    def main_clock(self) -> str:
        """The one that compares kernels: GPU time, or on a CPU the only one."""
        return GPU if self.workload.device == "cuda" else HOST

    def seconds(self, peer: str, clock: str | None = None) -> float | None:
        """The median, or None where it was not measured."""
        found = self.timings.get((peer, clock or self.main_clock))
        return None if found is None else found.median


def cpu_cell(workload: Workload, names: Sequence[str], seconds: float, detailed: bool) -> Cell:
    """Time of calls back to back. Runs under the caller's threads and grad mode."""
    found, missing = _build(workload, names)
    rounds: dict[tuple[str, str], Round] = {}
    for peer in found:
        rounds[peer.name, HOST] = timing.back_to_back(peer.call, timing.warm_up(peer.call))
    return _cell(workload, found, missing, timing.interleave(rounds, seconds, fewest=3))


def cuda_cell(workload: Workload, names: Sequence[str], seconds: float, detailed: bool) -> Cell:
    """Host time, latency and GPU time; where `detailed`, of the baseline kernels and with a cold L2 cache too."""
    found, missing = _build(workload, names, with_baselines=detailed)
    rounds: dict[tuple[str, str], Round] = {}
    flush = _flush() if detailed else None
    cold_peers = []
    for peer in found:
        calls = timing.warm_up(peer.call, torch.cuda.synchronize)
        latency = timing.cuda_latency(peer.call, calls)
        if peer.times_host:
            rounds[peer.name, HOST] = timing.cuda_host(peer.call, calls)
            rounds[peer.name, LATENCY] = latency
        if peer.capturable:
            count = timing.calls_in_graph(latency())
            rounds[peer.name, GPU] = timing.cuda_graph(timing.capture(peer.call, count), count)
            if flush is not None:
                cold_peers.append(peer.name)
                graph = timing.capture(functools.partial(_after, flush, peer.call), _COLD_CALLS)
                rounds[peer.name, GPU_COLD] = timing.cuda_graph(graph, _COLD_CALLS)
    if flush is not None:
        rounds[_FLUSH, GPU_COLD] = timing.cuda_graph(timing.capture(flush.zero_, _COLD_CALLS), _COLD_CALLS)
    timings = timing.interleave(rounds, seconds)
    if flush is not None:
        flush_seconds = timings.pop((_FLUSH, GPU_COLD)).median
        for name in cold_peers:
            measured = timings[name, GPU_COLD].seconds
            timings[name, GPU_COLD] = Timing(tuple(value - flush_seconds for value in measured))
    return _cell(workload, found, missing, timings)


def _build(workload: Workload, names: Sequence[str], with_baselines: bool = False) -> tuple[list[Peer], dict[str, str]]:
    """The peers; one whose result is not eager's is left out, since the time of a wrong answer means nothing."""
    model, x = workload.model(), workload.example_input()
    found, missing = build(model, x, names, allow_tf32=workload.dtype == "tf32")
    if with_baselines:
        try:
            found += baselines(model, x)
        except (OSError, RuntimeError) as error:
            missing["baseline kernels"] = str(error).splitlines()[0]
    expected = model(x)
    for peer in list(found):
        actual = peer.call()  # None of what computes nothing, or replays a graph
        if actual is not None and not _agrees(actual, expected, workload.dtype):
            found.remove(peer)
            missing[peer.name] = "its result differs from eager's"
    return found, missing


def _agrees(actual: Any, expected: Any, dtype: str) -> bool:
    """A coarse check against gross errors; the accuracy rule is the tests' subject."""
    if isinstance(expected, tuple):
        return all(_agrees(a, e, dtype) for a, e in zip(actual, expected, strict=True))
    tolerance = 1e-4 if dtype in ("float32", "float64") else 3e-2
    error, norm = (actual.double() - expected.double()).norm().item(), expected.double().norm().item()
    return bool(error <= tolerance * norm)  # false for NaN


def _flush() -> Tensor:
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return torch.empty(2 * cache, dtype=torch.uint8, device="cuda")


def _after(flush: Tensor, call: timing.Call) -> None:
    flush.zero_()
    call()


def _cell(
    workload: Workload, found: Sequence[Peer], missing: dict[str, str], timings: dict[tuple[str, str], Timing]
) -> Cell:
    fused = any(peer.fused for peer in found if peer.name == FMLP)
    if fused and not workload.is_network:  # where no kernel serves, the policy may choose the operator all the same
        fused = plan(workload.problem).kernel != "none"
    return Cell(workload, timings, missing, fused)
