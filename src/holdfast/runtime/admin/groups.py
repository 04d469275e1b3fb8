"""Moving the replica of a group off this node: another one votes before this one goes.

hand over   if this replica leads, and another voter can
add         a replica on another node: it learns, and votes when it has caught up
hand over   if this replica still leads
remove      this one, if the group keeps as many voters as its configuration gives it

Each step is asked for again until the committed view shows it, so the whole can be repeated after an interruption.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.group.config import replica_unit
from holdfast.group.ports import AddReplica, HandOver, RemoveReplica
from holdfast.group.replica import ReplicaMachine
from holdfast.group.subsystem import GroupService
from holdfast.runtime.admin.hosting import Hosts
from holdfast.runtime.admin.values import Evacuate, changed, failed
from holdfast.runtime.objects.handles import PlanStep
from holdfast.subsystem import Port

JOIN_S: Final = 60.0
"""How long a new replica may take to catch up."""
LEAD_S: Final = 15.0
LEAVE_S: Final = 30.0
AGAIN_S: Final = 2.0
"""A request that a change of leader may have lost is repeated."""
POLL_S: Final = 0.05
View = dict[str, dict[str, Any]]


class MoveFailed(HoldfastError):
    """A step was not done in time."""


class GroupMoves:
    def __init__(self, port: Port) -> None:
        self._port = port
        self._me = port.config.name

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(self, hosts: Hosts, wish: Evacuate) -> list[PlanStep]:
        steps = []
        for name, config in self._port.core.service(GroupService).groups.items():
            machine = self._machine(name)
            if machine is None or (wish.only and wish.only != name):
                continue
            status: dict[str, Any] = machine.status()
            if self._me in _view(status):
                steps.append(self._step(status, len(config.voters), hosts, wish.target))
        return steps

    def _step(self, status: dict[str, Any], wanted: int, hosts: Hosts, target: str) -> PlanStep:
        view = _view(status)
        step = PlanStep(status["group"], status["group"], "", self._me, 0, "planned", kind="group")
        is_voter = view[self._me]["part"] == "voter"
        others = [name for name in _voters(view) if name != self._me]
        why = self._why_not(status, others, hosts)
        if why:
            return changed(step, state="blocked", reason=why)
        if target or not is_voter or len(others) < wanted:
            step = changed(step, add=_target(status["group"], view, is_voter, hosts, target))
            if not step.add:
                reason = (
                    f"{target + ' cannot' if target else 'no other node can'} take a replica: it must run, "
                    "have the group in its configuration, have no replica yet, and not be drained"
                )
                return changed(step, state="blocked", reason=reason)
        stay = [*others, step.add] if is_voter and step.add and step.add not in others else others
        reachable = [n for n in stay if n in hosts]
        if is_voter and len(reachable) <= len(stay) // 2:
            reason = (
                f"{len(reachable)} of the {len(stay)} voters that would be left can be reached; "
                "the group would lose its majority"
            )
            return changed(step, state="blocked", reason=reason)
        return step

    def _why_not(self, status: dict[str, Any], others: list[str], hosts: Hosts) -> str:
        if not status["leader"]:
            return f"the group has no leader now: it is {status['state']} here"
        rivals = [name for name in hosts.draining(others) if name < self._me]
        if rivals:
            return f"{', '.join(rivals)} is being drained and has a voter of the group too: one at a time"
        return ""

    # -- carrying it out -------------------------------------------------------------------------------------------

    async def carry_out(self, step: PlanStep) -> PlanStep:
        group = step.name
        try:
            voters = _voters(_view(self._status(group)))
            voter = self._me in voters
            configured = len(self._port.core.service(GroupService).groups[group].voters)
            # A group that has fewer voters than configured must not get fewer still.
            wanted = min(configured, len(voters)) if voter else 0
            await self._hand_over(group)
            if step.add:
                await self._add(group, step.add, voter)
            await self._hand_over(group)
            self._check(group, wanted)
            await self._remove(group)
        except MoveFailed as error:
            return failed(step, error)
        return changed(step, state="done")

    async def _hand_over(self, group: str) -> None:
        """Let another voter lead, if one can."""
        view = _view(self._status(group))
        able = [
            name
            for name, member in view.items()
            if member["part"] == "voter" and member["may_lead"] and not member["suspended"]
        ]
        successors = tuple(name for name in able if name != self._me)
        if not successors or self._status(group)["leader"] != self._me:
            return
        led = lambda status: status["leader"] not in ("", self._me)
        if not await self._reach(group, HandOver(successors), led, LEAD_S):
            raise MoveFailed(f"no other voter leads within {LEAD_S:.0f} s; the replica stays")

    async def _add(self, group: str, target: str, voter: bool) -> None:
        part = "voter" if voter else "learner"

        def joined(status: dict[str, Any]) -> bool:
            member = _view(status).get(target)
            return member is not None and member["part"] in (part, "voter")

        if not await self._reach(group, AddReplica(target, voter), joined, JOIN_S):
            raise MoveFailed(f"{target} has not caught up within {JOIN_S:.0f} s; the replica stays")

    def _check(self, group: str, wanted: int) -> None:
        view = _view(self._status(group))
        left = [name for name in _voters(view) if name != self._me]
        if self._me in view and len(left) < wanted:
            raise MoveFailed(
                f"{len(left)} of {wanted} voters would be left; the replica stays; drain again"
            )

    async def _remove(self, group: str) -> None:
        gone = lambda status: status["state"] == "removed" or self._me not in _view(status)
        if not await self._reach(group, RemoveReplica(self._me), gone, LEAVE_S):
            raise MoveFailed(
                f"the replica has not left within {LEAVE_S:.0f} s; it may leave later; drain again"
            )

    async def _reach(
        self, group: str, request: object, done: Callable[[dict[str, Any]], bool], limit_s: float
    ) -> bool:
        """Ask until it is so. False when it is not in time."""
        for number in range(round(limit_s / POLL_S)):
            if done(self._status(group)):
                return True
            if number % round(AGAIN_S / POLL_S) == 0:
                self._port.offer(replica_unit(group), request)
            await asyncio.sleep(POLL_S)
        return False

    def _machine(self, group: str) -> ReplicaMachine | None:
        machine = self._port.core.turns.machine(replica_unit(group))
        return machine if isinstance(machine, ReplicaMachine) else None

    def _status(self, group: str) -> dict[str, Any]:
        machine = self._machine(group)
        if machine is None:
            raise MoveFailed("the replica on this node has failed; restart the node")
        return machine.status()


def _view(status: dict[str, Any]) -> View:
    return {str(member["name"]): member for member in status["view"]}


def _voters(view: View) -> list[str]:
    return [name for name, member in view.items() if member["part"] == "voter"]


def _target(group: str, view: View, is_voter: bool, hosts: Hosts, target: str) -> str:
    """The node that gets a replica: one that has none yet, else a learner, which then votes."""
    able = hosts.with_group(group)
    if target:
        taken = target in view and (view[target]["part"] == "voter" or not is_voter)
        return target if target in able and not taken else ""
    fresh = [name for name in able if name not in view]
    learners = [n for n in able if n in view and view[n]["part"] == "learner" and is_voter]
    return hosts.best(fresh) or hosts.best(learners)
