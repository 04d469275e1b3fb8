"""Opening, listening, accepting and rejecting."""

from __future__ import annotations

from typing import Final

from holdfast.dialog import lifecycle, pairing
from holdfast.dialog.core import Core
from holdfast.dialog.frames import Decline, Invite, Terms
from holdfast.dialog.ids import COUNTER_MAX, End, StoreId, dialog_id, twin
from holdfast.dialog.ports import Accept, Listen, Open, Opened, Reject, Unlisten
from holdfast.dialog.records import COUNTER
from holdfast.dialog.session import Dialog, new_row
from holdfast.dialog.states import OFFERED, RESOLVING
from holdfast.machine import Put
from holdfast.types import Nanos, NodeId

URI_MAX: Final = 2048


def open_dialog(core: Core, now: Nanos, request: Open) -> None:
    """Create a dialog: record it, then look for a partner. Sends are captured meanwhile."""
    s = request.settings
    if not request.uri or len(request.uri) > URI_MAX:
        core.refuse(
            request.token, "misuse", f"a URI has 1 to {URI_MAX} characters; nothing was opened"
        )
        return
    if len(request.key) > URI_MAX:
        # Instances refuse such an invitation without an answer.
        core.refuse(
            request.token, "misuse", f"a key has at most {URI_MAX} bytes; nothing was opened"
        )
        return
    reserved = 2 * s.quota_reserved * s.message_bytes_max
    env = core.env
    dialog = dialog_id(NodeId(env.node), StoreId(env.store), core.counter)
    # rule: D-buffer-2a
    if core.counter >= COUNTER_MAX or not core.budget.reserve(dialog, reserved):
        core.refuse(
            request.token,
            "budget",
            f"the store cannot reserve {reserved} bytes for the dialog's buffers; nothing was opened; close others, or "
            "lower quota_reserved or message_bytes_max",
        )
        return
    core.counter += 1
    # rule: D-17c
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
    reason = request.reason[: lifecycle.REASON_MAX]
    core.posts.append((peer, decline(core, invite, "rejected", reason)))
    core.answer(request.token, None)
