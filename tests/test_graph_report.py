"""What a report says: decisions, sentences, policies, and that `find` changes nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from graph_tools import Net, chain, dynamo, symbolic
from torch import fx, nn

from fmlp_op import graph, policy
from fmlp_op.graph import effects, find, reasons, rewrite
from fmlp_op.policy import Verdict
from fmlp_op.problem import Problem


def test_a_decision_tells_the_problem() -> None:
    decision = dynamo(Net(biases=(True, False, True)), torch.randn(2, 8, 12)).report.fused[0]
    assert decision.is_fused and decision.code == reasons.FUSED
    assert (decision.shape, decision.rows, decision.widths) == ((2, 8, 12), 16, (12, 10, 8, 6))
    assert (decision.dtype, decision.device) == (torch.float32, torch.device("cpu"))
    assert decision.biases == (True, False, True)
    assert decision.problem == Problem(
        16, (12, 10, 8, 6), torch.float32, torch.device("cpu"), (True, False, True), "relu", "identity", True, False
    )


def test_a_decision_without_metadata_tells_what_the_modules_tell() -> None:
    decision = symbolic(Net()).report.fused[0]
    assert (decision.shape, decision.rows, decision.widths) == (None, None, (12, 10, 8, 6))
    assert (decision.dtype, decision.device) == (torch.float32, torch.device("cpu"))


def test_a_decision_names_a_node_that_is_in_the_graph_before_and_after() -> None:
    gm = fx.symbolic_trace(Net())
    before = {n.name for n in gm.graph.nodes}
    (decision,) = rewrite(gm).fused
    assert decision.node in before & {n.name for n in gm.graph.nodes}
    assert len(decision.layers) == 3 and set(decision.layers) <= before


def test_a_decision_tells_the_line_of_the_users_source() -> None:
    decision = dynamo(nn.Sequential(nn.Linear(8, 8), nn.CELU(), nn.Linear(8, 8)), torch.randn(5, 8)).report.rejected[0]
    assert decision.location is None or not decision.location.startswith(str(Path(torch.__file__).parent))
    decision = dynamo(Net(F.celu), torch.randn(5, 12)).report.rejected[0]
    assert decision.location is not None and re.search(r"graph_tools\.py:\d+$", decision.location)


def test_a_decision_cannot_be_changed() -> None:
    decision = symbolic(Net()).report.fused[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.code = "policy"


def test_a_report_prints_every_decision_with_its_sentence() -> None:
    report = symbolic(nn.Sequential(chain(3), nn.CELU(), nn.Linear(8, 8))).report
    printed = str(report)
    assert printed.startswith("1 fused, 1 not fused")
    for decision in (*report.fused, *report.rejected):
        assert decision.node in printed and decision.code in printed and decision.sentence in printed
        assert decision.sentence in str(decision) and decision.node in str(decision)


def test_the_sentence_names_the_node_and_the_layers() -> None:
    (decision,) = symbolic(Net(F.celu)).report.rejected
    assert decision.sentence.startswith("`celu` stands between layers 1 and 2")
    (decision,) = symbolic(Net(nn.CELU(), nn.ReLU())).report.rejected
    assert decision.sentence.startswith("CELU (`between`) stands between layers 1 and 2")


def test_find_decides_as_rewrite_does_and_changes_nothing() -> None:
    gm = fx.symbolic_trace(nn.Sequential(chain(5), nn.Tanh(), chain(3)))
    code = gm.code
    found = find(gm)
    assert gm.code == code
    report = rewrite(gm)
    assert set(found) == {*report.fused, *report.rejected} and len(report.fused) == 2


def test_a_graph_with_no_chain_has_no_decision() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)))
    assert find(gm) == () and str(rewrite(gm)) == "0 fused, 0 not fused"


def test_a_policy_that_declines_leaves_the_graph_and_gives_its_reason(monkeypatch) -> None:
    asked: list[tuple[Problem, str]] = []

    def decide(problem: Problem, name: str) -> Verdict:
        asked.append((problem, name))
        return Verdict(problem.widths[-1] != 8, "8 columns are too few")

    monkeypatch.setattr(policy, "decide", decide)
    gm = fx.symbolic_trace(nn.Sequential(chain(3), nn.Tanh(), chain(2), nn.ReLU(), nn.Linear(8, 6)))
    report = rewrite(gm, policy="auto")
    assert [d.code for d in report.rejected] == ["policy"] and "8 columns are too few" in report.rejected[0].sentence
    assert len(report.fused) == 1
    assert [(p.widths, name) for p, name in asked] == [((8, 8, 8, 8), "auto"), ((8, 8, 8, 6), "auto")]


def test_the_policy_always_asks_nobody(monkeypatch) -> None:
    monkeypatch.setattr(policy, "decide", None)
    assert len(rewrite(fx.symbolic_trace(chain(3)), policy="always").fused) == 1


def test_a_policy_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="sometimes"):
        rewrite(fx.symbolic_trace(chain(3)), policy="sometimes")


def test_a_problem_tells_whether_a_gradient_is_needed() -> None:
    x = torch.randn(5, 12)
    assert dynamo(Net(), x).report.fused[0].problem.needs_grad
    torch._dynamo.reset()
    with torch.no_grad():
        assert not dynamo(Net(), x).report.fused[0].problem.needs_grad
    torch._dynamo.reset()
    assert not dynamo(Net().requires_grad_(False), x).report.fused[0].problem.needs_grad


def test_something_that_is_no_graph_is_an_error() -> None:
    with pytest.raises(TypeError, match="Sequential"):
        rewrite(chain(3))


def test_every_code_in_the_sources_has_a_sentence_and_every_sentence_a_code() -> None:
    sources = "".join(p.read_text() for p in Path(graph.__file__).parent.glob("*.py") if p.name != "reasons.py")
    for code in reasons.SENTENCES:
        name = {
            reasons.FUSED: "reasons.FUSED",
            reasons.POLICY: "reasons.POLICY",
            reasons.TOO_SHORT: "reasons.TOO_SHORT",
        }
        assert name.get(code, f'"{code}"') in sources, code
        assert reasons.sentence(code, found="x", where="y", layers=3, operator="z")
    for code in (effects.MUTATES, effects.SWITCHES, effects.TRANSFORMS, effects.UNKNOWN):
        assert code in reasons.SENTENCES
