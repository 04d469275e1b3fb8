"""P7: stability, locks, transactions and objects. Each planted violation is found alone, and sound traces pass."""

from __future__ import annotations

import pytest
from tests.pipeline.guarantee_rows import subjects
from tests.pipeline.guarantee_traces import HARMLESS, PLANTED, Trace

from holdfast.pipeline.guarantees import GuaranteeVerdict, GuaranteeViolation
from holdfast.pipeline.judges import GUARANTEES, Missing, judge_subject


def judged(
    trace: Trace, guarantee: str, missing: Missing | None = None
) -> tuple[list[GuaranteeVerdict], list[GuaranteeViolation]]:
    verdicts: list[GuaranteeVerdict] = []
    violations: list[GuaranteeViolation] = []
    facts = [(kind, one) for (kind, _), found in trace.facts.items() for one in found]
    for (name, subject), rows in subjects(facts).items():
        if name == guarantee:
            found = judge_subject(name, subject, rows, missing or {})
            verdicts += found[0]
            violations += found[1]
    return verdicts, violations


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_and_no_other(name: str) -> None:
    guarantee, make, claims = PLANTED[name]
    verdicts, violations = judged(make(name), guarantee)
    assert {violation.claim for violation in violations} == claims
    assert [verdict.verdict for verdict in verdicts].count("violated") == 1
    assert all(violation.text and violation.events for violation in violations)


@pytest.mark.parametrize("name", HARMLESS)
def test_where_no_promise_is_broken_nothing_is_found(name: str) -> None:
    guarantee, make, word = HARMLESS[name]
    verdicts, violations = judged(make(name), guarantee)
    assert violations == []
    assert {verdict.verdict for verdict in verdicts} == {word}, verdicts
    assert all(verdict.checked for verdict in verdicts)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_every_claim_has_a_planted_violation(guarantee: str) -> None:
    planted = {claim for of, _, claims in PLANTED.values() if of == guarantee for claim in claims}
    assert planted == set(GUARANTEES[guarantee].claims)


@pytest.mark.parametrize("name", ["stable", "locks-in-turn", "atomic", "linear", "linked"])
def test_lost_facts_make_a_guarantee_not_provable(name: str) -> None:
    guarantee, make, _ = HARMLESS[name]
    trace = make(name)
    kind = GUARANTEES[guarantee].kinds[0]
    lives = [facts[0] for (of, _), facts in trace.facts.items() if of == kind]
    missing = {(lives[0]["node"], lives[0]["incarnation"], kind): 2}
    verdicts, violations = judged(trace, guarantee, missing)
    assert violations == []
    assert {(v.verdict, v.why) for v in verdicts} == {
        ("not provable", "2 facts about it are missing")
    }


def test_a_node_without_operations_has_no_verdict_on_hops() -> None:
    trace = Trace("idle")
    trace.link("a", 1.0, "up", "b")
    assert judged(trace, "one hop") == ([], [])


def test_two_facts_that_are_close_together_are_not_ordered() -> None:
    """The clocks of two nodes may differ by two minutes."""
    trace = Trace("close")
    for letter in "ab":
        trace.sample(letter, 0.0, 0, 40)
    trace.sample("a", 10.0, 100, 100)
    trace.sample("b", 110.0, 0, 50)
    assert judged(trace, "stability")[1] == []
    trace.sample("b", 140.0, 0, 50)
    assert len(judged(trace, "stability")[1]) == 1


@pytest.mark.parametrize("off_s", [-7200.0, 7200.0])
def test_a_clock_that_is_hours_off_is_no_violation(off_s: float) -> None:
    """Replicas make progress together; one that seems to be hours away from the others has another clock."""
    stable, linear = Trace("off-log"), Trace("off-object")
    for step in range(20):
        for letter, late_s in (("a", 0.0), ("b", off_s), ("c", 0.2)):
            at_s = 7200 + 30.0 * step + late_s
            stable.sample(letter, at_s, 100 * step, 100 * step + 50)
            linear.decided(letter, at_s, step + 1)
            linear.operation(letter, at_s + 1, at_s + 2, "read", step + 1)
    for trace, guarantee in ((stable, "stability"), (linear, "objects")):
        verdicts, violations = judged(trace, guarantee)
        assert violations == []
        assert [verdict.verdict for verdict in verdicts] == ["holds"]
        assert verdicts[0].checked > 60
