"""Facts of the groups that a node has replicas of, for one stretch of one life of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.pipeline.synth.columns import Columns, Facts, strings
from holdfast.pipeline.synth.groups import (
    MESSAGES,
    STREAMS,
    Group,
    Lead,
    digests,
    entries_between,
    first_of,
    groups_of,
    is_skip,
    leads_of,
    position_of,
    stream_of,
    term_at,
    violation_entry,
)
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.options import SynthOptions
from holdfast.pipeline.synth.violations import plant_in_deliveries, plant_in_orders

if TYPE_CHECKING:
    Rows = dict[str, Any]

_DELAY_S: Final = 0.002
_OTHER: Final = "u/1"
"""A stream that only planted entries have."""


def group_facts(life: Life, begin: float, end: float, options: SynthOptions) -> list[Facts]:
    """Delivery, order and group facts, each in order of time."""
    deliveries: list[Rows] = []
    orders: list[Rows] = []
    events: list[Rows] = []
    groups = groups_of(options)
    for number, group in enumerate(groups):
        if life.node not in group.replicas:
            continue
        leads = leads_of(group, options)
        at = violation_entry(group, options) if group.violation else -1
        rank = group.replicas.index(life.node)
        mark = {"group": number}
        delivered = _delivered(group, leads, rank, begin, end, options)
        deliveries.append(mark | plant_in_deliveries(group, delivered, rank, at))
        ordered = _ordered(leads, life, begin, end, options)
        at_s = at / options.entries_per_s
        inside = at_s if begin <= at_s < end else None
        term = int(term_at(np.array([at_s]), leads)[0])
        orders.append(mark | plant_in_orders(group, ordered, rank, at, inside, term))
        events.append(mark | _events(group, leads, life, begin, end, at, options))
    if not deliveries:
        return []
    names = [group.name for group in groups]
    return [
        _facts("delivery", deliveries, names),
        _facts("order", orders, names),
        _facts("group", events, names),
    ]


def _delivered(
    group: Group, leads: list[Lead], rank: int, begin: float, end: float, options: SynthOptions
) -> Rows:
    entry = entries_between(begin, end, options)
    digest = digests(entry, group.name)
    kept = ~is_skip(entry)
    entry, digest = entry[kept], digest[kept]
    ordered_at = entry / options.entries_per_s
    return {
        "at_s": ordered_at + _DELAY_S * (rank + 1),
        "term": term_at(ordered_at, leads),
        "index": entry + 1,
        "position": position_of(entry),
        "stream": stream_of(entry),
        "first": first_of(entry),
        "last": first_of(entry) + MESSAGES - 1,
        "digest": digest,
        "lost": np.zeros(len(entry), dtype=bool),
    }


def _ordered(
    leads: list[Lead], life: Life, begin: float, end: float, options: SynthOptions
) -> Rows:
    """What this node ordered while it led."""
    entry = entries_between(begin, end, options)
    at_s = entry / options.entries_per_s
    begins = np.array([lead.begin for lead in leads])
    which = np.maximum(np.searchsorted(begins, at_s, side="right") - 1, 0)
    mine = np.array([lead.node == life.node for lead in leads])[which]
    entry, at_s = entry[mine], at_s[mine]
    return {
        "at_s": at_s,
        "term": term_at(at_s, leads),
        "index": entry + 1,
        "entry": is_skip(entry).astype(np.int64),
        "position": position_of(entry),
        "stream": stream_of(entry),
        "first": first_of(entry),
        "last": first_of(entry) + MESSAGES - 1,
    }


def _events(
    group: Group,
    leads: list[Lead],
    life: Life,
    begin: float,
    end: float,
    at: int,
    options: SynthOptions,
) -> Rows:
    found: list[tuple[float, str, int]] = []
    if life.number and begin <= life.begin < end:
        found.append((life.begin, "restored", int(term_at(np.array([life.begin]), leads)[0])))
    found += [
        (lead.begin, "leads" if lead.node == life.node else "follows", lead.term)
        for lead in leads
        if begin <= lead.begin < end
    ]
    if group.violation == "two_leaders" and life.node == group.replicas[1]:
        when = at / options.entries_per_s
        if begin <= when < end:
            found.append((when, "leads", int(term_at(np.array([when]), leads)[0])))
    found.sort()
    at_s = np.array([when for when, _, _ in found])
    return {
        "at_s": at_s,
        "event": [event for _, event, _ in found],
        "term": np.array([term for _, _, term in found], dtype=np.int64),
        "index": np.floor(at_s * options.entries_per_s).astype(np.int64),
    }


def _facts(kind: str, rows: list[Rows], names: list[str]) -> Facts:
    """Rows of several groups as facts of one kind, in order of time."""
    at_s = np.concatenate([piece["at_s"] for piece in rows])
    order = np.argsort(at_s, kind="stable")
    number = np.concatenate([np.full(len(piece["at_s"]), piece["group"]) for piece in rows])
    columns: Columns = {"group": strings(names, number[order])}
    for name in rows[0]:
        if name in ("at_s", "group", "lost"):
            continue
        values = np.concatenate([np.asarray(piece[name]) for piece in rows])[order]
        columns[name] = _words(name, values)
    lost = None
    if "lost" in rows[0]:
        lost = np.concatenate([piece["lost"] for piece in rows])[order]
    return Facts(kind, at_s[order], columns, lost if lost is not None and lost.any() else None)


def _words(name: str, values: Any) -> Any:
    if name == "stream":
        return strings((*STREAMS, _OTHER), values)
    if name == "entry":
        return strings(("order", "skip"), values)
    if name == "event":
        return values.astype(object) if len(values) else values.astype(str).astype(object)
    return values
