"""H18: every combination of attributes between given nodes, and a matrix of what passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.links.harness import World, connected
from tests.unit.wire.samples import of_struct

from holdfast.health.config import HealthConfig
from holdfast.health.frames import StressCounts, StressOrder, StressProbe, StressReport
from holdfast.health.stress.job import (
    ANSWER_NS,
    DRAIN_NS,
    REPLACE_NS,
    TICK_NS,
    Job,
    kind_of,
    make_lanes,
    sizes_for,
)
from holdfast.health.stress.stress_machine import LISTENED_MAX, STRESS, StressMachine
from holdfast.health.stress.values import StressRequest
from holdfast.health.subsystem import HealthService
from holdfast.links.ports import FlowReady, PeerUp, Received
from holdfast.machine import Outbox
from holdfast.types import SECOND, FlowId, NodeId
from holdfast.wire.frames import AdapterInfo, MemberInfo

RUN = 7


def stress(world: World, at: str, *names: str, **options: Any) -> list[dict[str, Any]]:
    """Run it to its end; the pairs."""
    nodes = tuple(world.nodes[name].id for name in names)
    world.turn(at, [(STRESS, StressRequest(RUN, nodes, **options))])
    world.run_until(lambda: look(world, at)["over"], 200)
    return list(look(world, at)["pairs"])


def look(world: World, at: str) -> dict[str, Any]:
    names: dict[bytes, str] = {node.id: name for name, node in world.nodes.items()}
    status = world.core(at).service(HealthService).stress.status(RUN, names)
    assert status is not None
    return status


def cells(pairs: list[dict[str, Any]], sender: str, listener: str) -> list[dict[str, Any]]:
    (pair,) = [p for p in pairs if (p["sender"], p["listener"]) == (sender, listener)]
    assert pair["failure"] == ""
    return list(pair["cells"])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_on_sound_paths_every_combination_passes_both_ways(sealed: bool) -> None:
    world = connected(3, sealed=sealed)
    pairs = stress(world, "n1", "n1", "n2", "n3", rounds=3)
    assert len(pairs) == 6
    for pair in pairs:
        assert pair["failure"] == ""
        assert pair["done"] == pair["total"] > 0
        found = [cell for cell in pair["cells"] if cell["kind"] == "udp"]
        assert {cell["adapter"] for cell in found} == {"red", "blue"}
        assert {cell["size"] for cell in found} == {576, 1000, 1280, 1500}
        assert {cell["pattern"] for cell in found} == {"", "00", "ff", "55", "aa"}
        assert all(cell["sent"] == cell["heard"] == 3 for cell in found)


def test_a_size_limit_shows_in_its_direction_and_on_its_path_only() -> None:
    world = connected(2)
    world.path("n1", "n2").over = 1000
    pairs = stress(world, "n2", "n1", "n2", rounds=3)
    for cell in cells(pairs, "n1", "n2"):
        if cell["kind"] == "udp":
            limited = cell["adapter"] == "red" and cell["size"] > 1000
            assert cell["heard"] == (0 if limited else 3), cell
    assert all(c["heard"] == 3 for c in cells(pairs, "n2", "n1") if c["kind"] == "udp")


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_a_pattern_shows_also_when_traffic_is_sealed(sealed: bool) -> None:
    world = connected(2, sealed=sealed)
    world.path("n1", "n2").drop = lambda packet: b"\x55" * 32 in packet
    pairs = stress(world, "n1", "n1", "n2", rounds=3, sizes=(600, 1400))
    for cell in cells(pairs, "n1", "n2"):
        if cell["kind"] == "udp":
            hit = cell["adapter"] == "red" and cell["pattern"] == "55"
            assert cell["heard"] == (0 if hit else 3), cell


def test_loss_is_neither_a_pass_nor_a_fault() -> None:
    world = connected(2)
    world.path("n1", "n2").loss = 0.3
    pairs = stress(world, "n1", "n1", "n2", rounds=50, sizes=(1000,))
    lossy = [c for c in cells(pairs, "n1", "n2") if (c["adapter"], c["kind"]) == ("red", "udp")]
    assert sum(c["heard"] for c in lossy) / sum(c["sent"] for c in lossy) == pytest.approx(
        0.7, abs=0.1
    )


def test_a_run_keeps_to_its_rate() -> None:
    world = connected(2)
    began = world.now
    pairs = stress(world, "n1", "n1", "n2", rounds=20, bytes_per_s=200_000)
    sent = sum(c["sent"] * c["size"] for c in cells(pairs, "n1", "n2"))
    assert (world.now - began) / SECOND >= sent / 200_000


def test_a_sender_that_is_not_there_is_named() -> None:
    world = connected(2)
    ghost = NodeId(bytes(16))
    world.turn("n1", [(STRESS, StressRequest(RUN, (world.nodes["n1"].id, ghost), rounds=1))])
    world.run(1)
    failures = {p["sender"]: p["failure"] for p in look(world, "n1")["pairs"]}
    assert failures == {
        "n1": "there is no path on which sizes can be measured",
        ghost.hex(): "there is no session with the sender",
    }


def test_a_listener_that_dies_ends_the_run_and_not_the_node() -> None:
    world = connected(3)
    nodes = tuple(world.nodes[name].id for name in ("n1", "n2", "n3"))
    world.turn("n1", [(STRESS, StressRequest(RUN, nodes, rounds=50))])
    world.run(0.2)
    world.kill("n2", silent=True)
    world.run_until(lambda: look(world, "n1")["over"], 120)
    for pair in look(world, "n1")["pairs"]:
        assert bool(pair["failure"]) is ("n2" in (pair["sender"], pair["listener"]))


def test_an_order_that_asks_too_much_is_refused_with_the_reason() -> None:
    world = connected(2)
    for options in ({"rounds": 0}, {"bytes_per_s": 1}, {"sizes": (5,)}, {"patterns": ("xy",)}):
        pairs = stress(world, "n1", "n1", "n2", **options)
        assert all(pair["failure"] for pair in pairs)


# -- one job, step by step ---------------------------------------------------------------------------------------

PEER = NodeId(b"p" * 16)


def ready(flow: int, transport: str, use: str = "") -> FlowReady:
    return FlowReady(PEER, FlowId(flow), "red", "red", "red", transport, use)


def job(*flows: FlowReady, patterns: tuple[str, ...] = ("55", "aa"), rounds: int = 2) -> Job:
    order = StressOrder(RUN, PEER, rounds, 1_000_000, (600, 1500, 4000), patterns)
    fills = ["", *patterns]
    lanes = make_lanes([(flow, True) for flow in flows], order, {"red": 1500}, (), len(fills))
    return Job(0, order, PEER, lanes, fills)


def send_all(one: Job, now: int) -> int:
    """Until it asks; the time then."""
    for _ in range(10_000):
        now += TICK_NS
        one.shots(now)
        if one.passed(now):
            return now
    raise AssertionError("it never asked")


def all_heard(one: Job) -> list[bytearray]:
    return [bytearray(lane.sent) for lane in one.lanes]


def test_each_kind_has_its_sizes() -> None:
    found = {
        kind_of(flow): sizes_for(flow, (576, 1000, 1500, 4000), 1500, False)
        for flow in (
            ready(1, "udp"),
            ready(2, "udp", "alt"),
            ready(3, "udp", "frag"),
            ready(4, "tcp", "mss:960"),
            ready(5, "multicast"),
            ready(6, "tcp"),
        )
    }
    whole = (576, 1000, 1500)
    assert found == {
        "udp": whole,
        "alt": whole,
        "multicast": whole,
        "frag": (2000, 4000),
        "tcp": (1000,),
        "": (),
    }


def test_a_stuck_connection_does_not_blame_the_patterns_after_it() -> None:
    """TCP sends what was lost again and again; what comes after it cannot arrive on the same connection."""
    one = job(ready(1, "tcp", "mss:960"))
    now = send_all(one, 0)
    one.counts(now, tuple(map(bytes, all_heard(one))))
    now = send_all(one, now)  # 55
    counts = all_heard(one)
    counts[0][1] = 0
    one.counts(now, tuple(map(bytes, counts)))
    now += REPLACE_NS // 2
    one.passed(now)
    assert one.shots(now) == [], "it waits for another connection"
    one.lost(FlowId(1))
    one.ready(ready(9, "tcp", "mss:960"))
    one.passed(now)
    now = send_all(one, now)  # aa
    counts = all_heard(one)
    counts[0][1] = 0
    assert counts[0][2] == 2
    one.counts(now, tuple(map(bytes, counts)))
    assert one.state == "over"
    assert {c.pattern: (c.sent, c.heard) for c in one.cells()} == {
        "": (2, 2),
        "55": (2, 0),
        "aa": (2, 2),
    }


def test_what_was_on_its_way_on_a_connection_that_was_replaced_is_sent_again() -> None:
    """Both directions share a connection: a fault of the other one must not show here."""
    one = job(ready(1, "tcp", "mss:960"), patterns=(), rounds=4)
    one.shots(TICK_NS // 10)
    one.lost(FlowId(1))
    now = send_all(one, TICK_NS)
    one.counts(now, (bytes([0]),))
    assert one.shots(now + TICK_NS) == [], "it waits for another connection"
    one.ready(ready(2, "tcp", "mss:960"))
    one.passed(now + TICK_NS)
    now = send_all(one, now + TICK_NS)
    one.counts(now, (bytes([4]),))
    assert [(c.sent, c.heard) for c in one.cells()] == [(4, 4)]
    assert (one.state, one.done) == ("over", one.total)


def test_a_connection_that_never_comes_back_ends_the_job_all_the_same() -> None:
    one = job(ready(1, "tcp", "mss:960"))
    one.lost(FlowId(1))
    now = 0
    for _ in range(20_000):
        now += TICK_NS
        one.shots(now)
        if one.passed(now):
            one.counts(now, (b"",))
        if one.state == "over":
            break
    assert one.state == "over"
    assert all(cell.sent == 0 for cell in one.cells())


def test_a_size_that_does_not_pass_is_tried_with_every_pattern_each_on_its_own_connection() -> None:
    one = job(ready(1, "tcp", "mss:960"), ready(2, "udp"))
    tcp = next(lane for lane in one.lanes if lane.kind == "tcp")
    now, flow = 0, FlowId(1)
    for number in range(3):
        now = send_all(one, now)
        counts = all_heard(one)
        counts[tcp.number] = bytearray(len(counts[tcp.number]))
        one.counts(now, tuple(map(bytes, counts)))
        assert one.take_stuck() == [flow]
        assert one.take_stuck() == []
        one.lost(flow)
        flow = FlowId(10 + number)
        one.ready(ready(flow, "tcp", "mss:960"))
        one.passed(now)
    assert one.state == "over"
    tried = {c.pattern: (c.sent, c.heard) for c in one.cells() if c.kind == "tcp"}
    assert tried == {"": (2, 0), "55": (2, 0), "aa": (2, 0)}


def test_a_listener_that_does_not_answer_ends_the_job() -> None:
    one = job(ready(1, "udp"))
    now = send_all(one, 0)
    one.passed(now + ANSWER_NS + DRAIN_NS)
    assert (one.state, one.failure) == ("over", "the listener does not report what it received")


# -- hostile input -----------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            *map(of_struct, (StressOrder, StressProbe, StressCounts, StressReport)),
            st.builds(
                StressOrder,
                st.just(RUN),
                st.just(PEER),
                st.integers(0, 300),
                st.integers(0, 2_000_000),
                st.lists(st.integers(-1, 70_000), max_size=3).map(tuple),
            ),
        ),
        max_size=20,
    )
)
def test_nothing_that_a_peer_sends_raises(frames: list[Any]) -> None:
    """Invariant 10."""
    machine = StressMachine(NodeId(b"m" * 16), HealthConfig(), {"red": 1500})
    info = MemberInfo(PEER, "p", 1, (AdapterInfo("red", "red", "h", 1, ("udp",)),))
    out = Outbox()
    machine.up(0, [PeerUp(PEER, info), ready(1, "udp")], out)
    for number, frame in enumerate(frames):
        machine.up(number * SECOND, [Received(PEER, [frame], 0, None)], out)
        machine.wake(number * SECOND, out)
        out.clear()


def test_counts_of_many_peers_are_bounded() -> None:
    machine = StressMachine(NodeId(b"m" * 16), HealthConfig(), {"red": 1500})
    for number in range(100):
        probe = StressProbe(number, 600, 63, 1, memoryview(b""))
        peer = NodeId(number.to_bytes(16, "big"))
        machine.up(0, [Received(peer, [probe], 0, FlowId(1))], Outbox())
    assert len(machine._heard) == LISTENED_MAX
