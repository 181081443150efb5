"""One cell of a benchmark: an MLP, its input, and what that asks of the machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Workload:
    """Linear layers with ReLU between them.

    Attributes:
        widths: in_features, then every layer's out_features.
        dtype: a name of DTYPES; "tf32" is float32 whose products may be rounded to TF32.
        device: "cpu" or "cuda".
        threads: of torch on the CPU; None leaves them as they are.
    """

    widths: tuple[int, ...]
    rows: int
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{'→'.join(map(str, self.widths))}, {self.rows} rows, {self.dtype}, {self.device}{threads}"

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.widths[:-1], self.widths[1:], strict=True))

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return 2 * self.rows * sum(k * n for k, n in self.layers)

    @property
    def bytes(self) -> int:
        """The fewest that can be moved: input, weights and biases read once, the result written once."""
        return DTYPES[self.dtype].itemsize * self.rows * (self.widths[0] + self.widths[-1]) + self.parameter_bytes

    @property
    def parameter_bytes(self) -> int:
        """Weights and biases."""
        return DTYPES[self.dtype].itemsize * sum(k * n + n for k, n in self.layers)

    def model(self) -> nn.Sequential:
        """With fresh random weights, for inference."""
        modules: list[nn.Module] = []
        for k, n in self.layers:
            modules += [nn.Linear(k, n, dtype=DTYPES[self.dtype], device=self.device), nn.ReLU()]
        return nn.Sequential(*modules[:-1]).eval()

    def example_input(self) -> Tensor:
        """`[rows, in_features]`, random."""
        return torch.randn(self.rows, self.widths[0], dtype=DTYPES[self.dtype], device=self.device)


REFERENCE = Workload((48, 64, 40, 24), 16)
