"""`torch.ops.fmlp.fused_mlp`, called directly."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from samples import ALL_BIASES, DTYPES, SAMPLES, Sample, assert_mlp_within_rule, assert_within_rule, poison

import fmlp_op
from fmlp_op import reference

fused_mlp = torch.ops.fmlp.fused_mlp
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)


@every_sample
def test_result_is_within_the_accuracy_rule(sample: Sample, device: str) -> None:
    args = sample.tensors(device)
    poison(device)
    assert_mlp_within_rule(fused_mlp(*args), *args)


@every_sample
def test_opcheck_passes_in_full(sample: Sample, device: str) -> None:
    for requires_grad in (False, True):
        torch.library.opcheck(fused_mlp.default, sample.tensors(device, requires_grad))


@pytest.mark.parametrize("depth", [2, 3, 5, 16])
@pytest.mark.parametrize("output_activation", ["identity", "relu"])
def test_chain_of_any_depth_is_within_the_accuracy_rule(depth: int, output_activation: str, device: str) -> None:
    widths = (10, *(8 + layer for layer in range(depth)))
    sample = Sample(widths=widths, biases=tuple(layer % 2 == 0 for layer in range(depth)))
    x, *rest = sample.tensors(device)
    weights, biases = rest[:depth], rest[depth:]
    poison(device)
    y = torch.ops.fmlp.fused_chain(x, weights, biases, "relu", output_activation)
    assert_within_rule(y, x, weights, biases, "relu", output_activation)
    torch.library.opcheck(torch.ops.fmlp.fused_chain.default, (x, weights, biases, "relu", output_activation))


def as_short_chain(x, weights, biases, *activations) -> tuple:
    """The arguments of `fused_chain` as those of `fused_short_chain_inference`."""
    missing = [None] * (4 - len(weights))
    return (x, *weights, *missing, *biases, *missing, *activations)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("activations", [(), ("tanh",), ("elu(0.5)", "sigmoid")])
def test_short_chain_is_the_chain_with_its_layers_as_single_arguments(depth: int, activations, device: str) -> None:
    short_chain = torch.ops.fmlp.fused_short_chain_inference
    for biases in product((True, False), repeat=depth):
        x, *rest = Sample(widths=(10, 8, 9, 7, 6)[: depth + 1], biases=biases).tensors(device)
        operands = x, rest[:depth], rest[depth:], *activations
        assert torch.equal(short_chain(*as_short_chain(*operands)), torch.ops.fmlp.fused_chain(*operands))
    torch.library.opcheck(short_chain.default, as_short_chain(*operands))
    with torch.autocast(device, torch.bfloat16):
        assert short_chain(*as_short_chain(*operands)).dtype == torch.bfloat16
    rows = torch.func.vmap(lambda row: short_chain(*as_short_chain(row, *operands[1:])))(x)
    torch.testing.assert_close(rows, torch.ops.fmlp.fused_chain(*operands))


def test_short_chain_refuses_a_gap_between_its_weights() -> None:
    x, w1, w2, w3, *_ = Sample().tensors()
    with pytest.raises(RuntimeError, match="w4 is given, but w3 is None"):
        torch.ops.fmlp.fused_short_chain_inference(x, w1, w2, None, w3, None, None, None, None)


@pytest.mark.parametrize("call", [fused_mlp, fmlp_op.fused_mlp, torch.ops.fmlp.fused_mlp_inference])
def test_every_entry_gives_the_same_bits(call, device: str) -> None:
    args = Sample().tensors(device)
    expected = fused_mlp(*args)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            assert torch.equal(call(*args), expected)


def test_wrapper_takes_biases_by_name(device: str) -> None:
    x, w1, w2, w3, _, b2, _ = Sample().tensors(device)
    assert torch.equal(fmlp_op.fused_mlp(x, w1, w2, w3, b2=b2), fused_mlp(x, w1, w2, w3, None, b2))


def test_result_is_the_same_from_run_to_run(device: str) -> None:
    args = Sample(lead=(65,)).tensors(device)
    first = fused_mlp(*args)
    for _ in range(5):
        poison(device)
        assert torch.equal(fused_mlp(*args), first)


def test_inputs_are_not_written_and_output_is_fresh(device: str) -> None:
    args = Sample().tensors(device)
    before = [t.clone() for t in args]
    first, second = fused_mlp(*args), fused_mlp(*args)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))
    assert first.data_ptr() != second.data_ptr()
    assert not {t.data_ptr() for t in args} & {first.data_ptr(), second.data_ptr()}


def test_weights_may_change_between_calls(device: str) -> None:
    args = Sample().tensors(device)
    fused_mlp(*args)
    for t in args[1:]:
        t.mul_(-0.5)
    assert_mlp_within_rule(fused_mlp(*args), *args)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_travel_as_in_torch(dtype: torch.dtype, device: str) -> None:
    x, *rest = Sample(dtype=dtype, lead=(20,)).tensors(device)
    x[3, 5], x[7, 0], x[9, 11] = float("nan"), float("inf"), -float("inf")
    y, plain = fused_mlp(x, *rest), reference.mlp(x, *rest)
    assert torch.equal(y.isfinite(), plain.isfinite())
    assert torch.equal(y.isnan(), plain.isnan())
    rest[0][2, 3] = float("nan")
    assert fused_mlp(x, *rest).isnan().any(dim=1).all()


def test_relu_keeps_nan_from_a_bias(device: str) -> None:
    x, w1, w2, w3, b1, b2, b3 = Sample().tensors(device)
    b1[0] = float("nan")
    assert fused_mlp(x, w1, w2, w3, b1, b2, b3).isnan().all()


def strided_views(t: torch.Tensor):
    """Copies of `t` with other strides, each with the same values."""
    if t.dim() == 2:
        yield "transposed", t.t().contiguous().t()
    wide = torch.full([2 * s + 1 for s in t.shape], 7.0, dtype=t.dtype, device=t.device)
    every_other = wide[tuple(slice(1, None, 2) for _ in t.shape)]
    every_other.copy_(t)
    yield "every other element", every_other
    padded = torch.full((*t.shape[:-1], t.shape[-1] + 5), 7.0, dtype=t.dtype, device=t.device)[..., 3:-2]
    padded.copy_(t)
    yield "rows with padding", padded
    buffer = torch.full((t.numel() + 1,), 7.0, dtype=t.dtype, device=t.device)[1:].view(t.shape)
    buffer.copy_(t)
    yield "one element into a buffer", buffer


@pytest.mark.parametrize("argument", range(7))
@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_may_have_any_strides(argument: int, dtype: torch.dtype, device: str) -> None:
    args = list(Sample(dtype=dtype, widths=(10, 18, 16, 6)).tensors(device))
    for name, view in strided_views(args[argument]):
        use = [*args[:argument], view, *args[argument + 1 :]]
        try:
            assert_mlp_within_rule(fused_mlp(*use), *args)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("shape", [(4, 6, 48), (2, 3, 4, 48)])
def test_batched_x_may_have_any_strides(shape: tuple[int, ...], device: str) -> None:
    x, *rest = Sample(lead=shape[:-1]).tensors(device)
    permuted = x.transpose(0, 1).contiguous().transpose(0, 1)
    expanded = x[:1].expand(x.shape)
    expanded_inside = x.select(-2, 0).unsqueeze(-2).expand(x.shape)
    sliced = torch.cat([x, x], dim=-1)[..., : shape[-1]]
    assert_mlp_within_rule(fused_mlp(permuted, *rest), x, *rest)
    assert_mlp_within_rule(fused_mlp(sliced, *rest), x, *rest)
    assert_mlp_within_rule(fused_mlp(expanded, *rest), expanded, *rest)
    assert_mlp_within_rule(fused_mlp(expanded_inside, *rest), expanded_inside, *rest)


def test_a_column_slice_is_read_in_place(device: str) -> None:
    x, *rest = Sample(lead=(64,), widths=(96, 64, 40, 24)).tensors(device)
    rest[0] = rest[0][:, :48].contiguous()
    with torch.profiler.profile() as profile:
        y = fused_mlp(x[:, 24:72], *rest)
    assert not any("copy" in event.key for event in profile.key_averages())
    assert_mlp_within_rule(y, x[:, 24:72], *rest)


@pytest.mark.parametrize("rows", [65_535, 65_536, 70_001])
def test_large_batches_are_right_in_every_row(rows: int, device: str) -> None:
    args = Sample(lead=(rows,), widths=(3, 5, 4, 2)).tensors(device)
    poison(device)
    assert_mlp_within_rule(fused_mlp(*args), *args)


@pytest.mark.parametrize("zero_at", range(4))
def test_widths_of_zero_are_what_torch_makes_of_them(zero_at: int, device: str) -> None:
    widths = [5, 6, 7, 8]
    widths[zero_at] = 0
    args = Sample(lead=(3,), widths=tuple(widths)).tensors(device)
    torch.testing.assert_close(fused_mlp(*args), reference.mlp(*args))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_dtypes_without_a_kernel_do_what_torch_does(dtype: torch.dtype, device: str) -> None:
    args = [torch.ones(shape, dtype=dtype, device=device) for shape in [(2, 3), (4, 3), (5, 4), (2, 5)]]
    try:
        expected = reference.mlp(*args)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            fused_mlp(*args)
    else:
        assert torch.equal(fused_mlp(*args), expected)


def test_meta_tensors_give_a_meta_result() -> None:
    args = [t.to("meta") for t in Sample(lead=(2, 5)).tensors()]
    y = fused_mlp(*args)
    assert y.device.type == "meta"
    assert y.shape == (2, 5, 24)


def test_sparse_x_does_what_torch_does() -> None:
    x, *rest = Sample().tensors()
    with torch.no_grad():
        torch.testing.assert_close(fused_mlp(x.to_sparse(), *rest), reference.mlp(x, *rest))


X, W1, W2, W3, B1, B2, B3 = range(7)
BAD_CALLS = {
    "x too wide": (X, lambda t: torch.randn(6, 9), "w1 has shape .* but its input has 9 features"),
    "x scalar": (X, lambda t: t[0, 0], "x is a scalar"),
    "x float64": (X, lambda t: t.double(), "w1 and x have different dtypes"),
    "x int64": (X, lambda t: t.long(), "w1 and x have different dtypes"),
    "w1 too narrow": (W1, lambda t: t[:, :4], "w1 has shape .16, 4."),
    "w1 transposed": (W1, lambda t: t.t(), "w1 has shape .8, 16."),
    "w2 one-dimensional": (W2, lambda t: t[0], "w2 has shape .16.; it must be .out_features, in_features."),
    "w3 three-dimensional": (W3, lambda t: t[None], "w3 has shape"),
    "w3 wrong in": (W3, lambda t: torch.randn(4, 11), "w3 has shape .* but its input has 12 features"),
    "w2 bfloat16": (W2, lambda t: t.bfloat16(), "w2 and x have different dtypes"),
    "b1 short": (B1, lambda t: t[:8], "b1 has shape .8.; it must be .16."),
    "b2 long": (B2, lambda t: torch.randn(13), "b2 has shape"),
    "b3 empty": (B3, lambda t: t[:0], "b3 has shape"),
    "b3 broadcast": (B3, lambda t: t[:1], "b3 has shape"),
    "b2 two-dimensional": (B2, lambda t: t[None], "b2 has shape"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_bad_input_raises_one_sentence_that_names_the_argument(case: str, requires_grad: bool) -> None:
    position, spoil, message = BAD_CALLS[case]
    args = list(Sample(lead=(6,), widths=(8, 16, 12, 4)).tensors())
    bad = [t.detach() for t in args]
    bad[position] = spoil(bad[position])
    bad = [t.requires_grad_(requires_grad and t.is_floating_point()) for t in bad]
    with pytest.raises(RuntimeError, match=f"fmlp::fused_mlp: {message}") as raised:
        fused_mlp(*bad)
    assert str(raised.value).count(". ") == 0
    assert_mlp_within_rule(fused_mlp(*args), *args)


@pytest.mark.cuda
@pytest.mark.parametrize("position", range(7))
def test_mixed_devices_are_refused_by_name(position: int) -> None:
    args = list(Sample().tensors("cuda"))
    args[position] = args[position].cpu()
    with pytest.raises(RuntimeError, match="are on different devices"):
        fused_mlp(*args)


def test_a_missing_weight_is_a_type_error_of_torch() -> None:
    x, w1, *_ = Sample().tensors()
    with pytest.raises(RuntimeError, match="missing"):
        fused_mlp(x, w1)


@pytest.mark.parametrize(
    ("weights", "biases", "activation", "message"),
    [
        (1, 1, "relu", "weights holds 1 tensors; it must hold 2 to 16"),
        (17, 17, "relu", "weights holds 17 tensors"),
        (3, 2, "relu", "biases holds 2 entries; it must hold 3"),
        (3, 3, "gleu", 'activation is "gleu"; it must be one of'),
        (3, 3, "relu(1)", "relu takes at most 0 numbers"),
        (3, 3, "", "it must be one of"),
    ],
)
def test_bad_chains_raise_one_sentence(weights: int, biases: int, activation: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.ops.fmlp.fused_chain(torch.randn(2, 4), [torch.randn(4, 4)] * weights, [None] * biases, activation)


@pytest.mark.parametrize("biases", ALL_BIASES)
def test_many_threads_get_their_own_right_results(biases: tuple[bool, ...], device: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    calls = [Sample(lead=(rows,), biases=biases).tensors(device) for rows in (1, 16, 33, 64)]
    expected = [fused_mlp(*args) for args in calls]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: fused_mlp(*calls[i % 4]), range(64)))
    assert all(torch.equal(result, expected[i % 4]) for i, result in enumerate(results))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        for sample in (Sample(lead=(4096,)), Sample(lead=(2,), widths=(512, 512, 512, 512))):
            args = sample.tensors()
            results = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results.append(fused_mlp(*args))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


def test_profiler_shows_the_operator_by_name_with_shapes() -> None:
    args = Sample().tensors()
    with torch.profiler.profile(record_shapes=True) as profile:
        fused_mlp(*args)
    (event,) = [e for e in profile.events() if e.name == "fmlp::fused_mlp"]
    assert event.input_shapes[:2] == [[16, 48], [64, 48]]


def test_reference_is_what_functional_linear_says() -> None:
    x, w1, w2, w3, b1, b2, b3 = Sample().tensors()
    assert torch.equal(
        reference.mlp(x, w1, w2, w3, b1, b2, b3),
        F.linear(F.relu(F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)), w3, b3),
    )


@pytest.mark.parametrize("needs_grad", [False, True])
def test_flop_counter_counts_two_a_weight_and_row(needs_grad: bool) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    args = Sample(lead=(4, 4)).tensors(requires_grad=needs_grad)
    with FlopCounterMode(display=False) as counter:
        fused_mlp(*args)
        torch.ops.fmlp.fused_chain(args[0], args[1:4], args[4:])
        torch.ops.fmlp.fused_short_chain_inference(*as_short_chain(args[0], args[1:4], args[4:]))
    assert counter.get_total_flops() == 3 * 2 * 16 * (48 * 64 + 64 * 40 + 40 * 24)
