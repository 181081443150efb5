"""The operators as plain ATen, for exporters that know no custom operators (ONNX). Start from `decompositions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fmlp_op import ops, reference


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A table for `ExportedProgram.run_decompositions`: every operator of ours to linear layers and activations.

    Example:
        >>> program = torch.export.export(model, (x,))
        >>> fmlp_op.rewrite(program)
        >>> plain = program.run_decompositions({**torch.export.default_decompositions(), **fmlp_op.decompositions()})
    """
    return {
        torch.ops.fmlp.fused_mlp.default: reference.mlp,
        torch.ops.fmlp.fused_mlp_inference.default: reference.mlp,
        torch.ops.fmlp.fused_chain.default: ops.chain_reference,
        torch.ops.fmlp.fused_chain_inference.default: ops.chain_reference,
        torch.ops.fmlp.fused_short_chain_inference.default: ops.short_chain(ops.chain_reference),
    }
