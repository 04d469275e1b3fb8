"""Health on a whole node: what is broken is said, by whom, of which direction, to everybody, and nothing else is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.support.machines import fail
from tests.unit.links.harness import World, connected

from holdfast.health.config import BASIC_SIZE
from holdfast.health.frames import Heartbeat, PathRow, PathRows
from holdfast.health.subsystem import HealthService
from holdfast.links.ports import FlowVerdict, OpenFlow, Received
from holdfast.telemetry.facts import PathFact
from holdfast.types import MILLISECOND, NEVER

both_modes = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
GRACE_S = 0.5
"""Five basics: what a small domain on clean paths needs for its budget of false alarms."""


def row(world: World, at: str, sender: str, listener: str, **where: str) -> PathRow:
    found = world.row(at, sender, listener, **where)
    assert found is not None
    return found


def size(world: World, at: str, sender: str, listener: str, adapter: str = "red") -> int:
    return row(world, at, sender, listener, adapter=adapter).size


def alive(world: World, at: str, sender: str, listener: str, **where: str) -> bool:
    return row(world, at, sender, listener, **where).alive


def tables_are_equal(world: World) -> bool:
    tables = [world.core(name).service(HealthService).health.table.rows for name in world.nodes]
    return all(table == tables[0] for table in tables)


def changes(world: World) -> list[PathFact]:
    return [fact for name in world.nodes for fact in world.path_changes(name)]


# -- faults, in one direction, of one kind -------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize(("sender", "listener"), [("n1", "n2"), ("n2", "n1")])
def test_a_size_limit_is_found_in_the_direction_that_has_it(
    sealed: bool, sender: str, listener: str
) -> None:
    """Health: a path is judged by its receiver; only then is direction known."""
    world = connected(3, sealed=sealed)
    world.run(20)
    world.path(sender, listener).over = 1000
    took = world.run_until(lambda: size(world, sender, sender, listener) == 1000, 5)
    assert took < 1
    world.run(2)
    assert size(world, "n3", sender, listener) == 1000
    for at in world.nodes:
        assert size(world, at, listener, sender) == 1500, "the other direction is fine"
        assert size(world, at, sender, listener, "blue") == 1500, "and so is the other path"
        assert alive(world, at, sender, listener), "and nobody is dead"
    world.path(sender, listener).over = 0
    assert world.run_until(lambda: size(world, sender, sender, listener) == 1500, 5) < 3


def test_a_path_that_passes_basics_only_is_told_to_the_link() -> None:
    world = connected()
    world.path("n1", "n2").over = 300
    world.run(2)
    assert size(world, "n1", "n1", "n2") == BASIC_SIZE
    flow = next(f for f in world.link("n1", "n2").flows.values() if f.path == "red/red/udp")
    assert (flow.degraded, flow.size) == (True, BASIC_SIZE)


@both_modes
def test_a_blackout_of_one_direction_is_seen_within_the_grace_and_when_it_ends(
    sealed: bool,
) -> None:
    """H8: silence is death; of this path, in this direction, and of nothing else."""
    world = connected(sealed=sealed)
    world.run(60)
    world.path("n1", "n2").cut_udp = True
    took = world.run_until(lambda: not alive(world, "n1", "n1", "n2"), 3)
    assert took <= GRACE_S + 0.2
    world.run(5)
    assert alive(world, "n1", "n2", "n1")
    assert alive(world, "n1", "n1", "n2", adapter="blue")
    assert alive(world, "n1", "n1", "n2", transport="tcp")
    assert not world.link_events("n1", "down")
    world.path("n1", "n2").cut_udp = False
    assert world.run_until(lambda: alive(world, "n1", "n1", "n2"), 3) <= 0.3


def test_datagrams_and_streams_of_one_path_are_judged_apart() -> None:
    """A protocol that is filtered is a soft error of its own."""
    world = connected()
    for pair in (("n1", "n2"), ("n2", "n1")):
        world.path(*pair).cut_tcp = True
    world.run(2)
    assert alive(world, "n1", "n1", "n2")
    assert not alive(world, "n1", "n1", "n2", transport="tcp")


@pytest.mark.parametrize("loss", [0.05, 0.2])
def test_a_lossy_network_gets_a_loss_rate_and_no_other_verdict(loss: float) -> None:
    """Invariant 7: a soft error alone never removes a live node; loss itself is judged by a rate."""
    world = connected(3)
    world.run(5)
    for path in world.all_paths():
        path.loss = loss
    world.run(10)  # three in a row can be lost before the loss is known
    begin = world.now
    world.run(60)
    for name in world.nodes:
        news = [f for f in world.path_changes(name) if f.now_ns > begin]
        other = [f for f in news if not f.alive or f.size < f.size_max or f.bad_patterns or f.holes]
        assert other == []
        # That it is lossy may be known late, but only once: the verdict does not come and go.
        paths = Counter((f.sender, f.listener_adapter, f.transport) for f in news)
        assert all(count == 1 for count in paths.values())
    for name in world.nodes:
        assert not world.link_events(name, "down")
    measured = [
        r.loss_ppm
        for r in world.core("n1").service(HealthService).health.table.rows.values()
        if r.transport == "udp"
    ]
    average = sum(measured) / len(measured) / 1_000_000
    assert abs(average - loss) < 0.08


def test_an_own_pause_accuses_no_path() -> None:
    """Health: a node credits its own lag before it accuses anybody."""
    world = connected(3)
    world.run(5)
    before = len(world.path_changes("n1"))
    world.pause("n1", 2_500 * MILLISECOND)
    world.run(5)
    assert len(world.path_changes("n1")) == before
    assert not world.link_events("n1", "down")


def test_an_own_pause_does_not_spoil_the_round_trip() -> None:
    world = connected()
    world.run(5)
    world.pause("n1", 2_500 * MILLISECOND)
    world.run(10)
    for r in world.core("n1").service(HealthService).health.table.rows.values():
        assert r.rtt_us < 20_000, r


# -- the table -----------------------------------------------------------------------------------------------------


@both_modes
def test_all_nodes_hold_the_same_table_after_quiet(sealed: bool) -> None:
    """H9."""
    world = connected(4, sealed=sealed, adapters=("red",))
    world.path("n1", "n2").over = 1000
    world.path("n3", "n4").cut_udp = True
    world.run(5)
    assert tables_are_equal(world)
    assert len(world.core("n1").service(HealthService).health.table.rows) == 4 * 3 * 2
    world.restart("n2")
    world.run(10)
    assert tables_are_equal(world)
    assert size(world, "n4", "n1", "n2") == 1000


def test_a_late_node_gets_the_whole_table() -> None:
    world = connected(3, adapters=("red",))
    world.path("n1", "n2").over = 1000
    world.run(3)
    world.add("n4", 4)
    world.run(5)
    assert tables_are_equal(world)
    assert size(world, "n4", "n1", "n2") == 1000


def test_every_change_of_a_row_has_a_higher_version() -> None:
    world = connected()
    versions: list[int] = []
    for over in (0, 1000, 0, 600, 0):
        world.path("n1", "n2").over = over
        world.run(4)
        versions.append(row(world, "n1", "n1", "n2").n)
    assert versions == sorted(set(versions))


def test_a_health_unit_that_was_rebuilt_is_believed_again() -> None:
    """Rows with a version below what was published are refused by everybody: versions must grow on."""
    world = connected(3)
    world.run(30)
    before = row(world, "n2", "n2", "n1").n
    world.strict = False
    fail(world.core("n1").turns, "health")
    world.run(1)
    assert [failure.unit for failure in world.nodes["n1"].failures] == ["health"]
    world.run(2)
    assert row(world, "n2", "n2", "n1").n > before
    world.path("n2", "n1").over = 1000
    world.run(3)
    assert size(world, "n2", "n2", "n1") == 1000
    assert row(world, "n2", "n1", "n2").loss_ppm < 100_000, "its basics go on where they were"
    assert tables_are_equal(world), "and it was told again what it had known"


def test_a_row_about_others_is_taken_only_if_it_is_newer_and_never_about_ourselves() -> None:
    """Rows belong to their listener."""
    world = connected(3)
    world.run(2)
    n1 = world.core("n1").service(HealthService).health
    peer = world.nodes["n2"].id
    about_others, about_us = row(world, "n1", "n2", "n3"), row(world, "n1", "n2", "n1")

    def told(known: PathRow, n: int) -> None:
        values = {name: getattr(known, name) for name in known.__struct_fields__}
        claim = PathRow(**{**values, "n": n, "alive": False})
        world.turn("n1", [("path_gossip", Received(peer, [PathRows((claim,))], world.now))])

    told(about_others, about_others.n - 1)
    assert alive(world, "n1", "n2", "n3")
    told(about_others, n1.table.listeners[about_others.listener].edition.n + 1)
    assert not alive(world, "n1", "n2", "n3")
    told(about_us, about_us.n + 1_000_000)
    assert n1.table.rows[(peer, "red", world.nodes["n1"].id, "red", "udp")].alive


@pytest.mark.parametrize(
    "changed",
    [
        {"size": 1, "size_max": 2},
        {"size": -1},
        {"size": (1 << 64) - 1, "size_max": (1 << 64) - 1},
        {"loss_ppm": -(1 << 63), "rtt_us": (1 << 64) - 1},
        {"sender": b"", "listener": b""},
        {"sender": b"x" * 5000},
        {"listener_adapter": "x" * 50_000},
    ],
    ids=",".join,
)
def test_rows_that_cannot_be_never_raise_and_never_stop_traffic(changed: dict[str, Any]) -> None:
    """Invariant 10."""
    world = connected()
    world.run(1)
    known = row(world, "n1", "n1", "n2")
    values = {name: getattr(known, name) for name in known.__struct_fields__}
    claim = PathRow(**{**values, "n": known.n + 10**9, **changed})
    rows = PathRows((claim,) * 500)
    world.turn("n1", [("path_gossip", Received(world.nodes["n2"].id, [rows], world.now))])
    world.core("n1").status(world.now)
    for end in world.network.stream_ends("n1", "n2"):
        end.stalled = True
    world.send("n1", "n2", [bytes(3000)])
    world.run(3)
    assert world.messages("n2", "n1") == [bytes(3000)]


def test_a_malformed_heartbeat_never_raises() -> None:
    world = connected()
    flow = next(f.flow for f in world.link("n1", "n2").flows.values() if not f.stream)
    huge = (1 << 64) - 1
    for basic in (
        Heartbeat(huge, huge, huge, huge, huge, huge, huge, huge, bytes(range(256))),
        Heartbeat(-huge // 2, -1, -1, -1, -1, -1, -1, -1, bytes(300)),
    ):
        received = Received(world.nodes["n2"].id, [basic], world.now, flow)
        world.turn("n1", [("health", received)])
    world.run(2)
    assert world.up("n1", "n2")


# -- what links are told -------------------------------------------------------------------------------------------


def test_a_connection_that_replaces_another_does_not_make_its_path_look_dead() -> None:
    """Two flows, one after the other, are one path in the table; the old one's end is not the path's."""
    world = connected(adapters=("red",))
    world.run(3)
    before = len(world.path_changes("n2"))
    unit = world.link("n1", "n2").unit
    world.network.effect("n1", OpenFlow("red", "tcp", "127.0.1.2", 7400, unit))
    world.run(2)
    assert world.settled()
    told = [f.alive for f in world.path_changes("n2")[before:] if f.transport == "tcp"]
    assert False not in told
    assert alive(world, "n1", "n1", "n2", transport="tcp")


def test_a_new_stream_on_a_path_with_a_limit_is_known_to_be_degraded() -> None:
    """Otherwise channels would go back to it, stall, and leave it again, with every reconnection."""
    world = connected()
    world.path("n1", "n2").over = 1000
    world.run(2)
    for end in world.network.stream_ends("n1", "n2", "red"):
        world.network._break(end)
    world.run(2)
    (flow,) = [f for f in world.link("n1", "n2").flows.values() if f.path == "red/red/tcp"]
    assert flow.degraded
    world.path("n1", "n2").over = 0
    world.run(3)
    assert not flow.degraded


def test_a_link_is_told_only_what_has_changed() -> None:
    world = connected()
    world.run(2)
    told: list[FlowVerdict] = []
    link: Any = world.link("n1", "n2")
    original = link._verdict

    def listen(now: int, verdict: FlowVerdict, out: Any) -> None:
        told.append(verdict)
        original(now, verdict, out)

    link._takes[FlowVerdict] = listen
    world.run(20)
    assert told == []
    world.path("n1", "n2").over = 1000
    world.run(2)
    assert len(told) == 2, "the datagram flow and the stream of the path"


def test_heartbeats_go_on_every_flow_as_often_as_is_said() -> None:
    """H1, H2: basics on every path, probes interleaved in the configured ratio."""
    world = connected(adapters=("red",))
    captured = world.network.capture()
    world.run(10)
    sizes = [len(packet) + 28 for (name, _), _, packet in captured if name == "n1"]
    assert 95 <= len([size for size in sizes if size < 200]) <= 105
    assert 45 <= sizes.count(1500) <= 55, "the best value with every second basic"
    lower = [sizes.count(rung) for rung in (576, 1000, 1280)]
    assert 45 <= sum(lower) <= 55, "and with it a lower one"
    assert max(lower) - min(lower) <= 1, "in turn"


def test_without_flows_the_unit_sleeps() -> None:
    world = World(1)
    world.run(1)
    assert world.core("n1").service(HealthService).health.deadline == NEVER
    before = world.nodes["n1"].turns
    world.run(3600)
    assert world.nodes["n1"].turns - before < 1200, "only housekeeping of the overlay"


def test_a_stop_of_the_peer_is_noticed_by_every_flow_and_cleaned_up() -> None:
    world = connected()
    world.kill("n2", silent=True)
    world.run(10)
    health = world.core("n1").service(HealthService).health
    assert health._flows == {}
    assert all(not r.alive for r in health.table.rows.values() if r.listener == health.me.node)
