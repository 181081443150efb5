"""What the rewrite fuses, in every dialect, and that the result is the same function."""

from __future__ import annotations

import io
import itertools

import pytest
import torch
import torch.nn.functional as F
from graph_tools import DIALECTS, Net, assert_same_step, aten, chain, decomposed, dynamo, exported, symbolic
from torch import Tensor, nn
from torch.export import Dim

from fmlp_op.activations import ACTIVATIONS
from fmlp_op.graph import rewrite

dialects = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def assert_fused(rewritten, model, x: Tensor, count: int = 1) -> None:
    """`count` operators, and values, dtypes, shapes and gradients as before."""
    assert len(rewritten.report.fused) == rewritten.operators == count, str(rewritten.report)
    with torch.no_grad():
        torch.testing.assert_close(rewritten.run(x), model(x))
    assert_same_step(rewritten.run, model, x)


@dialects
@pytest.mark.parametrize("biases", list(itertools.product((True, False), repeat=3)))
def test_every_combination_of_biases_is_fused(dialect, biases) -> None:
    model, x = Net(biases=biases), torch.randn(5, 12)
    rewritten = dialect(model, x)
    assert_fused(rewritten, model, x)
    assert rewritten.report.fused[0].biases == biases


@dialects
@pytest.mark.parametrize("lead", [(), (1,), (0,), (5,), (2, 3), (1, 1), (2, 3, 4)])
def test_any_number_of_leading_dimensions_is_fused(dialect, lead) -> None:
    model, x = Net(), torch.randn(*lead, 12)
    assert_fused(dialect(model, x), model, x)


@dialects
@pytest.mark.parametrize("shape", ["transposed", "column slice", "expanded"])
def test_an_input_of_any_layout_is_fused(dialect, shape) -> None:
    x = {
        "transposed": torch.randn(3, 2, 12).transpose(0, 1),
        "column slice": torch.randn(2, 3, 20)[..., 4:16],
        "expanded": torch.randn(1, 12).expand(5, 12),
    }[shape]
    model = Net(biases=(True, False, True))
    assert_fused(dialect(model, x), model, x)


SPELLINGS = {
    "F.relu": F.relu,
    "F.relu inplace": lambda h: F.relu(h, inplace=True),
    "F.relu True": lambda h: F.relu(h, True),
    "F.relu keyword": lambda h: F.relu(input=h),
    "torch.relu": torch.relu,
    "torch.relu_": lambda h: torch.relu_(h),
    "F.relu_": lambda h: F.relu_(h),
    "method relu": lambda h: h.relu(),
    "method relu_": lambda h: h.relu_(),
    "aten.relu": torch.ops.aten.relu.default,
    "aten.relu_ packet": torch.ops.aten.relu_,
    "relu twice": lambda h: F.relu(F.relu(h)),
}


@dialects
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_relu_is_fused(dialect, spelling) -> None:
    model, x = Net(SPELLINGS[spelling]), torch.randn(5, 12)
    assert_fused(dialect(model, x), model, x)


# Decomposed, they are a comparison and a selection.
@pytest.mark.parametrize("dialect", [dialect for dialect in DIALECTS.values() if dialect is not decomposed])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_threshold_at_zero_is_fused_as_relu(dialect, inplace) -> None:
    model, x = Net(lambda h: F.threshold(h, 0.0, 0.0, inplace)), torch.randn(5, 12)
    assert_fused(dialect(model, x), model, x)


@dialects
@pytest.mark.parametrize("inplace", [False, True])
def test_relu_modules_are_fused(dialect, inplace) -> None:
    model, x = Net(nn.ReLU(inplace)), torch.randn(5, 12)
    before = x.clone()
    assert_fused(dialect(model, x), model, x)
    assert torch.equal(x, before)


CLAMPS = {
    "clamp min": lambda h: h.clamp(min=0),
    "torch.clamp": lambda h: torch.clamp(h, 0.0),
    "clamp_min": lambda h: h.clamp_min(0),
    "clamp_": lambda h: h.clamp_(min=0.0),
    "clip": lambda h: torch.clip(h, min=0),
}


@dialects
@pytest.mark.parametrize("spelling", CLAMPS)
def test_clamp_at_zero_is_fused_where_no_gradient_is_needed(dialect, spelling) -> None:
    model, x = Net(CLAMPS[spelling]), torch.randn(5, 12)
    with torch.no_grad():
        rewritten = dialect(model, x)
        assert rewritten.operators == 1, str(rewritten.report)
        torch.testing.assert_close(rewritten.run(x), model(x))


SAME = {
    "dropout eval": lambda h: F.dropout(h, 0.5, False),
    "dropout p=0": lambda h: F.dropout(h, p=0.0),
    "alpha dropout by default": lambda h: F.alpha_dropout(h),
    "torch.dropout": lambda h: torch.dropout(h, 0.3, False),
    "contiguous": lambda h: h.contiguous(),
    "clone": lambda h: h.clone(),
    "view as itself": lambda h: h.view(h.shape),
    "nn.Identity": nn.Identity(),
    "nn.Dropout": nn.Dropout(0.3).eval(),
    "nn.Dropout p=0": nn.Dropout(0.0),
    "to its own dtype": lambda h: h.to(torch.float32),
    "float": lambda h: h.float(),
}


@pytest.mark.parametrize("dialect", [d for n, d in DIALECTS.items() if n != "symbolic"])
@pytest.mark.parametrize("spelling", SAME)
def test_steps_that_change_no_value_are_fused(dialect, spelling) -> None:
    same = SAME[spelling]
    model, x = Net(lambda h: torch.relu(same(h)), lambda h: same(torch.relu(h))), torch.randn(5, 12)
    assert_fused(dialect(model, x), model, x)


@pytest.mark.parametrize("spelling", [s for s in SAME if s not in ("to its own dtype", "float", "view as itself")])
def test_steps_that_change_no_value_are_fused_without_metadata(spelling) -> None:
    same, relu = SAME[spelling], nn.ReLU()
    if isinstance(same, nn.Module):
        model = Net(nn.Sequential(same, relu), nn.Sequential(relu, same))
    else:
        model = Net(lambda h: torch.relu(same(h)), lambda h: same(torch.relu(h)))
    x = torch.randn(5, 12)
    assert_fused(symbolic(model, x), model, x)


RESHAPES = {
    "view to rows": lambda h: h.view(-1, h.shape[-1]),
    "reshape to rows": lambda h: h.reshape((6, -1)),
    "flatten": lambda h: h.flatten(0, 1),
    "torch.flatten": lambda h: torch.flatten(h, end_dim=-2),
    "unsqueeze": lambda h: h.unsqueeze(0),
    "unflatten": lambda h: h.unflatten(0, (1, 2)),
    "to rows and back": lambda h: h.view(6, -1).view(2, 3, -1),
}


@pytest.mark.parametrize("dialect", [d for n, d in DIALECTS.items() if n != "symbolic"])
@pytest.mark.parametrize("spelling", RESHAPES)
@pytest.mark.parametrize("first", [False, True])
def test_reshapes_that_keep_the_last_dimension_are_fused(dialect, spelling, first) -> None:
    reshape = RESHAPES[spelling]
    around = (lambda h: reshape(torch.relu(h)), torch.relu)
    model, x = Net(*(around if first else around[::-1])), torch.randn(2, 3, 12)
    rewritten = dialect(model, x)
    assert_fused(rewritten, model, x)


@pytest.mark.parametrize("spelling", ["unsqueeze", "flatten to -2", "explicit view"])
def test_reshapes_are_fused_without_metadata_where_their_arguments_say_enough(spelling) -> None:
    reshape = {
        "unsqueeze": lambda h: h.unsqueeze(0),
        "flatten to -2": lambda h: h.flatten(0, -2),
        "explicit view": lambda h: h.view(-1, 10),
    }[spelling]
    model, x = Net(lambda h: reshape(torch.relu(h)), torch.relu), torch.randn(2, 3, 12)
    assert_fused(symbolic(model, x), model, x)


def test_an_input_flattened_to_rows_and_back_needs_no_reshape() -> None:
    net = Net()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.view(-1, 12)).view(2, 3, 6)

    model, x = Around(), torch.randn(2, 3, 12)
    rewritten = dynamo(model, x)
    assert_fused(rewritten, model, x)
    assert len([n for n in rewritten.graph_module.graph.nodes if n.op.startswith("call")]) == 1


@dialects
@pytest.mark.parametrize("depth", [2, 3, 4, 9, 16])
def test_a_chain_of_2_to_16_layers_becomes_one_operator(dialect, depth) -> None:
    model, x = chain(depth), torch.randn(5, 8)
    rewritten = dialect(model, x)
    assert_fused(rewritten, model, x)
    assert rewritten.codes == [] and len(rewritten.report.fused[0].layers) == depth


@pytest.mark.parametrize(
    ("depth", "chains", "codes"),
    [(17, [16], ["chain-too-short"]), (18, [16, 2], []), (35, [16, 16, 3], [])],
)
def test_a_longer_chain_is_cut_with_its_activations_in_the_operators(depth, chains, codes) -> None:
    model, x = chain(depth), torch.randn(5, 8)
    rewritten = dynamo(model, x)
    assert_fused(rewritten, model, x, count=len(chains))
    assert [len(d.layers) for d in rewritten.report.fused] == chains and rewritten.codes == codes
    assert all(d.output_activation == "relu" for d in rewritten.report.fused[: depth // 16])


@dialects
def test_three_layers_with_relu_and_nothing_after_become_the_plain_operator(dialect) -> None:
    for depth, tail, operator in ((3, [], "fused_mlp"), (2, [], "fused_chain"), (3, [nn.ReLU()], "fused_chain")):
        model = nn.Sequential(*chain(depth), *tail)
        rewritten = dialect(model, torch.randn(5, 8))
        calls = [str(n.target) for n in rewritten.graph_module.graph.nodes]
        assert [c for c in calls if c.startswith("fmlp.")] == [f"fmlp.{operator}.default"]
        assert operator in rewritten.report.fused[0].sentence


@pytest.mark.parametrize("dialect", [dynamo, symbolic, aten, exported])
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "identity"])
@pytest.mark.parametrize("change", [0.0, 0.5], ids=["default", "changed"])
def test_every_activation_is_fused_between_layers_and_after_the_last(dialect, name, change) -> None:
    entry = ACTIVATIONS[name]
    values = tuple(default + change for _, default in entry.parameters)

    def activation(h: Tensor) -> Tensor:
        return entry.reference(h, *values)

    class Squashed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return activation(super().forward(x))

    x, text = torch.randn(5, 12), entry.format(values)
    for net, after in ((Net, "identity"), (Squashed, text)):
        model = net(activation)
        rewritten = dialect(model, x)
        assert_fused(rewritten, model, x)
        (decision,) = rewritten.report.fused
        assert (decision.activation, decision.output_activation) == (text, after)
        assert (decision.problem.activation, decision.problem.output_activation) == (text, after)
        assert f"{text} between" in decision.problem_text


@dialects
def test_another_activation_ends_a_chain_as_its_output_activation(dialect) -> None:
    layers = [nn.Linear(8, 8) for _ in range(6)]
    between = [nn.ReLU(), nn.Tanh(), nn.Tanh(), nn.Tanh(), nn.ReLU(), nn.Sigmoid()]
    model, x = nn.Sequential(*(m for pair in zip(layers, between, strict=True) for m in pair)), torch.randn(5, 8)
    rewritten = dialect(model, x)
    assert_fused(rewritten, model, x, count=2)
    found = [(len(d.layers), d.activation, d.output_activation) for d in rewritten.report.fused]
    assert found == [(2, "relu", "tanh"), (3, "tanh", "relu")] and rewritten.codes == ["chain-too-short"]


SCALED = {
    "30 *": lambda h: torch.sin(30 * h),
    "* 30.0": lambda h: torch.sin(h * 30.0),
    "torch.mul": lambda h: torch.mul(h, 30).sin(),
    "multiply": lambda h: h.multiply(30.0).sin_(),
    "dropout between": lambda h: torch.sin(F.dropout(30 * h, 0.5, False)),
}


@dialects
@pytest.mark.parametrize("spelling", SCALED)
def test_a_constant_before_a_sine_is_its_frequency(dialect, spelling) -> None:
    model, x = Net(SCALED[spelling]).double(), torch.randn(5, 12, dtype=torch.float64)
    rewritten = dialect(model, x)
    assert_fused(rewritten, model, x)
    assert rewritten.report.fused[0].activation == "sin(30.0)"


def test_sines_of_two_frequencies_are_two_activations() -> None:
    model, x = nn.Sequential(Net(lambda h: torch.sin(2 * h), torch.sin)), torch.randn(5, 12)
    rewritten = dynamo(model, x)
    assert_fused(rewritten, model, x)
    assert [(len(d.layers), d.activation, d.output_activation) for d in rewritten.report.fused] == [
        (2, "sin(2.0)", "sin")
    ]


def _switched(y: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.relu(y)


def _written(y: Tensor) -> Tensor:
    z = torch.relu(y)
    z[0] = 1.0
    return z


STAYS = {
    "another reader": lambda y: torch.relu(y) + y,
    "a cast before": lambda y: torch.relu(y.double()),
    "a clamp's other gradient": lambda y: y.clamp(min=0),
    "a mode switch before": _switched,
    "a write after": _written,
    "a write to a view after": lambda y: torch.relu(y).view(-1).mul_(2.0),
    "a scale before": lambda y: torch.relu(2 * y),
}


@pytest.mark.parametrize("dialect", [dynamo, exported])
@pytest.mark.parametrize("name", STAYS)
def test_an_activation_after_the_last_layer_stays_outside_where_the_operator_would_be_another_function(
    dialect, name
) -> None:
    after = STAYS[name]

    class Tail(Net):
        def forward(self, x: Tensor) -> Tensor:
            return after(super().forward(x))

    model, x = Tail(), torch.randn(5, 12)
    rewritten = dialect(model, x)
    (decision,) = rewritten.report.fused
    assert (decision.output_activation, rewritten.operators) == ("identity", 1)
    with torch.no_grad():
        torch.testing.assert_close(rewritten.run(x), model(x))


def test_a_clamp_at_zero_after_the_last_layer_joins_where_no_gradient_is_needed() -> None:
    class Tail(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).clamp(min=0)

    model, x = Tail(), torch.randn(5, 12)
    with torch.no_grad():
        rewritten = dynamo(model, x)
        assert rewritten.report.fused[0].output_activation == "relu"
        torch.testing.assert_close(rewritten.run(x), model(x))


def test_a_write_to_an_output_whose_derivative_eager_takes_from_the_input_still_trains() -> None:
    class Tail(Net):
        def forward(self, x: Tensor) -> Tensor:
            return F.elu(super().forward(x)).mul_(2.0)

    model, x = Tail(), torch.randn(5, 12)
    assert_fused(dynamo(model, x), model, x)


@dialects
def test_one_linear_used_three_times_is_fused(dialect) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.f(self.f(self.f(x).relu()).relu())

    model, x = Shared(), torch.randn(5, 8)
    assert_fused(dialect(model, x), model, x)


@dialects
def test_many_mlps_that_share_weights_and_inputs_are_all_fused(dialect) -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v, self.w = chain(3), chain(3, activation=lambda: nn.ReLU(True)), chain(3)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            u, v = self.u(x), self.v(x)
            return self.w(u * v.sigmoid()), self.w(u.relu()), v

    model, x = Towers(), torch.randn(5, 8)
    assert_fused(dialect(model, x), model, x, count=4)


@dialects
@pytest.mark.parametrize("inplace", [False, True])
def test_towers_whose_layers_alternate_are_fused(dialect, inplace) -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            a, b = self.f[0](x), self.f[1](x)
            a, b = F.relu(a, inplace), F.relu(b, inplace)
            a, b = F.relu(self.f[2](a), inplace), F.relu(self.f[3](b), inplace)
            return self.f[4](a), self.f[5](b)

    model, x = Twins(), torch.randn(5, 8)
    assert_fused(dialect(model, x), model, x, count=2)


@dialects
def test_an_mlp_that_feeds_an_mlp_directly_leaves_two_operators(dialect) -> None:
    model, x = nn.Sequential(chain(3), chain(3)), torch.randn(2, 3, 8)
    assert_fused(dialect(model, x), model, x, count=2)


@dialects
@pytest.mark.parametrize("tail", ["relu", "relu_", "twice", "after a dropout"])
def test_a_trailing_activation_joins_the_operator(dialect, tail) -> None:
    act = {
        "relu": torch.relu,
        "relu_": lambda y: y.relu_(),
        "twice": lambda y: torch.relu(torch.relu(y)),
        "after a dropout": lambda y: torch.relu(F.dropout(y, 0.5, False)),
    }[tail]

    class Tail(Net):
        def forward(self, x: Tensor) -> Tensor:
            return act(super().forward(x))

    for x in (torch.randn(5, 12), torch.randn(2, 3, 12)):
        model = Tail()
        rewritten = dialect(model, x)
        assert_fused(rewritten, model, x)
        (decision,) = rewritten.report.fused
        assert (decision.activation, decision.output_activation) == ("relu", "relu")
        assert (rewritten.run(x) >= 0).all()


@dialects
def test_products_and_sums_are_read_as_linear_layers(dialect) -> None:
    class Products(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(x @ self.a.weight.t() + self.a.bias)
            h = torch.relu(torch.addmm(self.b.bias, h, self.b.weight.T))
            return self.c.bias + torch.mm(h, self.c.weight.permute(1, 0))

    model, x = Products(), torch.randn(5, 12)
    rewritten = dialect(model, x)
    assert_fused(rewritten, model, x)
    # symbolic_trace records neither the dtype of a product nor the rank of its operand, so a bias added is no proof
    assert rewritten.report.fused[0].widths == ((10, 8, 6) if dialect is symbolic else (12, 10, 8, 6))


@dialects
def test_functional_linear_is_fused_by_position_and_by_keyword(dialect) -> None:
    class Functional(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(F.linear(x, self.a.weight, self.a.bias))
            h = torch.relu(F.linear(input=h, weight=self.b.weight, bias=self.b.bias))
            return F.linear(h, self.c.weight, bias=None)

    model, x = Functional(), torch.randn(5, 12)
    model.c.bias = None
    assert_fused(dialect(model, x), model, x)


@dialects
def test_weights_computed_in_the_graph_are_fused(dialect) -> None:
    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(F.linear(x, self.a.weight * 2, self.a.bias))
            return self.c(torch.relu(self.b(h)))

    model, x = Scaled(), torch.randn(5, 12)
    if dialect is symbolic:
        assert symbolic(model, x).codes == ["shapes-unknown"]
    else:
        assert_fused(dialect(model, x), model, x)


def test_in_place_relu_whose_result_is_ignored_is_fused() -> None:
    class Ignored(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            F.relu_(h)
            h = self.b(h)
            h.relu_()
            return self.c(h)

    model, x = Ignored(), torch.randn(5, 12)
    assert_fused(dynamo(model, x), model, x)
    assert_fused(aten(model, x), model, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype_is_fused(dtype) -> None:
    model, x = Net().to(dtype), torch.randn(5, 12, dtype=dtype)
    rewritten = dynamo(model, x)
    assert rewritten.operators == 1 and rewritten.report.fused[0].dtype == dtype


@pytest.mark.parametrize("inside", [False, True])
def test_a_chain_within_one_autocast_region_is_fused_with_its_dtype(inside) -> None:
    class Cast(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                y = super().forward(x)
            return y * 2

    model, x = Cast(), torch.randn(5, 12)
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        rewritten = dynamo(model if inside else Net.forward.__get__(model), x)
        expected = model(x) if inside else Net.forward(model, x)
        assert rewritten.operators == 1, str(rewritten.report)
        result = rewritten.run(x)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=3e-2, atol=3e-2)


def test_a_chain_within_no_grad_is_fused() -> None:
    class Frozen(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                y = super().forward(x)
            return y + x[..., :6]

    model, x = Frozen(), torch.randn(5, 12)
    rewritten = dynamo(model, x)
    assert_fused(rewritten, model, x)


def test_bodies_of_higher_order_operators_are_rewritten() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = Net(), Net()

        def forward(self, x: Tensor) -> Tensor:
            y = torch.utils.checkpoint.checkpoint(self.p, x, use_reentrant=False)
            return y + torch.cond(x.sum() > 0, lambda t: self.q(t), lambda t: self.p(t), (x,))

    model, x = Nested(), torch.randn(5, 12)
    rewritten = dynamo(model, x)
    assert_fused(rewritten, model, x, count=3)
    assert all(d.graph for d in rewritten.report.fused)


def test_vmap_over_the_input_is_fused() -> None:
    model, x = Net(), torch.randn(5, 12)
    rewritten = dynamo(torch.vmap(model), x)
    assert rewritten.operators == 1, str(rewritten.report)
    torch.testing.assert_close(rewritten.run(x), model(x))


@pytest.mark.parametrize("lead", [1, 2])
def test_a_dynamic_batch_is_fused_and_stays_dynamic(lead) -> None:
    model, x = Net(), torch.randn(*(7,) * lead, 12)
    rewritten = dynamo(model, x, dynamic=True)
    assert rewritten.report.fused[0].rows is None
    assert_fused(rewritten, model, x)
    for rows in (2, 33):
        x = torch.randn(*(rows,) * lead, 12)
        torch.testing.assert_close(rewritten.run(x), model(x))


def test_a_reshape_between_layers_of_a_dynamic_batch_is_done_again() -> None:
    model = Net(lambda h: torch.relu(h).view(-1, 10), torch.relu)
    rewritten = dynamo(model, torch.randn(4, 3, 12), dynamic=True)
    assert rewritten.operators == 1, str(rewritten.report)
    x = torch.randn(5, 7, 12)
    torch.testing.assert_close(rewritten.run(x), model(x))


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("whole_program", [False, True])
@pytest.mark.parametrize("shape", [(5, 12), (4, 3, 12)])
@pytest.mark.parametrize("tail", [[], [nn.ReLU()]], ids=["fused_mlp", "fused_chain"])
def test_an_exported_program_is_rewritten_saved_loaded_and_run_at_other_batches(
    decompose, whole_program, shape, tail
) -> None:
    model, x = nn.Sequential(Net(biases=(True, False, True)), *tail), torch.randn(shape)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("batch", min=2, max=4096)},))
    if decompose:
        program = program.run_decompositions()
    report = rewrite(program if whole_program else program.graph_module)
    assert len(report.fused) == 1, str(report)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    run = torch.export.load(file).module()
    for rows in (2, 77):
        x = torch.randn(rows, *shape[1:])
        torch.testing.assert_close(run(x), model(x))


def test_names_of_outputs_do_not_change() -> None:
    program = torch.export.export(Net(), (torch.randn(5, 12),))
    before = program.graph_signature.user_outputs
    rewrite(program)
    assert program.graph_signature.user_outputs == before
    assert [n.name for n in program.graph.output_node().args[0]] == list(before)


@pytest.mark.parametrize("precision, expected", [("highest", {}), ("high", {"allow_tf32": True})])
def test_tf32_is_allowed_as_torch_is_set(precision, expected) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        graph = symbolic(Net()).graph_module.graph
    finally:
        torch.set_float32_matmul_precision(before)
    (node,) = (n for n in graph.nodes if n.op == "call_function")
    assert node.kwargs == expected


def test_what_autograd_saved_in_a_make_fx_graph_is_no_reader() -> None:
    model, x = Net(), torch.randn(5, 12, requires_grad=True)
    rewritten = aten(model, x)
    assert_fused(rewritten, model, x)
    assert [n.op for n in rewritten.graph_module.graph.nodes].count("call_function") == 1


def test_the_new_node_keeps_the_metadata_of_the_result() -> None:
    rewritten = exported(Net(), torch.randn(5, 12))
    (node,) = (n for n in rewritten.graph_module.graph.nodes if n.op == "call_function")
    assert tuple(node.meta["val"].shape) == (5, 6)
    assert node.meta["stack_trace"] and node.meta["nn_module_stack"]


def test_rewriting_again_changes_nothing() -> None:
    rewritten = decomposed(Net(), torch.randn(2, 3, 12))
    code = rewritten.graph_module.code
    assert rewrite(rewritten.graph_module).fused == ()
    assert rewritten.graph_module.code == code
