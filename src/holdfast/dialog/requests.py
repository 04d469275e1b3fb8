"""Requests of the application, one function for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from holdfast.dialog import delivery, lifecycle, loading, moving, pairing, sending, transfer, ttl
from holdfast.dialog.core import Core
from holdfast.dialog.faults import back_in_service
from holdfast.dialog.frames import Decline, Invite, Terms
from holdfast.dialog.ids import (
    COUNTER_MAX,
    NODE_BYTES,
    STORE_BYTES,
    TRANSACTION_BYTES,
    End,
    StoreId,
    dialog_id,
    dialog_name,
    twin,
)
from holdfast.dialog.ports import (
    Accept,
    Cancel,
    Complete,
    Deactivate,
    Exported,
    ExtendMessages,
    ExtendSession,
    Forget,
    HandedOver,
    Listen,
    MoveDone,
    MoveIn,
    MoveOut,
    Open,
    Opened,
    Outcome,
    Prepare,
    Prepared,
    Reactivate,
    Reject,
    Repair,
    Send,
    Settle,
    Take,
    Taken,
    Terminate,
    Unlisten,
)
from holdfast.dialog.records import COUNTER, EXPORTED, KEPT, TX, after
from holdfast.dialog.session import Dialog, new_row
from holdfast.dialog.states import (
    COMPLETED,
    CONFIRMING,
    FAULTED,
    MOVED,
    OFFERED,
    OPEN,
    RESOLVING,
    TERMINATED,
)
from holdfast.dialog.transactions import TRANSACTIONS_MAX, Staged, Transaction
from holdfast.machine import Erase, Put
from holdfast.types import NEVER, Nanos, NodeId

ANY_TAKERS_MAX: Final = 1024
URI_MAX: Final = 2048
OVER: Final = "the transaction is over; nothing took effect"
CANCELLED: Final = "the request was cancelled; nothing took effect"


# -- opening and accepting ---------------------------------------------------------------------------------------


def open_dialog(core: Core, now: Nanos, request: Open) -> None:
    """Create a dialog: record it, then look for a partner. Sends are captured meanwhile."""
    s = request.settings
    if not request.uri or len(request.uri) > URI_MAX:
        core.refuse(
            request.token, "misuse", f"a URI has 1 to {URI_MAX} characters; nothing was opened"
        )
        return
    reserved = 2 * s.quota_reserved * s.message_bytes_max
    env = core.env
    dialog = dialog_id(NodeId(env.node), StoreId(env.store), core.counter)
    if core.counter >= COUNTER_MAX or not core.budget.reserve(dialog, reserved):
        core.refuse(
            request.token,
            "budget",
            f"the store cannot reserve {reserved} bytes for the dialog's buffers; nothing was opened; close others, or "
            "lower quota_reserved or message_bytes_max",
        )
        return
    core.counter += 1
    core.writes.append(Put(COUNTER, b"", core.counter.to_bytes(8, "big")))
    terms = Terms(s.assurances.code, s.message_bytes_max, s.session_ttl_ns, s.simplex)
    row = new_row(RESOLVING, True, request.uri, request.key, terms, s, env.wall(now))
    d = Dialog(env, dialog, row)
    d.stage.row = d.stage.position = True
    core.add(d)
    core.run(d, now, pairing.begin, now)
    core.answer(request.token, Opened(dialog))


def listen(core: Core, now: Nanos, request: Listen) -> None:
    known = core.listeners.get(request.service)
    if known is not None and known.settings != request.settings:
        core.refuse(
            request.token, "misuse", f"{request.service!r} is taken already; nothing was changed"
        )
        return
    core.listeners[request.service] = request
    core.answer(request.token, None)


def unlisten(core: Core, now: Nanos, request: Unlisten) -> None:
    core.listeners.pop(request.service, None)
    core.answer(request.token, None)


def accept(core: Core, now: Nanos, request: Accept) -> None:
    waiting = core.requested.pop(request.dialog, None)
    if waiting is None:
        d = core.dialogs.get(request.dialog)
        if d is not None and not d.creator:
            core.answer(request.token, Opened(request.dialog))
        else:
            core.refuse(request.token, "unknown", "no such request; it may have been withdrawn")
        return
    peer, invite, _ = waiting
    problem = make_offer(core, now, peer, invite, request)
    if problem:
        core.refuse(request.token, "budget", problem)
    else:
        core.answer(request.token, Opened(request.dialog))


def make_offer(core: Core, now: Nanos, peer: bytes, invite: Invite, by: Accept | Listen) -> str:
    """Record the offer of this instance, then make it. Gives why not, or nothing."""
    s = by.settings
    reserved = 2 * s.quota_reserved * s.message_bytes_max
    if not core.budget.reserve(invited_id(core, peer, invite), reserved):
        core.posts.append((peer, decline(core, invite, "busy", "no room for the dialog's buffers")))
        return f"the store cannot reserve {reserved} bytes for the dialog's buffers; the dialog was declined"
    terms = pairing.agreed_terms(
        invite.terms, s.assurances.code, s.message_bytes_max, s.session_ttl_ns_max
    )
    row = new_row(OFFERED, False, invite.uri, invite.key, terms, s, core.env.wall(now))
    session = invited_id(core, peer, invite)
    d = Dialog(core.env, session, row)
    d.partner = End(peer, invite.store)
    d.attempt = invite.attempt
    d.control_at = now + pairing.OFFER_LIMIT
    d.stage.row = d.stage.position = True
    core.add(d)
    core.run(d, now, pairing.offer, peer)
    return ""


def invited_id(core: Core, peer: bytes, invite: Invite) -> bytes:
    """The id of the end that an invitation makes here."""
    same = peer == core.env.node and invite.store == core.env.store
    return twin(invite.session) if same else invite.session


def decline(
    core: Core, invite: Invite, code: str, reason: str, others: tuple[bytes, ...] = ()
) -> Decline:
    return Decline(
        invite.store, invite.session, core.env.store, invite.attempt, code, reason, others
    )


def reject(core: Core, now: Nanos, request: Reject) -> None:
    waiting = core.requested.pop(request.dialog, None)
    if waiting is None:
        core.refuse(request.token, "unknown", "no such request; it may have been withdrawn")
        return
    peer, invite, _ = waiting
    core.posts.append((peer, decline(core, invite, "rejected", request.reason)))
    core.answer(request.token, None)


# -- messages ----------------------------------------------------------------------------------------------------


def send(core: Core, now: Nanos, request: Send) -> None:
    d = core.dialogs[request.dialog]
    if request.tx and not _takes_part(core, request.token, request.tx, d.id):
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
        _take_any(core, now, request)
        return
    d = core.dialogs[request.dialog]
    if request.tx and not _takes_part(core, request.token, request.tx, d.id):
        return
    core.run(d, now, delivery.take, now, request)


def _take_any(core: Core, now: Nanos, request: Take) -> None:
    if request.tx and not _takes_part(core, request.token, request.tx, b""):
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
        _leave(core, request)
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
        _leave(core, request)
        core.answer(request.token, Taken(b"", []))


def _leave(core: Core, request: Take) -> None:
    """A receive from any dialog waits no more."""
    core.any_takers.remove(request)
    core.deadlines.set(f"any{request.token}", NEVER)


def _next_available(core: Core) -> Dialog | None:
    while (key := core.delivering.next()) is not None:
        d = core.dialogs.get(key)
        if d is not None and delivery.available(d) and not d.takers:
            return d
    return None


def handed_over(core: Core, now: Nanos, item: HandedOver) -> None:
    d = core.dialogs.get(item.dialog)
    if d is not None and item.lease in d.inc.leases:
        if item.taken:
            core.run(d, now, delivery.committed, item.lease, [])
        else:
            core.run(d, now, delivery.aborted, item.lease, counts=False)


def cancel(core: Core, now: Nanos, item: Cancel) -> None:
    for request in [taker for taker in core.any_takers if taker.token == item.request]:
        _leave(core, request)
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


# -- transactions ------------------------------------------------------------------------------------------------


def _takes_part(core: Core, token: int, tx: bytes, dialog: bytes) -> bool:
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
    core.writes += tx.erasures()
    if not absent:
        core.writes.append(Erase(TX, tx.id, after(tx.id)))


def _end_requests(core: Core, tx: Transaction, code: str, text: str) -> None:
    """Refuse what still waits for a transaction: nothing would end what it is given."""
    for taker in [taker for taker in core.any_takers if taker.tx == tx.id]:
        _leave(core, taker)
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


# -- the rest of a dialog's life ---------------------------------------------------------------------------------


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


# -- moving ------------------------------------------------------------------------------------------------------


def move_out(core: Core, now: Nanos, request: MoveOut) -> None:
    d = core.dialogs[request.dialog]
    kept = core.exported.get(d.id)
    if kept is not None and d.moved_to == End(request.node, request.store):
        core.answer(request.token, Exported(kept))
        return
    problem = moving.refusal(d)
    if len(request.node) != NODE_BYTES or len(request.store) != STORE_BYTES:
        problem = "the target is a node id and a store id"
    elif (request.node, request.store) == (core.env.node, core.env.store):
        problem = "the dialog is there already"
    if problem:
        core.refuse(request.token, "state", f"{problem}; nothing was moved")
        return
    state = core.run(d, now, moving.move_out, now, End(request.node, request.store))
    if state is not None:
        core.blocks.forget(d.id)
        # A crash before the answer arrives must not lose it: from here on it is nowhere else.
        core.exported[d.id] = state
        core.writes.append(Put(EXPORTED, d.id, state))
        core.answer(request.token, Exported(state))


def move_done(core: Core, now: Nanos, request: MoveDone) -> None:
    """The target has the state."""
    if core.exported.pop(request.dialog, None) is not None:
        core.writes.append(Erase(EXPORTED, request.dialog, after(request.dialog)))
    core.answer(request.token, None)


def move_in(core: Core, now: Nanos, request: MoveIn) -> None:
    """Take over an end. Importing the same state twice changes nothing."""
    state = moving.read_state(request.state)
    if isinstance(state, str):
        core.refuse(request.token, "misuse", f"{state}; nothing was changed")
        return
    if state.target != End(core.env.node, core.env.store):
        core.refuse(
            request.token,
            "misuse",
            "the state was exported for another node or store; nothing was changed",
        )
        return
    known = core.dialogs.get(state.dialog)
    if known is not None and known.epoch >= state.row.epoch:
        core.answer(request.token, Opened(state.dialog))
        return
    if known is not None:
        core.forget(known)
        core.blocks.forget(known.id)
    d = loading.imported(core, state)
    core.answer(request.token, Opened(d.id))
    if d.connected:
        core.run(d, now, transfer.begin_resume, now)


HANDLERS: Final[dict[type[Any], Callable[[Core, Nanos, Any], None]]] = {
    Open: open_dialog,
    Listen: listen,
    Unlisten: unlisten,
    Accept: accept,
    Reject: reject,
    Send: send,
    Take: take,
    HandedOver: handed_over,
    Cancel: cancel,
    Complete: complete,
    Terminate: terminate,
    Deactivate: deactivate,
    Reactivate: reactivate,
    ExtendMessages: extend_messages,
    ExtendSession: extend_session,
    Prepare: prepare,
    Outcome: outcome,
    Forget: forget,
    Repair: repair,
    Settle: settle,
    MoveOut: move_out,
    MoveDone: move_done,
    MoveIn: move_in,
}

NAMES_A_DIALOG: Final = (
    Send, Take, Complete, Terminate, Deactivate, Reactivate, ExtendMessages, ExtendSession, Settle, Repair, MoveOut,
)  # fmt: skip
"""Requests for which the dialog is read from the store when it is not in memory."""
