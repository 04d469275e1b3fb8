"""Which flow carries what, and when it moves: paths that break, that are slow, that heal."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.support.seeds import seeds
from tests.unit.links.fakenet import Path
from tests.unit.links.harness import World, connected

from holdfast.links.config import LAN
from holdfast.links.flow import DATAGRAM_MAX, DATAGRAM_MIN
from holdfast.links.ports import Credit, FlowVerdict, link_unit
from holdfast.machine import Outbox
from holdfast.types import BULK, MILLISECOND, SECOND

both_modes = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [number.to_bytes(4, "big") + bytes(size - 4) for number in range(count)]


def channel(world: World, name: str = "n1", peer: str = "n2", port: int = 16) -> dict[str, Any]:
    """The state of a sending channel."""
    channels = world.link(name, peer).status()["channels"]
    return next(row for row in channels if row["channel"] == port)


def moves(world: World, port: int = 16) -> list[str]:
    return [
        fact.path
        for fact in world.link_events("n1", "moved")
        if fact.reason.startswith(f"channel {port}: ")
    ]


def steady(world: World, seconds: float, every: float = 0.01, size: int = 1000) -> list[bytes]:
    """Send a message now and then for a while; what was sent."""
    sent = []
    for number in range(round(seconds / every)):
        message = number.to_bytes(4, "big") + bytes(size - 4)
        sent.append(message)
        world.send("n1", "n2", [message])
        world.run(every)
    return sent


def pipes(world: World) -> list[Path]:
    return [world.path(a, b, c) for a, b in (("n1", "n2"), ("n2", "n1")) for c in ("red", "blue")]


# -- leaving a path ------------------------------------------------------------------------------------------------


@both_modes
def test_a_channel_leaves_a_path_that_carries_no_large_packets_and_comes_back_when_it_heals(
    sealed: bool,
) -> None:
    """H11, H12: traffic is moved before it fails, and moves back without flapping."""
    world = connected(sealed=sealed)
    steady(world, 0.1)
    home = channel(world)["path"].split("/")[0]
    away = "blue" if home == "red" else "red"
    world.path("n1", "n2", home).over = 1000
    before = len(world.messages("n2", "n1"))
    sent = steady(world, 5)
    assert world.messages("n2", "n1")[before:] == sent
    assert channel(world)["path"] == f"{away}/{away}/tcp"
    assert len(moves(world)) <= 3
    world.path("n1", "n2", home).over = 0
    settled = len(moves(world))
    steady(world, 10)
    assert len(moves(world)) <= settled + 1, "it does not flap"


def test_a_channel_leaves_a_stream_that_stalls_within_a_moment_and_nothing_is_lost_or_doubled() -> (
    None
):
    """Links: when acknowledgements stop coming while the peer is heard elsewhere, it moves."""
    world = connected()
    steady(world, 0.1)
    home = channel(world)["path"].split("/")[0]
    for end in world.network.stream_ends("n1", "n2", home):
        end.stalled = True
    before = len(world.messages("n2", "n1"))
    begin = world.now
    world.send("n1", "n2", [b"urgent"])
    world.run_until(lambda: len(world.messages("n2", "n1")) > before, 2)
    assert (world.now - begin) / SECOND < 0.5
    assert len(world.messages("n2", "n1")) == before + 1
    for end in world.network.stream_ends("n1", "n2", home):
        end.stalled = False
    world.run(2)
    assert len(world.messages("n2", "n1")) == before + 1


def test_a_slow_stream_is_not_taken_for_a_stalled_one() -> None:
    """Links: acknowledgements that keep coming, however late, are no reason to move and send everything again."""
    world = connected(transports='"tcp"')
    for path in pipes(world):
        path.rate = 4_000_000
    messages = numbered(300, 50_000)
    world.send("n1", "n2", messages)
    world.run_until(lambda: len(world.messages("n2", "n1")) == 300, 10)
    assert world.messages("n2", "n1") == messages
    assert moves(world) == []


def test_what_was_lost_on_a_flow_that_the_channel_has_left_is_sent_again_without_blaming_another() -> (
    None
):
    """The tail of what went by datagram is lost while the channel moves back to a stream."""
    world = connected(adapters=("red",))
    link = world.link("n1", "n2")
    stream = next(f for f in link.flows.values() if f.stream)
    datagrams = next(f for f in link.flows.values() if not f.stream)
    unit = link_unit(world.nodes["n2"].id)
    world.turn("n1", [(unit, Credit(stream.flow, True))])
    out = link.inspect().sender.channel(16)
    out.flow = datagrams.flow
    world.path("n1", "n2").cut_udp = True
    world.send("n1", "n2", [b"lost"])
    out.flow = stream.flow
    world.path("n1", "n2").cut_udp = False
    world.send("n1", "n2", [b"passed"])
    world.run(0.5)
    assert world.messages("n2", "n1") == [b"lost", b"passed"]
    assert stream.shunned_until == 0
    assert out.flow == stream.flow


def test_a_flow_that_health_has_given_back_is_used_again_after_a_while() -> None:
    """H11: a channel with one stream and one datagram flow goes back to the stream by policy: two seconds sound."""
    world = connected(adapters=("red",))
    steady(world, 0.1)
    assert channel(world)["path"] == "red/red/tcp"
    for end in world.network.stream_ends("n1", "n2"):
        end.stalled = end.other.stalled = True
    steady(world, 2)  # long enough that it cannot be a stream that sends again what it lost
    assert channel(world)["path"] == "red/red/udp"
    for end in world.network.stream_ends("n1", "n2"):
        end.stalled = end.other.stalled = False
    steady(world, 1)
    assert channel(world)["path"] == "red/red/udp"
    steady(world, 2)
    assert channel(world)["path"] == "red/red/tcp"
    assert channel(world)["reason"] == "red/red/tcp is available to it again"


def stall_briefly(world: World, sent: list[bytes]) -> None:
    """The stream carries nothing for so long that bulk data leaves it, and for too short a time for health."""
    ends = list(world.network.stream_ends("n1", "n2"))
    for end in ends:
        end.stalled = True
    for _ in range(60):
        if channel(world, port=BULK)["path"] == "red/red/udp":
            break
        sent += bulk(world, 0.02)
    for end in ends:
        end.stalled = False
    assert channel(world, port=BULK)["path"] == "red/red/udp"


def bulk(world: World, seconds: float) -> list[bytes]:
    """Send bulk data for a while; what was sent."""
    sent = []
    for number in range(round(seconds / 0.02)):
        sent.append(number.to_bytes(4, "big") + bytes(3000))
        world.send("n1", "n2", [sent[-1]], port=BULK)
        world.run(0.02)
    return sent


def test_bulk_data_returns_to_a_stream_after_a_stall_that_health_has_not_noticed() -> None:
    """A busy machine stops a stream for half a second. Health reports nothing, so it clears nothing either: without a
    rule of its own, bulk data would stay on datagrams until the link ends."""
    world = connected(adapters=("red",))
    sent = bulk(world, 0.2)
    assert channel(world, port=BULK)["path"] == "red/red/tcp"
    for avoided in (LAN.shun_ns, 2 * LAN.shun_ns):  # It stalls again soon: the time doubles.
        stall_briefly(world, sent)
        left = world.now
        while channel(world, port=BULK)["path"] == "red/red/udp":
            sent += bulk(world, 0.1)
            assert world.now - left < 60 * SECOND
        assert abs(world.now - left - avoided) < SECOND // 2
        assert channel(world, port=BULK)["reason"] == "red/red/tcp carries bulk data again"
    world.run(1)
    row = channel(world, port=BULK)
    assert (row["sent"], row["queued"], row["unacked"]) == (len(sent), 0, 0), (
        "everything has arrived"
    )


@both_modes
@pytest.mark.parametrize("over", [600, 400])
def test_traffic_goes_on_in_small_packets_when_every_path_carries_only_those(
    sealed: bool, over: int
) -> None:
    """H12: if every path is degraded, everything is re-packetised to the size that still passes."""
    world = connected(sealed=sealed)
    for path in pipes(world):
        path.over = over
    world.run(2)
    sent = steady(world, 3, every=0.05)
    world.run(2)
    assert world.messages("n2", "n1") == sent
    assert not world.link_events("n1", "down")


def test_acknowledgements_fit_into_the_packets_that_pass() -> None:
    """Losses make acknowledgements long; one that is too large for its path would never arrive."""
    world = connected(adapters=("red",), transports='"udp"')
    for path in (world.path("n1", "n2"), world.path("n2", "n1")):
        path.over, path.loss, path.jitter_ns = 600, 0.1, MILLISECOND
    world.run(3)
    messages = numbered(300, 3000)
    world.send("n1", "n2", messages)
    world.run_until(lambda: len(world.messages("n2", "n1")) == 300, 60)
    assert world.messages("n2", "n1") == messages


@pytest.mark.parametrize("size", [1, 93, 94, 100, -5, 1 << 60])
def test_a_size_that_cannot_be_is_brought_within_reason(size: int) -> None:
    """A peer that says that packets of one byte pass must not make this node cut its channels into nothing."""
    world = connected(adapters=("red",))
    link = world.link("n1", "n2")
    for flow in link.flows.values():
        link._verdict(world.now, FlowVerdict(flow.flow, True, size), Outbox())
        assert flow.stream or DATAGRAM_MIN <= flow.size <= DATAGRAM_MAX
        assert flow.piece_max > 0
    for end in world.network.stream_ends("n1", "n2"):
        end.stalled = True
    world.send("n1", "n2", [bytes(500)])
    world.run(1)
    assert world.messages("n2", "n1") == [bytes(500)]


# -- datagrams -----------------------------------------------------------------------------------------------------


def test_datagrams_of_any_size_arrive_on_a_clean_path() -> None:
    """Links (a): may be lost, but a size must not make it certain. What is too large for a datagram goes by stream."""
    world = connected()
    messages = [bytes([size % 251]) * size for size in (0, 1, 100, 1000, 1400, 1500, 9000, 60_000)]
    world.send_raw("n1", "n2", messages)
    world.run(0.1)
    got = [message for _, _, message in world.nodes["n2"].datagrams]
    assert sorted(got, key=len) == messages


def test_datagrams_are_packed_into_packets_that_pass() -> None:
    world = connected(adapters=("red",))
    captured = world.network.capture()
    world.send_raw("n1", "n2", [bytes(100)] * 100)
    world.run(0.01)
    sizes = [len(packet) + 28 for (name, _), _, packet in captured if name == "n1"]
    assert max(sizes) <= 1500
    assert len([size for size in sizes if size > 1000]) <= 12


def test_datagrams_without_credit_are_bounded_counted_and_go_when_there_is_credit() -> None:
    """Invariant 9: bounded, and what does not fit is counted."""
    world = connected(adapters=("red",))
    link = world.link("n1", "n2")
    for flow in link.flows.values():
        world.turn("n1", [("acceptor", Credit(flow.flow, False))])
    for _ in range(30):
        world.send_raw("n1", "n2", [bytes(1000)] * 100)
    dropped = link.status()["datagrams_dropped"]
    assert dropped > 0
    assert sum(link.inspect().sender.datagrams.waiting.values()) <= 1 << 20
    for flow in link.flows.values():
        world.turn("n1", [("acceptor", Credit(flow.flow, True))])
    world.run(1)
    assert 900 <= len(world.nodes["n2"].datagrams) < 3000


def test_a_datagram_that_no_packet_can_hold_is_dropped_and_counted() -> None:
    world = connected()
    world.send_raw("n1", "n2", [bytes(2 << 20), bytes((1 << 20) - 40), b"small"])
    world.run(1)
    assert [message for _, _, message in world.nodes["n2"].datagrams] == [b"small"]
    assert world.link("n1", "n2").status()["datagrams_dropped"] == 2
    assert world.settled(), "and its stream lives"


def test_a_channel_without_credit_waits_and_says_how_much() -> None:
    world = connected(adapters=("red",), transports='"tcp"')
    world.path("n1", "n2").rate = 100_000
    for _ in range(20):
        world.send("n1", "n2", [bytes(50_000)] * 10)
    assert world.nodes["n1"].room[(world.nodes["n2"].id, 16)] > 3 << 20
    world.path("n1", "n2").rate = 0
    world.run_until(lambda: len(world.messages("n2", "n1")) == 200, 60)
    assert world.nodes["n1"].room[(world.nodes["n2"].id, 16)] == 0


# -- everything at once --------------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("seed", seeds(range(5), range(5, 20)))
def test_nothing_is_lost_doubled_or_overtaken_while_paths_come_and_go(
    sealed: bool, seed: int
) -> None:
    """Links (b), invariant 7: with one clean path at any time, a session lives and its channels deliver."""
    world = connected(sealed=sealed, seed=seed)
    sent: dict[tuple[str, str], list[bytes]] = {("n1", "n2"): [], ("n2", "n1"): []}
    numbers = itertools.count()
    for _ in range(25):
        for path in pipes(world):
            _clean(path)
        broken = world.rng.choice(["red", "blue"])
        for a, b in (("n1", "n2"), ("n2", "n1")):
            _spoil(world, world.path(a, b, broken))
        for end in world.network.stream_ends("n1", "n2", broken):
            if world.chance(0.2):
                end.stalled = True
            elif world.chance(0.2):
                world.network._break(end)
        for _ in range(10):
            for (a, b), log in sent.items():
                size = world.rng.choice([4, 10, 1000, 20_000])
                batch = [next(numbers).to_bytes(4, "big") + bytes(size) for _ in range(3)]
                log += batch
                world.send(a, b, batch)
            world.run(world.rng.choice([0.001, 0.02, 0.05]))
    for path in pipes(world):
        _clean(path)
    world.run(10)
    assert not world.nodes["n1"].ended
    for (a, b), log in sent.items():
        assert world.messages(b, a) == log
    assert world.settled()


def _clean(path: Path) -> None:
    path.cut(False)
    path.over = path.damage = path.jitter_ns = 0
    path.loss = path.duplicate = path.corrupt = 0.0


def _spoil(world: World, path: Path) -> None:
    kind = world.spread(7)
    path.cut_udp = kind in (0, 1)
    path.cut_tcp = kind in (0, 2)
    path.over = 700 if kind == 3 else 0
    path.loss = 0.3 if kind in (4, 5) else 0.0
    path.duplicate = 0.3 if kind in (4, 6) else 0.0
    path.corrupt = 0.2 if kind == 5 else 0.0
    path.jitter_ns = 20 * MILLISECOND if kind in (4, 6) else 0
    path.damage = kind == 6
