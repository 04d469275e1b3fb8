"""Metrics of the overlay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.subsystem import Family
from holdfast.subsystem.metrics import one, part

_SIZES: Final = {
    "trees": "Trees in the cache.",
    "routes": "Routes to instances of roles.",
    "local_roles": "Roles that this node holds.",
    "records": "Messages that wait for replies.",
    "waves": "Builder messages that wait for answers.",
    "entries": "Locations that this node stores for the search.",
    "seen": "Messages remembered to recognise duplicates.",
}


def overlay_metrics(status: Mapping[str, Any]) -> Iterator[Family]:
    overlay = part(status, "overlay")
    sizes, mesh = part(overlay, "sizes"), part(overlay, "mesh")
    for key, text in _SIZES.items():
        yield f"holdfast_overlay_{key}", "gauge", text, one(sizes, key)
    yield "holdfast_overlay_links", "gauge", "Neighbours on the mesh.", one(mesh, "links")
    yield "holdfast_overlay_reachable", "gauge", "Nodes that are reached.", one(mesh, "reachable")
    counters = part(overlay, "counters")
    samples: list[tuple[Mapping[str, object], Any]] = [
        ({"event": name}, value) for name, value in sorted(counters.items())
    ]
    yield "holdfast_overlay_events_total", "counter", "Events of the overlay, by kind.", samples
