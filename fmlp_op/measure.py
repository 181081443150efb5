"""Times an MLP in two ways on the device it is for: what the policies ask. Start from `times`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fmlp_op import reference
from fmlp_op.autograd import chain_backward
from fmlp_op.bench.timing import Round, Timing, back_to_back, cuda_events, interleave, warm_up
from fmlp_op.ops import fused_chain
from fmlp_op.problem import Problem

# Of both together, warm-up not counted.
_SECONDS = 0.05

# Inductor pads products whose sizes are no multiple of this (bytes), after measurements of its own.
_INDUCTOR_ALIGNMENT = 16

# Of the GPU's free memory, what may be taken for a measurement that nobody asked for.
_MEMORY_SHARE = 1 / 16


@dataclass(frozen=True)
class Times:
    """Seconds per call, or per forward and backward where gradients are needed; medians.

    `fused` is of the operator, `plain` of what would run in its place.
    """

    fused: float
    plain: float


def times(problem: Problem) -> Times:
    """Of the operator and of torch's own operators, on random operands; kept for the life of the process.

    Calls follow each other with one wait at the end, as a program makes them: a small MLP is bound by the host and a
    large one by the device. May be called while torch.compile works on a graph; draws no random number of the caller's.

    Raises:
        RuntimeError: the device is not there, or has no memory left for the operands.
    """
    assert problem.rows is not None, "only a known number of rows can be measured"
    return _times(problem, torch.get_num_threads() if problem.device.type == "cpu" else 0)


@functools.cache
def _times(problem: Problem, threads: int) -> Times:
    synchronize = torch.cuda.synchronize if problem.device.type == "cuda" else None

    def one_round(call: Callable[[], object]) -> Round:
        return _then_wait(call, warm_up(call, synchronize), synchronize)

    return _compare(problem, _training_steps if problem.needs_grad else _forwards, one_round)


def times_of_products(problem: Problem) -> Times | None:
    """GPU time of torch's own operators: `fused`, one by one, and `plain`, as Inductor's code calls them.

    Eager adds a bias within the product; Inductor takes the plain product wherever an activation follows, and adds the
    bias in the pass over memory of the activation. cuBLAS has different kernels for the two. Kept for the life of the
    process.

    Returns:
        None where there is no GPU, where this says nothing about Inductor, or where it would take much memory.

    Raises:
        RuntimeError: nothing can be timed now.
    """
    assert problem.rows is not None, "only a known number of rows can be measured"
    if not torch.cuda.is_available():
        return None
    _refuse_in_capture(problem.device)
    multiple = _INDUCTOR_ALIGNMENT // problem.dtype.itemsize
    largest = 4 * problem.rows * max(problem.widths) * problem.dtype.itemsize  # x and three results at a time
    if any(size % multiple for size in (problem.rows, *problem.widths)):
        return None
    if largest > _MEMORY_SHARE * torch.cuda.mem_get_info(problem.device)[0]:
        return None
    return _times_of_products(problem)


@functools.cache
def _times_of_products(problem: Problem) -> Times:
    return _compare(problem, _products, cuda_events)


def _compare(
    problem: Problem,
    make_calls: Callable[..., dict[str, Callable[[], object]]],
    make_round: Callable[[Callable[[], object]], Round],
) -> Times:
    device = problem.device
    _refuse_in_capture(device)
    # Without autograd's own overhead, which a compiler removes from both.
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        torch.cuda.device(device if device.type == "cuda" else -1),
    ):
        calls = make_calls(problem, *_operands(problem))
        rounds = {name: make_round(call) for name, call in calls.items()}
        found: dict[str, Timing] = interleave(rounds, _SECONDS)
    return Times(found["fused"].median, found["plain"].median)


def _refuse_in_capture(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("nothing can be timed while a CUDA graph is captured")


def _forwards(
    problem: Problem, x: Tensor, weights: list[Tensor], biases: list[Tensor | None]
) -> dict[str, Callable[[], object]]:
    operands = x, weights, biases, problem.activation, problem.output_activation
    return {
        "fused": functools.partial(fused_chain, *operands, allow_tf32=problem.allow_tf32),
        "plain": functools.partial(reference.chain, *operands),
    }


def _products(
    problem: Problem, x: Tensor, weights: list[Tensor], biases: list[Tensor | None]
) -> dict[str, Callable[[], object]]:
    activations = ["relu"] * (len(weights) - 1) + [problem.output_activation]

    def plain() -> Tensor:
        h = x
        for weight, bias, activation in zip(weights, biases, activations, strict=True):
            if activation == "identity":
                h = F.linear(h, weight, bias)
            else:  # an addition in place moves the bytes that Inductor's pass moves
                h = torch.mm(h, weight.t()).add_(0.0 if bias is None else bias)
        return h

    return {"fused": _forwards(problem, x, weights, biases)["fused"], "plain": plain}


def _training_steps(
    problem: Problem, x: Tensor, weights: list[Tensor], biases: list[Tensor | None]
) -> dict[str, Callable[[], object]]:
    """Forward and backward as a compiler sees them: what differs is the forward, and what it keeps."""
    depth = len(weights)
    activations = (problem.activation,) * (depth - 1) + (problem.output_activation,)
    grad = torch.ones(x.shape[0], problem.widths[-1], dtype=x.dtype, device=x.device)
    needs = [True] * (1 + depth) + [bias is not None for bias in biases]

    def fused() -> object:
        train = torch.ops.fmlp.fused_chain_train
        y, *hidden = train(x, weights, biases, *activations[-2:], allow_tf32=problem.allow_tf32)
        return chain_backward(grad, x, weights, biases, [None] * depth, [*hidden, y], activations, needs)

    def plain() -> object:
        sums, outputs, h = [], [], x
        for weight, bias, activation in zip(weights, biases, activations, strict=True):
            sums.append(F.linear(h, weight, bias))
            h = reference.activate(activation, sums[-1])
            outputs.append(h)
        return chain_backward(grad, x, weights, biases, sums, outputs, activations, needs)

    return {"fused": fused, "plain": plain}


def _operands(problem: Problem) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    generator = torch.Generator(problem.device).manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(*shape, device=problem.device, dtype=problem.dtype, generator=generator)
        return values.mul_(scale)

    layers = list(zip(problem.widths[:-1], problem.widths[1:], strict=True))
    weights = [draw(n, k, scale=max(k, 1) ** -0.5) for k, n in layers]
    biases = [draw(n) if has else None for (_, n), has in zip(layers, problem.biases, strict=True)]
    assert problem.rows is not None
    return draw(problem.rows, problem.widths[0]), weights, biases


def _then_wait(call: Callable[[], object], calls: int, synchronize: Callable[[], None] | None) -> Callable[[], float]:
    """Seconds per call of `calls` calls in a row, the wait for the last included."""
    if synchronize is None:
        return back_to_back(call, calls)

    def all_of_them() -> None:
        for _ in range(calls):
            call()
        synchronize()

    one_round = back_to_back(all_of_them, 1)
    return lambda: one_round() / calls
