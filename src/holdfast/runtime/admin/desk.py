"""The administration of a node: answers other nodes, and drains a node from here.

hosting    what this node can take
plan       what would be moved off this node
start      move it; repeated, it gives how far that is
look       how far that is
stop       stop between two steps
dialog     a part of a dialog that moves here
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, MisuseError, ObjectError, ObjectUnavailable
from holdfast.objects.ports import AdminDone, AdminWork
from holdfast.runtime.admin.dialogs import DialogMoves
from holdfast.runtime.admin.evacuation import Evacuation
from holdfast.runtime.admin.groups import GroupMoves
from holdfast.runtime.admin.hosting import hosting_body
from holdfast.runtime.admin.values import DialogPart, Evacuate, Evacuating, pack, unpack
from holdfast.runtime.dialogs.edge import DialogEdge
from holdfast.runtime.objects.handles import PlanStep
from holdfast.subsystem import Control, Port

if TYPE_CHECKING:
    from holdfast.runtime.objects.edge import ObjectEdge

LOOK_S: Final = 0.1
LOOK_STEP_S: Final = 0.0005
"""Interval at which progress is asked for; longer for a long plan, which is sent whole."""
OnProgress = Callable[[int, int, str], object]
log = logging.getLogger("holdfast")


class AdminDesk:
    def __init__(self, edge: ObjectEdge, port: Port, dialogs: DialogEdge | None) -> None:
        self._edge = edge
        self._port = port
        self._dialog_edge = dialogs
        me = port.config.name
        self._dialogs = DialogMoves(edge, dialogs, me) if dialogs is not None else None
        self._evacuation = Evacuation(edge, me, GroupMoves(port), self._dialogs)
        self._verbs: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "hosting": self._hosting,
            "plan": self._plan,
            "start": self._start,
            "look": self._look,
            "stop": self._stop,
            "dialog": self._dialog,
        }

    def handlers(self) -> Mapping[str, Control]:
        return self._dialogs.handlers() if self._dialogs is not None else {}

    def close(self) -> None:
        self._evacuation.stop()

    # -- draining a node -------------------------------------------------------------------------------------------

    async def drain(
        self,
        node: str,
        *,
        dry_run: bool = False,
        skip_blocked: bool = False,
        dialogs_to: str = "",
        by_policy: bool = False,
        on_progress: OnProgress = lambda *_: None,
    ) -> tuple[PlanStep, ...]:
        """Move groups, dialogs and objects off a node, in this order. Nothing is moved while a step is blocked, unless
        `skip_blocked` leaves those out. Cancelling stops it between two steps; the same call goes on later."""
        wish = Evacuate(dialogs_to=dialogs_to, by_policy=by_policy)
        first = await self._ask(node, "plan", wish)
        objects = await self._edge.drain(node, dry_run=True)
        plan = (*first.steps, *objects)
        if dry_run:
            return plan
        blocked = [step for step in plan if step.state == "blocked"]
        if blocked and not skip_blocked:
            raise ObjectError(_blocked(blocked))
        moved = await self.evacuate(node, wish, on_progress)
        before, total = len(moved), len(moved) + len(objects)

        def report(done: int, _total: int, text: str) -> None:
            on_progress(before + done, total, text)

        done = await self._edge.drain(
            node, skip_blocked=True, by_policy=by_policy, on_progress=report
        )
        return (*moved, *done)

    async def evacuate(
        self, node: str, wish: Evacuate, on_progress: OnProgress = lambda *_: None
    ) -> tuple[PlanStep, ...]:
        """Have a node move its groups and dialogs, and wait for the outcome."""
        done: list[PlanStep] = []
        while True:
            state = await self._evacuate(node, wish, on_progress)
            moved = [step for step in state.steps if step.state == "done"]
            done += moved
            if not state.left or not moved:
                return (*done, *[step for step in state.steps if step.state != "done"])

    async def _evacuate(self, node: str, wish: Evacuate, on_progress: OnProgress) -> Evacuating:
        try:
            state = await self._ask(node, "start", wish)
            while state.running:
                ended = [step for step in state.steps if step.state != "planned"]
                names = [step.name for step in state.steps if step.state == "planned"]
                on_progress(len(ended), len(state.steps), names[0] if names else "")
                await asyncio.sleep(LOOK_S + len(names) * LOOK_STEP_S)
                state = await self._ask(node, "look")
        except asyncio.CancelledError:
            await asyncio.shield(self._ask(node, "stop"))
            raise
        return state

    async def plan(self, node: str, wish: Evacuate) -> tuple[PlanStep, ...]:
        return (await self._ask(node, "plan", wish)).steps

    async def _ask(self, node: str, verb: str, wish: Evacuate | None = None) -> Evacuating:
        body = pack(wish) if wish is not None else b""
        try:
            answer = await self._edge.ask_node(self._edge.node_id(node), verb, body)
        except ObjectUnavailable as error:
            text = (
                f"{node} does not answer; a dead node is not drained: its replicas of objects are restored by "
                "themselves, those of groups are removed with `holdfast groups remove`"
            )
            raise ObjectUnavailable(text) from error
        return unpack(Evacuating, answer)

    # -- answering other nodes -------------------------------------------------------------------------------------

    async def answer(self, work: AdminWork) -> AdminDone:
        """Whatever a node asks is answered: a refusal says why."""
        handler = self._verbs.get(work.verb)
        if handler is None:
            return AdminDone(work.peer, work.call, f"there is no request {work.verb[:40]!r}")
        try:
            return AdminDone(work.peer, work.call, "", await handler(work.body))
        except HoldfastError as error:
            return AdminDone(work.peer, work.call, str(error) or type(error).__name__)
        except Exception as error:
            log.exception(
                "the administration failed at %s",
                work.verb,
                extra={"event": "administration_failed", "subsystem": "objects", "verb": work.verb},
            )
            return AdminDone(work.peer, work.call, f"{error!r}; look at the log of the node")

    async def _hosting(self, _: bytes) -> bytes:
        return hosting_body(self._edge, self._port, self._dialog_edge)

    async def _plan(self, body: bytes) -> bytes:
        return pack(await self._evacuation.plan(unpack(Evacuate, body)))

    async def _start(self, body: bytes) -> bytes:
        return pack(await self._evacuation.start(unpack(Evacuate, body)))

    async def _look(self, _: bytes) -> bytes:
        return pack(self._evacuation.look())

    async def _stop(self, _: bytes) -> bytes:
        return pack(self._evacuation.stop())

    async def _dialog(self, body: bytes) -> bytes:
        if self._dialogs is None:
            raise MisuseError("this node has no dialogs; nothing was changed")
        await self._dialogs.take_part(unpack(DialogPart, body))
        return b""


def _blocked(steps: list[PlanStep]) -> str:
    first = steps[0]
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    return (
        f"{first.kind} {first.name!r}{more} cannot be moved: {first.reason}; nothing was moved. "
        "Use --dry-run to see all, --skip-blocked to move the others"
    )
