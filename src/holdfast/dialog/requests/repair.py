"""Decisions about poison messages and faults."""

from __future__ import annotations

from holdfast.dialog import delivery, lifecycle, pairing, transfer
from holdfast.dialog.core import Core
from holdfast.dialog.faults import back_in_service
from holdfast.dialog.ports import Repair, Settle
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import CONFIRMING, FAULTED
from holdfast.types import Nanos


def settle(core: Core, now: Nanos, request: Settle) -> None:
    d = core.dialogs[request.dialog]
    problem = core.run(d, now, delivery.settle_poison, request.number, request.action)
    if problem is None or problem:
        core.refuse(
            request.token, "misuse", f"{problem or 'the dialog failed'}; nothing was changed"
        )
    else:
        core.answer(request.token, None)


def repair(core: Core, now: Nanos, request: Repair) -> None:
    """Carry out the decision of a repair handler or an operator."""
    d = core.dialogs[request.dialog]
    if request.action == "terminate":
        core.run(d, now, lifecycle.terminate, now, request.reason or f"not repaired: {d.fault}")
    elif d.state != FAULTED:
        core.refuse(
            request.token, "state", f"the dialog is {d.state}, not faulted; nothing was changed"
        )
        return
    elif request.action == "reroute":
        if d.confirmed or d.partner is not None:
            core.refuse(
                request.token, "state", "the dialog has a partner; only that one can release it"
            )
            return
        core.run(d, now, _reroute, now)
    elif request.action == "resume":
        core.run(d, now, _resume, now)
    else:
        core.refuse(
            request.token,
            "misuse",
            "an action is 'resume', 'reroute' or 'terminate'; nothing was changed",
        )
        return
    core.answer(request.token, None)


def _clear_fault(d: Dialog) -> None:
    d.fault = d.detail = ""
    d.faulted_at = 0


def _reroute(d: Dialog, now: Nanos) -> None:
    d.env.count("repaired")
    pairing.look_again(d, now)


def _resume(d: Dialog, now: Nanos) -> None:
    if d.confirmed:
        back_in_service(d, now)
        if d.connected:
            transfer.begin_resume(d, now)
    elif d.partner is not None:
        _clear_fault(d)
        d.change(CONFIRMING, now)
        d.since = now
        d.control_at = now + pairing.INVITE_WAIT
        pairing.confirm(d)
    else:
        _reroute(d, now)
