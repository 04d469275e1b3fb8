"""Locks and barriers of real nodes on a simulated network, under faults, with a checker for mutual exclusion."""

from __future__ import annotations

import pytest

from holdfast.group.services.ports import ServiceNotice
from holdfast.group.services.values import Outcome
from holdfast.sim.campaign import draw
from holdfast.sim.checkers import CheckFailed
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.ledger import Load
from holdfast.sim.scenario import parse_scenario
from holdfast.types import MILLISECOND, SECOND


def cluster(seed: int, faults: str, seconds: int = 12) -> Cluster:
    load = Load(every_ns=80 * MILLISECOND, batch_max=4, size_max=100)
    return Cluster(
        seed,
        nodes=4,
        groups=(GroupPlan(voters=3, load=load, services=True),),
        scenario=parse_scenario(faults),
        until_ns=seconds * SECOND,
        quiet_ns=5 * SECOND,
    )


def test_locks_and_barriers_survive_the_loss_of_leaders() -> None:
    run = cluster(1, "at 2s crash n1\nat 3s start n1\n", 9)
    run.run()
    grants = sum(visitor.grants for visitor in run.visitors.values())
    assert grants > 10
    assert sum(len(writes) for writes in run.protected.writes.values()) > 10


def test_the_checker_finds_two_holders_and_torn_barriers() -> None:
    """A check that cannot fail proves nothing."""
    run = cluster(2, "", 8)
    run.start()
    run.world.run(2 * SECOND)
    checker = next(c for c in run.world.checkers if type(c).__name__ == "ServiceChecks")
    unit, hosts = "services/book", run.world.hosts
    passed = ServiceNotice(unit, 1, Outcome.PASSED, 900, 1)
    broken = ServiceNotice(unit, 2, Outcome.BROKEN, 900, 1)
    checker.effect(hosts["n1"], passed)
    with pytest.raises(CheckFailed, match="passed by all or by none"):
        checker.effect(hosts["n2"], broken)


def test_a_request_of_a_process_that_died_is_owed_no_answer() -> None:
    """Its host starts again when visitors ask for nothing more (campaign seed 71)."""
    run = cluster(1, "", 8)
    run.start()
    visitor = run.visitors["n2"]
    assert run.world.run_until(lambda: bool(visitor.waiting()), SECOND)
    host = run.world.hosts["n2"]
    host.crash()
    assert visitor.waiting()
    host.start()
    assert not visitor.waiting()


def services_run(seed: int) -> None:
    run = draw(seed, services=True)
    run.cluster(run.scenario(), replay=f"holdfast sim groups --services --seed {seed}").run()


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 101))
def test_services_hold_in_campaigns(seed: int) -> None:
    services_run(seed)
