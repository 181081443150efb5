"""The same MLP in plain torch: the definition that tests, benchmarks, transforms and fallbacks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fmlp_op.activations import parse


def chain(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "relu",
    output_activation: str = "identity",
) -> Tensor:
    """Linear layers with `activation` between them and `output_activation` after the last.

    Args:
        x: `[*, in_features]`.
        weights: one `[out_features, in_features]` per layer, as `nn.Linear` stores it.
        biases: one `[out_features]` or None per layer.

    Returns:
        `[*, out_features of the last layer]`, as torch's own operators compute it.
    """
    h = x
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        h = activate(activation, F.linear(h, weight, bias))
    return activate(output_activation, F.linear(h, weights[-1], biases[-1]))


def activate(activation: str, x: Tensor) -> Tensor:
    """`x` after an activation given as the operators' strings are ("relu", "leaky_relu(0.2)")."""
    entry, values = parse(activation)
    return entry.reference(x, *values)


def mlp(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    b3: Tensor | None = None,
    *,
    allow_tf32: bool = False,
) -> Tensor:
    """`fused_mlp` in plain torch; float32 products follow torch's own precision setting, not `allow_tf32`."""
    return chain(x, (w1, w2, w3), (b1, b2, b3))


# Evaluations of a small problem from which torch's own error is taken.
REORDERINGS = 8


def error_bound(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "relu",
    output_activation: str = "identity",
) -> tuple[Tensor, float]:
    """The float64 result, and how far a result in the dtype of `x` may be from it in any element.

    The bound is twice the largest error of torch's own operators on the same inputs, plus one rounding step of
    the largest value in the chain. For small problems that error is the largest of eight evaluations, each with the
    features of every layer in another order: the same function, so what differs is luck.
    """
    is_small = x.shape[:-1].numel() * weights[-1].shape[0] < 1 << 16
    wide_x, wide_weights, wide_biases = widened(x, weights, biases, on_cpu=is_small)
    exact = chain(wide_x, wide_weights, wide_biases, activation, output_activation).to(x.device)
    if exact.numel() == 0:
        return exact, 0.0
    error = 0.0
    for _ in range(REORDERINGS if is_small else 1):
        plain = chain(*reordered(x, weights, biases), activation, output_activation).double()
        error = max(error, _largest(plain - exact))
    h, largest = wide_x, 0.0
    for weight, bias in zip(wide_weights, wide_biases, strict=True):
        h = F.linear(h, weight, bias)
        largest = max(largest, _largest(h))
        h = activate(activation, h)
    return exact, 2 * error + torch.finfo(x.dtype).eps * largest


def _largest(t: Tensor) -> float:
    return t.abs().max().item()


def widened(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], on_cpu: bool
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """The same in float64, detached; on the CPU if asked, since torch's hardswish on GPUs is not exact in float64."""
    device = torch.device("cpu") if on_cpu else x.device

    def wide(t: Tensor) -> Tensor:
        return t.detach().to(device, torch.float64)

    return wide(x), [wide(w) for w in weights], [None if b is None else wide(b) for b in biases]


def reordered(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """The same MLP with the features of x and of every hidden layer in another order."""
    new_weights: list[Tensor] = []
    new_biases: list[Tensor | None] = []
    order = torch.randperm(x.shape[-1], device=x.device)
    new_x = x[..., order]
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        weight = weight[:, order]
        order = torch.randperm(weight.shape[0], device=x.device)
        if layer == len(weights) - 1:
            order = order.sort().values
        new_weights.append(weight[order])
        new_biases.append(None if bias is None else bias[order])
    return new_x, new_weights, new_biases
