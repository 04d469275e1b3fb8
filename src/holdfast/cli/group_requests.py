"""Requests to a group through a node, and waiting for their outcome; for `holdfast groups` and `holdfast admin`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any, Final

from holdfast.cli.node import control_socket
from holdfast.errors import MisuseError

WAIT_S: Final = 15.0
POLL_S: Final = 0.2
"""How long to wait for the outcome of a request, and how often to check."""


def group_now(where: Path, group: str) -> dict[str, Any]:
    """The current status of the group at the node, and the members of the domain."""
    from holdfast.runtime.control import ask

    status = ask(control_socket(where), {"do": "status"})
    for one in status["groups"]:
        if one["name"] == group:
            return {**one, "members": [member["name"] for member in status["members"]]}
    raise MisuseError(f"that node has no replica of a group {group!r}; nothing was requested")


def view_of(group: dict[str, Any]) -> dict[str, str]:
    """The replicas of a group, and whether each is a voter or a learner."""
    return {member["name"]: member.get("part", "voter") for member in group.get("view", [])}


def unknown_name(now: dict[str, Any], name: str, members: bool) -> str:
    """Why a name is invalid: it is neither a replica nor (if `members` are allowed) a member of the domain; empty if it
    is valid."""
    known = [*view_of(now), *(now["members"] if members else ())]
    if not known or name in known:
        return ""
    what = "member of the domain" if members else f"replica of {now['name']}"
    return f"{name!r} is not a {what}; there are {', '.join(sorted(dict.fromkeys(known)))}."


def ask_group(where: Path, group: str, verb: str, name: str = "", **values: Any) -> str:
    """Send a request; returns it as the node understood it."""
    from holdfast.runtime.control import ask

    request = {"do": "group", "group": group, "verb": verb, "name": name, **values}
    return str(ask(control_socket(where), request)["asked"])


def happens(
    where: Path, group: str, done: Callable[[dict[str, Any]], bool], wait_s: float = WAIT_S
) -> bool:
    """Wait until the group is as requested; False on timeout."""
    for _ in range(round(wait_s / POLL_S)):
        if done(group_now(where, group)):
            return True
        sleep(POLL_S)
    return False
