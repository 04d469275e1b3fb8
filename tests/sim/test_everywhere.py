"""A fault of every path at once: nothing is left to move to, so traffic must change its form (H8, H12)."""

from __future__ import annotations

import pytest

from holdfast.cli.sim_health import problems_of
from holdfast.faults.text import Words, parse_fault
from holdfast.sim.checkers import NoFailures
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.facts import FactBook
from holdfast.sim.ledger import Load
from holdfast.sim.sweep.draw import NODES, SUBNETS, Case
from holdfast.sim.sweep.trial import run_case
from holdfast.sim.sweep.watch import Traffic
from holdfast.telemetry.facts import LinkFact
from holdfast.types import MILLISECOND, SECOND

EVERY_PATH = tuple((a, b, subnet) for subnet in SUBNETS for a in NODES for b in NODES if a != b)
STALL_MS_MAX = 60
GROUP_GAP_MS_MAX = 300


def test_a_size_limit_of_all_paths_is_one_incident_and_delays_little() -> None:
    """The channel, and the messages of health itself, are stuck on every connection until smaller pieces are sent."""
    more = {"one_way": False, "limit": 576, "place": "all subnets", "clean_left": False}
    outcome = run_case(
        Case(family="size", fault="* *<->* over 700", hit=EVERY_PATH, classes=("size",), **more)
    )
    assert problems_of(outcome) == []
    assert outcome.incidents == 1
    assert outcome.leaders == 0
    assert outcome.stall_ms <= STALL_MS_MAX
    assert outcome.group_stall_ms <= GROUP_GAP_MS_MAX


@pytest.mark.parametrize(
    ("limit", "within_s"), [(700, 8), pytest.param(300, 20, marks=pytest.mark.campaign)]
)
def test_nodes_that_start_under_a_size_limit_of_all_paths_meet_and_stay(
    limit: int, within_s: int
) -> None:
    """With encrypted datagrams, whose keys travel on a stream: behind a large segment they would never arrive. Below
    the size of a hello, the connection itself must use smaller segments."""
    facts = FactBook()
    load = Load(every_ns=100 * MILLISECOND, batch_max=1, size_max=1200)
    groups = (GroupPlan(load=load),)
    cluster = Cluster(1, 3, SUBNETS, groups=groups, secure=True, until_ns=99 * SECOND, facts=facts)
    world = cluster.world
    world.checkers.clear()
    world.turn_checks.clear()
    world.watchers.clear()
    world.check(NoFailures())
    world.network.add(parse_fault(Words(f"* *<->* over {limit}")))
    traffic = Traffic(world)
    cluster.start()
    world.run_for(within_s * SECOND)
    before = [fact for host in world.hosts for fact in facts.of(LinkFact, host)]
    traffic.begin([("n1", "n2"), ("n2", "n1")])
    world.run_for(1 * SECOND)
    traffic.counts = True
    world.run_for(4 * SECOND)
    traffic.finish("")
    after = [fact for host in world.hosts for fact in facts.of(LinkFact, host)][len(before) :]
    assert not [fact for fact in after if fact.event == "down"]
    assert max(traffic.stall_ns.values()) <= STALL_MS_MAX * MILLISECOND
