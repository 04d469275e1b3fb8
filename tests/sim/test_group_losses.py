"""Real nodes that send a group's messages as datagrams over paths that lose some."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.group.loss.rule import Rule
from holdfast.group.section import GROUPS
from holdfast.node.config import NodeConfig
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.facts import FactBook
from holdfast.sim.ledger import Load
from holdfast.sim.scenario import parse_scenario
from holdfast.telemetry.facts import GroupFact, OrderFact
from holdfast.types import MILLISECOND, SECOND

LOSSES = """
at 2s break red *->* loss 5%
at 2s break blue *->* loss 5%
at 5s heal all
"""

DEATH = """
at 2s break red *->* loss 10%
at 2s break blue *->* loss 10%
at 3s crash n4
at 5s heal all
at 5s start n4
at 5s crash n1
at 6s start n1
"""


class Lossy(Cluster):
    """A cluster whose group has settings of its own."""

    settings: dict[str, Any]

    def __init__(self, seed: int, scenario: str, **settings: Any) -> None:
        self.settings = settings
        self.seen = FactBook()
        load = Load(every_ns=20 * MILLISECOND, batch_max=10, size_max=600)
        super().__init__(
            seed,
            nodes=4,
            groups=(GroupPlan(voters=3, load=load),),
            scenario=parse_scenario(scenario),
            until_ns=13 * SECOND,
            quiet_ns=5 * SECOND,
            facts=self.seen,
        )

    def events(self, event: str) -> int:
        return sum(1 for fact in self.seen.of(GroupFact) if fact.event == event)

    def skips(self) -> int:
        """Messages that the order says nobody delivers."""
        facts = [fact for fact in self.seen.of(OrderFact) if fact.entry == "skip"]
        return sum(fact.last - fact.first + 1 for fact in facts)

    def config(self, number: int) -> NodeConfig:
        config = super().config(number)
        groups = tuple(
            msgspec.structs.replace(group, **self.settings) for group in GROUPS.of(config)
        )
        return msgspec.structs.replace(config, sections={"group": groups})


@pytest.mark.parametrize("seed", [1])
def test_with_the_default_nothing_that_a_living_source_sent_is_missing(seed: int) -> None:
    cluster = Lossy(seed, LOSSES, transport="datagram")
    summary = cluster.run()
    assert summary["delivered"] > 1000
    assert cluster.events("gap") > 20
    assert cluster.skips() == 0


@pytest.mark.parametrize("seed", [1])
def test_with_a_rule_that_drops_at_once_replicas_skip_the_same_and_agree(seed: int) -> None:
    cluster = Lossy(seed, LOSSES, transport="datagram", loss=(Rule("drop", at_once=True),))
    summary = cluster.run()
    assert summary["delivered"] > 1000
    assert cluster.skips() > 10
    assert cluster.events("decides") >= 5


@pytest.mark.parametrize("seed", [1])
def test_a_source_and_a_leader_die_while_datagrams_are_lost(seed: int) -> None:
    cluster = Lossy(seed, DEATH, transport="datagram", gone_s=1.0)
    summary = cluster.run()
    assert summary["delivered"] > 1000
    assert cluster.events("leads") >= 2
