"""Requests of operators about dialogs, through the control socket: list, show, poison, repair, terminate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.dialog import ports
from holdfast.dialog.ids import DIALOG_BYTES
from holdfast.dialog.manager import DialogManager
from holdfast.dialog.subsystem import described
from holdfast.errors import DialogUnknown, MisuseError
from holdfast.subsystem import Control

if TYPE_CHECKING:
    from holdfast.runtime.dialogs.edge import DialogEdge

SHOWN_MAX: Final = 4096


class DialogControl:
    def __init__(self, edge: DialogEdge) -> None:
        self._edge = edge

    def handlers(self) -> Mapping[str, Control]:
        return {
            "dialogs": self.list_all,
            "dialog": self.show,
            "dialog-poison": self.poison,
            "dialog-repair": self.repair,
            "dialog-terminate": self.terminate,
        }

    def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        dialogs = []
        for _, manager in self._edge.service.managers():
            dialogs += [described(end) for end in manager.list(SHOWN_MAX)]
        daemon = self._edge.daemon
        applications = daemon.status() if daemon is not None else {}
        return {"dialogs": dialogs, "stores": self._stores(), "daemon": applications}

    def _stores(self) -> list[dict[str, Any]]:
        stores = [{"name": n, "error": e} for n, e in self._edge.failures.items()]
        return stores + [{"name": n, **m.status()} for n, m in self._edge.service.managers()]

    def show(self, request: dict[str, Any]) -> dict[str, Any]:
        _, manager, dialog = self._find(request)
        end = manager.inspect(dialog)
        assert end is not None
        bodies = {str(n): (manager.poison(dialog, n) or b"").hex() for n in end.poison}
        return {**described(end), "poison_bodies": bodies}

    async def poison(self, request: dict[str, Any]) -> dict[str, Any]:
        store, _, dialog = self._find(request)
        number, action = request.get("number"), request.get("action")
        if not isinstance(number, int) or action not in ("retry", "discard"):
            raise MisuseError("give the number of the message, and 'retry' or 'discard'")
        settle = ports.Settle(token=0, dialog=dialog, number=number, action=str(action))
        await self._edge.ask(store, settle, dialog)
        return {"done": action}

    async def repair(self, request: dict[str, Any]) -> dict[str, Any]:
        store, _, dialog = self._find(request)
        action = str(request.get("action", "resume"))
        await self._edge.ask(store, ports.Repair(token=0, dialog=dialog, action=action), dialog)
        return {"done": action}

    async def terminate(self, request: dict[str, Any]) -> dict[str, Any]:
        store, _, dialog = self._find(request)
        reason = str(request.get("reason", "by an operator"))
        await self._edge.ask(store, ports.Terminate(token=0, dialog=dialog, reason=reason), dialog)
        return {"done": "terminate"}

    def _find(self, request: dict[str, Any]) -> tuple[str, DialogManager, bytes]:
        """A dialog by its id in hexadecimal, its beginning, or its short name."""
        wanted = str(request.get("dialog", ""))
        if not wanted:
            raise MisuseError("name a dialog: its id, the beginning of it, or its short name")
        found = [
            (name, manager, dialog)
            for name, manager in self._edge.service.managers()
            for dialog in manager.find(wanted)
        ]
        closed = "; ".join(f"store {n} is not open: {e}" for n, e in self._edge.failures.items())
        if not found and closed:
            raise DialogUnknown(
                f"no dialog {wanted!r} in the stores that are open; nothing was done; {closed}"
            )
        if not found:
            raise DialogUnknown(
                f"no active dialog {wanted!r} on this node; nothing was done; it has ended, or it is deactivated and "
                "comes back when its application or its partner uses it"
            )
        if len(found) > 1 and len(wanted) < 2 * DIALOG_BYTES:
            raise MisuseError(f"{len(found)} dialogs begin with {wanted!r}; give more of the id")
        return found[0]
