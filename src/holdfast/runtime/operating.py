"""What an operator asks of a group through a node's control socket, as inputs for the replica there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.errors import MisuseError, NotAccepted
from holdfast.group.config import replica_unit
from holdfast.group.ports import AddReplica, EndIgnoring, HandOver, Refound, RemoveReplica
from holdfast.runtime.driver import Driver

VERBS: Final[dict[str, Callable[[str, bool], object]]] = {
    "add": AddReplica,
    "remove": lambda name, _: RemoveReplica(name),
    "hand-over": lambda name, _: HandOver((name,) if name else ()),
    "recover": lambda _name, force: Refound(force),
    "end-ignoring": lambda name, _: EndIgnoring(int(name)),
}
_NAMED: Final = ("add", "remove")


def ask_group(driver: Driver, request: dict[str, Any]) -> dict[str, Any]:
    """Hand the replica what was asked for. That it was taken says nothing yet: the status shows what came of it."""
    group, verb, name = (str(request.get(key, "")) for key in ("group", "verb", "name"))
    if verb not in VERBS:
        raise MisuseError(f"{verb!r} cannot be asked of a group: {', '.join(VERBS)}")
    if verb in _NAMED and not name:
        raise MisuseError(f"to {verb} a replica its name is needed; nothing was done")
    unit = replica_unit(group)
    machine = driver.core.turns.machine(unit)
    if machine is None:
        failure = driver.core.turns.stopped.get(unit)
        if failure is not None:
            raise NotAccepted(
                f"the replica of group {group!r} on this node has failed and is stopped ({failure.error!r}): restart "
                "the node, or ask another that has one; nothing was done"
            )
        raise MisuseError(
            f"this node has no replica of a group {group!r}; ask a node that has one; nothing was done"
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
        raise NotAccepted("the node is too busy to take it; nothing was done; try again")
    return {"asked": f"{verb} {name}".rstrip(), "group": group}


def ignoring(driver: Driver, group: str) -> list[dict[str, Any]]:
    """What the group ignores now, as far as the replica on this node knows: id, what, and how many more."""
    machine = driver.core.turns.machine(replica_unit(group))
    return list(machine.status()["ignoring"]) if machine is not None else []  # type: ignore[attr-defined]  # replicas have one


def _check_leader(status: dict[str, Any], verb: str) -> None:
    """Only who leads can do it, and what is asked of nobody would be forgotten."""
    leader = status["leader"]
    if not leader:
        raise NotAccepted(
            f"nobody leads group {status['group']!r}, as far as this replica knows; nothing was done; try again when "
            "its status names a leader"
        )
    if verb == "hand-over" and status["state"] != "leading":
        raise MisuseError(f"{leader} leads group {status['group']!r}: ask there; nothing was done")


def _check_halted(status: dict[str, Any], force: bool) -> None:
    """Two groups of one name would be the end of its order."""
    group, state = status["group"], status["state"]
    if state in ("starting", "removed", "restoring", "suspended"):
        raise MisuseError(
            f"this replica of group {group!r} has nothing to go on with: it is {state}; nothing was done; ask one that "
            "remembers"
        )
    if state == "leading":
        raise MisuseError(f"this replica leads group {group!r}, and decides; nothing was done")
    if state != "halted" and not force:
        raise NotAccepted(
            f"group {group!r} is not known to be lost here: others may remember, and lead it; nothing was done. Only "
            "if those that are missing are gone for good, and nobody else goes on: say `--force`"
        )


def _check_criterion(driver: Driver, group: str, name: str) -> None:
    ids = [str(row["id"]) for row in ignoring(driver, group)]
    if name not in ids:
        known = f"it ignores by {', '.join(ids)}" if ids else "it ignores nothing"
        raise MisuseError(
            f"group {group!r} has no criterion {name!r}: {known}, as far as this replica knows; nothing was done"
        )
