"""Taking part in a transaction, preparing it, and its outcome."""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.dialog import delivery, sending
from holdfast.dialog.core import Core
from holdfast.dialog.ids import TRANSACTION_BYTES, dialog_name
from holdfast.dialog.ports import Forget, Outcome, Prepare, Prepared
from holdfast.dialog.records import KEPT, TX, after
from holdfast.dialog.states import COMPLETED, MOVED, TERMINATED
from holdfast.dialog.transactions import TRANSACTIONS_MAX, Transaction
from holdfast.machine import Erase
from holdfast.types import Nanos

OVER: Final = "the transaction is over; nothing took effect"


def takes_part(core: Core, token: int, tx: bytes, dialog: bytes) -> bool:
    """Note that a dialog takes part in a transaction."""
    if tx in core.over:
        core.refuse(token, "aborted", OVER)
        return False
    found = core.transactions.get(tx)
    if found is None:
        if len(tx) != TRANSACTION_BYTES or len(core.transactions) >= TRANSACTIONS_MAX:
            core.refuse(
                token, "busy", f"{TRANSACTIONS_MAX} transactions are open; nothing took effect"
            )
            return False
        found = core.transactions[tx] = Transaction(tx)
    if found.prepared:
        core.refuse(token, "misuse", "the transaction is being committed; nothing took effect")
        return False
    if dialog:
        found.dialogs[dialog] = None
    return True


def prepare(core: Core, now: Nanos, request: Prepare) -> None:
    """Ask every dialog that takes part; fix the rows that commit the transaction."""
    if request.tx in core.over:
        core.refuse(request.token, "aborted", OVER)
        return
    tx = core.transactions.setdefault(request.tx, Transaction(request.tx))
    _end_requests(core, tx, "misuse", "the transaction is being committed; nothing took effect")
    if tx.broken:
        core.refuse(
            request.token,
            "aborted",
            "a dialog of the transaction failed and was read again; the transaction is aborted, nothing took effect",
        )
        return
    for dialog in tx.dialogs:
        d = core.dialogs.get(dialog)
        # rule: D-11b
        if d is None or (d.state in (TERMINATED, COMPLETED, MOVED) and d.quota.reserved.get(tx.id)):
            core.refuse(
                request.token,
                "aborted",
                f"dialog {dialog_name(dialog)} has ended or failed; the transaction is aborted, nothing took effect",
            )
            return
        pieces = d.inc.leases.get(tx.id)
        if pieces:
            tx.lease_ranges(dialog, pieces)
    tx.prepared = True
    # rule: D-9b
    tx.place, core.prepared = core.prepared, core.prepared + 1
    rows = tx.inserts(core.env.owner_epoch, core.env.wall(now) if request.keep else 0)
    core.answer(request.token, Prepared(rows, core.env.owner_epoch))


def outcome(core: Core, now: Nanos, item: Outcome) -> None:
    """The transaction has ended, for certain."""
    again = item.tx in core.over
    core.ended(item.tx)
    tx = core.transactions.pop(item.tx, None)
    if tx is None:
        return
    if not again:
        core.facts.append(tx.fact(now, item.committed))
    _end_requests(core, tx, "aborted", OVER)
    absent = [dialog for dialog in tx.dialogs if dialog in core.parked]
    if item.committed and absent:
        # What is being read may be from before the commit: that part and its rows wait for the dialog.
        core.transactions[tx.id] = tx.split(absent)
        core.parked[absent[0]].inputs.append(("outcome", item))
    for dialog in tx.dialogs:
        d = core.dialogs.get(dialog)
        if d is None:
            continue
        d.quota.release(tx.id)
        if not item.committed:
            core.run(d, now, delivery.aborted, tx.id, item.counts)
        elif dialog in tx.ranges:
            core.run(d, now, delivery.committed, tx.id, tx.ranges[dialog], tx.id)
        core.touched[dialog] = d
    if not item.committed:
        return
    for staged in tx.sends:
        d = core.dialogs.get(staged.dialog)
        if d is not None and d.state not in (TERMINATED, COMPLETED, MOVED):
            core.run(d, now, sending.capture, staged.bodies, staged.due, staged.after, tx.id)
    # rule: D-9c
    core.writes += tx.erasures()
    if not absent:
        core.writes.append(Erase(TX, tx.id, after(tx.id)))


def _end_requests(core: Core, tx: Transaction, code: str, text: str) -> None:
    """Refuse what still waits for a transaction: nothing would end what it is given."""
    for taker in [taker for taker in core.any_takers if taker.tx == tx.id]:
        core.leave_any(taker)
        core.refuse(taker.token, code, text)
    for dialog in tx.dialogs:
        d = core.dialogs.get(dialog)
        if d is None:
            continue
        tokens = [request.token for request in d.takers if request.tx == tx.id]
        tokens += [request.token for request in d.quota.waiting if request.tx == tx.id]
        for token in tokens:
            core.refuse(token, code, text)
        if tokens:
            d.takers = deque(request for request in d.takers if request.tx != tx.id)
            d.quota.waiting = deque(r for r in d.quota.waiting if r.tx != tx.id)


def forget(core: Core, now: Nanos, item: Forget) -> None:
    """The application knows how its transaction ended."""
    if len(item.tx) == TRANSACTION_BYTES:
        core.writes.append(Erase(KEPT, item.tx, after(item.tx)))
