"""What the rewrite decided, one `Decision` for each candidate. Start from `RewriteReport`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fmlp_op.graph import reasons
from fmlp_op.problem import Problem


@dataclass(frozen=True)
class Decision:
    """Whether one chain of linear layers is fused, and why.

    Attributes:
        node: name of the graph node that holds the chain's result, before and after rewriting.
        code: "fused", or the stable code of a reason in `fmlp_op.graph.reasons.SENTENCES`.
        sentence: what was found and what to do.
        layers: names of the nodes of the linear layers.
        graph: name of the sub-graph (the body of a higher-order operator) the chain is in; "" for the graph itself.
        shape: of the input; an int, or the name of a symbolic size. None where it is not known.
        rows: product of the leading dimensions of the input; None where it is symbolic or not known.
        widths: in_features, then the out_features of every layer; None where a weight's shape is not known.
        biases: for every layer, whether it has a bias.
        activation: between the layers, as the operators spell it ("relu", "elu(0.5)"); None where no one activation is.
        output_activation: after the last layer, where it joined the chain; else "identity".
        problem: what a policy decides on; None where a width, the dtype, the device or the activation is not known.
        location: "file:line" of the last layer's source, where the graph tells.
    """

    node: str
    code: str
    sentence: str
    layers: tuple[str, ...]
    graph: str = ""
    shape: tuple[int | str, ...] | None = None
    rows: int | None = None
    widths: tuple[int | str, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    biases: tuple[bool, ...] = ()
    activation: str | None = None
    output_activation: str = "identity"
    problem: Problem | None = None
    location: str | None = None

    @property
    def is_fused(self) -> bool:
        return self.code == reasons.FUSED

    @property
    def problem_text(self) -> str:
        """`16x48 -> 64 -> 24, float32, cpu, bias on 1, 2, relu between, tanh after`, as far as it is known."""
        widths = "" if self.widths is None else " -> ".join(map(str, self.widths[1:]))
        start = "?" if self.shape is None else "x".join(map(str, self.shape))
        with_bias = ", ".join(str(i + 1) for i, b in enumerate(self.biases) if b)
        parts = [
            f"{start} -> {widths}" if widths else start,
            "" if self.dtype is None else str(self.dtype).removeprefix("torch."),
            "" if self.device is None else str(self.device),
            f"bias on {with_bias}" if with_bias else "no bias",
            "" if self.activation is None else f"{self.activation} between",
            "" if self.output_activation == "identity" else f"{self.output_activation} after",
        ]
        return ", ".join(p for p in parts if p)

    def __str__(self) -> str:
        where = f"{self.graph}/{self.node}" if self.graph else self.node
        at = f" ({self.location})" if self.location else ""
        verdict = "fused" if self.is_fused else f"not fused [{self.code}]"
        return f"{where}{at}: {verdict}: {self.sentence}. {self.problem_text}"


@dataclass(frozen=True)
class RewriteReport:
    """What `fmlp_op.rewrite` did: `print(report)` shows a table.

    Attributes:
        fused: the chains that became operators, in graph order.
        rejected: the candidates that were left as they were, in graph order.
    """

    fused: tuple[Decision, ...]
    rejected: tuple[Decision, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.fused)} fused, {len(self.rejected)} not fused"]
        decisions = (*self.fused, *self.rejected)
        names = [f"{d.graph}/{d.node}" if d.graph else d.node for d in decisions]
        wide, wider = max(map(len, names), default=0), max((len(d.code) for d in decisions), default=0)
        for name, d in zip(names, decisions, strict=True):
            lines.append(f"  {name:{wide}}  {d.code:{wider}}  {d.problem_text}")
            lines.append(f"  {'':{wide}}  {'':{wider}}  {d.sentence}" + (f" ({d.location})" if d.location else ""))
        return "\n".join(lines)
