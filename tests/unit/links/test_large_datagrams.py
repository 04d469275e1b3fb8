"""A frame that is to travel as a datagram, and is too large for any packet, travels all the same."""

from __future__ import annotations

import pytest
from tests.unit.links.harness import World, connected

from holdfast.group.config import replica_unit, source_unit
from holdfast.group.frames import Payload, StreamId
from holdfast.group.ports import Multicast
from holdfast.links.datagrams import MESSAGE_MAX
from holdfast.links.ports import SendDatagrams, link_unit
from holdfast.types import DATA
from holdfast.wire.blocks import pack_block
from holdfast.wire.codec import encode

GROUP = '[[group]]\nname = "g"\nvoters = ["n1", "n2"]\ntransport = "datagram"'


def sent(world: World, size: int, number: int = 1) -> StreamId:
    """A payload frame of `size` bytes on its way from n1 to n2."""
    stream = StreamId(world.nodes["n1"].id, 1, 7)
    room = size - len(encode(Payload("g", stream, number, 1, 0, memoryview(pack_block([b""])))))
    frame = encode(Payload("g", stream, number, 1, 0, memoryview(pack_block([bytes(room)]))))
    assert abs(len(frame) - size) < 10
    unit = link_unit(world.nodes["n2"].id)
    world.turn("n1", [(unit, SendDatagrams(DATA, [frame]))])
    return stream


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    "size", [500, 5000, 100_000, MESSAGE_MAX - 10, MESSAGE_MAX + 10, 140_000, 1_000_000]
)
def test_a_frame_of_any_size_arrives_without_retransmission(size: int, sealed: bool) -> None:
    world = connected(sealed=sealed, more=GROUP)
    stream = sent(world, size)
    machine = world.core("n2").turns.machine(replica_unit("g"))
    world.run_until(lambda: stream in machine.inspect().streams.streams, 1)
    assert machine.inspect().streams.holds(stream, 1, 1)
    assert world.link("n1", "n2").inspect().sender.datagrams.dropped == 0


def test_what_follows_a_large_frame_does_not_overtake_it_and_later_ones_are_datagrams_again() -> (
    None
):
    world = connected(more=GROUP)
    channel = world.link("n1", "n2").inspect().sender.channels[DATA]
    first = channel.messages
    stream = sent(world, 1_000_000)
    sent(world, 200, 2)
    machine = world.core("n2").turns.machine(replica_unit("g"))
    world.run_until(lambda: stream in machine.inspect().streams.streams, 1)
    assert machine.inspect().streams.holds(stream, 1, 1), "the large one is there first"
    world.run(1)
    before = channel.messages
    sent(world, 200, 3)
    world.run_until(lambda: machine.inspect().streams.holds(stream, 1, 3), 1)
    assert channel.messages == before == first + 2


def flood(world: World, count: int) -> tuple[int, list[int]]:
    """Messages of 1000 bytes from the source of n1: the frames in which n2 received them, and the sizes of the
    datagrams that carried them."""
    captured = world.network.capture()
    source = world.core("n1").turns.machine(source_unit("g"))
    streams = world.core("n2").turns.machine(replica_unit("g")).inspect().streams
    held = streams.get(source.stream)
    before = held.packets if held is not None else 0
    for _ in range(count // 8):
        world.turn("n1", [(source_unit("g"), Multicast([bytes(1000)] * 8))])
        world.run(0.001)
    last = int(str(source.status()["last"]))
    world.run_until(lambda: streams.holds(source.stream, 1, last), 5)
    sizes = [len(data) for sender, _, data in captured if sender[0] == "n1" and len(data) > 1000]
    return streams.streams[source.stream].packets - before, sizes


@pytest.mark.parametrize("sealed", [False, True])
def test_a_payload_frame_is_as_large_as_the_datagrams_that_pass(sealed: bool) -> None:
    world = connected(sealed=sealed, more=GROUP, mtu=9000, adapters=("red",))
    assert flood(world, 8)[0] == 8, "the source does not know yet what passes"
    frames, sizes = flood(world, 160)
    assert frames == 20
    assert 8000 < max(sizes) <= 9000 - 28
    world.path("n1", "n2").over = 1500
    world.run(3)
    flood(world, 8)
    frames, sizes = flood(world, 160)
    assert frames == 160
    assert max(sizes) <= 1500 - 28
    assert len(sizes) >= 150, "still as datagrams"
