"""Receiving from any dialog, by priority."""

from __future__ import annotations

from typing import Final

from holdfast.dialog import delivery
from holdfast.dialog.core import Core
from holdfast.dialog.ports import Take, Taken
from holdfast.dialog.requests.transactions import takes_part
from holdfast.dialog.session import Dialog
from holdfast.types import Nanos

ANY_TAKERS_MAX: Final = 1024


def take_any(core: Core, now: Nanos, request: Take) -> None:
    if request.tx and not takes_part(core, request.token, request.tx, b""):
        return
    if len(core.any_takers) >= ANY_TAKERS_MAX:
        core.refuse(
            request.token, "busy", f"{ANY_TAKERS_MAX} receives wait already; nothing was taken"
        )
    else:
        core.any_takers.append(request)
        core.deadlines.set(f"any{request.token}", request.deadline)


def serve_any(core: Core, now: Nanos) -> None:
    """Serve receives from any dialog, from the dialog that is due by priority."""
    while core.any_takers:
        request = core.any_takers[0]
        d = _next_available(core)
        if d is None:
            break
        core.leave_any(request)
        size = d.inc.ready[0].size
        if request.tx:
            core.transactions[request.tx].dialogs[d.id] = None
        core.token = request.token
        core.run(d, now, delivery.hand_out, request)
        core.token = 0
        core.delivering.served(d.id, size, d.settings.priority)
        if core.dialogs.get(d.id) is d and delivery.available(d):
            core.delivering.add(d.id, d.settings.priority)
    late = [request for request in core.any_takers if request.deadline <= now]
    for request in late:
        core.leave_any(request)
        core.answer(request.token, Taken(b"", []))


def _next_available(core: Core) -> Dialog | None:
    while (key := core.delivering.next()) is not None:
        d = core.dialogs.get(key)
        if d is not None and delivery.available(d) and not d.takers:
            return d
    return None
