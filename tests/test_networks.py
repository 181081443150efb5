"""Networks people run: every MLP in them is found, in inference and in training, and they compute what they did."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from fmlp_op.bench.networks import NETWORKS
from fmlp_op.explain import explain
from fmlp_op.testing import assert_fused

OPTIONS = {"fmlp.policy": "always", "fmlp.inner": "aot_eager"}

# widths, activation and output activation of every chain
CHAINS: dict[str, list[tuple[tuple[int, ...], str, str]]] = {
    "ppo": [((48, 64, 64, 12), "tanh", "identity"), ((48, 64, 64, 1), "tanh", "identity")],
    "sac_actor": [((17, 256, 256), "relu", "relu")],
    "sac_critics": [((23, 256, 256, 1), "relu", "identity")] * 2,
    "locomotion_flat": [((48, 512, 256, 128, 12), "elu", "identity")],
    "locomotion_rough": [((235, 128, 128, 128, 12), "elu", "identity")],
    "siren": [((2, 256, 256, 256, 1), "sin(30.0)", "identity")],
    "nerf": [((32, 64, 16), "relu", "identity"), ((31, 64, 64, 3), "relu", "sigmoid")],
    "recommender_tower": [((512, 256, 64, 1), "relu", "sigmoid")],
    "deep_narrow": [((1000, 50, 50, 50, 50, 50, 50, 50, 50, 10), "relu", "identity")],
}
networks = pytest.mark.parametrize("name", NETWORKS)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def outputs(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def step(model, x: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Outputs and all gradients of one training step."""
    x = x.clone().requires_grad_()
    results = outputs(model(x))
    gradients = torch.autograd.grad(sum(y.square().mean() for y in results), [x, *parameters])
    return [*(y.detach() for y in results), *gradients]


def test_every_network_has_its_chains_written_down() -> None:
    assert CHAINS.keys() == NETWORKS.keys()


@networks
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_the_expected_chains_are_fused(name: str, train: bool) -> None:
    model, x = NETWORKS[name]()
    model.train(train)
    with torch.set_grad_enabled(train):
        assert_fused(model, x, count=len(CHAINS[name]))
        found = [(d.widths, d.activation, d.output_activation) for d in explain(model, x, policy="always").fused]
    assert found == CHAINS[name]


@networks
def test_inference_equals_eager(name: str, device: str) -> None:
    model, x = NETWORKS[name]()
    model, x = model.eval().to(device), x.to(device)
    compiled = torch.compile(model, backend="fmlp", options=OPTIONS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert counters["fmlp"]["fused"] == len(CHAINS[name])


@networks
def test_a_training_step_equals_eager(name: str, device: str) -> None:
    model, x = NETWORKS[name]()
    model, x = model.to(device), x.to(device)
    compiled = torch.compile(model, backend="fmlp", options=OPTIONS)
    parameters = list(model.parameters())
    torch.testing.assert_close(step(compiled, x, parameters), step(model, x, parameters), rtol=1e-4, atol=1e-6)
    assert counters["fmlp"]["fused"] == len(CHAINS[name])
