"""Frames that arrive: checked against the dialog that they name, then handed to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.dialog import faults, lifecycle, moving, pairing, transfer, ttl
from holdfast.dialog.core import Core
from holdfast.dialog.frames import (
    Ack,
    Confirm,
    Confirmed,
    Decline,
    Done,
    Ended,
    Faulted,
    Fin,
    Invite,
    Messages,
    Moved,
    NeverConfirmed,
    Offer,
    Release,
    Resume,
    Terminate,
    TtlAnswer,
    TtlProposal,
    Unknown,
    WindowProbe,
)
from holdfast.dialog.ids import (
    DIALOG_BYTES,
    SECRET_BYTES,
    STORE_BYTES,
    creator_of,
    is_twin,
    twin,
)
from holdfast.dialog.ports import Event
from holdfast.dialog.records import EndingRow
from holdfast.dialog.requests.opening import URI_MAX, decline, invited_id, make_offer
from holdfast.dialog.routes import service_of
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import MOVED, OFFERED, OPEN
from holdfast.types import SECOND, Nanos

REQUESTED_MAX: Final = 1024
"""Invitations that wait for the application. One more is declined: the creator tries another instance."""
REQUEST_WAIT: Final = 60 * SECOND

Handler = Callable[[Dialog, Nanos, bytes, Any], None]

PAIRING: Final[dict[type[Any], Handler]] = {
    Offer: pairing.on_offer,
    Decline: pairing.on_decline,
    Confirm: pairing.on_confirm,
    Confirmed: pairing.on_confirmed,
    NeverConfirmed: pairing.on_never_confirmed,
}
"""Frames that may come from a node that is not the partner yet. Each handler checks."""

PAIRED: Final[dict[type[Any], Callable[[Dialog, Nanos, Any], None]]] = {
    Messages: lambda d, _, frame: transfer.on_messages(d, frame),
    Ack: transfer.on_ack,
    WindowProbe: lambda d, _, frame: transfer.on_window_probe(d, frame),
    Fin: lambda d, _, frame: lifecycle.on_fin(d, frame),
    Done: lambda d, _, frame: lifecycle.on_done(d, frame),
    Terminate: lifecycle.on_terminate,
    TtlProposal: ttl.on_proposal,
    TtlAnswer: ttl.on_answer,
    Faulted: faults.on_faulted,
}
"""Frames of the partner's present end: its node and epoch are checked before."""


def on_frame(core: Core, now: Nanos, peer: bytes, frame: Any) -> None:
    kind = type(frame)
    if kind is Invite:
        on_invite(core, now, peer, frame)
        return
    session = frame.session
    d = core.dialogs.get(session)
    if d is None:
        without_dialog(core, peer, frame)
        return
    # rule: D-18a
    if d.state == MOVED:
        _moved_answer(core, d, peer, frame)
        return
    handler = PAIRING.get(kind)
    if handler is not None:
        if kind is Confirm and d.partner is None:
            core.env.count("forged")
            return
        core.run(d, now, handler, now, peer, frame)
        core.index(d)
        return
    if not d.confirmed or d.partner is None:
        _before_pairing(core, now, d, peer, frame)
    elif kind is Resume:
        core.run(d, now, transfer.on_resume, now, peer, frame)
        core.index(d)
    # rule: D-frames-1c
    elif d.partner.node != peer:
        core.env.count("forged")
    elif kind in PAIRED:
        _paired(core, now, d, frame)
    else:
        _about_partner(core, now, d, frame)


def _paired(core: Core, now: Nanos, d: Dialog, frame: Any) -> None:
    # rule: D-18f
    if frame.epoch != d.partner_epoch:
        core.env.count("stale_epoch")
        return
    d.heard_at = now
    if d.since and d.resumed:
        d.since = now if d.out.flight else 0
    core.run(d, now, PAIRED[type(frame)], now, frame)


def _about_partner(core: Core, now: Nanos, d: Dialog, frame: Any) -> None:
    """The partner's node says what became of its end."""
    kind = type(frame)
    if kind is Moved:
        if core.run(d, now, moving.on_moved, frame):
            core.index(d)
            if d.connected:
                core.run(d, now, transfer.begin_resume, now)
    elif kind is Ended:
        core.run(d, now, lifecycle.on_ended, now, frame)
    elif kind is Unknown and d.state == OPEN:
        # Frees nothing: the state may be lost, or in a store that is not there at the moment.
        # rule: D-17a
        core.run(
            d,
            now,
            faults.put_in_fault,
            now,
            "partner-lost",
            "the partner's node does not know the dialog",
        )


def _before_pairing(core: Core, now: Nanos, d: Dialog, peer: bytes, frame: Any) -> None:
    kind = type(frame)
    partner = d.partner
    if kind is Release and d.state == OFFERED and partner is not None and partner.node == peer:
        core.run(d, now, pairing.withdraw)
    elif kind is Unknown and partner is not None and partner.node == peer and not d.confirmed:
        core.run(
            d, now, faults.put_in_fault, now, "partner-lost", "the recorded partner lost its state"
        )
    else:
        core.env.count("unexpected")


def _moved_answer(core: Core, d: Dialog, peer: bytes, frame: Any) -> None:
    if d.partner is not None and (peer == d.partner.node or type(frame) is Resume):
        core.posts.append((peer, moving.redirect(d)))


# -- frames without a dialog -------------------------------------------------------------------------------------


def without_dialog(core: Core, peer: bytes, frame: Any) -> None:
    """The dialog ended, sleeps in the store, or was never here."""
    session = frame.session
    if type(frame) in (
        Ack,
        Terminate,
        Ended,
        Unknown,
        Release,
        Decline,
        NeverConfirmed,
        Moved,
        Faulted,
    ):
        return
    if len(session) != DIALOG_BYTES:
        core.env.count("malformed")
        return
    ending = core.endings.of(session)
    if ending is not None:
        _ended_answer(core, peer, frame, ending)
    else:
        core.park(session, "frame", peer, frame)


def _ended_answer(core: Core, peer: bytes, frame: Any, ending: EndingRow) -> None:
    store = getattr(frame, "store", b"") or _store_of(frame)
    if ending.how == pairing.NEVER_CONFIRMED and type(frame) is Confirm:
        answer: Any = NeverConfirmed(
            _creator_store(frame.session), _reply_id(core, peer, frame), core.env.store
        )
    elif type(frame) is Offer:
        answer = Release(frame.store, _reply_id(core, peer, frame))
    else:
        answer = Ended(
            store, _reply_id(core, peer, frame), ending.how, ending.ranges, ending.reason
        )
    core.posts.append((peer, answer))


def _reply_id(core: Core, peer: bytes, frame: Any) -> bytes:
    """The id under which the sender of a frame keeps its end."""
    session: bytes = frame.session
    same = is_twin(session) or twin(session) in core.dialogs
    return twin(session) if same and peer == core.env.node else session


def _creator_store(session: bytes) -> bytes:
    return creator_of(session)[-STORE_BYTES:]


def _store_of(frame: Any) -> bytes:
    """The sender's store: the creator's, unless the frame says otherwise."""
    return _creator_store(frame.session)


def nowhere(core: Core, now: Nanos, peer: bytes, frame: Any) -> None:
    """The store does not have the dialog either."""
    session = frame.session
    ending = core.endings.of(session)
    if ending is not None:
        _ended_answer(core, peer, frame, ending)
    elif type(frame) is Confirm and len(frame.secret) == SECRET_BYTES:
        # Recorded before it is said: from now on this instance never confirms the dialog.
        row = EndingRow(pairing.NEVER_CONFIRMED, [], "", core.env.wall(now))
        # rule: D-16c
        core.writes += core.endings.add(session, row)
        reply = _reply_id(core, peer, frame)
        core.posts.append((peer, NeverConfirmed(_creator_store(session), reply, core.env.store)))
    else:
        core.env.count("unknown_dialog")
        store = frame.store if type(frame) is Resume else _store_of(frame)
        core.posts.append((peer, Unknown(store, _reply_id(core, peer, frame), core.env.store)))


# -- invitations -------------------------------------------------------------------------------------------------


def on_invite(core: Core, now: Nanos, peer: bytes, frame: Invite) -> None:
    """Accept, ask the application, send elsewhere or decline."""
    session = frame.session
    # rule: D-frames-1d
    if (
        len(session) != DIALOG_BYTES
        or creator_of(session) != peer + frame.store
        or is_twin(session)
    ):
        core.env.count("forged")
        return
    session = invited_id(core, peer, frame)
    if not pairing.acceptable(frame.terms) or len(frame.uri) > URI_MAX or len(frame.key) > URI_MAX:
        core.env.count("malformed")
        return
    d = core.dialogs.get(session)
    if d is not None:
        if d.state == OFFERED:
            d.attempt = frame.attempt
            core.run(d, now, pairing.offer, peer)
        return
    # rule: D-16d
    if core.endings.of(session) is not None:
        core.posts.append(
            (peer, decline(core, frame, "ended", "this instance has left the dialog for good"))
        )
        return
    service = service_of(frame.uri)
    others = core.policies.get(service)
    listener = core.listeners.get(service)
    if others is not None:
        code = "redirect" if others else "policy"
        core.posts.append((peer, decline(core, frame, code, "routed by policy", others)))
    elif listener is None:
        core.posts.append(
            (peer, decline(core, frame, "no-service", f"nothing listens to {service!r} here"))
        )
    elif listener.automatic:
        make_offer(core, now, peer, frame, listener)
    elif session in core.requested or len(core.requested) < REQUESTED_MAX:
        fresh = session not in core.requested
        core.requested[session] = (peer, frame, now)
        core.deadlines.set("requests", now + REQUEST_WAIT)
        if fresh:
            core.effects.append(Event(session, "requested", uri=frame.uri, unit=core.env.unit))
    else:
        core.posts.append(
            (peer, decline(core, frame, "busy", "too many requests wait for the application"))
        )


def expire_requests(core: Core, now: Nanos) -> None:
    """Requests that the application did not answer are dropped; the creator has asked others by then."""
    for session, (_, _, at) in list(core.requested.items()):
        if now - at >= REQUEST_WAIT:
            del core.requested[session]
    if core.requested:
        core.deadlines.set("requests", now + REQUEST_WAIT)
