"""FLOP formulas for `torch.utils.flop_counter.FlopCounterMode`: two a weight and row, as torch counts a matmul."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

_ops = torch.ops.fmlp


@register_flop_formula([_ops.fused_mlp, _ops.fused_mlp_inference, _ops.fused_mlp_train])
def _mlp_flop(x: Sequence[int], w1: Sequence[int], w2: Sequence[int], w3: Sequence[int], *_: Any, **__: Any) -> int:
    return _chain_flop_of_shapes(x, (w1, w2, w3))


@register_flop_formula([_ops.fused_chain, _ops.fused_chain_inference, _ops.fused_chain_train])
def _chain_flop(x: Sequence[int], weights: Sequence[Sequence[int]], *_: Any, **__: Any) -> int:
    return _chain_flop_of_shapes(x, weights)


@register_flop_formula(_ops.fused_short_chain_inference)
def _short_chain_flop(x: Sequence[int], *arguments: Any, **__: Any) -> int:
    return _chain_flop_of_shapes(x, [weight for weight in arguments[:4] if weight is not None])


def _chain_flop_of_shapes(x: Sequence[int], weights: Sequence[Sequence[int]]) -> int:
    return 2 * math.prod(x[:-1]) * sum(math.prod(weight) for weight in weights)
