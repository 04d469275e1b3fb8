"""Node and link facts of one life: its start and end, links to its peers, alarms, and traffic that is moved."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from holdfast.pipeline.synth.columns import Facts
from holdfast.pipeline.synth.landing import LandingWriter
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.path_facts import PathTimeline
from holdfast.pipeline.synth.topology import Topology

_LINK_S: Final = 0.2
"""How long after its start a node has a link to its first peer."""


_MOVE_S: Final = 0.1
_RETURN_S: Final = 60.0
"""How soon traffic leaves a path that breaks, and how long after its repair it returns."""


class _Event(msgspec.Struct, frozen=True, order=True):
    at_s: float
    event: str
    values: tuple[Any, ...]


def node_facts(
    paths: list[PathTimeline], life: Life, begin: float, end: float, topology: Topology
) -> Facts:
    """`start`, `stop` unless it crashes, and an alarm for each error that it notices."""
    events = []
    if begin <= life.begin < end:
        events.append(_Event(life.begin, "start", (f"incarnation {life.incarnation}",)))
    if begin < life.end <= end and not life.crashes:
        events.append(_Event(life.end - 1e-3, "stop", (f"incarnation {life.incarnation}",)))
    for line in paths:
        text = (
            f"{topology.name(line.path.sender)} on {topology.adapter(line.path.listener_adapter)}"
        )
        for hit in line.hits:
            words = (f"{hit.error_class}: {text}, {line.path.transport}",)
            if begin <= hit.begin < end:
                events.append(_Event(hit.begin, "alarm", words))
            if begin <= hit.end < end:
                events.append(_Event(hit.end, "alarm_over", words))
    events.sort()
    return Facts(
        "node",
        np.array([event.at_s for event in events]),
        {
            "event": [event.event for event in events],
            "detail": [event.values[0] for event in events],
            "count": np.ones(len(events), dtype=np.int64),
        },
    )


def link_facts(
    paths: list[PathTimeline], life: Life, begin: float, end: float, topology: Topology
) -> Facts:
    """Links come up one after the other; traffic moves to another adapter when a path breaks, and back."""
    events = []
    for turn, peer in enumerate(topology.neighbours(life.node)):
        up = life.begin + _LINK_S * (turn + 1)
        if begin <= up < min(end, life.end):
            events.append(_Event(up, "up", (peer, "", "", "")))
    if topology.options.adapters > 1:
        for line in paths:
            events += _moves(line, begin, end, topology)
    events.sort()
    peers = [event.values[0] for event in events]
    return Facts(
        "link",
        np.array([event.at_s for event in events]),
        {
            "event": [event.event for event in events],
            "peer": [topology.ids[peer] for peer in peers],
            "peer_name": [topology.name(peer) for peer in peers],
            "path": [event.values[1] for event in events],
            "path_before": [event.values[2] for event in events],
            "reason": [event.values[3] for event in events],
        },
    )


def _moves(line: PathTimeline, begin: float, end: float, topology: Topology) -> list[_Event]:
    path = line.path
    here = topology.adapter(path.listener_adapter)
    other = topology.adapter((path.listener_adapter + 1) % topology.options.adapters)
    bad, good = f"{here}/{here}/{path.transport}", f"{other}/{other}/{path.transport}"
    found = []
    for hit in line.hits:
        away = (path.sender, good, bad, f"channel 16: {hit.error_class} on {bad}")
        back = (path.sender, bad, good, "channel 16: free again")
        moves = ((hit.begin + _MOVE_S, away), (hit.end + _RETURN_S, back))
        found += [_Event(at, "moved", values) for at, values in moves if begin <= at < end]
    return found


def lost_facts(writer: LandingWriter, life: Life) -> Facts:
    """What the node could not keep since it was asked last."""
    lost = writer.take_lost()
    return Facts(
        "lost",
        np.array([at_s for *_, at_s in lost]),
        {
            "lost_kind": [kind for kind, *_ in lost],
            "first": np.array([first for _, first, _, _ in lost], dtype=np.int64),
            "last": np.array([last for _, _, last, _ in lost], dtype=np.int64),
            "reason": ["buffer full"] * len(lost),
            "lost_incarnation": np.full(len(lost), life.incarnation, dtype=np.int64),
        },
    )
