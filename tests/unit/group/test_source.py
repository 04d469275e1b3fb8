"""A source alone: numbers, packing, what it keeps, what it answers, and how it says that it is full."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from holdfast.group import GroupConfig, SourceMachine
from holdfast.group.frames import CommitQuery, CommitReply, Freed, Idle, Nack, Payload, StreamId
from holdfast.group.ports import Flush, Multicast, SourceRoom
from holdfast.group.streams.source import ASK_FIRST_NS
from holdfast.group.streams.stream_buffer import Streams
from holdfast.group.streams.values import PIECE_OVERHEAD, Note
from holdfast.links.ports import (
    DatagramRoom,
    PeerDown,
    PeerUp,
    Received,
    SendChannel,
    SendDatagrams,
    link_unit,
)
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import DATA, MILLISECOND, SECOND, SYNC, NodeId
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected, decode_frame
from holdfast.wire.frames import MemberInfo

DATAGRAM = -1
ME, ONE, TWO = (NodeId(letter * 16) for letter in (b"m", b"1", b"2"))


class Bench:
    """A source on a node that is no replica, with two replicas n1 and n2."""

    def __init__(self, **settings: Any) -> None:
        config = GroupConfig("g", ("n1", "n2"), "n1", **settings)
        self.source = SourceMachine(config=config, node=ME, name="s", incarnation=7, rng=Random(1))
        self.now = 0
        self.out = Outbox()
        for node, name in ((ONE, "n1"), (TWO, "n2")):
            self.give(PeerUp(node, MemberInfo(node, name, 1, ())))
        self.frames(ONE)
        self.rooms()

    def give(self, *inputs: Any) -> None:
        self.source.up(self.now, list(inputs), self.out)

    def send(self, count: int, size: int = 100) -> None:
        self.give(Multicast([bytes([k % 251]) * size for k in range(count)]))

    def ask(self, *ranges: tuple[int, int], node: NodeId = ONE) -> None:
        self.give(Received(node, [Nack("g", self.source.stream, ranges)], self.now))

    def free(self, upto: int, stream: StreamId | None = None) -> None:
        self.give(Received(ONE, [Freed("g", ((stream or self.source.stream, upto),))], self.now))

    def hold(self, upto: int) -> None:
        frame = Freed("g", (), held=((self.source.stream, upto),))
        self.give(Received(ONE, [frame], self.now))

    def frames(self, node: NodeId, channel: int | None = None) -> list[Any]:
        """What was sent to `node` since the last call; forgets the rest."""
        found = []
        for unit, item, _ in self.out.downs:
            if isinstance(item, SendDatagrams):
                sent, by = item.frames, DATAGRAM
            else:
                assert isinstance(item, SendChannel)
                sent, by = item.messages, item.channel
            if unit == link_unit(node) and channel in (None, by):
                found += [decode_frame(message) for message in sent]
        self.out.downs = []
        return found

    def rooms(self) -> list[int]:
        held = [effect.held for effect, _ in self.out.effects if isinstance(effect, SourceRoom)]
        self.out.effects = []
        return held


def settled(bench: Bench) -> int:
    """Up to which number senders were last told that it is decided what becomes of them."""
    said = [effect.settled for effect, _ in bench.out.effects if isinstance(effect, SourceRoom)]
    return int(said[-1]) if said else 0


def numbers(frames: list[Any]) -> list[tuple[int, int]]:
    return [
        (frame.first, frame.first + frame.count - 1)
        for frame in frames
        if isinstance(frame, Payload)
    ]


def idles(frames: list[Any]) -> list[tuple[int, int]]:
    assert all(isinstance(frame, Idle) for frame in frames)
    return [(frame.last, frame.freed) for frame in frames]


def test_messages_of_a_turn_are_packed_and_numbered_from_one() -> None:
    bench = Bench()
    bench.give(Multicast([b"a", b"b"]), Multicast([b"c"]))
    (frame,) = bench.frames(ONE, DATA)
    assert (frame.first, frame.count, frame.stream) == (1, 3, StreamId(ME, 7, 0))
    messages = unpack_block(frame.block)
    assert not isinstance(messages, Rejected)
    assert [bytes(message) for message in messages] == [b"a", b"b", b"c"]
    bench.send(2)
    assert numbers(bench.frames(TWO)) == [(4, 5)]


def test_every_replica_is_sent_the_very_same_bytes() -> None:
    bench = Bench()
    bench.send(3)
    sent = [item.messages for _, item, _ in bench.out.downs]
    assert len(sent) == 2
    assert sent[0] is sent[1]


def test_frames_are_about_as_large_as_configured() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.send(35, 100)
    frames = bench.frames(ONE)
    assert numbers(frames) == [(1, 10), (11, 20), (21, 30), (31, 35)]


def test_a_message_larger_than_a_frame_travels_alone() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.give(Multicast([b"x", b"y" * 5000, b"z"]))
    assert numbers(bench.frames(ONE)) == [(1, 1), (2, 2), (3, 3)]


def test_a_request_is_answered_from_the_buffer_to_its_sender() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.send(40, 100)
    bench.frames(ONE)
    bench.ask((12, 13), (25, 31))
    assert [unit for unit, _, _ in bench.out.downs] == [link_unit(ONE)]
    assert numbers(bench.frames(ONE)) == [(11, 20), (21, 30), (31, 40)]


def test_overlapping_ranges_are_sent_once() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.send(20, 100)
    bench.frames(ONE)
    bench.ask((1, 2), (2, 5), (3, 12))
    assert numbers(bench.frames(ONE)) == [(1, 10), (11, 20)]


def test_one_request_cannot_make_it_send_everything() -> None:
    bench = Bench(window_bytes=8 << 20)
    bench.send(6000, 1000)
    bench.frames(ONE)
    bench.ask((1, 6000))
    sent = sum(frame.count for frame in bench.frames(ONE))
    assert 1000 <= sent <= 1200


def test_what_is_gone_is_answered_with_how_far_it_is_gone() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.send(40, 100)
    bench.free(20)
    bench.frames(ONE)
    bench.ask((5, 25))
    frames = bench.frames(ONE)
    assert numbers(frames) == [(21, 30)]
    assert idles(frames[-1:]) == [(40, 20)]


def test_what_every_replica_has_is_forgotten() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.send(40, 100)
    held = bench.source.held
    bench.free(25)
    assert bench.source.held == held // 2, "the block of 21 to 30 is still needed"
    bench.free(40)
    assert bench.source.held == 0


def test_bytes_that_all_hold_are_forgotten_and_stay_in_the_window() -> None:
    """Stability, rule 1: two marks. Held by all frees memory, applied by all frees the window."""
    bench = Bench(payload_bytes=1000, window_bytes=1 << 20)
    bench.send(40, 100)
    before = bench.source.held
    bench.hold(20)
    assert (bench.source.kept, bench.source.held) == (before // 2, before)
    assert settled(bench) == 0, "a held message does not end a flush"
    bench.frames(ONE)
    bench.ask((5, 25))
    frames = bench.frames(ONE)
    assert numbers(frames) == [(21, 30)], "the rest is at every replica"
    assert idles(frames[-1:]) == [(40, 20)]
    bench.free(20)
    assert (bench.source.kept, bench.source.held) == (before // 2, before // 2)
    assert settled(bench) == 20
    bench.free(40)
    assert (bench.source.kept, bench.source.held) == (0, 0), "what is applied is held"


def test_held_marks_do_not_let_a_source_send_more() -> None:
    """A slow application slows the source down, however fast its replica receives."""
    bench = Bench(payload_bytes=1000, window_bytes=10_000)
    bench.send(60, 100)
    bench.send(60, 100)
    sent = numbers(bench.frames(ONE))[-1][1]
    assert sent < 120
    bench.hold(sent)
    assert bench.frames(ONE) == []
    bench.free(sent)
    assert numbers(bench.frames(ONE))[-1][1] == 120


@pytest.mark.parametrize("upto", [-1, 0, 11, 1 << 60])
def test_impossible_held_numbers_forget_nothing(upto: int) -> None:
    bench = Bench()
    bench.send(10)
    kept = bench.source.kept
    bench.hold(upto)
    bench.give(Received(NodeId(b"z" * 16), [Freed("g", (), held=((bench.source.stream, 10),))], 0))
    assert bench.source.kept == kept > 0


def test_impossible_and_foreign_numbers_free_nothing() -> None:
    bench = Bench()
    bench.send(10)
    held = bench.source.held
    bench.free(11)
    bench.free(-3)
    bench.free(10, StreamId(ME, 6, 0))
    bench.give(Received(ONE, [Freed("other group", ((bench.source.stream, 10),))], 0))
    bench.give(Received(NodeId(b"z" * 16), [Freed("g", ((bench.source.stream, 10),))], 0))
    assert bench.source.held == held


def test_a_full_window_stops_sending_and_says_so() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=10_000)
    bench.send(60, 100)
    assert bench.rooms() == [6 * (8 + 10 * 104 + PIECE_OVERHEAD)], (
        "another eighth of the window is worth a word"
    )
    bench.send(60, 100)
    assert bench.rooms()[-1] > 10_000
    sent = numbers(bench.frames(ONE))[-1][1]
    assert sent < 120, "what does not fit waits here"
    bench.free(sent)
    assert bench.rooms()[-1] < 10_000
    assert numbers(bench.frames(ONE))[-1][1] == 120, "and goes out when there is room"


def test_senders_that_do_not_stop_are_refused_and_nothing_vanishes_silently() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=10_000)
    for _ in range(10):
        bench.send(40, 100)
    status = bench.source.status()
    facts = [
        fact for fact in bench.out.facts if isinstance(fact, GroupFact) and fact.event == "refused"
    ]
    assert status["refused"] == 40 * len(facts) > 0
    assert "none of them was sent" in facts[0].detail
    assert bench.source.held <= 2 * 10_000 + 1000
    last, queued = status["last"], status["queued"]
    assert isinstance(last, int)
    assert isinstance(queued, int)
    assert last + queued + 40 * len(facts) == 400


def test_a_message_that_can_never_fit_is_refused() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=10_000)
    bench.give(Multicast([b"x" * 2501]))
    told = [effect.held for effect, _ in bench.out.effects if isinstance(effect, SourceRoom)]
    assert told == [0], "who sends counts on from there"
    assert bench.frames(ONE) == []
    assert bench.source.status()["refused"] == 1


def test_senders_are_told_what_was_taken_also_of_what_was_refused() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=10_000)
    bench.send(2, 100)
    bench.give(Multicast([b"x" * 2501]))
    rooms = [effect for effect, _ in bench.out.effects if isinstance(effect, SourceRoom)]
    assert [room.taken for room in rooms] == [208, 208 + 2505]


def test_a_stream_begun_after_a_failure_speaks_of_its_room_and_takes_nothing_of_the_one_before() -> (
    None
):
    config = GroupConfig("g", ("n1",), "n1")
    source = SourceMachine(config=config, node=ME, name="s", incarnation=7, rng=Random(1), stream=1)
    out = Outbox()
    source.up(0, [PeerUp(ONE, MemberInfo(ONE, "n1", 1, ()))], out)
    assert [effect for effect, _ in out.effects] == [SourceRoom("source/g", 0, 0, 0)]
    source.up(0, [Multicast([b"old"], stream=0), Multicast([b"new"], stream=1)], out)
    source.up(0, [Multicast([b"any"])], out)
    status = source.status()
    assert (status["last"], status["refused"]) == (2, 1)
    (fact,) = [fact for fact in out.facts if isinstance(fact, GroupFact)]
    assert fact.detail == "1 messages refused: their source has failed; none of them was sent"
    room, _ = out.effects[-1]
    assert room.taken == 14, "whoever has a handle of this stream handed over just these"


@pytest.mark.parametrize(("transport", "first_ms"), [("datagram", 5), ("channel", 40)])
def test_the_last_number_is_repeated_quickly_then_slowly(transport: str, first_ms: int) -> None:
    """A channel loses nothing while the session lasts."""
    bench = Bench(transport=transport)
    bench.send(3)
    bench.frames(ONE)
    gaps = []
    for _ in range(12):
        before, bench.now = bench.now, bench.source.deadline
        gaps.append(bench.now - before)
        bench.source.wake(bench.now, bench.out)
        assert idles(bench.frames(ONE, SYNC)) == [(3, 0)]
    assert gaps[0] == first_ms * MILLISECOND
    assert all(later >= earlier for earlier, later in pairwise(gaps[:4]))
    assert SECOND <= gaps[-1] <= SECOND * 9 // 8
    bench.send(1)
    assert bench.source.deadline == bench.now + first_ms * MILLISECOND


def test_a_replica_that_comes_up_is_told_the_last_number() -> None:
    bench = Bench()
    bench.send(3)
    bench.frames(ONE)
    bench.give(PeerUp(TWO, MemberInfo(TWO, "n2", 2, ())))
    assert idles(bench.frames(TWO)) == [(3, 0)]


def test_a_source_that_never_sent_is_silent() -> None:
    bench = Bench()
    assert bench.source.deadline > 1 << 60


def test_notes_travel_with_their_messages_whatever_frames_those_are_cut_into() -> None:
    bench = Bench(payload_bytes=1000, priorities=3)
    messages = [b"x" * 300] * 10
    bench.give(Multicast(messages, ((0, Note(1)), (4, Note(0, "rain")))))
    bench.give(Multicast(messages[:1], ((0, Note(request=b"r")),)))
    frames = bench.frames(ONE)
    assert [frame.count for frame in frames] == [3, 3, 3, 1, 1]
    assert [frame.about.priorities for frame in frames] == [b"\1\2\2", b"\2\0\2", b"", b"", b""]
    assert [frame.about.distances for frame in frames] == [
        (-1, -1),
        (-1, 3),
        (2, 6),
        (5, 9),
        (6, 10),
    ]
    assert frames[1].about.topics == ("rain",)
    assert frames[4].about.requests == ((0, b"r"),)


def test_notes_of_messages_that_wait_for_room_are_not_lost() -> None:
    bench = Bench(payload_bytes=1000, window_bytes=10_000, priorities=2)
    bench.give(Multicast([b"x" * 500] * 15))
    bench.give(Multicast([b"y" * 500] * 5, ((4, Note(0)),)))
    assert numbers(bench.frames(ONE))[-1] == (16, 17)
    bench.free(17)
    frames = bench.frames(ONE)
    assert numbers(frames) == [(18, 19), (20, 20)]
    assert [frame.about.priorities for frame in frames] == [b"", b"\0"]


def test_datagrams_are_of_about_the_size_of_a_packet_and_are_sent_again_by_the_channel() -> None:
    bench = Bench(transport="datagram", datagram_window=3000)
    bench.send(20, 400)
    frames = bench.frames(ONE, DATAGRAM)
    assert numbers(frames) == [(1, 2), (3, 4), (5, 6), (7, 8)]
    bench.ask((3, 3))
    assert numbers(bench.frames(ONE, DATA)) == [(3, 4)]
    bench.free(4)
    assert numbers(bench.frames(ONE, DATAGRAM)) == [(9, 10), (11, 12)]


def fits(bench: Bench, room: int) -> list[int]:
    """The sizes of the datagrams that were sent, all within `room`."""
    sent = [item for unit, item, _ in bench.out.downs if isinstance(item, SendDatagrams)]
    sizes = [len(frame) for item in sent for frame in item.frames]
    bench.frames(ONE)
    assert max(sizes) <= room
    return sizes


def test_datagrams_have_the_size_that_passes_to_every_replica() -> None:
    """One packet for eight messages costs little more than one for one."""
    bench = Bench(transport="datagram")
    bench.give(DatagramRoom(ONE, 8900))
    bench.send(32, 1000)
    assert len(bench.frames(ONE, DATAGRAM)) == 32, "nothing is known of the other one"
    bench.give(DatagramRoom(TWO, 6000))
    bench.send(30, 1000)
    assert [frame.count for frame in bench.frames(ONE, DATAGRAM)] == [5] * 6
    bench.give(DatagramRoom(TWO, 500))
    bench.send(10, 1000)
    assert [frame.count for frame in bench.frames(ONE, DATAGRAM)] == [1] * 10
    bench.give(PeerDown(TWO, "gone"))
    bench.send(16, 1000)
    assert [frame.count for frame in bench.frames(ONE, DATAGRAM)] == [8, 8]


@pytest.mark.parametrize("size", [1, 30, 100, 1000, 3000])
@pytest.mark.parametrize("priorities", [1, 8])
def test_no_frame_is_above_the_size_that_passes_whatever_is_attached(
    size: int, priorities: int
) -> None:
    """It would use a stream."""
    bench = Bench(transport="datagram", priorities=priorities)
    for room in (1500, 4000, 8900):
        for node in (ONE, TWO):
            bench.give(DatagramRoom(node, room))
        notes = (
            [Note()] * 3,
            [Note(0 if priorities > 1 else -1, f"topic {k}" * 9, b"r" * 64) for k in range(200)],
            [Note(topic="same", resync=True)] * 200,
        )
        for some in notes:
            messages = [bytes(size)] * 200
            bench.give(Multicast(messages, tuple(enumerate(some))))
            fits(bench, max(room, size + 400))
            bench.free(int(str(bench.source.status()["last"])))


def test_several_datagrams_fit_into_the_window_however_large_they_may_be() -> None:
    bench = Bench(transport="datagram", datagram_window=64_000)
    for node in (ONE, TWO):
        bench.give(DatagramRoom(node, 60_000))
    bench.send(100, 500)
    assert len(bench.frames(ONE, DATAGRAM)) >= 10


def test_what_was_kept_is_the_same_frame_again() -> None:
    bench = Bench(priorities=2)
    bench.give(Multicast([b"a", b"b"], ((1, Note(0, "t")),)))
    first = bench.frames(ONE)
    bench.ask((1, 2))
    (again,) = bench.frames(ONE)
    assert (bytes(again.block), again.about) == (bytes(first[0].block), first[0].about)


def test_a_window_of_tiny_messages_fits_into_two_windows_of_a_replica() -> None:
    """A replica that has no room for what its source has on the way takes it for lost."""
    bench = Bench(window_bytes=500_000)
    streams = Streams(2 * 500_000, 8)
    for _ in range(3000):
        bench.send(1, 1)
        for frame in bench.frames(ONE):
            assert streams.take(frame, 1)
    assert bench.source.held >= 500_000


@pytest.mark.parametrize(("freed", "least", "most"), [(2, 90, 120), (3, 3, 20)])
def test_a_source_of_which_all_is_free_says_little(freed: int, least: int, most: int) -> None:
    """There may be thousands of them; one that somebody may lack something of is heard every second."""
    bench = Bench()
    bench.send(3)
    bench.free(freed)
    bench.frames(ONE)
    said = 0
    while bench.source.deadline < 100 * SECOND:
        bench.now = bench.source.deadline
        bench.source.wake(bench.now, bench.out)
        said += len(bench.frames(ONE, SYNC))
    assert least <= said <= most


def test_replicas_are_asked_what_is_decided_until_one_says_it() -> None:
    bench = Bench()
    bench.send(10)
    bench.give(Flush(10))
    asked: list[int] = []
    while len(asked) < 4:
        bench.now = bench.source.deadline
        bench.source.wake(bench.now, bench.out)
        if any(isinstance(frame, CommitQuery) for frame in bench.frames(TWO)):
            asked.append(bench.now)
    assert asked[0] == ASK_FIRST_NS
    assert [b - a for a, b in pairwise(asked)] == [ASK_FIRST_NS << k for k in range(3)]
    stream = bench.source.stream
    for wrong in (
        CommitReply("g", stream, 11),  # has never been sent
        CommitReply("g", StreamId(ME, 6, 0), 10),
        CommitReply("other", stream, 10),
    ):
        bench.give(Received(ONE, [wrong], bench.now))
        assert settled(bench) == 0
    bench.give(Received(ONE, [CommitReply("g", stream, 10)], bench.now))
    assert settled(bench) == 10
    while bench.source.deadline < 2 * SECOND:
        bench.now = bench.source.deadline
        bench.source.wake(bench.now, bench.out)
        assert not any(isinstance(frame, CommitQuery) for frame in bench.frames(TWO))
