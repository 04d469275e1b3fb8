"""Violations planted in the facts of groups, at one entry each, so that an audit can be tested.

Each kind is planted in a group of its own and breaks one claim there; the facts of all other groups are correct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.pipeline.synth.groups import DIGEST_MASK, MESSAGES, STREAMS, Group

if TYPE_CHECKING:
    import numpy.typing as npt

    Rows = dict[str, Any]
    Plant = Callable[[Rows, int, int], Rows]

_WRONG: Final = 7
_OTHER: Final = len(STREAMS)
VICTIM: Final = 1
"""The replica, by rank, at which a violation of one replica is planted."""


def plant_in_deliveries(group: Group, rows: Rows, rank: int, entry: int) -> Rows:
    """The deliveries of a replica with the group's violation at `entry` in them, if it is one of deliveries."""
    plant = _PLANTS.get(group.violation)
    return plant(rows, rank, entry) if plant else rows


def plant_in_orders(
    group: Group, rows: Rows, rank: int, entry: int, at_s: float | None, term: int
) -> Rows:
    """The same for the entries that a leader appended; `at_s` is None when the entry is not of this stretch of time."""
    if group.violation == "delivered_after_drop":
        return rows | {"entry": np.where(rows["index"] == entry + 1, 1, rows["entry"])}
    if group.violation != "two_leaders" or rank != VICTIM or at_s is None:
        return rows
    # One more entry, appended by a replica that does not lead.
    extra = {
        "at_s": at_s,
        "term": term,
        "index": entry + 1,
        "entry": 0,
        "position": 0,
        "stream": _OTHER,
        "first": 1,
        "last": MESSAGES,
    }
    return {name: np.append(rows[name], extra[name]) for name in rows}


def _different_message(rows: Rows, rank: int, entry: int) -> Rows:
    if rank != VICTIM:
        return rows
    # Digests add up, so one wrong message is in all of them from there on, by the same amount.
    wrong = rows["index"] >= entry + 1
    return rows | {"digest": np.where(wrong, _other(rows["digest"]), rows["digest"])}


def _different_order(rows: Rows, rank: int, entry: int) -> Rows:
    """The messages of two neighbouring entries are delivered the other way round."""
    if rank != VICTIM:
        return rows
    changed = _exchanged(rows, entry, entry + 1, ("stream", "first", "last"))
    here = rows["index"] == entry + 1
    return changed | {"digest": np.where(here, _other(rows["digest"]), rows["digest"])}


def _other(digest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (digest + _WRONG) & np.int64(DIGEST_MASK)


def _stream_reordered(rows: Rows, _: int, entry: int) -> Rows:
    return _exchanged(rows, entry, entry + len(STREAMS), ("first", "last"))


def _delivered_twice(rows: Rows, _: int, entry: int) -> Rows:
    here = rows["index"] == entry + 1
    return rows | {
        name: np.where(here, rows[name] - MESSAGES, rows[name]) for name in ("first", "last")
    }


def _position_reused(rows: Rows, _: int, entry: int) -> Rows:
    """An entry takes the positions of the one before it; everything after it follows on."""
    after = rows["index"] >= entry + 1
    return rows | {"position": np.where(after, rows["position"] - MESSAGES, rows["position"])}


def _hole(rows: Rows, rank: int, entry: int) -> Rows:
    if rank != VICTIM:
        return rows
    return _where(rows, (rows["index"] < entry + 1) | (rows["index"] > entry + 3))


def _went_back(rows: Rows, rank: int, entry: int) -> Rows:
    """An old entry is delivered again after a newer one."""
    if rank != VICTIM:
        return rows
    places = np.flatnonzero(rows["index"] == entry + 1)
    old = np.flatnonzero(rows["index"] == entry - 1)
    if not len(places) or not len(old):
        return rows
    again = {
        name: np.insert(values, places[0] + 1, values[old[0]]) for name, values in rows.items()
    }
    again["at_s"][places[0] + 1] = rows["at_s"][places[0]] + 1e-3
    return again


def _lost_in_failover(rows: Rows, rank: int, entry: int) -> Rows:
    """The first replica delivered an entry that the leader of the next term replaced by another one."""
    here = rows["index"] == entry + 1
    after = rows["index"] >= entry + 1
    if rank == 0:
        return rows | {"stream": np.where(here, _OTHER, rows["stream"])}
    return rows | {"term": np.where(after, rows["term"] + 1, rows["term"])}


def _facts_lost(rows: Rows, rank: int, entry: int) -> Rows:
    if rank != VICTIM:
        return rows
    gone = (rows["index"] >= entry + 1) & (rows["index"] <= entry + 3)
    return rows | {"lost": gone}


def _exchanged(rows: Rows, one: int, other: int, names: tuple[str, ...]) -> Rows:
    """Two entries with the values of some columns exchanged, if both are in this stretch."""
    here = np.flatnonzero(rows["index"] == one + 1)
    there = np.flatnonzero(rows["index"] == other + 1)
    if not len(here) or not len(there):
        return rows
    changed = dict(rows)
    for name in names:
        values = rows[name].copy()
        values[[here[0], there[0]]] = values[[there[0], here[0]]]
        changed[name] = values
    return changed


def _where(rows: Rows, kept: npt.NDArray[np.bool_]) -> Rows:
    return {name: values[kept] for name, values in rows.items()}


_PLANTS: Final[dict[str, Plant]] = {
    "different_message": _different_message,
    "different_order": _different_order,
    "delivered_twice": _delivered_twice,
    "stream_reordered": _stream_reordered,
    "position_reused": _position_reused,
    "hole": _hole,
    "went_back": _went_back,
    "lost_in_failover": _lost_in_failover,
    "facts_lost": _facts_lost,
}
