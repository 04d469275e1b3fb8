"""What a replica lets go of when the leader says that it is free."""

from __future__ import annotations

import pytest

from holdfast.group.config import GroupConfig
from holdfast.group.consensus.replication import Progress
from holdfast.group.core import Core
from holdfast.group.delivery import Delivery
from holdfast.group.frames import Entry, Freed, Payload, StreamId
from holdfast.group.log.entries import Member, View
from holdfast.group.log.garbage_collection import AppliedTracker, GarbageCollector
from holdfast.group.log.replicated_log import Cursor, Kind, Log
from holdfast.group.streams.stream_buffer import Streams
from holdfast.machine import Outbox
from holdfast.types import SECOND, NodeId
from holdfast.wire.blocks import pack_block

S = StreamId(b"s" * 16, 1, 0)
R = StreamId(b"r" * 16, 1, 0)


class Bench:
    """Three entries of one stream and one of another; `delivered` of them were handed out."""

    def __init__(self, delivered: int) -> None:
        self.log = Log()
        self.streams = Streams(1 << 20, 8)
        position = 1
        for index, (stream, first, last) in enumerate(
            [(S, 1, 3), (S, 4, 6), (R, 1, 3), (S, 7, 9)], 1
        ):
            block = pack_block([b"x"] * (last - first + 1))
            self.streams.take(
                Payload("g", stream, first, last - first + 1, 0, memoryview(block)), 1
            )
            self.log.append(Entry(1, index, position, 0, Kind.ORDER, stream, first, last))
            position += last - first + 1
        delivery = Delivery(GroupConfig("g", ("a",), "a"), self.log, self.streams)
        self.log.commit_to(delivered)
        delivery.hand_out(0, Outbox())
        self.collector = GarbageCollector(self.log, self.streams, delivery)

    def free(self, *upto: tuple[StreamId, int]) -> tuple[list[tuple[int, int]], int]:
        """What is held of S then, and where the log begins."""
        self.collector.take(Freed("g", upto))
        return list(self.streams.streams[S].held), self.log.ground.index


def test_entries_that_all_replicas_have_are_freed() -> None:
    assert Bench(4).free((S, 6)) == ([(7, 10)], 2)


def test_entries_go_in_order_so_one_stream_can_hold_the_log() -> None:
    bench = Bench(4)
    assert bench.free((S, 9)) == ([], 2)
    assert bench.free((R, 3)) == ([], 4)


def test_what_was_not_delivered_here_is_kept_whatever_the_leader_says() -> None:
    """A replica that was left behind still needs what the others have let go."""
    assert Bench(1).free((S, 9)) == ([(4, 10)], 1)


def test_an_unknown_stream_and_a_repeated_word_change_nothing() -> None:
    bench = Bench(4)
    before = bench.free((S, 6))
    assert bench.free((S, 6), (StreamId(b"z" * 16, 1, 0), 99)) == before
    assert bench.free((S, 2)) == before


@pytest.mark.parametrize(("applied", "said"), [(5, 5), (10, 10)])
def test_a_log_that_begins_with_a_state_does_not_say_that_what_is_before_it_is_free(
    applied: int, said: int
) -> None:
    """Another member may not have come so far, and ask the others for it."""
    nodes = {name: NodeId(name.encode() * 16) for name in "abc"}
    core = Core(GroupConfig("g", ("a", "b", "c"), "a"), nodes["a"], "a", 1)
    members = tuple(Member(name, node, 1, voter=True) for name, node in nodes.items())
    state = Cursor(index=10, term=1, view=View(1, members))
    core.log.restart(state)
    core.delivery.restart(state, 0)
    progress = {member.name: Progress(member, 10, 0) for member in members[1:]}
    progress["b"].applied, progress["c"].applied = 10, applied
    out = Outbox()
    AppliedTracker(core).settle(progress, SECOND, out)
    (frame,) = [frame for _, item in out.ups for frame in item.frames]
    assert isinstance(frame, Freed)
    assert frame.index == said
