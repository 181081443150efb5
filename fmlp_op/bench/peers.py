"""What is compared: eager, every Inductor mode, the `fmlp` backend, the operator. Start from `build`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fmlp_op.bench.timing import Call, capture
from fmlp_op.bench.workload import Activate

EAGER, OPERATOR, FMLP, INDUCTOR = "eager", "operator", "fmlp compiled", "Inductor"
REDUCE_OVERHEAD, MAX_AUTOTUNE, NO_CUDAGRAPHS = "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
GRAPH_OF_EAGER = "CUDA graph of eager"

# On a CPU, reduce-overhead and the cudagraph half of max-autotune are nothing.
CPU_PEERS = (EAGER, INDUCTOR, MAX_AUTOTUNE, FMLP, OPERATOR)
CUDA_PEERS = (EAGER, GRAPH_OF_EAGER, INDUCTOR, REDUCE_OVERHEAD, MAX_AUTOTUNE, NO_CUDAGRAPHS, FMLP, OPERATOR)
SWEEP_PEERS = (EAGER, INDUCTOR, FMLP, OPERATOR)

_NO_COMPILER = "no C++ compiler, which Inductor needs on a CPU (Debian, Ubuntu: apt install g++)"


@dataclass(frozen=True)
class Peer:
    """One way to compute the same MLP.

    Attributes:
        call: computes it once.
        capturable: it can go into a CUDA graph; what replays a graph of its own cannot.
        times_host: its host time says something about it, not about how the benchmark launches it.
        fused: for the backend, whether its policy fused the MLP.
    """

    name: str
    call: Call
    capturable: bool = True
    times_host: bool = True
    fused: bool | None = None


def operator_call(model: nn.Module, x: Tensor, allow_tf32: bool = False) -> Call:
    """The operator on the weights of a `Workload.model()` that is one MLP."""
    modules = list(model.children())
    linears = [module for module in modules if isinstance(module, nn.Linear)]
    weights, biases = [one.weight for one in linears], [one.bias for one in linears]
    activations = [module.activation for module in modules if isinstance(module, Activate)]
    activation = activations[0]
    output_activation = activations[-1] if len(activations) == len(linears) else "identity"
    if len(linears) == 3 and (activation, output_activation) == ("relu", "identity"):
        return functools.partial(torch.ops.fmlp.fused_mlp, x, *weights, *biases, allow_tf32=allow_tf32)
    chain = torch.ops.fmlp.fused_chain
    return functools.partial(chain, x, weights, biases, activation, output_activation, allow_tf32=allow_tf32)


def build(
    model: nn.Module, x: Tensor, names: Iterable[str], allow_tf32: bool = False
) -> tuple[list[Peer], dict[str, str]]:
    """Make the peers and call each, so that everything is compiled. Call it, and them, under `torch.no_grad()`.

    Returns:
        The peers, in the order of `names`, and for each that is missing a sentence why.
    """
    torch._dynamo.reset()  # or Dynamo would compile for any batch size after the second, and stop after the eighth
    peers: list[Peer] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            peers.append(_build_one(name, model, x, allow_tf32))
        except Exception as error:
            missing[name] = _why(error)
    return peers, missing


def _build_one(name: str, model: nn.Module, x: Tensor, allow_tf32: bool) -> Peer:
    if name == EAGER:
        return Peer(name, _warmed(functools.partial(model, x)))
    if name == OPERATOR:
        return Peer(name, _warmed(operator_call(model, x, allow_tf32)))
    if name == GRAPH_OF_EAGER:
        return Peer(name, capture(functools.partial(model, x), 1).replay, capturable=False)
    if name == FMLP:
        counters = torch._dynamo.utils.counters["fmlp"]
        before = counters["fused"]
        call = _warmed(functools.partial(torch.compile(model, backend="fmlp"), x))
        return Peer(name, call, fused=counters["fused"] > before)
    mode = None if name == INDUCTOR else name
    compiled = torch.compile(model, backend="inductor", mode=mode)
    return Peer(name, _warmed(functools.partial(compiled, x)), capturable=name in (INDUCTOR, NO_CUDAGRAPHS))


def _warmed(call: Call) -> Call:
    for _ in range(3):  # the first compiles, and Inductor records CUDA graphs with the next two
        call()
    return call


def _why(error: Exception) -> str:
    text = str(error)
    if "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
        return _NO_COMPILER
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
