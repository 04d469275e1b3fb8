"""The node that is left moves its groups and dialogs away: a plan, carried out one step after the other.

The plan is made again at every start from what is here then, so a drain that was stopped, or whose node was restarted,
goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, MisuseError
from holdfast.runtime.admin.dialogs import DialogMoves
from holdfast.runtime.admin.groups import GroupMoves
from holdfast.runtime.admin.hosting import Hosts, ask_hosts
from holdfast.runtime.admin.values import STEPS_MAX, Evacuate, Evacuating, failed
from holdfast.runtime.objects.handles import PlanStep

if TYPE_CHECKING:
    from holdfast.runtime.objects.edge import ObjectEdge

log = logging.getLogger("holdfast")


class Evacuation:
    def __init__(
        self, edge: ObjectEdge, me: str, groups: GroupMoves, dialogs: DialogMoves | None
    ) -> None:
        self._edge = edge
        self._me = me
        self._groups = groups
        self._dialogs = dialogs
        self._steps: list[PlanStep] = []
        self._left = 0
        self._task: asyncio.Task[None] | None = None
        self._wish = Evacuate()
        """What the present task was asked for."""
        self._starting = asyncio.Lock()

    async def plan(self, wish: Evacuate) -> Evacuating:
        """What would be done; what is blocked comes first."""
        steps, _ = await self._plan(wish)
        steps.sort(key=lambda step: step.state != "blocked")
        return Evacuating(False, tuple(steps[:STEPS_MAX]), max(0, len(steps) - STEPS_MAX))

    async def _plan(self, wish: Evacuate) -> tuple[list[PlanStep], Hosts]:
        hosts = await ask_hosts(self._edge)
        steps = self._groups.plan(hosts, wish) if "group" in wish.kinds else []
        if "dialog" in wish.kinds and self._dialogs is not None:
            steps += await self._dialogs.plan(hosts, wish)
        return steps, hosts

    async def start(self, wish: Evacuate) -> Evacuating:
        """Begin, or look at what is in progress: a request that is repeated does not begin twice."""
        async with self._starting:
            if self._task is None or self._task.done():
                if not wish.keep_serving:
                    await self._edge.drain(self._me, mark=True, by_policy=wish.by_policy)
                steps, hosts = await self._plan(wish)
                steps.sort(key=lambda step: step.state == "blocked")
                self._steps, self._left = steps[:STEPS_MAX], max(0, len(steps) - STEPS_MAX)
                self._wish = wish
                self._task = asyncio.ensure_future(self._run(hosts))
            elif wish != self._wish:
                raise MisuseError(
                    f"another move off {self._me} is in progress; nothing was started; try again when it has ended"
                )
        return self.look()

    def look(self) -> Evacuating:
        running = self._task is not None and not self._task.done()
        return Evacuating(running, tuple(self._steps), self._left)

    def stop(self) -> Evacuating:
        """Stop between two steps, or while one waits. What was done stays."""
        if self._task is not None:
            self._task.cancel()
        return self.look()

    async def _run(self, hosts: Hosts) -> None:
        for number, step in enumerate(self._steps):
            if step.state != "planned":
                continue
            try:
                self._steps[number] = await self._carry_out(step, hosts)
            except asyncio.CancelledError:
                self._steps[number] = failed(step, "it was stopped; drain again to go on")
                raise
            except HoldfastError as error:
                self._steps[number] = failed(step, error)
            except Exception as error:
                log.exception(
                    "%s %s could not be moved",
                    step.kind,
                    step.name,
                    extra={
                        "event": "move_failed",
                        "subsystem": "objects",
                        "kind": step.kind,
                        step.kind: step.name,
                    },
                )
                self._steps[number] = failed(step, repr(error))

    async def _carry_out(self, step: PlanStep, hosts: Hosts) -> PlanStep:
        if step.kind == "group":
            return await self._groups.carry_out(step)
        assert self._dialogs is not None
        return await self._dialogs.carry_out(step, hosts)
