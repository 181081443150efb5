"""Random programs around MLP pieces: rewritten or not, they compute what they did, with all writes and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graph_tools import aten, dynamo, symbolic
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

WIDTH = 4  # square everywhere, so that no shape gives a mistake away

RELUS: list[Callable[[Tensor], Tensor]] = [
    torch.relu,
    F.relu,
    lambda h: F.relu(h, inplace=True),
    lambda h: h.relu(),
    lambda h: h.relu_(),
    lambda h: torch.relu_(h),
    lambda h: h.clamp(min=0),
]
ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    lambda h: h.sigmoid_(),
    lambda h: F.elu(h, 0.5, inplace=True),
    lambda h: F.elu(h),
    lambda h: F.leaky_relu(h, 0.2),
    F.silu,
    lambda h: torch.sin(3 * h),
    lambda h: F.gelu(h, approximate="tanh"),
]
OTHERS: list[Callable[[Tensor], Tensor]] = [
    lambda h: h,
    lambda h: F.dropout(h, 0.5, False),
    lambda h: h.contiguous(),
    lambda h: h.view(-1, WIDTH),
    lambda h: h.reshape(2, -1, WIDTH),
    lambda h: h.transpose(0, 1).reshape(-1, WIDTH),
    lambda h: h.transpose(-1, -2),
    lambda h: h * 2,
    lambda h: h + 1,
    torch.tanh,
    F.relu6,
    lambda h: h.detach(),
    lambda h: h.clone(),
]
WRITES: list[Callable[[Tensor], object]] = [
    lambda t: t.add_(1),
    lambda t: t[..., 0].fill_(0.5),
    lambda t: t.relu_(),
    lambda t: F.relu(t, inplace=True),
    lambda t: t.view(-1)[:2].mul_(3),
]


class Program(nn.Module):
    """A random straight-line program; every statement makes a tensor from one before, or writes to one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=i % 3 > 0) for i in range(4))
        # mostly one activation in a program, so that chains come about
        self.activation = None if choose.random() < 0.5 else choose.choice(ACTIVATIONS)
        self.statements: list[tuple[int, Callable[[Tensor], Tensor], bool]] = []  # operand, function, whether it writes
        count = 1
        for _ in range(choose.randint(4, 14)):
            # mostly the newest tensor, so that chains come about
            operand = count - 1 if choose.random() < 0.85 else choose.randrange(count)
            kind = choose.random()
            if kind < 0.6:
                self.statements.append((operand, self._linear(choose), False))
                count += 1
                if choose.random() < 0.9:
                    is_relu = self.activation is None or choose.random() < 0.1
                    self.statements.append((count - 1, choose.choice(RELUS) if is_relu else self.activation, False))
                    count += 1
            elif kind < 0.85:
                self.statements.append((operand, choose.choice(OTHERS), False))
                count += 1
            else:
                self.statements.append((choose.randrange(count), choose.choice(WRITES), True))
        self.kept = [count - 1] + ([choose.randrange(count)] if choose.random() < 0.4 else [])

    def _linear(self, choose: random.Random) -> Callable[[Tensor], Tensor]:
        layer = self.layers[choose.randrange(len(self.layers))]
        spelling = choose.random()
        if spelling < 0.4:
            return layer
        if spelling < 0.7:
            return lambda h: F.linear(h, layer.weight, layer.bias)
        flipped = choose.random() < 0.2

        def product(h: Tensor) -> Tensor:
            y = h @ (layer.weight if flipped else layer.weight.t())
            return y if layer.bias is None else y + layer.bias

        return product

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        tensors = [x * 1]
        for operand, function, writes in self.statements:
            result = function(tensors[operand])
            if not writes:
                tensors.append(result)
        return tuple(tensors[i].clone() for i in self.kept)


def run_or_error(f: Callable[..., tuple[Tensor, ...]], x: Tensor, parameters: list[nn.Parameter]):
    """Outputs and gradients; None where torch refuses: a view that cannot be, a value overwritten too soon."""
    for p in parameters:
        p.grad = None
    try:
        outputs = f(x)
        loss = sum((t * t.detach().cos()).sum() for t in outputs)
        if loss.requires_grad:
            loss.backward()
    except RuntimeError:
        return None
    return [t.detach() for t in outputs], [None if p.grad is None else p.grad.clone() for p in parameters]


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dialect", [dynamo, symbolic, aten])
def test_random_programs_compute_what_they_did(dialect, train: bool) -> None:
    fused = compared = 0
    for seed in range(40 if dialect is dynamo else 150):
        torch.manual_seed(seed)
        model, x = Program(seed), torch.randn(4, WIDTH)
        parameters = list(model.parameters())
        with torch.set_grad_enabled(train):
            try:
                expected = run_or_error(model, x, parameters)
                if expected is None:
                    continue
                if dialect is aten:  # what make_fx traces is taken as it is: from torch 2.14 on, detach is an alias
                    expected = run_or_error(make_fx(model)(x), x, parameters)
                torch._dynamo.reset()
                rewritten = dialect(model, x)
                actual = run_or_error(rewritten.run, x, parameters)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error}") from error
        fused, compared = fused + rewritten.operators, compared + 1
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4, msg=lambda m, s=seed: f"seed {s}: {m}")
    assert compared > 15 and fused > 3, (compared, fused)
