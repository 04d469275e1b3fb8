"""Finding exactly one partner, confirmed by both ends before the first message is delivered.

1. The creator resolves the URI to instances and sends `Invite` to one; to the next one as well when the first is slow.
2. An instance that accepts records its offer and answers `Offer`. One that does not answers `Decline`, and may name
   others.
3. The creator records the first instance that offered as its partner, then sends it `Confirm` with a secret, and
   `Release` to all others.
4. The instance records the creator as its partner and answers `Confirmed`. Messages are sent from here on.

Once the creator has recorded a partner, only that instance's own `NeverConfirmed`, which it records first, lets the
creator pair with another. Silence does not: the instance may have confirmed. It is a fault.
"""

from __future__ import annotations

from typing import Final

from holdfast.dialog.config import assurances_of
from holdfast.dialog.faults import put_in_fault
from holdfast.dialog.frames import (
    Confirm,
    Confirmed,
    Decline,
    Invite,
    NeverConfirmed,
    Offer,
    Release,
    Terms,
)
from holdfast.dialog.ids import SECRET_BYTES, End, twin
from holdfast.dialog.ports import Resolve, Resolved
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import CONFIRMING, INVITING, OFFERED, OPEN, RESOLVING
from holdfast.dialog.ttl import start_session_clock
from holdfast.types import NEVER, SECOND, Nanos

INVITE_WAIT: Final = 1 * SECOND
"""An instance that has not answered by then is not waited for alone."""
INVITE_LIMIT: Final = 30 * SECOND
"""With no offer by then the dialog is faulted."""
OFFER_LIMIT: Final = 120 * SECOND
"""An offer that was not confirmed by then is withdrawn, for good."""
CANDIDATES_MAX: Final = 64
NEVER_CONFIRMED: Final = "never"


# -- the creator -------------------------------------------------------------------------------------------------


def begin(d: Dialog, now: Nanos) -> None:
    """Look for instances, from the start."""
    if d.state != RESOLVING:
        d.change(RESOLVING, now)
    d.attempt += 1
    d.partner = None
    d.candidates, d.invited = [], {}
    d.since = now
    d.stage.row = True
    d.stage.effects.append(Resolve(d.env.unit, d.id, d.attempt, d.uri, d.key))


def look_again(d: Dialog, now: Nanos) -> None:
    """The dialog has no partner: forget why, and look for one."""
    d.fault = d.detail = ""
    d.faulted_at = 0
    d.reroute_at = NEVER
    d.declined.clear()
    begin(d, now)


def on_resolved(d: Dialog, now: Nanos, answer: Resolved) -> None:
    if d.state != RESOLVING or answer.attempt != d.attempt:
        return
    nodes = [node for node in answer.nodes[:CANDIDATES_MAX] if node not in d.declined]
    if answer.error or not answer.nodes:
        text = answer.error or "the service has no instance"
        put_in_fault(d, now, "unknown-service", f"{d.uri}: {text}")
    elif not nodes:
        reasons = "; ".join(dict.fromkeys(d.declined.values()))
        put_in_fault(d, now, "no-partner", f"{d.uri}: every instance declined ({reasons})")
    else:
        d.change(INVITING, now)
        d.candidates = nodes
        _invite_next(d, now)


def _invite_next(d: Dialog, now: Nanos) -> None:
    """Invite the first candidate that was not invited yet."""
    for node in d.candidates:
        if node not in d.invited and node not in d.declined:
            d.invited[node] = now
            _invite(d, node)
            break
    d.control_at = now + INVITE_WAIT


def _invite(d: Dialog, node: bytes) -> None:
    d.stage.posts.append((node, Invite(d.id, d.uri, d.env.store, d.terms, d.attempt, d.key)))


def repeat_invites(d: Dialog, now: Nanos) -> None:
    """No offer yet: ask again, and the next instance too."""
    if now - d.since >= INVITE_LIMIT:
        reasons = "; ".join(dict.fromkeys(d.declined.values())) or "no instance answered"
        put_in_fault(d, now, "no-partner", f"{d.uri}: {reasons}")
        return
    for node in d.invited:
        if node not in d.declined:
            _invite(d, node)
    _invite_next(d, now)


def on_offer(d: Dialog, now: Nanos, peer: bytes, frame: Offer) -> None:
    end = End(peer, frame.store)
    if d.state == CONFIRMING and end == d.partner:
        confirm(d)
        return
    # rule: D-16a
    wanted = d.state == INVITING and frame.attempt == d.attempt and peer in d.invited
    own = assurances_of(d.terms.assurances)
    if (
        not wanted
        or not acceptable(frame.terms)
        or not assurances_of(frame.terms.assurances).covers(own)
    ):
        if end != d.partner:
            d.stage.posts.append(
                (peer, Release(frame.store, d.far if end == d.partner else _key_at(d, end)))
            )
        if wanted:
            _declined(d, now, peer, "its terms are below what this end needs")
        return
    d.partner = end
    d.secret = d.env.entropy(SECRET_BYTES)
    d.agree(frame.terms)
    d.change(CONFIRMING, now)
    d.since = now
    d.control_tries = 0
    # The row is durable before the frame leaves: a creator that forgot its partner could choose a second one.
    confirm(d)
    for node in d.invited:
        if node != peer:
            # Its store is not known before it offers; its offer will be released when it comes.
            d.declined[node] = "another instance was chosen"


def _key_at(d: Dialog, end: End) -> bytes:
    """The id under which an instance keeps its end of this dialog."""
    return twin(d.id) if end == End(d.env.node, d.env.store) else d.id


def acceptable(terms: Terms) -> bool:
    return (
        0 <= terms.assurances <= 7
        and 1 <= terms.message_bytes_max <= 1 << 30
        and terms.session_ttl_ns >= 0
        and terms.simplex in ("", "send", "receive")
    )


def confirm(d: Dialog) -> None:
    assert d.partner is not None
    d.stage.posts.append(
        (d.partner.node, Confirm(d.to, d.far, d.env.store, d.secret, d.inc.open_window()))
    )


def on_decline(d: Dialog, now: Nanos, peer: bytes, frame: Decline) -> None:
    if d.state != INVITING or frame.attempt != d.attempt or peer not in d.invited:
        return
    if frame.code == "redirect":
        room = CANDIDATES_MAX - len(d.candidates)
        fresh = [n for n in frame.others[:room] if len(n) == 16 and n not in d.candidates]
        at = d.candidates.index(peer) + 1 if peer in d.candidates else len(d.candidates)
        # rule: D-life-4a
        d.candidates[at:at] = fresh
    _declined(d, now, peer, f"{frame.code}: {frame.reason}"[:200])


def _declined(d: Dialog, now: Nanos, peer: bytes, reason: str) -> None:
    d.declined[peer] = reason
    if any(node not in d.declined for node in d.candidates):
        _invite_next(d, now)
        return
    reasons = "; ".join(dict.fromkeys(d.declined.values()))
    put_in_fault(d, now, "no-partner", f"{d.uri}: every instance declined ({reasons})")


def on_confirmed(d: Dialog, now: Nanos, peer: bytes, frame: Confirmed) -> None:
    if d.partner != End(peer, frame.store) or d.confirmed:
        return
    if d.state != CONFIRMING and d.fault != "partner-silent":
        return
    if d.state != CONFIRMING:
        d.fault = d.detail = ""
        d.faulted_at = 0
    d.confirmed = True
    d.connected = True
    d.reroutes = 0
    d.change(OPEN, now)
    start_session_clock(d, now)
    d.out.limit = frame.limit
    d.resumed = True
    d.since = 0
    d.control_at = NEVER
    d.event("opened")


def on_never_confirmed(d: Dialog, now: Nanos, peer: bytes, frame: NeverConfirmed) -> None:
    """The recorded partner has recorded that it will never confirm: pair with another."""
    # rule: D-16e
    if d.partner != End(peer, frame.store) or d.confirmed:
        return
    if d.fault == "partner-silent":
        d.fault = d.detail = ""
        d.faulted_at = 0
    elif d.state != CONFIRMING:
        return
    d.declined[peer] = "it withdrew its offer"
    begin(d, now)


def silent(d: Dialog, now: Nanos) -> bool:
    """Whether the recorded partner has been silent for too long."""
    limit = d.settings.partner_silent_ns
    return bool(limit) and now - d.since >= limit


# -- the instance ------------------------------------------------------------------------------------------------


def agreed_terms(asked: Terms, assurances: int, message_bytes_max: int, ttl_ns_max: Nanos) -> Terms:
    """The terms that meet both ends' minimums."""
    ttl = min(asked.session_ttl_ns, ttl_ns_max)
    # rule: D-terms-1a
    return Terms(
        asked.assurances | assurances,
        min(asked.message_bytes_max, message_bytes_max),
        ttl,
        asked.simplex,
    )


def offer(d: Dialog, peer: bytes) -> None:
    d.stage.posts.append((peer, Offer(d.to, d.far, d.env.store, d.terms, d.attempt)))


def on_confirm(d: Dialog, now: Nanos, peer: bytes, frame: Confirm) -> None:
    """The creator has recorded this instance: record the creator, then say so."""
    assert d.partner is not None
    # rule: D-16f
    if peer != d.partner.node or len(frame.secret) != SECRET_BYTES:
        d.env.count("forged")
        return
    if d.state == OFFERED:
        d.secret = frame.secret
        d.confirmed = True
        d.connected = True
        d.change(OPEN, now)
        start_session_clock(d, now)
        d.resumed = True
        d.out.limit = frame.limit
        d.control_at = NEVER
        d.event("opened")
    # rule: D-16g
    if d.confirmed and frame.secret == d.secret:
        d.advertised = d.inc.open_window()
        d.stage.posts.append((peer, Confirmed(d.to, d.far, d.env.store, d.advertised)))


def withdraw(d: Dialog) -> None:
    """The offer was not taken up. Recorded, so that a late `Confirm` gets `NeverConfirmed`."""
    d.stage.ended = (NEVER_CONFIRMED, "the offer was not confirmed")
