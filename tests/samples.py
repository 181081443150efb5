"""Sample inputs of the operator, and the one rule by which results are judged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from fmlp_op import reference

REFERENCE_WIDTHS = (48, 64, 40, 24)


@dataclass(frozen=True)
class Sample:
    lead: tuple[int, ...] = (16,)
    widths: tuple[int, ...] = REFERENCE_WIDTHS
    dtype: torch.dtype = torch.float32
    biases: tuple[bool, ...] = (True, True, True)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        bias = "".join("01"[b] for b in self.biases)
        return f"{'x'.join(map(str, self.lead)) or '1d'}-{'_'.join(map(str, self.widths))}-{dtype}-b{bias}"

    def tensors(self, device: str = "cpu", requires_grad: bool = False) -> tuple[Tensor | None, ...]:
        """Fresh random x, the weights, the biases; values stay near one from layer to layer."""

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(*shape, device=device, dtype=torch.float64) * scale
            return values.to(self.dtype).requires_grad_(requires_grad)

        layers = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        weights = [draw(n, k, scale=(2 / max(k, 1)) ** 0.5) for k, n in layers]
        biases = [draw(n) if has else None for (_, n), has in zip(layers, self.biases, strict=True)]
        return (draw(*self.lead, self.widths[0]), *weights, *biases)


ALL_BIASES = list(product((True, False), repeat=3))
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]

# One list for correctness, gradients and opcheck: leading dimensions, widths, dtypes and biases, each varied in turn.
SAMPLES = [
    *(Sample(lead=lead) for lead in [(), (0,), (1,), (2,), (3,), (17,), (65,), (129,), (2, 3), (2, 1, 3), (0, 4)]),
    *(Sample(widths=widths) for widths in [(1, 1, 1, 1), (3, 17, 63, 65), (129, 3, 1, 17), (64, 64, 64, 64)]),
    *(Sample(widths=widths, lead=(33,)) for widths in [(8, 32, 32, 4), (100, 200, 100, 7), (63, 129, 65, 1)]),
    *(Sample(dtype=dtype, lead=lead) for dtype in DTYPES[1:] for lead in [(1,), (16,), (65,)]),
    *(Sample(dtype=dtype, widths=(3, 17, 63, 5), lead=(9,)) for dtype in DTYPES),
    *(Sample(biases=biases, dtype=dtype) for biases in ALL_BIASES[1:] for dtype in DTYPES[:3]),
]


def poison(device: str, *counts: int) -> None:
    """Leaves NaN in memory that the next results may be allocated from: of usual numbers of floats, and of `counts`."""
    for count in (1, 64, 384, 4096, 1 << 16, *counts):
        torch.full((count,), float("nan"), device=device)


def assert_within_rule(
    result: Tensor,
    x: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    activation: str = "relu",
    output_activation: str = "identity",
) -> None:
    """The accuracy rule of `reference.error_bound`, and shape, dtype and layout."""
    exact, bound = reference.error_bound(x, weights, biases, activation, output_activation)
    assert result.dtype == x.dtype
    assert result.device == x.device
    assert result.shape == exact.shape
    assert result.is_contiguous()
    if result.numel():
        error = (result.double() - exact).abs().max().item()
        assert error <= bound, f"error {error:.3g} is over the bound {bound:.3g}"


def assert_mlp_within_rule(result: Tensor, x: Tensor, *weights_and_biases: Tensor | None) -> None:
    biases = (*weights_and_biases[3:], None, None, None)[:3]
    assert_within_rule(result, x, list(weights_and_biases[:3]), list(biases))
