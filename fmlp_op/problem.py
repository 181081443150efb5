"""What a fused MLP would compute, as far as it is known before the kernel runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Problem:
    """One MLP: what a policy decides on.

    Attributes:
        rows: product of the leading dimensions of the input; None where it is only known at run time.
        widths: in_features, then the out_features of every linear layer.
        biases: for every layer, whether it has a bias.
        activation: after every layer but the last, as the operators spell it ("relu", "leaky_relu(0.2)").
        output_activation: after the last layer; "identity" for none.
        needs_grad: whether a backward pass may follow.
        allow_tf32: whether float32 products may be rounded to TF32.
    """

    rows: int | None
    widths: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    biases: tuple[bool, ...]
    activation: str
    output_activation: str
    needs_grad: bool
    allow_tf32: bool
