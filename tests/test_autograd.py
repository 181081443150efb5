"""Gradients of the operator: every order, every mode, every transform."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from samples import ALL_BIASES, Sample
from torch.autograd import forward_ad

import fmlp_op
from fmlp_op import reference

fused_mlp = torch.ops.fmlp.fused_mlp
SMALL = Sample(lead=(5,), widths=(7, 9, 6, 3), dtype=torch.float64)


def assert_same(result, expected) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("lead", [(), (0,), (4,), (2, 3)])
@pytest.mark.parametrize("biases", ALL_BIASES)
def test_first_second_and_forward_derivatives_pass_gradcheck(lead, biases, device: str) -> None:
    args = Sample(lead, SMALL.widths, torch.float64, biases).tensors(device, requires_grad=True)
    assert torch.autograd.gradcheck(fused_mlp, args, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(fused_mlp, args)


@pytest.mark.parametrize("mask", list(product((False, True), repeat=7))[1:])
def test_any_subset_of_inputs_may_need_a_gradient(mask: tuple[bool, ...]) -> None:
    args = SMALL.tensors()
    ours = [t.clone().requires_grad_(need) for t, need in zip(args, mask, strict=True)]
    plain = [t.clone().requires_grad_(need) for t, need in zip(args, mask, strict=True)]
    fused_mlp(*ours).square().sum().backward()
    reference.mlp(*plain).square().sum().backward()
    for a, b in zip(ours, plain, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            assert_same(a.grad, b.grad)


def matrix_products(fn) -> int:
    with torch.profiler.profile() as profile:
        fn()
    return sum(e.count for e in profile.key_averages() if e.key == "aten::mm")


@pytest.mark.parametrize(
    ("needed", "products"), [((0,), 3), ((1,), 3), ((3,), 1), ((6,), 0), ((2, 3), 3), (range(7), 6)]
)
def test_frozen_inputs_cost_no_matrix_product(needed, products: int) -> None:
    args = [t.requires_grad_(i in needed) for i, t in enumerate(SMALL.tensors())]
    loss = fused_mlp(*args).sum()
    assert matrix_products(loss.backward) == products


@pytest.mark.parametrize("kind", ["contiguous", "expanded", "transposed", "stepped"])
def test_incoming_gradients_may_have_any_strides(kind: str) -> None:
    args = SMALL.tensors(requires_grad=True)
    y, plain = fused_mlp(*args), reference.mlp(*args)
    grad = {
        "contiguous": torch.randn(5, 3, dtype=torch.float64),
        "expanded": torch.randn((), dtype=torch.float64).expand(5, 3),
        "transposed": torch.randn(3, 5, dtype=torch.float64).t(),
        "stepped": torch.randn(10, 6, dtype=torch.float64)[::2, ::2],
    }[kind]
    assert_same(torch.autograd.grad(y, args, grad), torch.autograd.grad(plain, args, grad))


def test_the_output_may_be_changed_in_place() -> None:
    ours, plain = ([t.clone().requires_grad_() for t in args] for args in [SMALL.tensors()] for _ in range(2))
    fused_mlp(*ours).mul_(2).sum().backward()
    reference.mlp(*plain).mul_(2).sum().backward()
    assert_same([t.grad for t in ours], [t.grad for t in plain])


@pytest.mark.parametrize("output_activation", ["identity", "relu"])
def test_gradients_of_a_chain_equal_plain_torch(output_activation: str) -> None:
    x, *rest = Sample((6,), (5, 7, 6, 8, 4), torch.float64, (True, False, True, True)).tensors(requires_grad=True)
    inputs = [t for t in (x, *rest) if t is not None]
    results = [
        torch.autograd.grad(f(x, rest[:4], rest[4:], "relu", output_activation).square().sum(), inputs)
        for f in (torch.ops.fmlp.fused_chain, reference.chain)
    ]
    assert_same(*results)


def test_gradients_accumulate() -> None:
    ours, plain = ([t.clone().requires_grad_() for t in args] for args in [SMALL.tensors()] for _ in range(2))
    for _ in range(3):
        fused_mlp(*ours).sum().backward()
        reference.mlp(*plain).sum().backward()
    assert_same([t.grad for t in ours], [t.grad for t in plain])


def test_gradient_penalty_equals_plain_torch() -> None:
    def penalty(f):
        args = [t.clone().requires_grad_() for t in tensors]
        (gx,) = torch.autograd.grad(f(*args).sin().sum(), args[:1], create_graph=True)
        (gx.norm(dim=1) - 1).square().mean().backward()
        return [t.grad for t in args if t.grad is not None]

    tensors = SMALL.tensors()
    assert_same(penalty(fused_mlp), penalty(reference.mlp))


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).square().sum()),
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).square().sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones(5, 3, dtype=torch.float64)),
    "vmap": torch.func.vmap,
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum())),
    "grad of no_grad in grad": lambda f: torch.func.grad(lambda x: torch.func.grad(lambda z: quiet(f, z))(x).sum()),
}


def quiet(f, z):
    with torch.no_grad():
        constant = f(z).sum()
    return f(z).square().sum() * constant


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transforms_equal_plain_torch(transform: str, grad_mode: bool) -> None:
    x, *rest = SMALL.tensors()
    with torch.set_grad_enabled(grad_mode):
        result = TRANSFORMS[transform](lambda t: fused_mlp(t, *rest))(x)
        expected = TRANSFORMS[transform](lambda t: reference.mlp(t, *rest))(x)
    assert_same(result, expected)


def test_vmap_over_an_ensemble_equals_a_loop() -> None:
    members = [SMALL.tensors() for _ in range(4)]
    stacked = [torch.stack(ts) for ts in zip(*members, strict=True)]
    assert_same(torch.func.vmap(fused_mlp)(*stacked), torch.stack([reference.mlp(*m) for m in members]))


@pytest.mark.parametrize("grad_mode", [True, False])
def test_dual_tensors_keep_their_tangent(grad_mode: bool) -> None:
    args, tangents = SMALL.tensors(), SMALL.tensors()
    with torch.set_grad_enabled(grad_mode), forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, d) for t, d in zip(args, tangents, strict=True)]
        result, expected = forward_ad.unpack_dual(fused_mlp(*duals)), forward_ad.unpack_dual(reference.mlp(*duals))
        assert_same(result.primal, expected.primal)
        assert_same(result.tangent, expected.tangent)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_follows_the_dtype_of_the_moment(dtype: torch.dtype, device: str) -> None:
    def gradients(f, tensors, context) -> list[torch.Tensor]:
        args = [t.clone().requires_grad_() for t in tensors]
        with context:
            y = f(*args)
        assert y.dtype == (dtype if tensors[0].dtype == torch.float32 else torch.float64)
        return torch.autograd.grad(y.double().square().mean(), args)

    tensors = Sample().tensors(device)
    exact = gradients(reference.mlp, [t.double() for t in tensors], nullcontext())
    plain = gradients(reference.mlp, tensors, torch.autocast(device, dtype))
    ours = gradients(fused_mlp, tensors, torch.autocast(device, dtype))
    for a, b, e in zip(ours, plain, exact, strict=True):
        assert a.dtype == b.dtype == torch.float32
        step = torch.finfo(dtype).eps * e.abs().max()
        assert (a - e).abs().max() <= 2 * (b - e).abs().max() + step


def test_autocast_leaves_float64_alone() -> None:
    args = SMALL.tensors()
    with torch.autocast("cpu", torch.bfloat16):
        assert fused_mlp(*args).dtype == torch.float64


@pytest.fixture
def recomputing():
    fmlp_op.recompute_hidden(True)
    yield
    fmlp_op.recompute_hidden(False)


def saved_bytes(*args: torch.Tensor) -> int:
    """Of what a forward keeps for its backward, parameters and x not counted."""
    own = {t.data_ptr() for t in args}
    sizes: list[int] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in own:
            sizes.append(t.nbytes)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        fused_mlp(*args)
    return sum(sizes)


def test_recomputing_saves_no_hidden_activation_and_gives_the_same_gradients(recomputing) -> None:
    args = SMALL.tensors(requires_grad=True)
    assert saved_bytes(*args) == 0
    plain = torch.autograd.grad(reference.mlp(*args).square().sum(), args)
    assert_same(torch.autograd.grad(fused_mlp(*args).square().sum(), args), plain)
    assert torch.autograd.gradgradcheck(fused_mlp, args)


def test_by_default_the_hidden_activations_are_saved() -> None:
    args = SMALL.tensors(requires_grad=True)
    assert saved_bytes(*args) == 5 * (9 + 6) * 8


def test_checkpointing_recomputes_and_gives_the_same_gradients() -> None:
    from torch.utils.checkpoint import checkpoint

    args = SMALL.tensors(requires_grad=True)
    plain = torch.autograd.grad(reference.mlp(*args).square().sum(), args)
    again = torch.autograd.grad(checkpoint(fused_mlp, *args, use_reentrant=False).square().sum(), args)
    assert_same(again, plain)
