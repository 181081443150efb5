"""Models that the compile tests share."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


def mlp(widths: tuple[int, ...] = (48, 64, 40, 24), bias: bool = True, **kwargs) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, n in pairwise(widths):
        layers += [nn.Linear(k, n, bias=bias, **kwargs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Surrounded(nn.Module):
    """A normaliser before the MLP, a squash after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(48))
        self.register_buffer("std", torch.rand(48) + 0.5)
        self.mlp = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mlp((x - self.mean) / self.std))


class Followed(nn.Module):
    """An MLP and what is done with its output."""

    def __init__(self, then) -> None:
        super().__init__()
        self.mlp, self.then = mlp(), then

    def forward(self, x: torch.Tensor):
        return self.then(self.mlp(x))


class Heads(nn.Module):
    """A trunk and two heads, as in actors with a state-dependent deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 40), nn.ReLU())
        self.mean, self.log_std = nn.Linear(40, 24), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(x)
        return torch.tanh(self.mean(h)), self.log_std(h).clamp(-20.0, 2.0).exp()


class Towers(nn.Module):
    """Three MLPs, two on the same input, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.top = mlp((16, 32, 32, 8)), mlp((16, 24, 24, 8)), mlp((16, 20, 20, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.left(x), self.right(x)], dim=-1))


class GraphBreak(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp((48, 64, 40, 24)), mlp((24, 32, 32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.second(h)
