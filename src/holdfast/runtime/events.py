"""Facts as text, for the page and the log; None for those that only the pipeline needs."""

from __future__ import annotations

import logging
from typing import Any, Final

from holdfast.telemetry.facts import GroupFact, LinkFact, NodeFact, PathFact

WARNINGS: Final = ("alarm", "cannot_join", "unit_failed", "unit_stopped", "refused")
"""Events of a node that must not be hidden by `--quiet`."""


def level_of(fact: Any) -> int:
    """The severity of a fact, as a level of the standard library's logging."""
    if isinstance(fact, NodeFact) and fact.event in WARNINGS:
        return logging.WARNING
    return logging.INFO


def event_of(fact: Any) -> str | None:
    """One sentence, or None."""
    if isinstance(fact, PathFact):
        return _path(fact) if fact.event == "change" else None
    if isinstance(fact, LinkFact):
        return _link(fact)
    if isinstance(fact, GroupFact):
        return f"group {fact.group}: {fact.event} (term {fact.term}, index {fact.index}) {fact.detail}".strip()
    if isinstance(fact, NodeFact):
        event = fact.event.replace("_", " ")
        return fact.detail if fact.detail.startswith(event) else f"{event}: {fact.detail}"
    return None


def fields_of(fact: Any) -> dict[str, Any]:
    """The same for programs: the fields of a log record. Those that are not known are left out."""
    fields: dict[str, Any] = {}
    if isinstance(fact, PathFact):
        path = f"{fact.listener_adapter}/{fact.sender_adapter}/{fact.transport}"
        fields = {"subsystem": "health", "peer": fact.sender_name, "path": path}
        fields |= {"subnet": fact.subnet, "alive": fact.alive}
        if fact.size_max:
            fields |= {"size": fact.size, "size_max": fact.size_max}
    elif isinstance(fact, LinkFact):
        fields = {"subsystem": "links", "peer": fact.peer_name, "path": fact.path}
        fields |= {"path_before": fact.path_before, "reason": fact.reason}
    elif isinstance(fact, GroupFact):
        fields = {"subsystem": "group", "group": fact.group, "term": fact.term}
        fields |= {"index": fact.index, "detail": fact.detail}
    elif isinstance(fact, NodeFact):
        fields = {"detail": fact.detail, "count": fact.count}
    known = {key: value for key, value in fields.items() if value != ""}
    return {"event": f"{fact.kind}_{fact.event.replace(' ', '_')}", **known}


def _path(fact: PathFact) -> str:
    where = f"from {fact.sender_name} on {fact.subnet} ({fact.transport})"
    if not fact.alive:
        return f"{where}: nothing is heard"
    if fact.size_max and fact.size < fact.size_max:
        return f"{where}: packets over {fact.size} bytes do not pass (probed up to {fact.size_max})"
    if fact.size_max:
        return f"{where}: all sizes up to {fact.size_max} bytes pass"
    return f"{where}: alive"


def _link(fact: LinkFact) -> str | None:
    if fact.event == "up":
        return f"link to {fact.peer_name} is up"
    if fact.event == "down":
        return f"link to {fact.peer_name} is down: {fact.reason}"
    if fact.event == "moved":
        before = f" from {fact.path_before}" if fact.path_before else ""
        what, _, why = fact.reason.partition(": ")
        because = f" ({why})" if why else ""
        return f"{what} to {fact.peer_name} moved{before} to {fact.path}{because}"
    return None
