"""Moving the end of a dialog to another node.

The old node records that the end has moved and keeps its exported state until the new node has taken it over, also over
a restart. So a move that was interrupted is finished by asking again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.dialog import ports
from holdfast.dialog.ids import dialog_name
from holdfast.dialog.moving import State, read_state
from holdfast.dialog.records import EXPORTED, INACTIVE, InactiveRow, decode
from holdfast.dialog.routes import service_of
from holdfast.dialog.states import FAULTED, MOVED, OPEN
from holdfast.errors import DialogUnknown, HoldfastError, MisuseError
from holdfast.runtime.admin.hosting import Hosts
from holdfast.runtime.admin.values import DialogPart, Evacuate, changed, failed, pack
from holdfast.runtime.dialogs.edge import DialogEdge
from holdfast.runtime.objects.handles import PlanStep
from holdfast.subsystem import Control

if TYPE_CHECKING:
    from holdfast.runtime.objects.edge import ObjectEdge

PART: Final = 1 << 20
"""Bytes of an exported state in one frame."""
STATE_MAX: Final = 1 << 28
ARRIVING_MAX: Final = 64
"""Bytes, and dialogs, that arrive at a time. Beyond that the oldest unfinished one is dropped, and is sent again when
asked."""
QUIET_S: Final = 10.0
"""How long a move waits for the end of transactions."""
POLL_S: Final = 0.05
END_OF_KEYS: Final = b"\xff" * 64


class DialogMoves:
    def __init__(self, edge: ObjectEdge | None, dialogs: DialogEdge, me: str = "") -> None:
        self._edge = edge
        self._dialogs = dialogs
        self._me = me
        self._arriving: dict[bytes, bytearray] = {}
        self._stores: dict[bytes, str] = {}
        """The store of every dialog in the last plan."""

    # -- by hand, through the control socket -----------------------------------------------------------------------

    def handlers(self) -> Mapping[str, Control]:
        return {
            "dialog-store": self.store,
            "dialog-move-out": self.move_out,
            "dialog-move-in": self.move_in,
            "dialog-moved": self.moved,
        }

    def store(self, request: dict[str, Any]) -> dict[str, Any]:
        """The id of a dialog store of this node, for the node that moves a dialog here."""
        found = self._dialogs.store_id(str(request.get("store", "")))
        if not found:
            raise MisuseError("this node has no such dialog store; nothing was moved")
        return {"store": found.hex()}

    async def move_out(self, request: dict[str, Any]) -> dict[str, Any]:
        node, store = (_bytes(request, key) for key in ("node", "store"))
        name, dialog = self.find(str(request.get("dialog", "")))
        state = await self._export(name, dialog, node, store)
        return {"dialog": dialog.hex(), "state": state.hex()}

    async def move_in(self, request: dict[str, Any]) -> dict[str, Any]:
        opened = await self._dialogs.move_in(
            _bytes(request, "state"), str(request.get("store", ""))
        )
        return {"dialog": opened.id.hex()}

    async def moved(self, request: dict[str, Any]) -> dict[str, Any]:
        """The other node has it: the exported state is not needed any more."""
        name, dialog = self.find(_bytes(request, "dialog").hex())
        await self._dialogs.ask(name, ports.MoveDone(token=0, dialog=dialog), dialog)
        return {"done": "moved"}

    def find(self, wanted: str) -> tuple[str, bytes]:
        """The store and the id of a dialog, by the beginning of its id or its short name."""
        managers = self._dialogs.service.managers() if wanted else []
        found = [(name, dialog) for name, manager in managers for dialog in manager.find(wanted)]
        if not found:
            raise DialogUnknown(f"no active dialog {wanted!r} on this node; nothing was moved")
        if len(found) > 1:
            raise MisuseError(f"{len(found)} dialogs begin with {wanted!r}; give more of the id")
        return found[0]

    # -- the plan --------------------------------------------------------------------------------------------------

    async def plan(self, hosts: Hosts, wish: Evacuate) -> list[PlanStep]:
        """All ends here: in memory, inactive, and those whose move was not finished."""
        steps: dict[bytes, PlanStep] = {}
        self._stores.clear()
        for store, manager in self._dialogs.service.managers():
            unfinished = await self._unfinished(store)
            for end in manager.list():
                if end.state == MOVED and end.dialog in unfinished:
                    steps[end.dialog] = self._resume(end.dialog, unfinished[end.dialog], hosts)
                elif end.state in (OPEN, FAULTED):
                    steps[end.dialog] = self._step(end.dialog, end.uri, end.creator, hosts, wish)
                elif end.state != MOVED:
                    step = self._row(end.dialog)
                    reason = f"it is {end.state}; only a paired dialog moves"
                    steps[end.dialog] = changed(step, state="blocked", reason=reason)
            for dialog, value in await self._read(store, INACTIVE):
                row = decode(InactiveRow, value).dialog
                steps[dialog] = self._step(dialog, row.uri, row.creator, hosts, wish)
            self._stores |= dict.fromkeys((d for d in steps if d not in self._stores), store)
        if not wish.only:
            return list(steps.values())
        return [s for d, s in steps.items() if wish.only in (d.hex(), dialog_name(d))]

    def _row(self, dialog: bytes) -> PlanStep:
        name = dialog_name(dialog)
        return PlanStep(dialog.hex(), name, "", self._me, 0, "planned", kind="dialog")

    def _step(
        self, dialog: bytes, uri: str, creator: bool, hosts: Hosts, wish: Evacuate
    ) -> PlanStep:
        step, service = self._row(dialog), service_of(uri)
        target = wish.target or (wish.dialogs_to if creator else "")
        if target:
            host = hosts.get(target)
            if host is not None and host.store:
                return changed(step, add=target)
            reason = f"{target} is not reachable or has no dialog store"
            return changed(step, state="blocked", reason=reason)
        if creator:
            reason = "an application here opened it: use --dialogs-to to name the node that this application moves to"
            return changed(step, state="blocked", reason=reason)
        chosen = hosts.best(hosts.with_service(service))
        if not chosen:
            reason = (
                f"no other node that takes dialogs has an application that listens to {service!r}"
            )
            return changed(step, state="blocked", reason=reason)
        return changed(step, add=chosen)

    def _resume(self, dialog: bytes, state: State, hosts: Hosts) -> PlanStep:
        """It has left already, and is nowhere else yet: only this target can have it."""
        assert self._edge is not None
        target = self._edge.name_of(state.target.node)
        step = changed(self._row(dialog), add=target)
        if target not in hosts:
            reason = f"it is on its way to {target}, which is not reachable; it waits here for it"
            return changed(step, state="blocked", reason=reason)
        return step

    async def _unfinished(self, store: str) -> dict[bytes, State]:
        """Ends that were exported and not taken over yet."""
        rows = await self._read(store, EXPORTED)
        states = {key: read_state(value) for key, value in rows}
        return {key: state for key, state in states.items() if isinstance(state, State)}

    async def _read(self, store: str, table: str) -> list[tuple[bytes, bytes]]:
        future = self._dialogs.stores.read(store, lambda made: made.read(table, b"", END_OF_KEYS))
        return list(await asyncio.wrap_future(future))

    # -- carrying it out -------------------------------------------------------------------------------------------

    async def carry_out(self, step: PlanStep, hosts: Hosts) -> PlanStep:
        assert self._edge is not None
        host = hosts.get(step.add)
        if host is None or not host.store:
            return failed(step, f"{step.add} is not reachable; the dialog stays")
        try:
            dialog = bytes.fromhex(step.object)
            store, node = self._stores[dialog], self._edge.node_id(step.add)
            await self._quiet(store, dialog)
            state = await self._export(store, dialog, node, host.store)
            await self._send(node, dialog, state)
            await self._dialogs.ask(store, ports.MoveDone(token=0, dialog=dialog), dialog)
        except HoldfastError as error:
            return failed(step, error)
        return changed(step, state="done", size=len(state))

    async def _export(self, store: str, dialog: bytes, node: bytes, target: bytes) -> bytes:
        request = ports.MoveOut(token=0, dialog=dialog, node=node, store=target)
        return bytes((await self._dialogs.ask(store, request, dialog)).state)

    async def _quiet(self, store: str, dialog: bytes) -> None:
        """Wait for transactions that use the dialog. If they do not end, the export is refused and says so."""
        for _ in range(round(QUIET_S / POLL_S)):
            manager = self._dialogs.service.manager(store)
            end = manager.inspect(dialog) if manager is not None else None
            if end is None or not end.leased:
                return
            await asyncio.sleep(POLL_S)

    async def _send(self, node: bytes, dialog: bytes, state: bytes) -> None:
        assert self._edge is not None
        for offset in range(0, len(state), PART):
            part = DialogPart(dialog, len(state), offset, state[offset : offset + PART])
            await self._edge.ask_node(node, "dialog", pack(part))

    # -- the other node --------------------------------------------------------------------------------------------

    async def take_part(self, part: DialogPart) -> None:
        """Parts come in order; the last one makes this node take the dialog over."""
        if not 0 < part.total <= STATE_MAX or part.offset + len(part.data) > part.total:
            raise MisuseError(f"a dialog of {part.total} bytes is not taken; nothing was changed")
        if part.offset == 0:
            self._arriving.pop(part.dialog, None)
            self._arriving[part.dialog] = bytearray()
        have = self._arriving.get(part.dialog)
        if have is None or len(have) != part.offset:
            raise MisuseError(
                "a part of the dialog is missing; ask again to send it from the start"
            )
        have += part.data
        arriving = self._arriving
        while len(arriving) > ARRIVING_MAX or sum(map(len, arriving.values())) > STATE_MAX:
            del arriving[next(iter(arriving))]
        if len(have) == part.total:
            arriving.pop(part.dialog, None)
            await self._dialogs.move_in(bytes(have))


def _bytes(request: Mapping[str, Any], key: str) -> bytes:
    text = str(request.get(key, ""))
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise MisuseError(f"{key!r} is not hexadecimal: {text[:40]!r}") from None
