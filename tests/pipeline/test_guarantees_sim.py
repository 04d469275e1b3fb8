"""P7: the audit of what simulated nodes recorded agrees with the checkers that look inside them."""

from __future__ import annotations

import pytest
from tests.pipeline.guarantee_rows import verdicts_on

from holdfast.pipeline.guarantees import GuaranteeVerdict
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.dialog_load import DialogLoad
from holdfast.sim.facts import FactBook, Life
from holdfast.sim.ledger import Load
from holdfast.sim.objects_campaign import run_campaign
from holdfast.sim.scenario import parse_scenario
from holdfast.types import MILLISECOND, SECOND


def of(verdicts: list[GuaranteeVerdict], guarantee: str) -> list[GuaranteeVerdict]:
    return [verdict for verdict in verdicts if verdict.guarantee == guarantee]


def cluster(seed: int, faults: str, seconds: int) -> FactBook:
    book = FactBook()
    load = Load(every_ns=80 * MILLISECOND, batch_max=4, size_max=100)
    Cluster(
        seed,
        nodes=4,
        groups=(GroupPlan(voters=3, load=load, services=True),),
        scenario=parse_scenario(faults),
        until_ns=seconds * SECOND,
        quiet_ns=5 * SECOND,
        facts=book,
    ).run()
    return book


def test_locks_and_stability_of_a_group_hold_without_faults() -> None:
    verdicts, violations = verdicts_on(cluster(3, "", 6).lives())
    assert violations == []
    locks = of(verdicts, "locks")
    assert sum(verdict.checked for verdict in locks) > 10
    assert {verdict.verdict for verdict in locks} == {"holds"}
    assert all(verdict.checked for verdict in of(verdicts, "stability"))


def test_a_leader_that_crashes_breaks_no_lock() -> None:
    book = cluster(1, "at 2s crash n1\nat 3s start n1\nat 5s crash n2\nat 6s start n2\n", 9)
    verdicts, violations = verdicts_on(book.lives())
    assert violations == []
    assert sum(verdict.checked for verdict in of(verdicts, "locks")) > 20


@pytest.mark.parametrize("seed", [1, 3])
def test_transactions_over_dialogs_are_atomic_through_crashes(seed: int) -> None:
    load = DialogLoad(seed, messages=40, transacted=True, seconds=26)
    load.world.facts = book = FactBook()
    load.run()
    verdicts, violations = verdicts_on(book.lives())
    assert violations == []
    assert sum(verdict.checked for verdict in of(verdicts, "transactions")) > 10


@pytest.mark.parametrize("seed", [2, 48])
def test_objects_are_linearisable_through_crashes(seed: int) -> None:
    run = run_campaign(seed, seconds=12)
    lives = [Life(host.name, host.id.hex(), 1, 0, host.facts) for host in run.world.hosts.values()]
    verdicts, violations = verdicts_on(lives)
    # The links of this world record nothing, so hops cannot be judged.
    assert [violation for violation in violations if violation.guarantee != "one hop"] == []
    assert sum(verdict.checked for verdict in of(verdicts, "objects")) > 200
