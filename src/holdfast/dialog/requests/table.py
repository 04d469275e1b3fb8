"""Which function carries out which request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.dialog.core import Core
from holdfast.dialog.ports import (
    Accept,
    Cancel,
    Complete,
    Deactivate,
    ExtendMessages,
    ExtendSession,
    Forget,
    HandedOver,
    Listen,
    MoveDone,
    MoveIn,
    MoveOut,
    Open,
    Outcome,
    Prepare,
    Reactivate,
    Reject,
    Repair,
    Send,
    Settle,
    Take,
    Terminate,
    Unlisten,
)
from holdfast.dialog.requests import life, messages, opening, relocation, repair, transactions
from holdfast.types import Nanos

HANDLERS: Final[dict[type[Any], Callable[[Core, Nanos, Any], None]]] = {
    Open: opening.open_dialog,
    Listen: opening.listen,
    Unlisten: opening.unlisten,
    Accept: opening.accept,
    Reject: opening.reject,
    Send: messages.send,
    Take: messages.take,
    HandedOver: messages.handed_over,
    Cancel: messages.cancel,
    Complete: life.complete,
    Terminate: life.terminate,
    Deactivate: life.deactivate,
    Reactivate: life.reactivate,
    ExtendMessages: life.extend_messages,
    ExtendSession: life.extend_session,
    Prepare: transactions.prepare,
    Outcome: transactions.outcome,
    Forget: transactions.forget,
    Repair: repair.repair,
    Settle: repair.settle,
    MoveOut: relocation.move_out,
    MoveDone: relocation.move_done,
    MoveIn: relocation.move_in,
}

NAMES_A_DIALOG: Final = (
    Send, Take, Complete, Terminate, Deactivate, Reactivate, ExtendMessages, ExtendSession, Settle, Repair, MoveOut,
)  # fmt: skip
"""Requests for which the dialog is read from the store when it is not in memory."""
