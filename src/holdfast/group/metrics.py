"""Metrics of groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.subsystem import Family
from holdfast.subsystem.metrics import each, rows

_GROUP: Final = {
    "term": "Term of the group.",
    "commit": "Highest committed entry.",
    "applied": "Index of the last entry applied by the application.",
    "lag": "Entries that are committed and not processed yet.",
}

_STABILITY: Final = {
    "stable": "Entries up to this one are applied by all members.",
    "lag_ms": "Age of the oldest report of this replica that is not stable.",
    "held": "Bytes held for other members.",
    "blockers": "Members that prevent this replica from freeing buffers.",
}
_SERVICES: Final = {
    "locks": "Locks that are held.",
    "barriers": "Barriers with waiting parties.",
    "grants": "Locks granted by this replica as leader.",
    "expired": "Leases that this replica let expire as leader.",
}


def _nested(
    groups: Sequence[Mapping[str, Any]], section: str, metrics: Mapping[str, str]
) -> Iterator[Family]:
    """Numbers of a part of the status; for lists, their length."""
    for key, help_text in metrics.items():
        samples: list[tuple[Mapping[str, object], Any]] = []
        for group in groups:
            value = (group.get(section) or {}).get(key, 0)
            size = len(value) if isinstance(value, list | tuple) else value
            samples.append(({"group": group.get("name", "")}, size))
        yield f"holdfast_group_{section}_{key}", "gauge", help_text, samples


def group_metrics(status: Mapping[str, Any]) -> Iterator[Family]:
    groups = rows(status, "groups")
    for key, help_text in _GROUP.items():
        yield f"holdfast_group_{key}", "gauge", help_text, each(groups, "group", "name", key)
    leading: list[tuple[Mapping[str, object], Any]] = [
        ({"group": group.get("name", "")}, group.get("state") == "leading") for group in groups
    ]
    yield from _nested(groups, "stability", _STABILITY)
    yield from _nested(groups, "services", _SERVICES)
    yield "holdfast_group_leading", "gauge", "1 if this node leads the group.", leading
