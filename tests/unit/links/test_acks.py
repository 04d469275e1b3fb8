"""When what came in on a channel is acknowledged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.links.channels import chunk_of

from holdfast.links.channel_out import ChannelOut
from holdfast.links.receiver import ACK_BYTES, ACK_DELAY, ACK_SOON, LinkReceiver
from holdfast.types import NEVER, SECOND, FlowId, NodeId
from holdfast.wire.frames import Chunk

T = 1000 * SECOND
PEER = NodeId(b"p" * 16)


def chunks(size: int, count: int = 1) -> list[Chunk]:
    """Pieces of a channel, one message each."""
    out = ChannelOut(16)
    frames: list[Chunk] = []
    for _ in range(count):
        out.write([bytes(size)])
        frames += map(chunk_of, out.pump(T, FlowId(1), 1 << 20, 1 << 17, datagrams=False))
    return frames


@pytest.fixture
def receiver() -> LinkReceiver:
    return LinkReceiver(PEER, {})


def take(receiver: LinkReceiver, frames: list[Chunk], stream: bool, now: int = T) -> None:
    for frame in frames:
        assert receiver.take(now, frame, stream) is None


def said(receiver: LinkReceiver, now: int, leaving: bool = False) -> list[Any]:
    return receiver.acks(now, leaving)[0]


def test_what_came_in_a_datagram_is_acknowledged_at_once(receiver: LinkReceiver) -> None:
    take(receiver, chunks(10), stream=False)
    assert receiver.in_hurry
    (ack,) = said(receiver, T)
    assert ack.upto > 10
    assert not said(receiver, T + SECOND)


def test_what_came_on_a_stream_is_acknowledged_once_and_in_time(receiver: LinkReceiver) -> None:
    """A stream loses nothing by itself: one acknowledgement serves all that came in a while."""
    pieces = chunks(10, count=5)
    for n, piece in enumerate(pieces):
        take(receiver, [piece], stream=True, now=T + n)
        assert not receiver.in_hurry
        assert receiver.deadline == T + ACK_DELAY
        assert not said(receiver, T + n)
    assert not said(receiver, T + ACK_DELAY - 1)
    (ack,) = said(receiver, T + ACK_DELAY)
    assert ack.upto == sum(len(piece.data) for piece in pieces)
    assert receiver.deadline == NEVER
    assert not said(receiver, T + SECOND)


def test_an_acknowledgement_goes_along_with_what_leaves_anyway_but_not_with_every_packet(
    receiver: LinkReceiver,
) -> None:
    take(receiver, chunks(10), stream=True)
    assert not said(receiver, T + ACK_SOON - 1, leaving=True)
    assert said(receiver, T + ACK_SOON, leaving=True)


def test_much_is_acknowledged_without_waiting(receiver: LinkReceiver) -> None:
    size = 7 << 10
    pieces = chunks(size, count=ACK_BYTES // size + 1)
    few = ACK_BYTES // (size + 64)
    take(receiver, pieces[:few], stream=True)
    assert not receiver.in_hurry
    take(receiver, pieces[few:], stream=True)
    assert receiver.in_hurry
    assert said(receiver, T)


def test_a_piece_that_comes_twice_and_a_peer_that_asks_are_answered_at_once(
    receiver: LinkReceiver,
) -> None:
    (piece,) = chunks(10)
    take(receiver, [piece], stream=True)
    receiver.in_hurry = True
    assert said(receiver, T)
    take(receiver, [piece], stream=True)
    acks, unheard = receiver.acks(T, leaving=False)
    assert acks
    assert unheard
