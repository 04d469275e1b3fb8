"""Schedules that campaigns found, each as small as it gets: every one broke an invariant once."""

from __future__ import annotations

import pytest

from holdfast.group.frames import Entry
from holdfast.group.log.replicated_log import Cursor, Kind, Log
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.ledger import Load
from holdfast.sim.scenario import parse_scenario
from holdfast.types import MILLISECOND, SECOND

LIGHT = Load(every_ns=40 * MILLISECOND, batch_max=4, size_max=50)


def run(scenario: str, seconds: int = 4, seed: int = 1) -> Cluster:
    cluster = Cluster(
        seed,
        nodes=4,
        groups=(GroupPlan("book", 3, LIGHT),),
        scenario=parse_scenario(scenario),
        until_ns=seconds * SECOND,
        quiet_ns=SECOND * 3 // 2,
    )
    cluster.run()
    return cluster


def test_a_replica_that_is_admitted_again_reports_that_it_follows() -> None:
    cluster = run("at 1s group book remove n2\nat 1.5s group book add n2")
    assert cluster.coverage.counts["view entries"] >= 3


def test_nothing_is_let_go_of_before_it_is_decided_that_a_member_is_out() -> None:
    """docs/design/groups.md, rule 6: stability goes by the view that is decided. The leader is paused and another takes
    over; that one takes the old one out, and must keep what it lacks until that is decided."""
    run(
        "at 1s pause @leader\nat 1.6s group book remove n1\nat 2s resume *\n"
        "at 2.1s group book add n1\nat 2.4s heal all"
    )


@pytest.mark.parametrize(("index", "ground"), [(1, 1), (2, 2)])
def test_a_follower_keeps_an_entry_without_messages_as_long_as_any_other(
    index: int, ground: int
) -> None:
    """Invariant 4: who lacks it may ask the next leader for it, and would have to be given a whole state."""
    from holdfast.group.config import GroupConfig
    from holdfast.group.delivery import Delivery
    from holdfast.group.frames import Freed, StreamId
    from holdfast.group.log.garbage_collection import GarbageCollector
    from holdfast.group.streams.stream_buffer import Streams

    stream = StreamId(b"s" * 16, 1, 0)
    log, streams = Log(), Streams(1 << 20, 16)
    log.append(Entry(1, 1, 1, 0, Kind.ORDER, stream, 1, 1))
    log.append(Entry(2, 2, 2, 0, Kind.TERM))
    log.commit_to(2)
    delivery = Delivery(GroupConfig("book", ("n1", "n2", "n3")), log, streams)
    delivery.at = Cursor(2, 2, 2, 0, {stream: 2})
    GarbageCollector(log, streams, delivery).take(Freed("book", ((stream, 1),), index=index))
    assert log.ground.index == ground
