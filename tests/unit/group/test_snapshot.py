"""A state in chunks: complete whatever is lost on the way, bounded, and nothing else is mistaken for it."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from holdfast.group.config import GroupConfig
from holdfast.group.core import Core
from holdfast.group.frames import Entry, StateChunk, StateRequest
from holdfast.group.log.entries import Member, View, encode_data
from holdfast.group.log.replicated_log import Kind
from holdfast.group.peer import Peer
from holdfast.group.ports import SnapshotTaken, TakeSnapshot
from holdfast.group.transfer.checkpoint import Checkpoint, make_checkpoint
from holdfast.group.transfer.snapshot import (
    TRIES_MAX,
    WINDOW,
    Snapshot,
    SnapshotReceiver,
    SnapshotSender,
)
from holdfast.group.transfer.values import CHUNK
from holdfast.links.ports import SendChannel
from holdfast.machine import Outbox
from holdfast.types import BULK, NEVER, NodeId
from holdfast.wire.codec import decode_frame

CONFIG = GroupConfig("g", ("a", "b"), "a", state_bytes=10_000_000)
GIVER = Peer(NodeId(b"a" * 16), "a", 1, 1)
TAKER = Peer(NodeId(b"b" * 16), "b", 1, 1)
VIEW = View(1, (Member("a", b"a" * 16, 1, True), Member("b", b"b" * 16, 1, True)))
STATE = Random(5).randbytes(40 * CHUNK)


class Pair:
    """A giver and a taker, and what is on the way between them."""

    def __init__(self, seed: int = 1, loss: float = 0.0, state: bytes = STATE) -> None:
        self.rng = Random(seed)
        self.loss = loss
        self.state = state
        self.given = 0
        self.core = Core(CONFIG, GIVER.node, "a", 1)
        self.core.group_epoch = 7
        self.log, self.delivery = self.core.log, self.core.delivery
        self.log.append(Entry(1, 1, 1, 0, Kind.VIEW, data=encode_data(VIEW)))
        for index in range(2, 4):
            self.log.append(Entry(1, index, 1, 0, Kind.TERM))
        self.log.commit_to(2)
        self.delivery.hand_out(0, Outbox())
        self.giver = SnapshotSender(self.core)
        self.taker = SnapshotReceiver(CONFIG, Random(seed))
        self.now = 0
        self.checkpoint: Checkpoint | None = None
        self.on_the_way = 0
        self.busiest = 0

    def sent(self, out: Outbox) -> list[Any]:
        frames = []
        for _, item, _ in out.downs:
            assert isinstance(item, SendChannel)
            frames += [decode_frame(message) for message in item.messages]
        return [frame for frame in frames if self.rng.random() >= self.loss]

    def give(self, frames: list[Any]) -> list[Any]:
        """Requests to the giver; the chunks that come back."""
        out = Outbox()
        for frame in frames:
            self.giver.asked(TAKER, frame, self.now, out)
        for effect, _ in out.effects:
            assert isinstance(effect, TakeSnapshot)
            self.giver.taken(SnapshotTaken(effect.request, effect.index, self.state), self.now, out)
        chunks = self.sent(out)
        self.given += len(chunks)
        self.busiest = max(self.busiest, len(chunks))
        return chunks

    def take(self, chunks: list[Any]) -> list[Any]:
        out = Outbox()
        self.rng.shuffle(chunks)
        for chunk in chunks:
            self.checkpoint = self.taker.chunk(GIVER, chunk, self.now, out) or self.checkpoint
        return self.sent(out)

    def run(self, enough: int = 1 << 30) -> None:
        """Until the state is there, or `enough` parts have been given."""
        out = Outbox()
        self.taker.begin(GIVER, self.now, out)
        requests = self.sent(out)
        for _ in range(1000):
            if self.checkpoint is not None or self.given >= enough:
                return
            requests = self.take(self.give(requests))
            if not requests and self.taker.deadline() < NEVER:
                self.now = self.taker.deadline()
                out = Outbox()
                self.taker.wake(self.now, out)
                requests = self.sent(out)


def test_a_state_arrives_whole_with_what_the_order_had_come_to() -> None:
    pair = Pair()
    pair.run()
    checkpoint = pair.checkpoint
    assert checkpoint is not None
    assert checkpoint.state == STATE
    assert (checkpoint.at.index, checkpoint.at.term, checkpoint.at.view) == (2, 1, VIEW)
    assert (checkpoint.group_epoch, checkpoint.ground) == (7, None)


def test_lost_chunks_and_requests_are_made_good() -> None:
    for seed in range(10):
        pair = Pair(seed, loss=0.2)
        pair.run()
        assert pair.checkpoint is not None, f"seed {seed}"
        assert pair.checkpoint.state == STATE


def test_no_more_than_a_window_is_on_the_way() -> None:
    pair = Pair()
    pair.run()
    assert 0 < pair.busiest <= 2 * WINDOW


def test_a_giver_that_does_not_answer_is_given_up() -> None:
    pair = Pair(loss=1.0)
    pair.run()
    assert not pair.taker.active
    assert pair.now <= (TRIES_MAX + 1) * CONFIG.transfer_retry_ns


def request(out: Outbox) -> StateRequest:
    frame = decode_frame(out.downs[-1][1].messages[0])
    assert out.downs[-1][1].channel != BULK
    assert isinstance(frame, StateRequest)
    return frame


def begun(least: int = 0) -> tuple[SnapshotReceiver, int]:
    """A taker that has asked for the first part, and the number of its transfer."""
    out = Outbox()
    taker = SnapshotReceiver(CONFIG, Random(1))
    taker.begin(GIVER, 0, out, least)
    asked = request(out)
    assert (asked.ranges, asked.least) == (((0, 0),), least)
    return taker, asked.request


def chunks(number: int, state: bytes = STATE) -> list[StateChunk]:
    """Every part of a state at entry 2."""
    at = Pair().delivery.at
    given = Snapshot(make_checkpoint(7, at, 0, state, ()))
    return [
        StateChunk("g", number, 2, part, given.parts, given.part(part), given.head_parts)
        for part in range(given.parts)
    ]


def test_a_state_that_is_too_large_is_not_taken_in() -> None:
    taker, number = begun()
    parts = CONFIG.state_bytes // CHUNK + 2
    chunk = StateChunk("g", number, 5, 0, parts, memoryview(b"x"), 1)
    assert taker.chunk(GIVER, chunk, 0, Outbox()) is None
    assert taker._have == {}


def test_damaged_and_foreign_chunks_are_not_mistaken_for_a_state() -> None:
    out = Outbox()
    taker, number = begun()
    junk = memoryview(b"junk")
    assert taker.chunk(TAKER, StateChunk("g", number, 5, 0, 1, junk, 1), 0, out) is None
    assert taker.chunk(GIVER, StateChunk("g", number + 1, 5, 0, 1, junk, 1), 0, out) is None
    assert taker.chunk(GIVER, StateChunk("g", number, 5, -1, 1, junk, 1), 0, out) is None
    assert taker.chunk(GIVER, StateChunk("g", number, 5, 0, 1, junk, 0), 0, out) is None
    assert taker.active
    assert taker.chunk(GIVER, StateChunk("g", number, 5, 0, 1, junk, 1), 0, out) is None
    assert not taker.active, "it was complete, and no state"


def test_a_part_that_is_not_what_the_head_says_is_asked_for_again() -> None:
    taker, number = begun()
    head, first, *rest = chunks(number)
    taker.chunk(GIVER, head, 0, Outbox())
    damaged = StateChunk("g", number, 2, 1, first.parts, memoryview(bytes(CHUNK)), first.head)
    taker.chunk(GIVER, damaged, 0, Outbox())
    assert 1 not in taker._have
    out = Outbox()
    taker.wake(CONFIG.transfer_retry_ns, out)
    assert request(out).ranges[0][0] == 1
    images = [taker.chunk(GIVER, chunk, 0, Outbox()) for chunk in (first, *rest)]
    assert images[-1] is not None
    assert images[-1].state == STATE


def test_a_state_from_before_what_is_here_is_not_taken_in() -> None:
    taker, number = begun(least=3)
    taker.chunk(GIVER, chunks(number)[0], 0, Outbox())
    assert taker._have == {}


def test_another_giver_is_asked_only_for_what_the_first_did_not_give() -> None:
    """The application is deterministic, so both have the same state at the same place of the order."""
    first, second = Pair(), Pair()
    first.run(enough=25)
    had = len(first.taker._have)
    assert had > 10
    first.taker.stop()
    second.taker = first.taker
    second.run()
    assert second.checkpoint is not None
    assert second.checkpoint.state == STATE
    assert second.given <= 41 - (had - 1)
    assert not second.taker.kept


def test_what_has_changed_since_is_taken_from_the_second_giver() -> None:
    first, second = Pair(), Pair(state=STATE[: 5 * CHUNK] + b"news" + STATE[5 * CHUNK + 4 :])
    first.run(enough=25)
    first.taker.stop()
    assert first.taker.kept
    second.taker = first.taker
    second.run()
    assert second.checkpoint is not None
    assert second.checkpoint.state == second.state


def test_what_is_kept_of_a_transfer_is_forgotten_when_no_state_is_needed() -> None:
    pair = Pair()
    pair.run(enough=25)
    pair.taker.stop()
    assert pair.taker.kept
    pair.taker.forget()
    assert not pair.taker.kept


def test_two_that_ask_are_given_the_same_snapshot() -> None:
    pair = Pair()
    pair.run(enough=10)
    out = Outbox()
    other = Peer(NodeId(b"c" * 16), "c", 1, 1)
    pair.giver.asked(other, StateRequest("g", 77, ((0, 0),)), 0, out)
    assert not out.effects, "the application is not asked again"
    (chunk,) = pair.sent(out)
    assert (chunk.request, chunk.part) == (77, 0)
    pair.giver.asked(other, StateRequest("g", 78, ((0, 0),), least=3), 0, out)
    assert [type(effect) for effect, _ in out.effects] == [TakeSnapshot], "that one is too old"


def test_a_snapshot_that_is_overtaken_by_freeing_is_taken_again() -> None:
    pair = Pair()
    out = Outbox()
    pair.giver.asked(TAKER, StateRequest("g", 1, ((0, 0),)), 0, out)
    (first, _), *_ = out.effects
    pair.log.commit_to(3)
    pair.log.trim(3)
    pair.delivery.at.index = 3
    out = Outbox()
    pair.giver.taken(SnapshotTaken(first.request, first.index, STATE), 0, out)
    assert [type(effect) for effect, _ in out.effects] == [TakeSnapshot]
    assert out.downs == []


def test_a_state_over_the_size_limit_is_not_transferred() -> None:
    """The receiver would refuse its first part, silently, and ask for ever."""
    pair = Pair()
    pair.giver._config = msgspec.structs.replace(CONFIG, state_bytes=len(STATE) - 1)
    pair.run()
    assert pair.checkpoint is None
    assert pair.giver.problem == f"the snapshot has {len(STATE)} bytes, the limit is {len(STATE) - 1}"  # fmt: skip
