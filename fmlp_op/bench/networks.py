"""Networks people run, with published layer sizes: whole, and their MLPs alone. Start from `NETWORKS` and `CHAINS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, Tensor]

# name -> widths, activation and output activation of an MLP of the networks below
CHAINS: dict[str, tuple[tuple[int, ...], str, str]] = {
    "ppo_policy": ((48, 64, 64, 12), "tanh", "identity"),
    "ppo_value": ((48, 64, 64, 1), "tanh", "identity"),
    "sac_trunk": ((17, 256, 256), "relu", "relu"),
    "sac_critic": ((23, 256, 256, 1), "relu", "identity"),
    "locomotion_flat_policy": ((48, 512, 256, 128, 12), "elu", "identity"),
    "locomotion_rough_policy": ((235, 128, 128, 128, 12), "elu", "identity"),
    "siren_layers": ((2, 256, 256, 256, 1), "sin(30.0)", "identity"),
    "nerf_density": ((32, 64, 16), "relu", "identity"),
    "nerf_colour": ((31, 64, 64, 3), "relu", "sigmoid"),
    "recommender_top": ((512, 256, 64, 1), "relu", "sigmoid"),
    "deep_narrow": ((1000, *(50,) * 8, 10), "relu", "identity"),
}


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Linear layers with an activation between them."""
    modules: list[nn.Module] = []
    for in_features, out_features in pairwise(widths):
        modules += [nn.Linear(in_features, out_features), activation()]
    return nn.Sequential(*modules[:-1])


class Normaliser(nn.Module):
    """Observations by running statistics, clamped."""

    mean: Tensor
    variance: Tensor

    def __init__(self, features: int, limit: float = 10.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(features))
        self.register_buffer("variance", torch.rand(features) + 0.5)
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / torch.sqrt(self.variance + 1e-8)).clamp(-self.limit, self.limit)


class PPO(nn.Module):
    """Policy and value of PPO for continuous actions (Schulman et al. 2017; the sizes of Stable-Baselines3's defaults):
    means and standard deviations of the actions, and the value."""

    def __init__(self, observations: int = 48, actions: int = 12) -> None:
        super().__init__()
        self.normaliser = Normaliser(observations)
        self.policy = mlp((observations, 64, 64, actions), nn.Tanh)
        self.value = mlp((observations, 64, 64, 1), nn.Tanh)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.normaliser(x)
        mean = self.policy(x)
        return mean, torch.ones_like(mean) * self.log_std.exp(), self.value(x).squeeze(-1)


class SACActor(nn.Module):
    """The actor of soft actor-critic (Haarnoja et al. 2018): a trunk, two heads, a tanh squash."""

    def __init__(self, observations: int = 17, actions: int = 6) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(observations, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.mean, self.log_std = nn.Linear(256, actions), nn.Linear(256, actions)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return torch.tanh(self.mean(h)), self.log_std(h).clamp(-20.0, 2.0).exp()


class SACCritics(nn.Module):
    """The twin critics of soft actor-critic, on observation and action side by side: the smaller value."""

    def __init__(self, observations: int = 17, actions: int = 6) -> None:
        super().__init__()
        self.first = mlp((observations + actions, 256, 256, 1), nn.ReLU)
        self.second = mlp((observations + actions, 256, 256, 1), nn.ReLU)
        self.actions = actions

    def forward(self, x: Tensor) -> Tensor:
        observation, action = x[..., : -self.actions], x[..., -self.actions :]
        joined = torch.cat([observation, action.clamp(-1.0, 1.0)], dim=-1)
        return torch.minimum(self.first(joined), self.second(joined)).squeeze(-1)


class Locomotion(nn.Module):
    """A legged robot's policy as RSL-RL trains it (Rudin et al. 2022): observations to scaled joint targets."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.normaliser, self.actor = Normaliser(widths[0]), mlp(widths, nn.ELU)
        self.register_buffer("rest", torch.randn(widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(self.normaliser(x)).clamp(-100.0, 100.0) * 0.25 + self.rest


class Sine(nn.Module):
    """A linear layer and a sine of the given frequency."""

    def __init__(self, in_features: int, out_features: int, omega: float, is_first: bool) -> None:
        super().__init__()
        self.linear, self.omega = nn.Linear(in_features, out_features), omega
        bound = 1 / in_features if is_first else math.sqrt(6 / in_features) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * self.linear(x))


class SIREN(nn.Module):
    """An image as a network of sines (Sitzmann et al. 2020): coordinates to intensity."""

    def __init__(self, features: int = 256, omega: float = 30.0) -> None:
        super().__init__()
        widths = (2, features, features, features)
        self.layers = nn.Sequential(
            *(Sine(i, o, omega, is_first=k == 0) for k, (i, o) in enumerate(pairwise(widths))), nn.Linear(features, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x * 2 - 1)


class NeRF(nn.Module):
    """A radiance field's two MLPs (the sizes of Instant-NGP, Müller et al. 2022): density, and colour by direction.

    The input is the 32 features of a position's hash grid and the 16 spherical harmonics of a direction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.density, self.colour = mlp((32, 64, 16), nn.ReLU), mlp((31, 64, 64, 3), nn.ReLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        position, direction = x.split([32, 16], dim=-1)
        density, geometry = self.density(position).split([1, 15], dim=-1)
        return torch.exp(density), torch.sigmoid(self.colour(torch.cat([direction, geometry], dim=-1)))


class Tower(nn.Module):
    """The top of a click predictor (DLRM, Naumov et al. 2019): joined features to a probability."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.layers = nn.Sequential(mlp((512, 256, 64, 1), nn.ReLU), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.norm(x)).squeeze(-1)


def _example(module: nn.Module, features: int, rows: int = 16) -> Example:
    return module, torch.randn(rows, features)


# name -> the module, with random weights, and an input of 16 rows; one that is nothing but its MLP is in CHAINS, too
NETWORKS: dict[str, Callable[[], Example]] = {
    "ppo": lambda: _example(PPO(), 48),
    "sac_actor": lambda: _example(SACActor(), 17),
    "sac_critics": lambda: _example(SACCritics(), 23),
    "locomotion_flat": lambda: _example(Locomotion((48, 512, 256, 128, 12)), 48),
    "locomotion_rough": lambda: _example(Locomotion((235, 128, 128, 128, 12)), 235),
    "siren": lambda: (SIREN(), torch.rand(16, 2)),
    "nerf": lambda: _example(NeRF(), 48),
    "recommender_tower": lambda: _example(Tower(), 512),
    "deep_narrow": lambda: _example(mlp((1000, *(50,) * 8, 10), nn.ReLU), 1000),
}
