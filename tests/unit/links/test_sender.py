"""What leaves a link, packet by packet: sizes, patterns, acknowledgements, seals."""

from __future__ import annotations

import pytest
from tests.unit.links.flows import PEER, ciphers, flow_of

from holdfast.health.config import BASIC_SIZE
from holdfast.health.frames import Heartbeat, Probe
from holdfast.health.probing.lag import STEPS_MAX
from holdfast.health.probing.probe_sender import ANNOUNCED_MAX
from holdfast.links.cipher import WINDOWS_MAX, Cipher
from holdfast.links.config import LAN
from holdfast.links.flow import DATAGRAM_MIN, IP_UDP, TAG_SHIFT, FlowState
from holdfast.links.ports import PortRoom, Transmit
from holdfast.links.sender import LinkSender
from holdfast.machine import Outbox
from holdfast.wire.codec import Rejected, encode
from holdfast.wire.frames import ChunkAck, Key, RawBatch

BASIC = [encode(Heartbeat(1, 2, 3))]


def sender_of(cipher: Cipher, *flows: FlowState) -> LinkSender:
    return LinkSender(PEER, {flow.flow: flow for flow in flows}, cipher, LAN, lambda *_: None)


def packets(out: Outbox) -> list[bytes]:
    return [p for effect, _ in out.effects if isinstance(effect, Transmit) for p in effect.packets]


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize(
    "numbers", [(1, 1, 1), (1 << 20, 1 << 20, 10**8), (1 << 31, 1 << 31, 1 << 40)]
)
def test_a_probe_has_exactly_the_size_that_it_says_on_the_wire(
    sealed: bool, numbers: tuple[int, int, int]
) -> None:
    """H1: a payload that really has that size. All sizes from 100 to 9000, whatever the numbers in it."""
    near, far = ciphers(sealed)
    flow = flow_of()
    sender = sender_of(near, flow)
    n, pair, next_ns = numbers
    step = 1 if numbers[0] == 1 << 20 else 7
    for size in range(100, 9001, step):
        out = Outbox()
        sender.filled(flow, Probe(n, size, pair, next_ns, memoryview(b"")), size, out)
        (packet,) = packets(out)
        assert len(packet) + IP_UDP == size
        if size % 500 == 0:
            frames = far.read(flow_of(), memoryview(packet))
            assert isinstance(frames, list)
            assert isinstance(frames[0], Probe)
            assert frames[0].size == size


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("pattern", [b"\x55", b"\xaa\x55", b"\x00\xff\x00"])
def test_the_pattern_of_a_probe_is_visible_on_the_wire(sealed: bool, pattern: bytes) -> None:
    """H1: and that pattern. Authenticated, not encrypted."""
    near, _ = ciphers(sealed)
    flow = flow_of()
    out = Outbox()
    sender_of(near, flow).filled(flow, Probe(1, 1500, 1, 1, memoryview(pattern)), 1500, out)
    (packet,) = packets(out)
    assert pattern * (1350 // len(pattern)) in packet


def test_a_probe_for_less_than_its_own_head_is_as_small_as_can_be() -> None:
    near, _ = ciphers(False)
    flow = flow_of()
    out = Outbox()
    sender_of(near, flow).filled(flow, Probe(1, 10, 1, 1, memoryview(b"")), 10, out)
    (packet,) = packets(out)
    assert len(packet) < 60


@pytest.mark.parametrize("size", [128, 300, 576, 1280])
def test_an_acknowledgement_names_only_as_many_ranges_as_its_packet_holds(size: int) -> None:
    """H12: acknowledgements that are larger than what the path carries would stop the channel for good."""
    near, far = ciphers(True)
    flow = flow_of()
    flow.use_size(size)
    sender = sender_of(near, flow)
    base = 1 << 40
    ack = ChunkAck(16, base, base, tuple((base + 9 * n, base + 9 * n + 5) for n in range(1, 33)))
    out = Outbox()
    sender.acknowledge(0, [ack], shout=False)
    sender.transmit(flow, out)
    (packet,) = packets(out)
    assert len(packet) + IP_UDP <= size
    frames = far.read(flow_of(), memoryview(packet))
    assert isinstance(frames, list)
    (heard,) = frames
    assert isinstance(heard, ChunkAck)
    assert heard.upto == base
    assert heard.ranges == ack.ranges[: len(heard.ranges)]


def test_what_does_not_fit_into_one_packet_goes_into_the_next() -> None:
    near, far = ciphers(True)
    flow = flow_of()
    sender = sender_of(near, flow)
    batch = encode(RawBatch(16, memoryview(bytes(500))))
    flow.parts.extend([batch] * 10)
    out = Outbox()
    sender.transmit(flow, out)
    read = [far.read(flow_of(), memoryview(packet)) for packet in packets(out)]
    assert all(len(packet) + IP_UDP <= flow.size for packet in packets(out))
    assert sum(len(frames) for frames in read if isinstance(frames, list)) == 10


# -- the cipher ----------------------------------------------------------------------------------------------------


def test_nothing_leaves_unsealed_before_the_key_has_come() -> None:
    """Links: plain mode only on loopback."""
    near, _ = ciphers(True)
    near.forget_peer()
    flow, stream = flow_of(), flow_of("tcp", sealed=True)
    sender = sender_of(near, flow)
    assert not near.usable(flow)
    assert near.usable(stream)
    flow.parts.extend(BASIC)
    out = Outbox()
    sender.transmit(flow, out)
    assert packets(out) == []


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_a_datagram_is_read_once(sealed: bool) -> None:
    near, far = ciphers(sealed)
    packet = memoryview(near.write(flow_of(), BASIC))
    assert isinstance(far.read(flow_of(), packet), list)
    assert far.read(flow_of(), packet) == Rejected("replay")
    assert far.read(flow_of(number=2), packet) == Rejected("replay"), "on another flow neither"


def test_a_session_that_was_renewed_reads_nothing_of_the_old_one() -> None:
    near, far = ciphers(True)
    packet = memoryview(near.write(flow_of(), BASIC))
    far.renew(23)
    assert far.read(flow_of(), packet) == Rejected("session", "of an earlier session")
    near.peer_session = 23
    packet = memoryview(near.write(flow_of(), BASIC))
    assert far.read(flow_of(), packet) == Rejected("seal"), "the key is another too"


def test_an_unchecked_packet_is_read_on_authenticated_streams_only() -> None:
    near, far = ciphers(True)
    packet = memoryview(near.write(flow_of("tcp", sealed=True), BASIC))
    assert isinstance(far.read(flow_of("tcp", sealed=True), packet), list)
    assert isinstance(far.read(flow_of("tcp"), packet), Rejected)
    assert isinstance(far.read(flow_of(), packet), Rejected)


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_replay_windows_are_bounded_and_what_made_room_stays_shut(sealed: bool) -> None:
    """A window that goes must not let in again what it had seen."""
    near, far = ciphers(sealed)
    first = memoryview(near.write(flow_of(number=1), BASIC))
    assert isinstance(far.read(flow_of(), first), list)
    for number in range(2, WINDOWS_MAX + 100):
        packet = memoryview(near.write(flow_of(number=number), BASIC))
        assert isinstance(far.read(flow_of(), packet), list)
    assert len(far._windows) == WINDOWS_MAX
    assert far.read(flow_of(), first) == Rejected("replay")


def test_two_flows_never_use_one_number() -> None:
    """The number is the nonce: one that comes twice under one key gives the key away."""
    one, two = flow_of(number=1), flow_of(number=2)
    numbers = {flow.number() for _ in range(1000) for flow in (one, two)}
    assert len(numbers) == 2000
    assert {number >> TAG_SHIFT for number in numbers} == {1, 2}


def test_a_key_of_the_wrong_length_is_refused() -> None:
    near, _ = ciphers(True)
    for length in (0, 16, 33):
        assert not near.take_key(Key(22, bytes(length)))


def test_a_basic_is_no_larger_than_what_is_said_to_pass_where_only_basics_pass() -> None:
    near, _ = ciphers(True)
    large = (1 << 32) - 1
    sent = bytes(ANNOUNCED_MAX)
    basic = Heartbeat(large, 1 << 62, 10**9, 1 << 62, 10**9, 100, 0xFFFF, large, sent, STEPS_MAX)
    packet = near.write(flow_of(), [encode(basic)])
    assert len(packet) + IP_UDP <= BASIC_SIZE == DATAGRAM_MIN


def test_a_sender_on_a_channel_learns_each_time_what_waits() -> None:
    """A handle counts what it hands over as waiting until it hears otherwise, also when that is nothing, as before."""
    near, _ = ciphers(False)
    flow = flow_of("tcp")
    sender = sender_of(near, flow)
    for taken in (104, 208, 312):
        out = Outbox()
        sender.channel(16).write([bytes(100)])
        sender.flush(0, out)
        assert [effect for effect, _ in out.effects] == [PortRoom(PEER, 16, 0, taken)]
    out = Outbox()
    sender.flush(0, out)
    assert out.effects == []
