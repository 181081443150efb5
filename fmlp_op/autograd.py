"""The operators' gradient: what a forward saves, and a backward of plain torch operators. Start from `FusedChain`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fmlp_op import reference
from fmlp_op.activations import parse

# (x, weights, biases) -> [y, hidden activation 1, …]
_Train = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor | None]], list[Tensor]]


_recompute = False


def recompute_hidden(enabled: bool) -> None:
    """Choose what a training forward keeps for its backward.

    Args:
        enabled: False (the default) saves every hidden activation: rows times hidden features times element size, in
            bytes. True saves none and runs the fused forward again in the backward: less memory, more time
            (csrc/NOTES.md has the figures). Where Inductor compiles the operator together with others, it may see that
            the two forwards are one and save after all; `torch.utils.checkpoint` holds there too.
    """
    global _recompute
    _recompute = enabled


class FusedChain(torch.autograd.Function):
    """Inputs: the forward for training, the activation after each layer, then x, the weights and the biases."""

    @staticmethod
    def forward(ctx: Any, train: _Train, activations: tuple[str, ...], *tensors: Any) -> Tensor:
        depth = len(activations)
        y, *hidden = train(tensors[0], tensors[1 : 1 + depth], tensors[1 + depth :])
        ctx.train, ctx.activations, ctx.recompute = train, activations, _recompute
        kept = [None] * len(hidden) if _recompute else hidden
        # An output is saved only where its activation's derivative is told from it, which eager does too: users may
        # change any other in place.
        ctx.save_for_backward(*tensors, *kept, y if _reads_output(activations[-1]) else None)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        depth = len(ctx.activations)
        saved = ctx.saved_tensors
        x, weights, biases = saved[0], saved[1 : 1 + depth], saved[1 + depth : 1 + 2 * depth]
        outputs = list(saved[1 + 2 * depth :])
        sums: list[Any] = [None] * depth
        if torch.is_grad_enabled():
            # Under create_graph the layers' outputs must depend on the inputs, which the saved ones do not.
            h = x
            for layer, activation in enumerate(ctx.activations):
                sums[layer] = F.linear(h, weights[layer], biases[layer])
                h = outputs[layer] = reference.activate(activation, sums[layer])
        elif ctx.recompute:
            outputs[:-1] = ctx.train(x, weights, biases)[1:]
        grads = chain_backward(grad, x, weights, biases, sums, outputs, ctx.activations, ctx.needs_input_grad[2:])
        return None, None, *grads


def _reads_output(activation: str) -> bool:
    """Whether the derivative is computed from the activation's output."""
    entry, values = parse(activation)
    return entry.name != "identity" and not entry.needs_input(*values)


def _rows(t: Tensor) -> Tensor:
    """`[*, n]` as `[rows, n]`."""
    return t if t.dim() == 2 else t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def chain_backward(
    grad: Tensor,
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    sums: Sequence[Tensor | None],
    outputs: Sequence[Any],
    activations: Sequence[str],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of x, the weights and the biases; None where `needs` says so, and no work below the lowest needed.

    `outputs` holds every layer's output after its activation, the last only where the activation's derivative reads it;
    `sums` every layer's output before, or None for what is computed here where a derivative reads it.
    """
    depth = len(weights)
    grads: list[Tensor | None] = [None] * (1 + 2 * depth)
    needs_weight, needs_bias = needs[1 : 1 + depth], needs[1 + depth :]
    lowest = 0 if needs[0] else min(layer for layer in range(depth) if needs_weight[layer] or needs_bias[layer])
    grad = _rows(grad)
    for layer in range(depth - 1, lowest - 1, -1):
        activation, values = parse(activations[layer])
        before = outputs[layer - 1] if layer else x
        if activation.name != "identity":
            kept = outputs[layer]
            if activation.needs_input(*values):
                kept = sums[layer]
                if kept is None:
                    kept = F.linear(before, weights[layer], biases[layer])
            grad = activation.backward(grad, _rows(kept), *values)
        if needs_weight[layer]:
            grads[1 + layer] = grad.t() @ _rows(before)
        if needs_bias[layer]:
            grads[1 + depth + layer] = grad.sum(0)
        if layer > lowest or needs[0]:
            grad = grad @ weights[layer]
    if needs[0]:
        grads[0] = grad if x.dim() == 2 else grad.reshape(x.shape)
    return grads
