"""The table: rows belong to their listener, the newest version wins, and nobody can blow it up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.health.frames import PathRow
from holdfast.health.table.path_table import PathTable, key_of

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def row(n: int = 1, incarnation: int = 1, **changes: Any) -> PathRow:
    values: dict[str, Any] = {
        "sender": A,
        "sender_adapter": "red",
        "listener": B,
        "listener_adapter": "red",
        "transport": "udp",
        "incarnation": incarnation,
        "n": n,
        "alive": True,
        "size": 1500,
        "size_max": 1500,
        "loss_ppm": 0,
        "rtt_us": 100,
    }
    return PathRow(**{**values, **changes})


def test_a_row_is_taken_only_if_it_is_newer() -> None:
    """H9: rows are versioned (incarnation, n)."""
    table = PathTable()
    assert table.put(row(5))
    assert not table.put(row(5, alive=False))
    assert not table.put(row(4, alive=False))
    assert table.put(row(6, alive=False))
    assert table.put(row(1, incarnation=2))
    assert not table.put(row(7, incarnation=1))
    assert table.rows == {key_of(row()): row(1, incarnation=2)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.booleans()), max_size=12))
def test_all_nodes_hold_the_same_after_quiet_in_any_order_of_rows(
    versions: list[tuple[int, int, bool]],
) -> None:
    """H9: equal after quiet."""
    by_version = {(incarnation, n): alive for incarnation, n, alive in versions}
    rows = [row(n, incarnation, alive=alive) for (incarnation, n), alive in by_version.items()]
    tables = []
    for order in itertools.islice(itertools.permutations(rows), 24):
        table = PathTable()
        for item in (*order, *order):
            table.put(item)
        tables.append(table.rows)
    assert all(rows == tables[0] for rows in tables)


def test_rows_of_an_earlier_life_go_and_do_not_come_back_by_gossip() -> None:
    """A listener that restarted with fewer adapters must not leave a ghost behind."""
    table = PathTable()
    table.put(row(9, listener_adapter="blue"))
    table.put(row(9, sender=B, listener=C))
    table.forget(B, 2)
    assert list(table.rows.values()) == [row(9, sender=B, listener=C)]
    assert not table.put(row(9, listener_adapter="blue"))
    assert table.put(row(1, incarnation=2))


def test_a_table_whose_update_was_interrupted_is_repaired() -> None:
    """A unit raised between two steps of an update. The table outlives it, and must not differ from what its rows say:
    else its digest never equals that of any other node."""
    whole, broken = PathTable(B, 1), PathTable(B, 1)
    for table in (whole, broken):
        table.put(row(1), now=5)
        table.put(row(7, sender=B, listener=C), now=5)
    newer, own = row(9, sender=B, listener=C, alive=False), row(2, size=900)
    broken.rows[key_of(newer)] = newer
    broken.rows[key_of(own)] = own
    broken.since.pop(key_of(own))
    broken.repair(now=6)
    whole.put(newer, now=6)
    whole.put(own, now=6)
    for node in (B, C):
        held, wanted = broken.listeners[node], whole.listeners[node]
        assert (held.rows, held.digest) == (wanted.rows, wanted.digest)
    assert broken.listeners[B].whole, "its own edition covers its own rows again"
    assert broken.listeners[B].edition.n >= 2
    assert broken.since.keys() == broken.rows.keys()
    assert broken.put(row(3, size=800), now=7)
    assert broken.listeners[B].whole


@pytest.mark.parametrize(
    "changes",
    [
        {"sender": b""},
        {"sender": b"a" * 17},
        {"listener": b"b" * 1000},
        {"sender_adapter": "x" * 65},
        {"listener_adapter": "x" * 100_000},
        {"transport": "x" * 65},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_is_not_kept(changes: dict[str, Any]) -> None:
    """Invariant 9: bounded in bytes, not only in rows."""
    table = PathTable()
    assert not table.put(row(**changes))
    assert table.rows == {}
    assert table.since == {}


def test_the_table_is_bounded_and_still_takes_news_when_it_is_full() -> None:
    table = PathTable(rows_max=3)
    for adapter in "abcde":
        table.put(row(1, listener_adapter=adapter))
    assert len(table.rows) == 3
    assert table.put(row(2, listener_adapter="a", alive=False))


def test_since_tells_when_the_state_changed_and_not_when_it_was_repeated() -> None:
    table = PathTable()
    table.put(row(1), 100)
    table.put(row(2, loss_ppm=5), 200)
    assert table.since[key_of(row())] == 100
    table.put(row(3, size=1000), 300)
    assert table.since[key_of(row())] == 300


def test_a_node_that_left_leaves_no_rows() -> None:
    """Its own go because it left; what we say of it we take back."""
    table = PathTable(A, 1)
    for pair in ((A, B), (B, A), (C, A)):
        table.put(row(sender=pair[0], listener=pair[1]))
    edition = table.left(B, 1)
    assert edition is not None
    assert edition.left
    assert table.withdraw(B, 0)
    assert [(r.sender, r.listener) for r in table.rows.values()] == [(C, A)]
    assert len(table.since) == 1
    assert not table.withdraw(B, 0)
    assert table.left(B, 1) is None, "that is known"
    assert table.put(row(1, incarnation=2)), "it may come back in another life"


# -- editions --------------------------------------------------------------------------------------------------------


def test_every_change_of_our_own_rows_makes_a_new_edition() -> None:
    table = PathTable(B, 1)
    seen = []
    for n, changes in ((5, {}), (6, {"alive": False}), (7, {"sender": C})):
        table.put(row(n, **changes))
        seen.append(table.listeners[B].edition)
    table.withdraw(C, 0)
    seen.append(table.listeners[B].edition)
    assert [edition.n for edition in seen] == [5, 6, 7, 8]
    assert len({edition.digest for edition in seen}) == 3, (
        "without what was withdrawn it is as it was before"
    )
    assert seen[1].digest == seen[3].digest
    assert table.put(row(8, alive=True)), (
        "a row whose version the withdrawal has used gets the next one"
    )
    assert table.rows[key_of(row())].n == 9


def test_a_node_that_lacks_a_row_knows_it_and_is_complete_when_it_comes() -> None:
    owner, other = PathTable(B, 1), PathTable(A, 1)
    first, second = row(1), row(2, listener_adapter="blue")
    owner.put(first)
    owner.put(second)
    other.put(second)
    other.claim(owner.listeners[B].edition)
    assert not other.listeners[B].whole
    assert other.kept(B) is None, "who is not whole says nothing of what is gone"
    other.put(first)
    assert other.settle(B)
    assert other.kept(B) == owner.kept(B)


def test_what_an_edition_does_not_keep_is_gone() -> None:
    owner, other = PathTable(B, 1), PathTable(A, 1)
    for table in (owner, other):
        table.put(row(1))
        table.put(row(2, sender=C))
    owner.withdraw(C, 0)
    kept = owner.kept(B)
    assert kept is not None
    assert other.claim(kept)
    assert other.rows == owner.rows
    assert other.listeners[B].whole


def test_two_that_died_together_do_not_vouch_for_each_other() -> None:
    """H8: dead means that no listener hears a basic; rows of the dead are of the past."""
    table = PathTable(A, 1)
    table.put(row(sender=B, listener=C))
    table.put(row(sender=C, listener=B))
    assert list(table.living()) == [A]
    table.put(row(sender=B, listener=A))
    assert list(table.living()) == [A, B, C]
