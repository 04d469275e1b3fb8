"""Is the node fine? One answer from its status: for `holdfast status`, for `--check`, and for programs.

`problems_of(status)` lists what is wrong, worst first, one short line each; an empty list means that all is well. It
reads a status as it crosses the control socket, so every part may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

GRAVE: Final = "dead"
SOFT: Final = "soft error"
LINE_MAX: Final = 76


class Problem(msgspec.Struct, frozen=True, gc=False):
    """One thing that is wrong."""

    level: str
    text: str


def problems_of(status: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong, worst first."""
    found = [
        *_node(status),
        *_joining(status),
        *_members(status),
        *_groups(status),
        *_paths(status),
    ]
    return sorted(found, key=lambda problem: problem.level != GRAVE)


def headline(status: Mapping[str, Any]) -> str:
    """The first line: whether it is fine, in at most 80 columns."""
    problems = problems_of(status)
    if not problems:
        return "fine: all members are up, all known paths pass everything"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"NOT FINE: {_cut(problems[0].text, LINE_MAX - 10 - len(more))}{more}"


def _node(status: Mapping[str, Any]) -> Iterator[Problem]:
    node = status.get("node") or {}
    for unit in node.get("stopped_units") or ():
        yield Problem(GRAVE, f"unit {unit} failed twice and has stopped")


def _joining(status: Mapping[str, Any]) -> Iterator[Problem]:
    """Only while no member was reached: one outdated address of several is no fault."""
    waiting = _rows(status, "joining")
    others = [member for member in _rows(status, "members") if member.get("state") == "up"]
    if waiting and len(others) <= 1:
        for row in waiting:
            yield Problem(GRAVE, str(row.get("text", "cannot join")))


def _members(status: Mapping[str, Any]) -> Iterator[Problem]:
    for member in _rows(status, "members"):
        if member.get("state") == "down":
            yield Problem(GRAVE, f"member {member.get('name')} is down")


def _groups(status: Mapping[str, Any]) -> Iterator[Problem]:
    for group in _rows(status, "groups"):
        name = group.get("name")
        if group.get("state") == "suspended":
            yield Problem(
                GRAVE, f"group {name} is suspended here: {group.get('why', '')}".rstrip(": ")
            )
        elif not group.get("leader"):
            yield Problem(GRAVE, f"group {name} has no leader")


def _paths(status: Mapping[str, Any]) -> Iterator[Problem]:
    for incident in _rows(status, "incidents"):
        level = GRAVE if incident.get("error_class") == "dead" else SOFT
        place = incident.get("place") or ""
        text = str(incident.get("text", "")).partition(":")[0]
        yield Problem(level, f"{incident.get('error_class')}: {text} [{place}]" if place else text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 3)] + "..."


def _rows(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = status.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
