"""The table gets to everybody, whatever happens on the way, and costs little in a large domain."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.health.hamlet import Hamlet, differing, node_id

from holdfast.health.frames import Edition, PathRows, RowsRequest, TableDigest
from holdfast.health.ports import Fresh
from holdfast.health.probing.neighbourhood import ShapeName
from holdfast.health.table import anti_entropy as spread
from holdfast.links.ports import Received

SHAPES: tuple[ShapeName, ...] = ("all", "ring", "hypercube")


def talk(hamlet: Hamlet) -> None:
    """Everybody measures its neighbours."""
    for villager in hamlet.villagers:
        for peer in villager.hood.everybody():
            if peer in hamlet.by_id:
                hamlet.measure(villager, hamlet.by_id[peer])
        hamlet.give(villager, Fresh())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_change_reaches_all_nodes_at_once_along_the_neighbourhood(shape: ShapeName) -> None:
    """H9, H19: changes are handed on, and do not wait for a digest."""
    hamlet = Hamlet(20, shape)
    hamlet.run(0.01)
    talk(hamlet)
    hamlet.run(0.05)
    assert differing(hamlet) == []
    first, second = hamlet.villagers[0], hamlet.by_id[hamlet.villagers[0].hood.everybody()[0]]
    hamlet.listen(first, second, size=1000)
    hamlet.run(0.02)
    assert differing(hamlet) == []


def test_a_change_crosses_each_edge_at_most_twice() -> None:
    """Handed on once, deduplicated by version."""
    hamlet = Hamlet(64, "hypercube")
    talk(hamlet)
    hamlet.run(5.5)
    before = hamlet.frames
    first = hamlet.villagers[0]
    hamlet.listen(first, hamlet.by_id[first.hood.everybody()[0]], alive=False)
    hamlet.run(0.02)
    assert differing(hamlet) == []
    assert hamlet.frames - before <= 2 * 64 * 6 // 2


def test_figures_that_drift_are_not_handed_on_but_get_there() -> None:
    hamlet = Hamlet(16, "ring")
    talk(hamlet)
    hamlet.run(30.5)  # not when digests are due
    first = hamlet.villagers[0]
    before = hamlet.frames
    hamlet.listen(first, hamlet.by_id[first.hood.everybody()[0]], rtt_us=900)
    hamlet.run(0.02)
    assert hamlet.frames - before <= len(first.hood.everybody())
    hamlet.run(60)
    assert differing(hamlet) == []


def test_nothing_is_sent_but_digests_when_nothing_changes() -> None:
    hamlet = Hamlet(10)
    talk(hamlet)
    hamlet.run(30)
    before = hamlet.frames
    hamlet.run(10)
    assert hamlet.frames - before <= 10 * 11, "one small digest for each node and second"


def test_one_that_joins_late_gets_everything() -> None:
    hamlet = Hamlet(12, "hypercube")
    talk(hamlet)
    hamlet.run(5)
    fresh = hamlet.restart(hamlet.villagers[3])
    assert not fresh.table.rows
    hamlet.run(0.1)
    assert len(fresh.table.rows) >= 11 * 3
    hamlet.run(30)
    assert differing(hamlet) == []


def test_a_node_that_left_is_removed_by_all_and_stays_removed() -> None:
    """Also by those who never had a link to it."""
    hamlet = Hamlet(16, "ring")
    talk(hamlet)
    hamlet.run(30)
    gone = hamlet.villagers[5]
    hamlet.leave(gone)
    hamlet.run(60)
    assert differing(hamlet) == []
    for villager in hamlet.villagers:
        assert all(gone.id not in (key[0], key[2]) for key in villager.table.rows)
        assert villager.table.listeners[gone.id].edition.left


def test_a_live_node_that_is_said_to_have_left_speaks_up() -> None:
    hamlet = Hamlet(6)
    talk(hamlet)
    hamlet.run(5)
    slandered = hamlet.villagers[2]
    lie = Edition(slandered.id, 1, slandered.table.listeners[slandered.id].edition.n + 5, 0, True)
    liar = hamlet.villagers[0]
    hamlet.give(liar, Received(hamlet.villagers[1].id, [PathRows((), (lie,))], hamlet.now))
    hamlet.run(30)
    assert differing(hamlet) == []
    assert not liar.table.listeners[slandered.id].edition.left


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 1 << 16),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    mess=st.sampled_from([0.0, 0.3]),
    deeds=st.lists(
        st.tuples(
            st.sampled_from(["change", "drift", "restart", "withdraw", "reconnect"]),
            st.integers(0, 99),
        ),
        max_size=15,
    ),
)
def test_tables_are_equal_after_quiet_whatever_was_lost_doubled_or_overtaken(
    shape: ShapeName, seed: int, loss: float, mess: float, deeds: list[tuple[str, int]]
) -> None:
    """H9: equal after quiet."""
    hamlet = Hamlet(9, shape, seed, loss, mess)
    talk(hamlet)
    hamlet.run(0.5)
    for deed, number in deeds:
        villager = hamlet.villagers[number % 9]
        peers = [hamlet.by_id[p] for p in villager.hood.everybody()]
        peer = peers[number % len(peers)]
        if deed == "change":
            hamlet.listen(villager, peer, size=1000 + number)
        elif deed == "drift":
            hamlet.listen(villager, peer, rtt_us=100 + number)
        elif deed == "restart":
            hamlet.restart(villager)
        elif deed == "withdraw":
            villager.table.withdraw(peer.id, hamlet.now)
        else:
            hamlet.reconnect(villager, peer)
        hamlet.run(0.1)
    hamlet.loss = 0
    hamlet.run(40)
    assert differing(hamlet) == []
    digests = {villager.table.digest for villager in hamlet.villagers}
    assert len(digests) == 1


def test_frames_are_bounded_whatever_the_table_holds() -> None:
    hamlet = Hamlet(3)
    one, two, three = hamlet.villagers
    for number in range(500):
        villager_adapter = f"a{number}"
        row_before = len(one.table.rows)
        hamlet.listen(one, two)
        row = one.table.rows[(two.id, "red", one.id, "red", "udp")]
        values = {name: getattr(row, name) for name in row.__struct_fields__}
        one.version += 1
        one.table.put(type(row)(**{**values, "sender_adapter": villager_adapter, "n": one.version}))
        assert len(one.table.rows) > row_before
    frames = spread._split(list(one.table.rows.values()), [], repair=True)
    sizes = [len(frame.rows) for frame in frames]
    assert sizes == [200, 200, 101]
    hamlet.run(10)
    assert len(three.table.rows) == 501
    assert differing(hamlet) == []


@pytest.mark.parametrize(
    "frame",
    [
        PathRows((), (Edition(b"", -1, -5, -1, True, (-1,)),)),
        PathRows((), (Edition(b"x" * 16, (1 << 63), (1 << 64) - 1, 0),), True),
        PathRows((), tuple(Edition(bytes([n % 256]) * 16, 1, n + 1, n) for n in range(5000))),
        TableDigest(1, b"\xff" * 40, b"", (Edition(b"y" * 16, 1, 1, 1),), ()),
        TableDigest(-1, b"", b"z", (), (1, 2, 3)),
        RowsRequest(tuple((bytes([n % 256]) * 16, 0, 0) for n in range(5000))),
        RowsRequest(((b"", -1, -(1 << 60)), (node_id(0), 1, -5))),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_what_no_node_sends_never_raises_and_does_not_stay(frame: object) -> None:
    """Invariants 9 and 10."""
    hamlet = Hamlet(3)
    talk(hamlet)
    hamlet.run(1)
    hamlet.give(hamlet.villagers[0], Received(hamlet.villagers[1].id, [frame], hamlet.now))  # type: ignore[list-item]
    hamlet.run(20)
    rows = [villager.table.rows for villager in hamlet.villagers]
    assert all(one == two for one, two in pairwise(rows))
    assert len(hamlet.villagers[0].table.listeners) < spread.ROWS_TAKEN_MAX + 10


@pytest.mark.parametrize(
    ("nodes", "most"), [(120, 16), pytest.param(1000, 20, marks=pytest.mark.campaign)]
)
@pytest.mark.timeout(900)
def test_with_many_nodes_each_sends_to_few_and_all_hold_the_whole_table(
    nodes: int, most: int
) -> None:
    """H19: cost per node is logarithmic. The keepers run as they are; links are left out."""
    hamlet = Hamlet(nodes, "hypercube", meet=False)
    for villager in hamlet.villagers:
        hamlet.measure(villager, hamlet.by_id[villager.hood.everybody()[0]])
        villager.table.fresh.clear()  # long ago: only digests can bring it to the others
    hamlet.meet()
    for _ in range(40):
        hamlet.run(5)
        if not differing(hamlet):
            break
    assert differing(hamlet) == []
    degrees = [len(villager.hood.everybody()) for villager in hamlet.villagers]
    # Eight or ten edges of the cube. Only the first neighbour is heard here, so neighbours of the others count, too.
    assert max(degrees) <= most
    assert max(len(villager.sent_to) for villager in hamlet.villagers) <= most
    before = hamlet.frames
    first = hamlet.villagers[0]
    peer = first.hood.everybody()[0]
    hamlet.listen(first, hamlet.by_id[peer], alive=False)
    hamlet.run(0.1)
    key = (peer, "red", first.id, "red", "udp")
    assert all(not villager.table.rows[key].alive for villager in hamlet.villagers)
    assert hamlet.frames - before <= sum(degrees) + nodes, (
        "each edge at most twice, and some digests"
    )
