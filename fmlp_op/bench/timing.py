"""Clocks, and the measurement that is fair to every peer: round by round, one round of each. Start from `interleave`.

A round is a function that makes some calls and returns seconds per call. Warm-up is never part of a round: `warm_up`
comes first, and decides how many calls a round makes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Call = Callable[[], object]
Round = Callable[[], float]

Name = TypeVar("Name")

_ROUND_SECONDS = 2e-3
# A stream holds about a thousand launches; beyond them the host waits for the GPU and its own time cannot be seen.
_MOST_CALLS_IN_FLIGHT = 100
# No GPU's clock is faster.
_MOST_CYCLES_PER_SECOND = 3e9


@dataclass(frozen=True)
class Timing:
    """Seconds per call of every round, in the order measured."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the median: a difference below it is noise."""
        low, high = self.quartiles
        return (high - low) / self.median if self.median > 0 else 0.0


def interleave(rounds: Mapping[Name, Round], seconds: float, fewest: int = 5, most: int = 31) -> dict[Name, Timing]:
    """Run one round of everything, then the next, until `seconds` are spent; between `fewest` and `most` times.

    A load on the machine then hits every peer alike.
    """
    samples: dict[Name, list[float]] = {name: [] for name in rounds}
    end = time.perf_counter() + seconds
    for i in range(most):
        if i >= fewest and time.perf_counter() > end:
            break
        for name, one in rounds.items():
            samples[name].append(one())
    return {name: Timing(tuple(values)) for name, values in samples.items()}


@contextmanager
def num_threads(threads: int | None) -> Iterator[None]:
    """`torch.set_num_threads` for the length of a `with` block; None leaves it as it is."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def warm_up(call: Call, synchronize: Call | None = None) -> int:
    """Call until nothing is cold any more; returns how many calls make a round of about two milliseconds."""
    for _ in range(3):
        call()
    if synchronize is not None:
        synchronize()
    calls, spent = 0, 0.0
    start = time.perf_counter()
    while spent < _ROUND_SECONDS:
        call()
        calls += 1
        if synchronize is not None:
            synchronize()
        spent = time.perf_counter() - start
    return calls


def back_to_back(call: Call, calls: int) -> Round:
    """Host time: what the caller waits for. On a CPU, that is all of it."""

    def one_round() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    return one_round


def cuda_host(call: Call, calls: int) -> Round:
    """Host time of calls that only queue work; the GPU is idle at the start and never more than a queue behind."""
    inner = back_to_back(call, min(calls, _MOST_CALLS_IN_FLIGHT))

    def one_round() -> float:
        torch.cuda.synchronize()
        return inner()

    return one_round


def cuda_latency(call: Call, calls: int) -> Round:
    """A call and the wait for its result."""
    synchronize = torch.cuda.synchronize

    def one_round() -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
            synchronize()
        return (time.perf_counter() - start) / calls

    return one_round


def capture(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `calls` calls, one after the other."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    # The graph shall own the workspace cuBLAS uses in it: Inductor's reduce-overhead frees what an earlier graph left.
    torch._C._cuda_clearCublasWorkspaces()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def cuda_graph(graph: torch.cuda.CUDAGraph, calls: int) -> Round:
    """GPU time: the second of two replays in a row between two events, so that no launch of the host is in it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def one_round() -> float:
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / calls

    return one_round


def cuda_events(call: Call) -> Round:
    """GPU time with no CUDA graph: the host queues a round of calls while the GPU is kept waiting."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    host_seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    calls = max(1, min(_MOST_CALLS_IN_FLIGHT // 5, int(_ROUND_SECONDS / max(time.perf_counter() - start, 1e-6))))
    head_start = int((2 * calls * host_seconds + 1e-4) * _MOST_CYCLES_PER_SECOND)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def one_round() -> float:
        torch.cuda._sleep(head_start)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / calls

    return one_round


def calls_in_graph(latency: float) -> int:
    """How many calls of about `latency` seconds a graph should hold: some milliseconds in all."""
    return max(4, min(200, int(5e-3 / max(latency, 1e-6))))
