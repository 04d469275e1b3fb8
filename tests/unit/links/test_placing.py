"""Traffic with needs, on paths that break: it leaves in time, only who must, and comes back by policy.

Real cores with real probes over the fake network; what today's probes cannot show is told as rows of a listener.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.links.harness import World, connected

from holdfast.health.frames import PathRow, PathRows
from holdfast.health.placement.fitness import NEEDS_MAX
from holdfast.health.placement.needs import NEVER, Needs, SetNeeds
from holdfast.health.ports import RowsHeard
from holdfast.health.subsystem import HealthService
from holdfast.health.table.path_table import key_of
from holdfast.links.ports import (
    DATAGRAMS,
    FIT,
    UNFIT,
    Fitness,
    FlowVerdict,
    Received,
    link_unit,
    traffic_name,
)
from holdfast.machine import Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import DATA, SECOND, SYNC

LARGE, SMALL = 20, 21


def need(world: World, traffic: int, needs: Needs | None, name: str = "n1") -> None:
    world.turn(name, [("health", SetNeeds("test", traffic, needs))])


def place(world: World, traffic: int, name: str = "n1", peer: str = "n2") -> tuple[str, str]:
    return world.link(name, peer).placement(traffic)


def adapter(world: World, traffic: int, name: str = "n1", peer: str = "n2") -> str:
    return place(world, traffic, name, peer)[0].split("/")[0]


def other(name: str) -> str:
    return "blue" if name == "red" else "red"


def moves(world: World, traffic: int, name: str = "n1") -> list[str]:
    what = traffic_name(traffic) + ": "
    return [f.path for f in world.link_events(name, "moved") if f.reason.startswith(what)]


def both(world: World, seconds: float, every: float = 0.05) -> int:
    """Send one large and one small datagram now and then; how many of each."""
    count = round(seconds / every)
    for _ in range(count):
        world.send_raw("n1", "n2", [bytes(1100)], LARGE)
        world.send_raw("n1", "n2", [bytes(100)], SMALL)
        world.run(every)
    return count


def arrived(world: World, port: int) -> int:
    return sum(number == port for _, number, _ in world.nodes["n2"].datagrams)


def tell(world: World, home: str, **values: Any) -> None:
    """n2 says something of the path from n1: what it says of it now, with these values."""
    for transport in ("udp", "tcp"):
        row = world.row("n1", "n1", "n2", home, transport)
        assert row is not None
        news = msgspec.structs.replace(row, n=row.n + 1, **values)
        world.core("n1").service(HealthService).table.rows[key_of(news)] = news
        world.turn("n1", [("health", RowsHeard((news,)))])


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_large_datagrams_leave_a_path_with_a_size_hole_small_ones_stay_and_all_come_back(
    sealed: bool,
) -> None:
    """H11: 'suitable' is not 'best'; a size hole in one direction."""
    world = connected(sealed=sealed)
    need(world, DATAGRAMS + LARGE, Needs(size=1200, move_back_ns=3 * SECOND))
    need(world, DATAGRAMS + SMALL, Needs(size=200))
    both(world, 1)
    home = adapter(world, DATAGRAMS + LARGE)
    assert adapter(world, DATAGRAMS + SMALL) == home
    world.path("n1", "n2", home).over = 1000
    begin, before = world.now, arrived(world, LARGE)
    sent = both(world, 3)
    (moved,) = [f for f in world.link_events("n1", "moved") if "datagrams 20" in f.reason]
    assert moved.path == f"{other(home)}/{other(home)}/udp"
    assert moved.reason == (
        f"datagrams 20: {home}/{home}/udp: packets over 1000 bytes do not pass, 1200 are needed"
    )
    assert (moved.now_ns - begin) / SECOND < 1
    assert arrived(world, LARGE) - before >= sent - 20, "none is lost after the move"
    assert place(world, DATAGRAMS + SMALL)[0] == f"{home}/{home}/udp"
    world.path("n1", "n2", home).over = 0
    healed = world.now
    world.run_until(lambda: adapter(world, DATAGRAMS + LARGE) == home, 20)
    assert (world.now - healed) / SECOND >= 3, "by policy"
    assert arrived(world, SMALL) >= round(4 / 0.05) - 1
    assert moves(world, DATAGRAMS + SMALL) == []


def test_a_need_adds_its_size_to_what_is_probed_and_its_limit_is_seen_to_the_byte() -> None:
    """H11: a requirement adds its values to what is probed."""
    world = connected()
    need(world, DATAGRAMS + LARGE, Needs(size=1201))
    world.path("n1", "n2", "red").over = 1200
    world.run(3)
    row = world.row("n1", "n1", "n2", "red")
    assert row is not None
    assert row.size == 1000, "the rung of 1201 does not pass, the one below it does"
    need(world, DATAGRAMS + LARGE, Needs(size=1200))
    world.run(3)
    row = world.row("n1", "n1", "n2", "red")
    assert row is not None
    assert row.size == 1200


def test_traffic_in_the_direction_that_works_stays() -> None:
    """Each direction is a path of its own."""
    world = connected()
    for name, peer in (("n1", "n2"), ("n2", "n1")):
        need(world, DATAGRAMS + LARGE, Needs(size=1200), name)
        world.send_raw(name, peer, [bytes(1100)], LARGE)
    home = adapter(world, DATAGRAMS + LARGE)
    assert adapter(world, DATAGRAMS + LARGE, "n2", "n1") == home
    world.path("n1", "n2", home).over = 1000
    world.run(2)
    assert adapter(world, DATAGRAMS + LARGE) == other(home)
    assert adapter(world, DATAGRAMS + LARGE, "n2", "n1") == home


def test_a_pattern_that_does_not_pass_moves_only_whose_payload_has_it() -> None:
    world = connected(sealed=True)
    need(world, DATAGRAMS + LARGE, Needs(pattern="55"))
    both(world, 0.5)
    home = adapter(world, DATAGRAMS + LARGE)
    tell(world, home, patterns=("00", "55"), bad_patterns=("55",))
    path, reason = place(world, DATAGRAMS + LARGE)
    assert path == f"{other(home)}/{other(home)}/udp"
    assert reason == f"{home}/{home}/udp: packets with the pattern 55 do not pass"
    assert adapter(world, DATAGRAMS + SMALL) == home


def test_in_plain_mode_everything_leaves_a_path_that_a_pattern_does_not_pass() -> None:
    """Nothing is known of the payload, and the cable carries it as it is."""
    world = connected()
    world.send("n1", "n2", [b"x"])
    both(world, 0.5)
    home = adapter(world, 16)
    tell(world, home, patterns=("00", "55"), bad_patterns=("55",))
    assert adapter(world, 16) == other(home)
    assert adapter(world, SYNC) == other(home)
    assert adapter(world, DATAGRAMS + LARGE) == other(home)


def test_a_lossy_path_is_left_before_anything_stalls_on_it() -> None:
    world = connected()
    world.send("n1", "n2", [b"x"])
    home = adapter(world, 16)
    tell(world, home, loss_ppm=200_000)
    assert adapter(world, 16) == other(home)
    assert place(world, 16)[1] == f"{home}/{home}/tcp: 20.0 % is lost, at most 15 % may be"


def test_a_path_that_flaps_loses_its_traffic_and_keeps_it_only_a_few_times() -> None:
    """H11: without flapping."""
    world = connected()
    need(world, 16, Needs(adapter="red"))
    world.send("n1", "n2", [b"x"])
    assert adapter(world, 16) == "red"
    path = world.path("n1", "n2", "red")
    for _ in range(40):
        path.cut(True)
        world.run(1.5)
        path.cut(False)
        world.run(2.7)
        world.send("n1", "n2", [b"x"])
    world.run(1)
    # The traffic comes back after 2 s the first time; after 4, 8, ... s never: it is not sound for so long, even if
    # the next fault takes a second to be noticed.
    assert 1 <= len(moves(world, 16)) <= 4
    assert len(world.messages("n2", "n1")) == 41


def test_never_means_that_traffic_stays_away_until_where_it_is_fails() -> None:
    world = connected()
    need(world, DATAGRAMS + LARGE, Needs(size=1200, move_back_ns=NEVER))
    both(world, 0.5)
    home = adapter(world, DATAGRAMS + LARGE)
    world.path("n1", "n2", home).over = 1000
    both(world, 2)
    world.path("n1", "n2", home).over = 0
    both(world, 30, 1)
    assert adapter(world, DATAGRAMS + LARGE) == other(home)
    world.path("n1", "n2", other(home)).over = 1000
    both(world, 3)
    assert adapter(world, DATAGRAMS + LARGE) == home


def test_needs_change_while_running() -> None:
    world = connected()
    both(world, 0.5)
    home = adapter(world, DATAGRAMS + LARGE)
    need(world, DATAGRAMS + LARGE, Needs(adapter=other(home), choice="require"))
    path, reason = place(world, DATAGRAMS + LARGE)
    assert path.startswith(other(home))
    assert reason.endswith(f"not by adapter {other(home)}")
    need(world, DATAGRAMS + LARGE, None)
    path, reason = place(world, DATAGRAMS + LARGE)
    assert (path, reason) == (f"{home}/{home}/udp", f"{home}/{home}/udp is available to it again")


def test_a_channel_on_a_required_adapter_waits_for_it_and_loses_nothing() -> None:
    world = connected()
    need(world, 16, Needs(adapter="blue", choice="require"))
    world.send("n1", "n2", [b"1"])
    world.run(0.1)
    assert adapter(world, 16) == "blue"
    for a, b in (("n1", "n2"), ("n2", "n1")):
        world.path(a, b, "blue").cut(True)
    world.run(1)
    world.send("n1", "n2", [b"2"])
    world.run(6)
    assert world.messages("n2", "n1") == [b"1"]
    for a, b in (("n1", "n2"), ("n2", "n1")):
        world.path(a, b, "blue").cut(False)
    world.run(10)
    assert world.messages("n2", "n1") == [b"1", b"2"]
    assert adapter(world, 16) == "blue"


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_when_every_path_is_degraded_channels_are_cut_and_datagrams_that_do_not_fit_are_reported(
    sealed: bool,
) -> None:
    """H12: re-packetised below the limit, and nothing is lost without a word."""
    world = connected(sealed=sealed)
    need(world, 16, Needs(size=1200))
    for a, b in (("n1", "n2"), ("n2", "n1")):
        for c in ("red", "blue"):
            world.path(a, b, c).over = 700
    world.run(3)
    before = arrived(world, SMALL)
    sent = both(world, 2)
    world.send("n1", "n2", [bytes(1200)] * 20)
    world.run(5)
    assert world.messages("n2", "n1") == [bytes(1200)] * 20
    path, reason = place(world, 16)
    assert path.endswith("/udp")
    assert "1200 are needed" in reason
    refused = [r for r in world.nodes["n1"].refused if r.port == LARGE]
    assert sum(r.count for r in refused) == sent
    assert refused[-1].reason.startswith("1100 bytes do not pass on any path now; up to ")
    assert arrived(world, SMALL) - before == sent
    assert not world.link_events("n1", "down")


def test_streams_alone_go_on_in_small_writes_where_only_small_segments_pass() -> None:
    """H12 for TCP: one small write at a time, because the kernel joins what waits."""
    world = connected(adapters=("red",), transports='"tcp"')
    link = world.link("n1", "n2")
    (flow,) = link.flows.values()
    world.path("n1", "n2").over = 600
    fitness = (Fitness(1, UNFIT, "segments over 600 bytes do not pass"), Fitness(SYNC, FIT))
    verdict = FlowVerdict(flow.flow, True, 600, True, 0, fitness)
    link.down(world.now, [verdict], Outbox())
    world.send("n1", "n2", [bytes(3000)] * 10)
    world.run(5)
    assert world.messages("n2", "n1") == [bytes(3000)] * 10


def test_where_one_small_write_goes_at_a_time_channels_take_turns_without_a_pause() -> None:
    """What one has to send waits for what another has sent, and goes when that has arrived."""
    world = connected(adapters=("red",), transports='"tcp"')
    link = world.link("n1", "n2")
    (flow,) = link.flows.values()
    world.path("n1", "n2").over = 600
    fitness = (Fitness(1, UNFIT, "segments over 600 bytes do not pass"), Fitness(SYNC, FIT))
    link.down(world.now, [FlowVerdict(flow.flow, True, 600, True, 0, fitness)], Outbox())
    for _ in range(5):
        world.send("n1", "n2", [bytes(3000)], port=20)
        world.send("n1", "n2", [b"small"], port=16)
        world.run(0.02)
        assert link.unacked == 0
    assert world.messages("n2", "n1", 20) == [bytes(3000)] * 5
    assert world.messages("n2", "n1", 16) == [b"small"] * 5


def test_everything_that_is_placed_says_where_and_why() -> None:
    world = connected()
    world.send("n1", "n2", [b"x"])
    both(world, 0.1)
    status = world.link("n1", "n2").status()
    channel = next(row for row in status["channels"] if row["channel"] == 16)
    assert channel["path"]
    assert channel["reason"] == "the best when it was placed"
    assert [row["port"] for row in status["datagrams"]] == [LARGE, SMALL]
    assert all(row["path"] and row["reason"] and row["sent"] for row in status["datagrams"])
    home = adapter(world, 16)
    tell(world, home, loss_ppm=200_000)
    flows = world.link("n1", "n2").status()["flows"]
    unfit = {flow["path"]: flow["unfit"] for flow in flows}
    assert unfit[f"{home}/{home}/tcp"]["channel 0"] == "20.0 % is lost, at most 15 % may be"
    assert unfit[f"{other(home)}/{other(home)}/tcp"] == {}


def test_what_traffic_needs_survives_a_health_unit_that_fails() -> None:
    world = connected()
    world.strict = False
    need(world, DATAGRAMS + LARGE, Needs(size=1200))
    world.turn("n1", [("health", RowsHeard((None,)))])  # type: ignore[arg-type]
    assert [f.unit for f in world.nodes["n1"].failures] == ["health"]
    both(world, 2)
    home = adapter(world, DATAGRAMS + LARGE)
    world.path("n1", "n2", home).over = 1000
    both(world, 3)
    assert adapter(world, DATAGRAMS + LARGE) == other(home)


def test_needs_beyond_the_bound_are_refused_aloud() -> None:
    world = connected()
    items = [SetNeeds("test", port, Needs()) for port in range(16, 16 + NEEDS_MAX)]
    world.turn("n1", [("health", item) for item in items])
    facts = [fact for fact in world.nodes["n1"].facts if isinstance(fact, NodeFact)]
    assert facts[-1].detail.endswith("this node has too many; refused")


def test_a_row_of_another_path_changes_nothing() -> None:
    world = connected(3)
    world.send("n1", "n2", [b"x"])
    home = adapter(world, 16)
    row = world.row("n1", "n3", "n2", home)
    assert isinstance(row, PathRow)
    news = msgspec.structs.replace(row, n=row.n + 1, loss_ppm=500_000)
    frame = Received(world.nodes["n2"].id, [PathRows((news,))], world.now)
    world.turn("n1", [("health", frame)])
    assert adapter(world, 16) == home


def test_verdicts_about_all_flows_of_a_link_in_one_turn_move_no_channel() -> None:
    """From a stream to datagrams because the stream was judged first, and there it would stay."""
    world = connected()
    world.send("n1", "n2", [b"x"], SMALL)
    world.run(0.1)
    before = place(world, SMALL)[0]
    assert before.endswith("tcp")
    link = world.link("n1", "n2")
    unfit = tuple(
        Fitness(traffic, UNFIT, "20.0 % is lost, at most 15 % may be")
        for traffic in (SYNC, DATA, DATAGRAMS)
    )
    stream_first = sorted(link.flows.values(), key=lambda flow: not flow.stream)
    verdicts = [FlowVerdict(flow.flow, True, 0, True, 0, unfit) for flow in stream_first]
    world.turn("n1", [(link_unit(link.peer), verdict) for verdict in verdicts])
    assert place(world, SMALL)[0] == before
    assert moves(world, SMALL) == []
