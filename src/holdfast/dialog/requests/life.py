"""Completing, terminating, resting and extending a dialog."""

from __future__ import annotations

from holdfast.dialog import lifecycle, loading, ttl
from holdfast.dialog.core import Core
from holdfast.dialog.ports import (
    Complete,
    Deactivate,
    ExtendMessages,
    ExtendSession,
    Opened,
    Reactivate,
    Terminate,
)
from holdfast.dialog.states import OPEN
from holdfast.types import Nanos


def complete(core: Core, now: Nanos, request: Complete) -> None:
    core.run(core.dialogs[request.dialog], now, lifecycle.complete, request.token)


def terminate(core: Core, now: Nanos, request: Terminate) -> None:
    d = core.dialogs[request.dialog]
    for tx in core.transactions.values():
        if tx.prepared and d.id in tx.dialogs:
            core.refuse(
                request.token, "busy", "a transaction on this dialog is being committed; try again"
            )
            return
    core.run(d, now, lifecycle.terminate, now, request.reason)
    core.answer(request.token, None)


def deactivate(core: Core, now: Nanos, request: Deactivate) -> None:
    d = core.dialogs[request.dialog]
    if not d.idle or d.state != OPEN:
        core.refuse(request.token, "busy", "the dialog has work under way; it stays active")
        return
    loading.deactivate(core, d, now)
    core.answer(request.token, None)


def reactivate(core: Core, now: Nanos, request: Reactivate) -> None:
    core.answer(request.token, Opened(request.dialog))


def extend_messages(core: Core, now: Nanos, request: ExtendMessages) -> None:
    core.run(
        core.dialogs[request.dialog], now, ttl.extend_messages, now, request.token, request.ttl_ns
    )


def extend_session(core: Core, now: Nanos, request: ExtendSession) -> None:
    core.run(core.dialogs[request.dialog], now, ttl.propose, request)
