"""What the rewrite leaves alone, with the reason code of each refusal; the model still computes what it did."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from graph_tools import DIALECTS, Net, assert_same_step, aten, decomposed, dynamo, exported, symbolic
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing._internal.two_tensor import TwoTensor

from fmlp_op.graph import rewrite

dialects = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def assert_refused(rewritten, model, x: Tensor, code: str, *, fused: int = 0, gradients: bool = True) -> None:
    """One refusal; `fused` chains of the other layers became operators."""
    assert rewritten.codes == [code], str(rewritten.report)
    assert rewritten.operators == fused
    torch.testing.assert_close(rewritten.run(x), model(x))
    if gradients:
        assert_same_step(rewritten.run, model, x)


LOOKALIKES = {
    "relu6": F.relu6,
    "hardtanh": lambda h: F.hardtanh(h, 0.0, 1.5),
    "swapped limits": lambda h: h.clamp(min=0.5, max=0.1),
    "clamp to 1": lambda h: h.clamp(0, 1),
    "threshold 0.2": lambda h: F.threshold(h, 0.2, 0.0),
    "threshold to 5": lambda h: F.threshold(h, 0.0, 5.0),
    "clamp_min 0.1": lambda h: h.clamp_min(0.1),
    "clamp_max 0": lambda h: h.clamp_max(0.0),
    "maximum": lambda h: torch.maximum(h, torch.zeros((), device=h.device)),
    "neg relu": lambda h: -F.relu(-h),
    "squared relu": lambda h: F.relu(h).square(),
    "logsigmoid": F.logsigmoid,
    "celu": lambda h: F.celu(h, 0.5),
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
}


@pytest.mark.parametrize("place", ["first", "second", "both"])
@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.parametrize("dialect", [dynamo, exported])
def test_an_activation_that_is_in_no_table_is_refused(dialect, name, place) -> None:
    act = LOOKALIKES[name]
    model = Net(*{"first": (act, F.relu), "second": (F.relu, act), "both": (act, act)}[place])
    x = 4 * torch.randn(5, 12)
    assert_refused(dialect(model, x), model, x, "activation-unknown", fused=place != "both")


@pytest.mark.parametrize("act", [nn.ReLU6(), nn.LogSigmoid(), nn.CELU(), nn.PReLU(), nn.Softsign(), nn.Hardtanh(0, 2)])
def test_an_activation_module_that_is_in_no_table_is_refused(act) -> None:
    model, x = Net(act), torch.randn(5, 12)
    assert_refused(symbolic(model, x), model, x, "activation-unknown")


def test_a_subclass_of_relu_is_refused() -> None:
    class Shifted(nn.ReLU):
        def forward(self, h: Tensor) -> Tensor:
            return super().forward(h) + 1

    class Leaf(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, name: str) -> bool:
            return isinstance(m, (Shifted, nn.Linear))

    model, x = Net(Shifted()), torch.randn(5, 12)
    gm = fx.GraphModule(model, Leaf().trace(model))
    assert [d.code for d in rewrite(gm).rejected] == ["other-op-between"]
    torch.testing.assert_close(gm(x), model(x))


@dialects
@pytest.mark.parametrize("clamp", [lambda h: h.clamp(min=0), lambda h: torch.clamp_min(h, 0)])
def test_clamp_at_zero_is_refused_where_a_gradient_may_be_needed(dialect, clamp) -> None:
    model, x = Net(clamp), torch.randn(5, 12)
    nn.init.zeros_(model.a.weight), nn.init.zeros_(model.a.bias)  # so that clamp's gradient at 0 shows
    assert_refused(dialect(model, x), model, x, "activation-unknown")


@dialects
def test_layers_with_nothing_between_are_refused(dialect) -> None:
    model, x = Net(nn.ReLU(), nn.Identity()), torch.randn(5, 12)
    assert_refused(dialect(model, x), model, x, "no-activation-between", fused=1)


@dialects
def test_one_layer_alone_is_no_candidate(dialect) -> None:
    model, x = nn.Sequential(nn.Linear(12, 10), nn.ReLU()), torch.randn(5, 12)
    assert dialect(model, x).codes == []


@dialects
@pytest.mark.parametrize("which", range(4))
def test_a_returned_hidden_value_is_refused(dialect, which) -> None:
    class Returned(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            p = self.a(x)
            h = p.relu()
            q = self.b(h)
            k = q.relu()
            return self.c(k), (p, h, q, k)[which]

    model, x = Returned(), torch.randn(5, 12)
    assert_refused(dialect(model, x), model, x, "hidden-value-reused", fused=1)


@dialects
def test_a_hidden_value_with_another_reader_is_refused(dialect) -> None:
    class Residual(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            return self.c(torch.relu(self.b(h))) + h.sum()

    model, x = Residual(), torch.randn(5, 12)
    assert_refused(dialect(model, x), model, x, "hidden-value-reused", fused=1)


@dialects
@pytest.mark.parametrize("op", ["norm", "residual", "scale"])
def test_another_operation_between_layers_is_refused(dialect, op) -> None:
    class Other(Net):
        def __init__(self) -> None:
            super().__init__(widths=(12, 12, 12, 12))
            self.norm = nn.LayerNorm(12)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            h = {"norm": lambda: self.norm(h), "residual": lambda: h + x, "scale": lambda: h * 2}[op]()
            return self.c(torch.relu(self.b(torch.relu(h))))

    model, x = Other(), torch.randn(5, 12)
    rewritten = dialect(model, x)
    assert rewritten.codes == ["other-op-between"] and rewritten.operators == 1
    assert_same_step(rewritten.run, model, x)


@dialects
@pytest.mark.parametrize("name", ["twice", "after", "tensor", "sum"])
def test_a_product_that_is_no_frequency_of_a_sine_is_refused(dialect, name) -> None:
    sines = {
        "twice": lambda h: torch.sin(2 * h * 3),
        "after": lambda h: 2 * torch.sin(h),
        "tensor": lambda h: torch.sin(h * h.sum()),
        "sum": lambda h: torch.sin(h + 2),
    }
    model, x = Net(sines[name]), torch.randn(5, 12)
    rewritten = dialect(model, x)
    assert rewritten.operators == 0 and set(rewritten.codes) <= {"other-op-between", "hidden-value-reused"}
    assert_same_step(rewritten.run, model, x)


MUTATIONS = {
    "setitem on x": lambda x, h: x.__setitem__(0, 1.0),
    "add_ on x": lambda x, h: x.add_(1),
    "iadd on x": lambda x, h: x.__iadd__(1),
    "out= on x": lambda x, h: torch.mul(x, 2, out=x),
    "setitem on a view of x": lambda x, h: x[1:].__setitem__(0, 3.0),
    "relu_ on x": lambda x, h: F.relu(x, inplace=True),
    "dropout_ on x": lambda x, h: F.dropout(x, 0.5, True, True),
}


@pytest.mark.parametrize("dialect", [dynamo, aten])
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_the_input_between_layers_is_refused(dialect, name) -> None:
    class Mutates(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            h = torch.relu(self.a(x))
            MUTATIONS[name](x, h)
            return self.c(torch.relu(self.b(h))), x

    model, x = Mutates(), torch.randn(5, 12)
    with torch.no_grad():
        rewritten = dialect(model, x)
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        torch.testing.assert_close(rewritten.run(x), expected)
    assert rewritten.codes == ["mutation-between"], str(rewritten.report)


def test_a_mutation_of_a_hidden_value_is_refused() -> None:
    class Mutates(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            h[:, 0] = 0
            return self.c(torch.relu(self.b(h)))

    model, x = Mutates(), torch.randn(5, 12)
    assert_refused(dynamo(model, x), model, x, "mutation-between", fused=1, gradients=False)


def test_a_mutation_of_a_weight_between_layers_is_refused() -> None:
    class Mutates(Net):
        def forward(self, x: Tensor) -> Tensor:
            w = self.a.weight * 1
            h = torch.relu(F.linear(x, w))
            w.mul_(2)
            return self.c(torch.relu(self.b(h))), w

    model, x = Mutates(), torch.randn(5, 12)
    with torch.no_grad():
        rewritten = dynamo(model, x)
        torch.testing.assert_close(rewritten.run(x), model(x))
    assert rewritten.codes == ["mutation-between"], str(rewritten.report)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_mutation_outside_the_chain_does_no_harm(where) -> None:
    class Mutates(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            if where == "before":
                x[0] = 1.0
            y = super().forward(x)
            if where == "after":
                x[0] = 1.0
                y = y * 1
                y[0] = 2.0
            return y, x

    model, x = Mutates(), torch.randn(5, 12)
    with torch.no_grad():
        rewritten = dynamo(model, x)
        torch.testing.assert_close(rewritten.run(x), model(x))
    assert rewritten.operators == 1


class HeldBefore(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        p = self.a(x)
        F.relu_(p)
        q = self.b(p)
        view = q[:, :3]
        q.relu_()
        return self.c(q), p, view


class HeldOperand(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        p = self.a(x)
        q = self.b(torch.relu_(p))
        return self.c(q.relu_()), p, q


class HeldView(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        p = self.a(x)
        view = p.view(-1, 10)
        p.relu_()
        return (self.c(torch.relu(self.b(view))),)


@pytest.mark.parametrize("dialect", [dynamo, symbolic, aten, exported])
@pytest.mark.parametrize("net", [HeldBefore, HeldOperand, HeldView])
def test_an_in_place_relu_on_a_tensor_that_others_hold_is_refused(dialect, net) -> None:
    model, x = net(), torch.randn(5, 12)
    rewritten = dialect(model, x)
    assert all(decision.widths[0] != 12 for decision in rewritten.report.fused)
    assert "hidden-value-reused" in rewritten.codes or "mutation-between" in rewritten.codes, str(rewritten.report)
    with torch.no_grad():
        torch.testing.assert_close(rewritten.run(x), model(x))


@pytest.mark.parametrize("switch", ["no_grad", "enable_grad", "autocast", "inference_mode", "autocast off"])
def test_a_mode_switch_between_layers_is_refused(switch) -> None:
    modes = {
        "no_grad": torch.no_grad,
        "enable_grad": torch.enable_grad,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "inference_mode": torch.inference_mode,
        "autocast off": lambda: torch.autocast("cpu", enabled=False),
    }

    class Switches(Net):
        def forward(self, x: Tensor) -> Tensor:
            with modes[switch]():
                h = torch.relu(self.a(x))
            return self.c(torch.relu(self.b(h.float())))

    model, x = Switches(), torch.randn(5, 12)
    with torch.set_grad_enabled(switch == "no_grad"):  # a switch that changes nothing leaves no trace
        rewritten = dynamo(model, x)
        torch.testing.assert_close(rewritten.run(x), model(x))
    assert rewritten.operators == 1  # of the two layers after the switch
    assert rewritten.codes == ["cast-between" if switch == "autocast" else "mode-switch-between"], str(rewritten.report)


@pytest.mark.parametrize("transform", ["grad", "jvp", "jacrev", "vmap of grad"])
def test_layers_inside_a_functorch_transform_are_refused(transform) -> None:
    net = Net()
    functions = {
        "grad": torch.func.grad(lambda x: net(x).sum()),
        "jvp": lambda x: torch.func.jvp(net, (x,), (x,))[1],
        "jacrev": torch.func.jacrev(net),
        "vmap of grad": torch.vmap(torch.func.grad(lambda x: net(x).sum())),
    }
    f, x = functions[transform], torch.randn(5, 12)
    rewritten = dynamo(f, x)
    assert rewritten.codes == ["functorch-transform"], str(rewritten.report)
    torch.testing.assert_close(rewritten.run(x), f(x))


def test_weights_that_differ_from_sample_to_sample_are_refused() -> None:
    nets = [Net() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")

    def ensemble(parameters, x: Tensor) -> Tensor:
        return torch.vmap(lambda p, t: torch.func.functional_call(base, p, (t,)), (0, None))(parameters, x)

    x = torch.randn(5, 12)
    rewritten = dynamo(ensemble, parameters, x)
    assert rewritten.codes == ["weight-batched"], str(rewritten.report)
    torch.testing.assert_close(rewritten.run(parameters, x), torch.stack([net(x) for net in nets]))


@dialects
@pytest.mark.parametrize("spelling", ["functional", "module"])
def test_an_active_dropout_is_refused(dialect, spelling) -> None:
    drop = nn.Dropout(0.5) if spelling == "module" else (lambda h: F.dropout(h, 0.5, True))
    between = nn.Sequential(nn.ReLU(), drop) if spelling == "module" else (lambda h: drop(torch.relu(h)))
    model, x = Net(between, torch.relu), torch.randn(5, 12)
    rewritten = dialect(model, x)
    # make_fx itself decomposes the dropout, to a product with a random mask
    assert rewritten.codes == ["other-op-between" if dialect is aten else "dropout-active"], str(rewritten.report)
    torch.manual_seed(0)
    result = rewritten.run(x)
    torch.manual_seed(0)
    torch.testing.assert_close(result, model(x))


def test_detach_between_layers_is_refused_in_training_and_fused_in_inference() -> None:
    model, x = Net(lambda h: torch.relu(h).detach()), torch.randn(5, 12)
    assert_refused(dynamo(model, x), model, x, "detach-between")
    torch._dynamo.reset()
    with torch.no_grad():
        rewritten = dynamo(model, x)
        assert rewritten.operators == 1
        torch.testing.assert_close(rewritten.run(x), model(x))


@pytest.mark.parametrize("dialect", [dynamo, aten, exported])
def test_a_cast_between_layers_is_refused(dialect) -> None:
    class Casts(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(self.b(torch.relu(self.a(x)).to(torch.float64))))

    model, x = Casts(), torch.randn(5, 12)
    model.b.double(), model.c.double()
    assert_refused(dialect(model, x), model, x, "cast-between", fused=1, gradients=False)


VIEWS = {
    "transpose of rows": lambda h: h.transpose(0, 1),
    "permute": lambda h: h.permute(1, 0, 2),
    "flip": lambda h: h.flip(0),
    "slice of rows": lambda h: h[:1],
    "another last dimension on the way": lambda h: h.reshape(2, 6, 4).reshape(3, 2, 8),
}


@pytest.mark.parametrize("dialect", [dynamo, aten])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_mixes_rows_or_changes_the_last_dimension_is_refused(dialect, name) -> None:
    model = Net(lambda h: VIEWS[name](torch.relu(h)), torch.relu, widths=(12, 8, 8, 6))
    x = torch.randn(2, 3, 12)
    assert_refused(dialect(model, x), model, x, "view-between", fused=1, gradients=False)


def test_squares_that_are_transposed_between_layers_are_refused() -> None:
    model, x = Net(lambda h: torch.relu(h).t(), torch.relu, widths=(8, 8, 8, 8)), torch.randn(8, 8)
    assert_refused(dynamo(model, x), model, x, "view-between", fused=1)


def test_a_reshape_without_metadata_that_proves_nothing_is_refused() -> None:
    model, x = Net(lambda h: torch.relu(h).reshape(2, 3, -1), torch.relu), torch.randn(6, 12)
    assert_refused(symbolic(model, x), model, x, "view-between", fused=1)


@pytest.mark.parametrize("dialect", [dynamo, aten, decomposed])
@pytest.mark.parametrize("where", range(3))
@pytest.mark.parametrize("flip", ["once", "three times"])
def test_a_square_weight_that_is_not_transposed_is_refused(dialect, where, flip) -> None:
    class Products(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = x
            for i, layer in enumerate((self.a, self.b, self.c)):
                w = layer.weight if i == where else layer.weight.t() if flip == "once" else layer.weight.t().t().t()
                h = h @ w + layer.bias
                h = torch.relu(h) if i < 2 else h
            return h

    model, x = Products(widths=(8, 8, 8, 8)), torch.randn(8, 8)
    assert_refused(dialect(model, x), model, x, "weight-not-transposed", fused=where != 1)


@pytest.mark.parametrize("alpha, beta", [(0.5, 0.5), (1, 0.25), (2.0, 1), (1, -1), (0, 1)])
@pytest.mark.parametrize("where", range(3))
@pytest.mark.parametrize("dialect", [dynamo, aten])
def test_a_scaled_addmm_is_refused(dialect, where, alpha, beta) -> None:
    class Products(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = x
            for i, layer in enumerate((self.a, self.b, self.c)):
                scale = {"alpha": alpha, "beta": beta} if i == where else {}
                h = torch.addmm(layer.bias, h, layer.weight.t(), **scale)
                h = torch.relu(h) if i < 2 else h
            return h

    model, x = Products(), torch.randn(5, 12)
    assert_refused(dialect(model, x), model, x, "addmm-scaled", fused=where != 1)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("where", range(3))
def test_a_bias_of_another_dtype_is_not_folded(low, where) -> None:
    class Mixed(Net):
        def forward(self, x: Tensor) -> Tensor:
            for i, layer in enumerate((self.a, self.b, self.c)):
                x = x.to(low) @ layer.weight.to(low).t() + layer.bias if i == where else layer(x)
                x = torch.relu(x) if i < 2 else x
            return x

    model, x = Mixed(), torch.randn(5, 12)
    rewritten = dynamo(model, x)
    assert rewritten.operators == (where != 1) and rewritten.codes
    assert rewritten.run(x).dtype == torch.float32
    torch.testing.assert_close(rewritten.run(x), model(x))


def test_mixed_dtypes_without_metadata_are_refused() -> None:
    model = Net()
    model.b.half()
    assert symbolic(model).codes == ["dtype-mismatch"]


@pytest.mark.parametrize("shape", [(1, 10), (5, 10), (1,), ()])
def test_an_addend_that_is_no_bias_is_refused(shape) -> None:
    class Added(Net):
        def __init__(self) -> None:
            super().__init__()
            self.addend = nn.Parameter(torch.randn(shape))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(torch.mm(x, self.a.weight.t()) + self.addend)
            return self.c(torch.relu(self.b(h)))

    model, x = Added(), torch.randn(5, 12)
    assert_refused(dynamo(model, x), model, x, "other-op-between", fused=1)


def test_an_addmm_whose_bias_is_a_matrix_is_refused() -> None:
    class Added(Net):
        def __init__(self) -> None:
            super().__init__()
            self.addend = nn.Parameter(torch.randn(5, 10))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(torch.addmm(self.addend, x, self.a.weight.t()))
            return self.c(torch.relu(self.b(h)))

    model, x = Added(), torch.randn(5, 12)
    assert_refused(dynamo(model, x), model, x, "bias-shape", fused=1)


def test_unsupported_dtypes_are_refused() -> None:
    class Integers(nn.Module):
        def forward(self, x, a, b, c):
            return F.linear(torch.relu(F.linear(torch.relu(F.linear(x, a)), b)), c)

    tensors = [torch.randint(-3, 3, s) for s in ((5, 4), (4, 4), (4, 4), (4, 4))]
    rewritten = dynamo(Integers(), *tensors)
    assert rewritten.codes == ["dtype-unsupported"]
    assert torch.equal(rewritten.run(*tensors), Integers()(*tensors))


def test_functional_layers_without_metadata_are_refused_until_shapes_are_known() -> None:
    class Functional(nn.Module):
        def forward(self, x, a, b, c):
            return F.linear(torch.relu(F.linear(torch.relu(F.linear(x, a)), b)), c)

    gm = fx.symbolic_trace(Functional())
    assert [d.code for d in rewrite(gm).rejected] == ["shapes-unknown"]
    from torch.fx.passes.shape_prop import ShapeProp

    tensors = [torch.randn(s) for s in ((5, 4), (3, 4), (6, 3), (2, 6))]
    ShapeProp(gm).propagate(*tensors)
    assert len(rewrite(gm).fused) == 1
    torch.testing.assert_close(gm(*tensors), Functional()(*tensors))


def test_a_one_dimensional_weight_is_refused() -> None:
    def f(x, a, b, c):
        return F.linear(torch.relu(F.linear(torch.relu(F.linear(x, a)), b)), c)

    tensors = [torch.randn(s) for s in ((5, 4), (3, 4), (6, 3), (6,))]
    rewritten = dynamo(f, *tensors)
    assert rewritten.codes == ["weight-not-2d"]
    torch.testing.assert_close(rewritten.run(*tensors), f(*tensors))


def test_a_stack_of_weights_is_refused() -> None:
    def f(x, a, b, c):
        return torch.bmm(torch.relu(torch.bmm(torch.relu(torch.bmm(x, a.mT)), b.mT)), c.mT)

    tensors = [torch.randn(s) for s in ((2, 5, 4), (2, 3, 4), (2, 6, 3), (2, 7, 6))]
    rewritten = dynamo(f, *tensors)
    assert rewritten.codes == ["weight-not-2d"], str(rewritten.report)
    torch.testing.assert_close(rewritten.run(*tensors), f(*tensors))


def test_tensor_subclasses_are_refused() -> None:
    model, x = Net(), torch.randn(5, 12)
    model.b.weight = nn.Parameter(TwoTensor(model.b.weight.detach(), model.b.weight.detach().clone()))
    assert symbolic(model, x).codes == ["tensor-subclass"]
    with torch.no_grad():
        assert dynamo(model, x).codes == ["tensor-subclass"]


def test_sparse_weights_are_refused() -> None:
    model = Net()
    model.b.weight = nn.Parameter(model.b.weight.detach().to_sparse(), requires_grad=False)
    assert symbolic(model).codes == ["layout-not-strided"]


def test_parameters_on_another_device_are_refused() -> None:
    model = Net()
    model.b.to("meta")
    assert symbolic(model).codes == ["device-mismatch"]


HOOKS = {
    "forward hook": lambda m: m.b.register_forward_hook(lambda mod, a, o: o * 2),
    "forward pre-hook": lambda m: m.b.register_forward_pre_hook(lambda mod, a: (a[0] + 1,)),
    "backward hook": lambda m: m.b.register_full_backward_hook(lambda mod, i, o: None),
    "pruned": lambda m: prune.random_unstructured(m.b, "weight", 0.5),
    "own forward": lambda m: setattr(m.b, "forward", lambda h: F.linear(h, m.b.weight * 2)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_module_with_hooks_is_refused(name) -> None:
    model, x = Net(), torch.randn(5, 12)
    HOOKS[name](model)
    assert_refused(symbolic(model, x), model, x, "module-hooks")


def test_a_relu_module_with_hooks_is_refused() -> None:
    model, x = Net(nn.ReLU(), nn.ReLU()), torch.randn(5, 12)
    model.between.register_forward_hook(lambda mod, a, o: o * 2)
    assert_refused(symbolic(model, x), model, x, "module-hooks", fused=1)


def test_a_global_module_hook_is_refused() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda mod, a, o: None)
    try:
        codes = symbolic(Net()).codes
    finally:
        handle.remove()
    assert codes == ["module-hooks"]


@pytest.mark.parametrize("kind", ["parametrized", "subclass", "weight_norm"])
def test_a_linear_that_is_not_exactly_nn_linear_is_refused(kind) -> None:
    class Scaled(nn.Linear):
        def forward(self, h: Tensor) -> Tensor:
            return super().forward(h) * 2

    class Double(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w * 2

    class Leaf(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, name: str) -> bool:
            return isinstance(m, nn.Linear)

    model, x = Net(), torch.randn(5, 12)
    if kind == "parametrized":
        parametrize.register_parametrization(model.b, "weight", Double())
    elif kind == "weight_norm":
        parametrizations.weight_norm(model.b)
    else:
        model.b = Scaled(10, 8)
    gm = fx.GraphModule(model, Leaf().trace(model))
    assert [d.code for d in rewrite(gm).rejected] == ["linear-subclass"]
    torch.testing.assert_close(gm(x), model(x))


def test_hooks_seen_by_dynamo_are_refused_by_what_they_do() -> None:
    model, x = Net(), torch.randn(5, 12)
    model.a.register_forward_hook(lambda mod, a, o: o * 2 - 1)
    assert_refused(dynamo(model, x), model, x, "other-op-between", fused=1)


def _user_function(x: Tensor) -> None:
    x.add_(1)


fx.wrap("_user_function")


def test_an_unknown_call_between_layers_is_refused() -> None:
    class Calls(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            h = torch.relu(self.a(x))
            _user_function(x)
            return self.c(torch.relu(self.b(h)))

    model, x = Calls(), torch.randn(5, 12)
    assert_refused(symbolic(model, x), model, x, "unknown-call-between", fused=1, gradients=False)


def test_a_weight_that_is_the_hidden_value_is_refused() -> None:
    class Own(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            return self.c(torch.relu(F.linear(h, h)))

    model, x = Own(widths=(8, 8, 8, 8)), torch.randn(8, 8)
    assert_refused(dynamo(model, x), model, x, "hidden-value-reused", fused=1)


def test_an_obstacle_between_two_chains_leaves_both() -> None:
    model, x = nn.Sequential(*(nn.Linear(8, 8), nn.ReLU()) * 3, nn.Mish(), *(nn.Linear(8, 8), nn.ReLU()) * 3), None
    x = torch.randn(5, 8)
    rewritten = dynamo(model, x)
    assert rewritten.operators == 2 and rewritten.codes == []
    torch.testing.assert_close(rewritten.run(x), model(x))


def test_a_bad_layer_in_a_long_chain_costs_only_its_neighbours() -> None:
    layers = [nn.Linear(8, 8) for _ in range(6)]
    model = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))
    layers[1].register_forward_hook(lambda mod, a, o: o * 2)
    x = torch.randn(5, 8)
    rewritten = symbolic(model, x)
    assert rewritten.operators == 1 and rewritten.codes == ["module-hooks"], str(rewritten.report)
    assert len(rewritten.report.fused[0].layers) == 4
    torch.testing.assert_close(rewritten.run(x), model(x))
