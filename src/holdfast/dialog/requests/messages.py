"""Sending, receiving, and withdrawing either."""

from __future__ import annotations

from typing import Final

from holdfast.dialog import delivery, sending
from holdfast.dialog.core import Core
from holdfast.dialog.ports import Cancel, HandedOver, Send, Take, Taken
from holdfast.dialog.requests.any_dialog import take_any
from holdfast.dialog.requests.transactions import takes_part
from holdfast.dialog.session import Dialog
from holdfast.dialog.transactions import Staged
from holdfast.types import Nanos

CANCELLED: Final = "the request was cancelled; nothing took effect"


def send(core: Core, now: Nanos, request: Send) -> None:
    d = core.dialogs[request.dialog]
    if request.tx and not takes_part(core, request.token, request.tx, d.id):
        return
    bodies = core.run(d, now, sending.send, now, request)
    if bodies is not None:
        stage(core, now, d, request, bodies)


def stage(core: Core, now: Nanos, d: Dialog, request: Send, bodies: list[bytes]) -> None:
    """A transaction holds these messages until its outcome."""
    tx = core.transactions.get(request.tx)
    if tx is not None:
        due = sending.due_of(d, now, request.ttl_ns)
        tx.sends.append(Staged(d.id, bodies, due, request.after_wall))


def take(core: Core, now: Nanos, request: Take) -> None:
    if not request.dialog:
        take_any(core, now, request)
        return
    d = core.dialogs[request.dialog]
    if request.tx and not takes_part(core, request.token, request.tx, d.id):
        return
    core.run(d, now, delivery.take, now, request)


def handed_over(core: Core, now: Nanos, item: HandedOver) -> None:
    d = core.dialogs.get(item.dialog)
    if d is not None and item.lease in d.inc.leases:
        if item.taken:
            core.run(d, now, delivery.committed, item.lease, [])
        else:
            core.run(d, now, delivery.aborted, item.lease, counts=False)


def cancel(core: Core, now: Nanos, item: Cancel) -> None:
    for request in [taker for taker in core.any_takers if taker.token == item.request]:
        core.leave_any(request)
        core.answer(request.token, Taken(b"", []))
    d = core.dialogs.get(item.dialog)
    if d is None:
        _cancel_parked(core, item)
        return
    if not item.receives_only and d.quota.cancel(item.request):
        core.touched[d.id] = d
        core.refuse(item.request, "cancelled", CANCELLED)
    for request in [taker for taker in d.takers if taker.token == item.request]:
        d.takers.remove(request)
        core.answer(request.token, Taken(d.id, []))


def _cancel_parked(core: Core, item: Cancel) -> None:
    """The dialog is being read from the store: the request is not carried out when it is here."""
    parked = core.parked.get(item.dialog)
    if parked is None:
        return
    for entry in parked.inputs:
        if entry[0] != "request" or entry[1].token != item.request:
            continue
        if type(entry[1]) is Take:
            core.answer(item.request, Taken(item.dialog, []))
        elif type(entry[1]) is Send and not item.receives_only:
            core.refuse(item.request, "cancelled", CANCELLED)
        else:
            continue
        parked.inputs.remove(entry)
        return
