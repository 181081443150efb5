"""Models, dialects and printing for the tests of the graph rewrite. Start from `DIALECTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fmlp_op.graph import RewriteReport, rewrite

OPERATORS = (torch.ops.fmlp.fused_mlp.default, torch.ops.fmlp.fused_chain.default)


@dataclass
class Rewritten:
    """A model after the rewrite: `run` computes what the model does."""

    report: RewriteReport
    graph_module: fx.GraphModule
    run: Callable[..., Any]

    @property
    def codes(self) -> list[str]:
        return [d.code for d in self.report.rejected]

    @property
    def operators(self) -> int:
        """Fused operators in the graph and the graphs inside."""
        graphs = [m.graph for m in self.graph_module.modules() if isinstance(m, fx.GraphModule)]
        return sum(n.target in OPERATORS for g in graphs for n in g.nodes)


def dynamo(model: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Rewritten:
    seen: list[tuple[RewriteReport, fx.GraphModule]] = []

    def backend(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.append((rewrite(gm), gm))
        return gm.forward

    run = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    run(*args)
    return Rewritten(*seen[-1], run)


def symbolic(model: nn.Module, *args: Any) -> Rewritten:
    gm = fx.symbolic_trace(model)
    return Rewritten(rewrite(gm), gm, gm)


def aten(model: Callable[..., Any], *args: Any) -> Rewritten:
    gm = make_fx(model)(*args)
    return Rewritten(rewrite(gm), gm, gm)


def exported(model: nn.Module, *args: Any) -> Rewritten:
    program = torch.export.export(model, args)
    return Rewritten(rewrite(program), program.graph_module, program.module())


def decomposed(model: nn.Module, *args: Any) -> Rewritten:
    program = torch.export.export(model, args).run_decompositions()
    return Rewritten(rewrite(program), program.graph_module, program.module())


DIALECTS: dict[str, Callable[..., Rewritten]] = {f.__name__: f for f in (dynamo, symbolic, aten, exported, decomposed)}


class Net(nn.Module):
    """Three linear layers; `between` and `between2` stand where the activations do."""

    def __init__(
        self,
        between: Callable[..., Tensor] = torch.relu,
        between2: Callable[..., Tensor] | None = None,
        widths: tuple[int, ...] = (12, 10, 8, 6),
        biases: tuple[bool, ...] = (True, True, True),
    ) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(i, o, bias=bias) for i, o, bias in zip(widths, widths[1:], biases, strict=False)
        )
        self.between, self.between2 = between, between2 or between

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.between2(self.b(self.between(self.a(x)))))


def chain(depth: int, width: int = 8, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    modules: list[nn.Module] = []
    for _ in range(depth):
        modules += [nn.Linear(width, width), activation()]
    return nn.Sequential(*modules[:-1])


def step(run: Callable[..., Any], x: Tensor, parameters: list[nn.Parameter]) -> tuple[Any, list[Tensor | None]]:
    """Outputs, and the gradients of x and of the parameters."""
    x = x.detach().clone().requires_grad_()
    result = run(x)
    outputs = [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if t.requires_grad]
    gradients = torch.autograd.grad(
        [(t * t.detach().cos()).sum() for t in outputs], [x, *parameters], allow_unused=True
    )
    return result, list(gradients)


def assert_same_step(run: Callable[..., Any], model: nn.Module, x: Tensor) -> None:
    """Values, dtypes, shapes and every gradient equal eager's."""
    parameters = list(model.parameters())
    torch.testing.assert_close(step(run, x, parameters), step(model, x, parameters), rtol=1e-4, atol=1e-5)


def text(gm: fx.GraphModule) -> str:
    """The graph with positional names, the same on every torch: inputs i0, i1…, values v0, v1…"""
    names: dict[fx.Node, str] = {}
    counts = {"i": 0, "v": 0}
    lines = []
    for node in gm.graph.nodes:
        if node.op != "output":
            kind = "i" if node.op == "placeholder" else "v"
            names[node] = f"{kind}{counts[kind]}"
            counts[kind] += 1
        if node.op == "placeholder":
            continue
        arguments = [_argument(a, names) for a in node.args]
        arguments += [f"{k}={_argument(v, names)}" for k, v in node.kwargs.items()]
        called = {"output": "return", "get_attr": f"self.{node.target}"}.get(node.op) or _called(node)
        call = called if node.op == "get_attr" else f"{called}({', '.join(arguments)})"
        lines.append(call if node.op == "output" else f"{names[node]} = {call}")
    return "\n".join(lines)


def _called(node: fx.Node) -> str:
    if node.op == "call_method":
        return f".{node.target}"
    if node.op == "call_module":
        return f"self.{node.target}"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return str(getattr(node.target, "__name__", node.target))


def _argument(value: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_argument(v, names) for v in value) + "]"
    return repr(value)
