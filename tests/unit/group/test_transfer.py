"""A state in chunks: complete whatever is lost on the way, bounded, and nothing else is mistaken for it."""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast.group.config import GroupConfig
from holdfast.group.core import Core
from holdfast.group.entries import Member, View, encode_data
from holdfast.group.log import Kind
from holdfast.group.peers import Peer
from holdfast.group.ports import SnapshotTaken, TakeSnapshot
from holdfast.group.transfer import CHUNK, PARTS_MAX, TRIES_MAX, WINDOW, Image, StateIn, StateOut
from holdfast.links.ports import SendChannel
from holdfast.machine import Outbox
from holdfast.types import BULK, NEVER, NodeId
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import Entry, StateChunk, StateRequest

CONFIG = GroupConfig("g", ("a", "b"), "a", state_bytes=10_000_000)
GIVER = Peer(NodeId(b"a" * 16), "a", 1, 1)
TAKER = Peer(NodeId(b"b" * 16), "b", 1, 1)
VIEW = View(1, (Member("a", b"a" * 16, 1, True), Member("b", b"b" * 16, 1, True)))
STATE = Random(5).randbytes(40 * CHUNK)


class Pair:
    """A giver and a taker, and what is on the way between them."""

    def __init__(self, seed: int = 1, loss: float = 0.0) -> None:
        self.rng = Random(seed)
        self.loss = loss
        self.core = Core(CONFIG, GIVER.node, "a", 1)
        self.core.history = 7
        self.log, self.delivery = self.core.log, self.core.delivery
        self.log.append(Entry(1, 1, 1, 0, Kind.VIEW, data=encode_data(VIEW)))
        for index in range(2, 4):
            self.log.append(Entry(1, index, 1, 0, Kind.TERM))
        self.log.commit_to(2)
        self.delivery.hand_out(0, Outbox())
        self.giver = StateOut(self.core)
        self.taker = StateIn(CONFIG, Random(seed))
        self.now = 0
        self.image: Image | None = None
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
            self.giver.asked(TAKER, frame, out)
        for effect, _ in out.effects:
            assert isinstance(effect, TakeSnapshot)
            self.giver.taken(SnapshotTaken(effect.request, effect.index, STATE), self.now, out)
        chunks = self.sent(out)
        self.busiest = max(self.busiest, len(chunks))
        return chunks

    def take(self, chunks: list[Any]) -> list[Any]:
        out = Outbox()
        self.rng.shuffle(chunks)
        for chunk in chunks:
            self.image = self.taker.chunk(GIVER, chunk, self.now, out) or self.image
        return self.sent(out)

    def run(self) -> None:
        out = Outbox()
        self.taker.begin(GIVER, self.now, out)
        requests = self.sent(out)
        for _ in range(1000):
            if self.image is not None:
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
    image = pair.image
    assert image is not None
    assert image.state == STATE
    assert (image.index, image.term) == (2, 1)
    assert (image.view, image.history) == (VIEW, 7)


def test_lost_chunks_and_requests_are_made_good() -> None:
    for seed in range(10):
        pair = Pair(seed, loss=0.2)
        pair.run()
        assert pair.image is not None, f"seed {seed}"
        assert pair.image.state == STATE


def test_no_more_than_a_window_is_on_the_way() -> None:
    pair = Pair()
    pair.run()
    assert 0 < pair.busiest <= 2 * WINDOW


def test_a_giver_that_does_not_answer_is_given_up() -> None:
    pair = Pair(loss=1.0)
    pair.run()
    assert not pair.taker.active
    assert pair.now <= (TRIES_MAX + 1) * CONFIG.transfer_retry_ns


def test_a_state_that_is_too_large_is_not_taken_in() -> None:
    taker = StateIn(CONFIG, Random(1))
    out = Outbox()
    taker.begin(GIVER, 0, out)
    number = request(out)
    parts = CONFIG.state_bytes // CHUNK + 2
    assert (
        taker.chunk(GIVER, StateChunk("g", number, 5, 0, parts, memoryview(b"x")), 0, out) is None
    )
    assert taker._whole == []


def request(out: Outbox) -> int:
    frame = decode_frame(out.downs[-1][1].messages[0])
    assert out.downs[-1][1].channel != BULK
    assert isinstance(frame, StateRequest)
    return frame.request // PARTS_MAX * PARTS_MAX


def test_damaged_and_foreign_chunks_are_not_mistaken_for_a_state() -> None:
    out = Outbox()
    taker = StateIn(CONFIG, Random(1))
    taker.begin(GIVER, 0, out)
    number = request(out)
    junk = memoryview(b"junk")
    assert taker.chunk(TAKER, StateChunk("g", number, 5, 0, 1, junk), 0, out) is None
    assert taker.chunk(GIVER, StateChunk("g", number + PARTS_MAX, 5, 0, 1, junk), 0, out) is None
    assert taker.chunk(GIVER, StateChunk("g", number, 5, -1, 1, junk), 0, out) is None
    assert taker.active
    assert taker.chunk(GIVER, StateChunk("g", number, 5, 0, 1, junk), 0, out) is None
    assert not taker.active, "it was complete, and no state"


def test_a_snapshot_that_is_overtaken_by_freeing_is_taken_again() -> None:
    pair = Pair()
    out = Outbox()
    pair.giver.asked(TAKER, StateRequest("g", PARTS_MAX), out)
    (first, _), *_ = out.effects
    pair.log.commit_to(3)
    pair.log.trim(3)
    pair.delivery.at.index = 3
    out = Outbox()
    pair.giver.taken(SnapshotTaken(first.request, first.index, STATE), 0, out)
    assert [type(effect) for effect, _ in out.effects] == [TakeSnapshot]
    assert out.downs == []
