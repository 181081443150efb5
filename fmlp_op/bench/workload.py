"""One cell of a benchmark: an MLP or a network, its input, and what that asks of the machine."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fmlp_op.activations import parse
from fmlp_op.bench.networks import NETWORKS
from fmlp_op.problem import Problem

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


class Activate(nn.Module):
    """An activation given as the operators' strings are."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        entry, self.values = parse(activation)
        self.activation, self.function = activation, entry.reference

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.values)


@dataclass(frozen=True)
class Workload:
    """An MLP, or one of NETWORKS.

    Attributes:
        widths: in_features, then every layer's out_features; empty for a network.
        dtype: a name of DTYPES; "tf32" is float32 whose products may be rounded to TF32.
        device: "cpu" or "cuda".
        threads: of torch on the CPU; None leaves them as they are.
        name: what the MLP is known as; of a network, its name in NETWORKS.
    """

    widths: tuple[int, ...]
    rows: int
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    activation: str = "relu"
    output_activation: str = "identity"
    name: str = ""

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.label}, {self.rows} rows, {self.dtype}, {self.device}{threads}"

    @property
    def is_network(self) -> bool:
        return not self.widths

    @property
    def label(self) -> str:
        """Name and widths, as far as it has them."""
        return f"{self.name} {'→'.join(map(str, self.widths))}".strip()

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        if self.is_network:
            return _network_layers(self.name)
        return tuple(zip(self.widths[:-1], self.widths[1:], strict=True))

    @property
    def problem(self) -> Problem:
        """Of an MLP: what plans and policies are asked about it, in inference."""
        return Problem(
            rows=self.rows,
            widths=self.widths,
            dtype=DTYPES[self.dtype],
            device=torch.device(self.device),
            biases=(True,) * len(self.layers),
            activation=self.activation,
            output_activation=self.output_activation,
            needs_grad=False,
            allow_tf32=self.dtype == "tf32",
        )

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return 2 * self.rows * sum(k * n for k, n in self.layers)

    @property
    def bytes(self) -> int:
        """The fewest that can be moved: input, weights and biases read once, the results written once."""
        features = _network_features(self.name) if self.is_network else self.widths[0] + self.widths[-1]
        return DTYPES[self.dtype].itemsize * self.rows * features + self.parameter_bytes

    @property
    def parameter_bytes(self) -> int:
        """Weights and biases."""
        return DTYPES[self.dtype].itemsize * sum(k * n + n for k, n in self.layers)

    def model(self) -> nn.Module:
        """With fresh random weights, for inference; of an MLP an nn.Sequential of nn.Linear and Activate."""
        if self.is_network:
            return NETWORKS[self.name]()[0].to(self.device, DTYPES[self.dtype]).eval()
        modules: list[nn.Module] = []
        for k, n in self.layers:
            modules += [nn.Linear(k, n, dtype=DTYPES[self.dtype], device=self.device), Activate(self.activation)]
        last = [] if self.output_activation == "identity" else [Activate(self.output_activation)]
        entry, values = parse(self.activation)
        for linear in modules[::2] if entry.name == "sin" else ():
            # As SIREN does it: otherwise layer after layer would magnify rounding errors.
            assert isinstance(linear, nn.Linear)
            bound = (6 / linear.in_features) ** 0.5 / values[0]
            nn.init.uniform_(linear.weight, -bound, bound)
        return nn.Sequential(*modules[:-1], *last).eval()

    def example_input(self) -> Tensor:
        """`[rows, in_features]`, random; for a network, rows of its example over and over."""
        if self.is_network:
            example = NETWORKS[self.name]()[1].to(self.device, DTYPES[self.dtype])
            return example[torch.arange(self.rows, device=self.device) % len(example)]
        return torch.randn(self.rows, self.widths[0], dtype=DTYPES[self.dtype], device=self.device)


@functools.cache
def _network_layers(name: str) -> tuple[tuple[int, int], ...]:
    modules = NETWORKS[name]()[0].modules()
    return tuple((one.in_features, one.out_features) for one in modules if isinstance(one, nn.Linear))


@functools.cache
def _network_features(name: str) -> int:
    """Of the input and of all results."""
    model, x = NETWORKS[name]()
    with torch.no_grad():
        results = model.eval()(x)
    tensors = (x, *results) if isinstance(results, tuple) else (x, results)
    return sum(t.numel() for t in tensors) // len(x)


REFERENCE = Workload((48, 64, 40, 24), 16)
