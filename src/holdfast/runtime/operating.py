"""Operator requests to a group through the control socket, as inputs for the replica on this node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.errors import MisuseError, NotAccepted
from holdfast.group.config import replica_unit
from holdfast.group.ports import (
    AddReplica,
    EndIgnoring,
    HandOver,
    RemoveReplica,
    RestartFromSurvivor,
)
from holdfast.runtime.driver import Driver

VERBS: Final[dict[str, Callable[[str, bool], object]]] = {
    "add": AddReplica,
    "remove": lambda name, _: RemoveReplica(name),
    "hand-over": lambda name, _: HandOver((name,) if name else ()),
    "recover": lambda _name, force: RestartFromSurvivor(force),
    "end-ignoring": lambda name, _: EndIgnoring(int(name)),
}
_NAMED: Final = ("add", "remove")


def ask_group(driver: Driver, request: dict[str, Any]) -> dict[str, Any]:
    """Pass the request to the replica. Acceptance does not mean that it is done: the status shows the result."""
    group, verb, name = (str(request.get(key, "")) for key in ("group", "verb", "name"))
    if verb not in VERBS:
        raise MisuseError(f"unknown request {verb!r} to a group; known: {', '.join(VERBS)}")
    if verb in _NAMED and not name:
        raise MisuseError(f"{verb} needs the name of a replica; nothing was done")
    unit = replica_unit(group)
    machine = driver.core.turns.machine(unit)
    if machine is None:
        failure = driver.core.turns.stopped.get(unit)
        if failure is not None:
            raise NotAccepted(
                f"the replica of group {group!r} on this node has failed and is stopped "
                f"({failure.error!r}): restart the node, or ask another node with a replica; nothing "
                "was done"
            )
        raise MisuseError(
            f"this node has no replica of a group {group!r}; ask a node that has one; nothing was "
            "done"
        )
    flag = (
        bool(request.get("force", False)) if verb == "recover" else bool(request.get("voter", True))
    )
    if verb == "recover":
        _check_halted(machine.status(), flag)  # type: ignore[attr-defined]  # replicas have one
    else:
        _check_leader(machine.status(), verb)  # type: ignore[attr-defined]
    if verb == "end-ignoring":
        _check_criterion(driver, group, name)
    if not driver.offer(unit, VERBS[verb](name, flag)):
        raise NotAccepted("the node is too busy to accept the request; nothing was done; try again")
    return {"asked": f"{verb} {name}".rstrip(), "group": group}


def ignoring(driver: Driver, group: str) -> list[dict[str, Any]]:
    """The active ignore criteria, as known to the replica on this node: id, what, and how many are left."""
    machine = driver.core.turns.machine(replica_unit(group))
    return list(machine.status()["ignoring"]) if machine is not None else []  # type: ignore[attr-defined]  # replicas have one


def _check_leader(status: dict[str, Any], verb: str) -> None:
    """Only the leader can do it, and without a leader the request would be lost."""
    leader = status["leader"]
    if not leader:
        raise NotAccepted(
            f"group {status['group']!r} has no leader, as far as this replica knows; nothing was "
            "done; try again when its status names a leader"
        )
    if verb == "hand-over" and status["state"] != "leading":
        raise MisuseError(f"{leader} leads group {status['group']!r}: ask there; nothing was done")


def _check_halted(status: dict[str, Any], force: bool) -> None:
    """Two groups with one name would break its order."""
    group, state = status["group"], status["state"]
    if state in ("starting", "removed", "restoring", "suspended"):
        raise MisuseError(
            f"this replica of group {group!r} has no state to restart from: it is {state}; "
            "nothing was done; ask a replica that has its state"
        )
    if state == "leading":
        raise MisuseError(f"this replica leads group {group!r} and can commit; nothing was done")
    if state != "halted" and not force:
        raise NotAccepted(
            f"group {group!r} may not be lost: other replicas may still hold a quorum; nothing "
            "was done. Use `--force` only if they are permanently gone"
        )


def _check_criterion(driver: Driver, group: str, name: str) -> None:
    ids = [str(row["id"]) for row in ignoring(driver, group)]
    if name not in ids:
        known = f"it ignores by {', '.join(ids)}" if ids else "it ignores nothing"
        raise MisuseError(
            f"group {group!r} has no criterion {name!r}: {known}, as far as this replica knows; nothing was done"
        )
