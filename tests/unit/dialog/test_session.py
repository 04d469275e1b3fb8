"""Messages between two ends: numbers, acknowledgement, windows, resuming."""

from __future__ import annotations

import pytest
from tests.support.dialogs import Pair, Trouble, World, bodies

from holdfast.types import MILLISECOND, SECOND


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % n for n in range(start, start + count)]


def test_messages_arrive_once_and_in_order() -> None:
    world = World(1)
    pair = Pair(world)
    sent = pair.send(*numbered(100))
    world.finish(sent)
    world.run(SECOND)
    assert pair.drain() == numbered(100)
    assert pair.here().acked == [(0, 100)]
    assert pair.here().queued == pair.here().in_flight == 0


def test_both_ends_send() -> None:
    world = World(2)
    pair = Pair(world)
    world.finish(pair.send(b"there"), pair.send(b"back", unit=pair.far))
    world.run(SECOND)
    assert pair.drain() == [b"there"]
    assert pair.drain(pair.near) == [b"back"]


def test_a_receive_waits_for_the_message() -> None:
    world = World(3)
    pair = Pair(world)
    call = pair.take()
    world.run(SECOND)
    assert not call.done
    pair.send(b"late")
    assert bodies(world.finish(call)[0]) == [b"late"]


def test_a_healthy_path_causes_no_retransmission() -> None:
    world = World(4, Trouble(commit_jitter_ns=100 * MILLISECOND, jitter_ns=5 * MILLISECOND))
    pair = Pair(world)
    for n in range(50):
        world.finish(pair.send(*numbered(20, 20 * n)))
        world.run(20 * MILLISECOND)
        pair.drain()
    world.run(5 * SECOND)
    assert pair.here().acked == [(0, 1000)]
    assert pair.here().resent == 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_doubled_or_reordered_on_a_bad_network(seed: int) -> None:
    world = World(seed, Trouble(loss=0.2, duplication=0.2, reordering=0.3))
    pair = Pair(world)
    got: list[bytes] = []
    for n in range(20):
        world.finish(pair.send(*numbered(10, 10 * n)))
        world.run(50 * MILLISECOND)
        got += pair.drain()
    world.run(300 * SECOND, lambda: pair.here().acked == [(0, 200)])
    world.run(SECOND)
    got += pair.drain()
    assert got == numbered(200)
    assert pair.near.manager.status()["blocks"] == pair.far.manager.status()["blocks"] == 0
