"""The leader places members on the cube by measured path quality (rule 7 in docs/design/stability.md)."""

from __future__ import annotations

import pytest
from tests.unit.group.harness import World, node_id
from tests.unit.group.pouring import pour
from tests.unit.group.talking import started
from tests.unit.group.view_text import suspended

from holdfast.group.config import GroupConfig
from holdfast.group.log.entries import Member, View
from holdfast.group.membership.seating import LOOK_NS, Seating, qualities, seats_of
from holdfast.health.frames import PathRow
from holdfast.stability import StabilityConfig
from holdfast.stability.hypercube import cube
from holdfast.types import SECOND

NAMES = tuple(f"n{k}" for k in range(8))


def row(sender: str, listener: str, rtt_us: int, **more: object) -> PathRow:
    values = {
        "sender": node_id(sender), "sender_adapter": "red", "listener": node_id(listener), "listener_adapter": "red",
        "transport": "udp", "incarnation": 1, "n": 1, "alive": True, "size": 1400, "size_max": 1400, "loss_ppm": 0,
        "rtt_us": rtt_us,
    }  # fmt: skip
    return PathRow(**{**values, **more})  # type: ignore[arg-type]


def site(name: str) -> int:
    """Members whose numbers have an even number of bits are at one site, the others at another: every edge is long."""
    return int(name[1:]).bit_count() % 2


def two_sites(near_us: int = 100, far_us: int = 50_000) -> list[PathRow]:
    return [
        row(a, b, near_us if site(a) == site(b) else far_us) for a in NAMES for b in NAMES if a != b
    ]


def view(**changes: bool) -> View:
    members = tuple(
        Member(name, node_id(name), 1, voter=k < 3, suspended=changes.get(name, False))
        for k, name in enumerate(NAMES)
    )
    return View(7, members, ("gone",), 99)


def config(protocol: str = "cube", mode: str = "majority") -> GroupConfig:
    stability = StabilityConfig(protocol=protocol)
    return GroupConfig(
        "book", NAMES[:3], learners=NAMES[3:], stability=stability,
        mode=mode,  # type: ignore[arg-type]
    )  # fmt: skip


def far_edges(members: tuple[Member, ...]) -> int:
    sites = [site(member.name) for member in members]
    return sum(
        sites[place] != sites[other]
        for place, near in enumerate(cube(len(sites)))
        for other in near
    )


def test_a_better_order_is_found_after_several_looks_and_keeps_the_members() -> None:
    seating, before = Seating(config(), two_sites), view()
    found = [seating.look(before, k * LOOK_NS) for k in range(1, 6)]
    after = next(one for one in found if one is not None)
    assert found.index(after) >= 2, "one look is not enough"
    assert after.number == 8
    assert sorted(after.members, key=lambda m: m.name) == sorted(
        before.members, key=lambda m: m.name
    )
    assert (after.removed, after.group_epoch) == (before.removed, before.group_epoch)
    assert far_edges(after.members) < far_edges(before.members)


def test_it_looks_rarely_and_does_not_change_its_mind_at_once() -> None:
    calls = []
    seating = Seating(config(), lambda: calls.append(1) or two_sites())  # type: ignore[func-returns-value]
    now, before = LOOK_NS, view()
    after = None
    while after is None and len(calls) < 9:
        after = seating.look(before, now)
        now += SECOND
    assert after is not None
    assert len(calls) == 3, "every ten seconds"
    assert all(seating.look(before, now + k * LOOK_NS) is None for k in range(5)), (
        "not for a minute"
    )
    assert seating.changes == 1


@pytest.mark.parametrize(
    ("protocol", "rows"),
    [
        ("coord", two_sites()),
        ("full", two_sites()),
        ("cube", two_sites(far_us=110)),
        ("cube", []),
    ],
)
def test_nothing_moves_without_a_cube_or_without_a_gain(protocol: str, rows: list[PathRow]) -> None:
    seating = Seating(config(protocol), lambda: rows)
    assert all(seating.look(view(), k * LOOK_NS) is None for k in range(1, 10))


def test_an_availability_group_has_no_places() -> None:
    """No detector runs there, however many members it has."""
    settings = {"stability": StabilityConfig(cube_from=2), "learners": NAMES[3:]}
    for mode, moves in (("majority", True), ("availability", False)):
        group = GroupConfig("book", NAMES[:3], mode=mode, **settings)  # type: ignore[arg-type]
        seating = Seating(group, two_sites)
        found = [seating.look(view(), k * LOOK_NS) for k in range(1, 10)]
        assert any(found) == moves, mode


def test_suspended_members_keep_to_the_end() -> None:
    seating, before = Seating(config(), two_sites), view(n2=True)
    after = None
    for k in range(1, 8):
        after = after or seating.look(before, k * LOOK_NS)
    assert after is not None
    assert after.members[-1].name == "n2"


def test_the_quality_of_a_pair_is_that_of_its_best_path() -> None:
    pair = (node_id("n0"), node_id("n1"))
    rows = [
        row("n0", "n1", 100, alive=False),
        row("n0", "n1", 900, sender_adapter="blue"),
        row("n0", "n1", 100, sender_adapter="green", size=500),
    ]
    best = qualities(rows)[pair]
    assert (best.rtt_ns, best.alive, best.soft_error) == (900_000, True, False)
    damaged = qualities([row("n0", "n1", 100, bad_patterns=("ff",))])[pair]
    assert damaged.soft_error


def test_a_member_that_leaves_or_is_suspended_moves_only_the_last_one() -> None:
    """All others keep their neighbours, so the order that was found by path quality stays in use."""
    left = view().without("n2")
    assert [member.name for member in left.members] == ["n0", "n1", "n7", "n3", "n4", "n5", "n6"]
    assert [member.name for member in left.without("n6").members] == [
        "n0",
        "n1",
        "n7",
        "n3",
        "n4",
        "n5",
    ]
    seats = [member.name for member in seats_of(view(n2=True, n4=True))]
    assert seats == ["n0", "n1", "n7", "n3", "n6", "n5"]
    assert [member.name for member in seats_of(view())] == list(NAMES)


def test_replicas_and_their_leader_agree_on_places_while_a_member_is_suspended() -> None:
    """The detectors of all replicas use the places of the committed view; the leader improves these."""
    world = started(1, voters=5, patience_ns=SECOND)
    world.kill("n2")
    while suspended(world) != ["n2"]:
        assert world.now < 10 * SECOND, world.describe()
        pour(world, "n1", rounds=50, watch=[])
    world.run(SECOND)
    for name in ("n1", "n3", "n4", "n5"):
        replica = world.hosts[name].replica
        assert replica is not None
        stability = replica.inspect().stability
        assert stability is not None
        assert stability.detector.view is not None
        members = [member.name for member in stability.detector.view.members]
        assert members == ["n1", "n5", "n3", "n4"], name


def test_the_leader_commits_a_better_order_as_a_view() -> None:
    """Rule 7. n1 and n4 are at one site, n2 and n3 at another: in the first order every edge is long."""
    names = ("n1", "n2", "n3", "n4")
    near = (("n1", "n4"), ("n4", "n1"), ("n2", "n3"), ("n3", "n2"))
    world = World(
        voters=4, stability=StabilityConfig(protocol="cube"), append_period_ns=SECOND, election_ns=4 * SECOND
    )  # fmt: skip
    world.paths = lambda: [
        row(a, b, 100 if (a, b) in near else 50_000) for a in names for b in names if a != b
    ]
    world.start()
    world.run_until(lambda: world.hosts["n1"].members == 4, 10 * SECOND)
    orders = []
    for _ in range(6):
        world.run(LOOK_NS)
        replica = world.hosts["n2"].replica
        assert replica is not None
        committed = replica.inspect().log.committed_view
        assert committed is not None
        orders.append([member.name for member in committed.members])
    assert sorted(orders[0]) == sorted(orders[-1]) == sorted(names)
    assert {orders[-1][0], orders[-1][3]} not in ({"n1", "n4"}, {"n2", "n3"})
    assert [orders[k] != orders[k + 1] for k in range(5)].count(True) <= 1, (
        "one change, and no more"
    )
