"""Every reason code, with the sentence it stands for. Start from `sentence`.

Codes are stable: counters, logs and users' tests read them. A sentence says what was found and, where something can be
done, what to do.
"""

from __future__ import annotations

FUSED = "fused"
POLICY = "policy"
TOO_SHORT = "chain-too-short"

SENTENCES: dict[str, str] = {
    FUSED: "{layers} linear layers run as one {operator}",
    POLICY: "fusing was declined: {found}",
    TOO_SHORT: "{found} linear layer(s) in a row; two to sixteen with the same activation between them are needed",
    "no-activation-between": "no activation stands between {where}; one is needed there",
    "activation-unknown": "{found} stands between {where}; only what equals an activation of fmlp_op.activations, "
    "gradient included, can be fused",
    "other-op-between": "{found} stands between {where}; only one activation and steps that change no value may",
    "hidden-value-reused": "the hidden value {found} has another reader or is returned; drop the other use to fuse",
    "mutation-between": "{found} writes to a tensor between the layers; move the write before or after the MLP",
    "mode-switch-between": "{found} switches grad mode, autocast or such between the layers; keep the MLP on one side",
    "unknown-call-between": "{found} between the layers may do anything; move the call before or after the MLP",
    "functorch-transform": "the layers run inside a torch.func transform ({found}), which needs them one by one",
    "dropout-active": "dropout {found} is active between {where}; call model.eval(), or set p=0",
    "detach-between": "{found} cuts the gradient between {where}; run under torch.no_grad() or remove it",
    "cast-between": "{found} changes, or may change, dtype or device between {where}; keep one of each throughout",
    "view-between": "{found} between {where} changes the last dimension or mixes rows, or cannot be shown not to",
    "dtype-mismatch": "dtypes differ ({found}); bring input, weights and biases to one dtype, or use autocast",
    "dtype-unsupported": "dtype {found} is not one of float32, float16, bfloat16, float64",
    "device-mismatch": "devices differ ({found}); move input, weights and biases to one device",
    "weight-not-2d": "a weight has shape {found}; a weight of shape (out_features, in_features) is needed",
    "weight-batched": "the weight or bias {found} differs from sample to sample (torch.vmap over parameters)",
    "weight-not-transposed": "the weight {found} is multiplied without being transposed; store it as "
    "(out_features, in_features) and use F.linear",
    "tensor-subclass": "{found} is a tensor subclass (DTensor, quantized, nested), whose linear is its own",
    "layout-not-strided": "{found} has a layout other than strided; convert it with to_dense()",
    "bias-shape": "a bias has shape {found} where (out_features,) is needed",
    "addmm-scaled": "addmm scales its operands ({found}); a linear layer has alpha=1 and beta=1",
    "linear-subclass": "{found} is a subclass of nn.Linear or parametrized, and may compute something else",
    "module-hooks": "the module {found} has hooks or a forward of its own; remove them to fuse",
    "shapes-unknown": "nothing tells the shape of {found}; run torch.fx.passes.shape_prop.ShapeProp first",
}


def sentence(code: str, **found: object) -> str:
    """The sentence for a code. Raises KeyError for a code that is not in the table."""
    return SENTENCES[code].format(**found)
