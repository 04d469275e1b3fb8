"""P9: nodes that get advice move traffic before the path fails, and work as before without it."""

from __future__ import annotations

from tests.sim.advised import AdvisedFlow

from holdfast.telemetry.facts import LinkFact, NodeFact
from holdfast.types import SECOND


def test_traffic_leaves_a_path_at_risk_and_returns_when_the_risk_is_gone() -> None:
    flow = AdvisedFlow()
    home = flow.run_to(4)
    flow.advise(avoid=home)
    away = flow.run_to(6)
    assert away != home
    flow.advise()
    assert flow.run_to(8) == home
    assert flow.numbers() == list(range(1, len(flow.numbers()) + 1))
    assert len(flow.numbers()) >= flow.sent - 1, "nothing was lost by moving; one may be on its way"
    reasons = [fact.reason for fact in flow.facts.of(LinkFact, "n1") if fact.event == "moved"]
    assert any("advised to avoid it: fails at night" in reason for reason in reasons)


def test_advice_that_expires_is_left_without_anything_new() -> None:
    flow = AdvisedFlow()
    home = flow.run_to(4)
    flow.advise(avoid=home, valid_s=3)
    assert flow.run_to(6) != home
    assert flow.run_to(14) == home
    said = [fact.detail for fact in flow.facts.of(NodeFact, "n1") if fact.event == "advice"]
    assert said[-1] == "not followed, this node works as before: it expired"


def test_a_path_at_risk_is_used_when_it_is_the_only_one_that_satisfies() -> None:
    flow = AdvisedFlow()
    home = flow.run_to(4)
    flow.advise(avoid=home)
    away = flow.run_to(6)
    flow.fault(f"break {away} n1<->n2 blackout")
    assert flow.run_to(9) == home
    assert flow.numbers() == list(range(1, len(flow.numbers()) + 1))


def test_all_paths_at_risk_are_used_as_before() -> None:
    flow = AdvisedFlow()
    home = flow.run_to(4)
    flow.advise(avoid="red,blue")
    assert flow.run_to(8) == home
    assert flow.status()["in_force"]
    assert flow.world.now == 8 * SECOND
