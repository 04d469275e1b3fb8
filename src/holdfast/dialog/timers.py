"""The one deadline of a dialog, and what to do when it comes. An idle dialog has none."""

from __future__ import annotations

from typing import Final

from holdfast.dialog import delivery, lifecycle, pairing, sending, transfer, ttl
from holdfast.dialog.faults import MIRRORED, UNPAIRED, put_in_fault
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import CONFIRMING, FAULTED, INVITING, OFFERED, OPEN
from holdfast.dialog.transfer import REPEAT_FIRST, REPEAT_MAX
from holdfast.types import NEVER, SECOND, Nanos

QUEUE_CHECK: Final = SECOND // 2
"""How soon a retransmission is considered again that waits for the queue of the link."""


def next_deadline(d: Dialog, now: Nanos) -> Nanos:
    """When this dialog must be looked at again."""
    _set_control(d, now)
    due = min(d.control_at, d.quota.next_deadline(), delivery.next_deadline(d), d.idle_at)
    due = min(due, ttl.session_expiry(d), ttl.next_expiry(d))
    if d.state == FAULTED and d.fault in UNPAIRED:
        due = min(due, d.reroute_at)
    if d.proposal is not None:
        due = min(due, d.proposal[3])
    if d.resumed and d.connected and d.state == OPEN:
        at = d.out.retry_at()
        due = min(due, max(at, now + QUEUE_CHECK) if _queued(d) else at)
        at = transfer.transmit_at(d, now)
        if at > now:
            # One that may go now waits for the network: acknowledgements wake it.
            due = min(due, at)
    return due


def _set_control(d: Dialog, now: Nanos) -> None:
    """Whether something must be repeated until it is answered."""
    if d.state in (INVITING, CONFIRMING, OFFERED):
        return  # Set where the state was entered, and by `_control`.
    if not d.connected or not _repeats(d):
        d.control_at = NEVER
        d.control_tries = 0
    elif d.control_at == NEVER:
        d.control_at = now + REPEAT_FIRST


def _repeats(d: Dialog) -> bool:
    if transfer.can_resume(d) and not d.resumed:
        return d.state == OPEN or d.fault.startswith(MIRRORED)
    if d.state != OPEN:
        return d.proposal is not None
    return lifecycle.repeats(d) or d.proposal is not None or transfer.window_shut(d)


def wake(d: Dialog, now: Nanos) -> None:
    """The deadline has come: do what is due."""
    _check_silence(d, now)
    sending.time_out(d, now)
    delivery.time_out(d, now)
    ttl.time_out_proposal(d, now)
    ttl.expire_session(d, now)
    if d.out.timed:
        ttl.expire(d, now)
    late = d.resumed and d.connected and d.state == OPEN and d.out.retry_at() <= now
    # rule: D-20a
    if late and not _queued(d):
        transfer.retransmit(d, now)
    if d.state == FAULTED and d.fault in UNPAIRED and d.reroute_at <= now:
        pairing.look_again(d, now)
    elif d.control_at <= now:
        _control(d, now)


def _queued(d: Dialog) -> bool:
    """The link has a long queue: the earlier copies are still in it, and another one would only make it longer."""
    return d.partner is not None and d.partner.node in d.env.queued


def _control(d: Dialog, now: Nanos) -> None:
    """Repeat, with growing intervals."""
    d.control_tries += 1
    d.control_at = now + min(REPEAT_FIRST << min(d.control_tries, 10), REPEAT_MAX)
    if d.state == INVITING:
        pairing.repeat_invites(d, now)
    elif d.state == CONFIRMING:
        pairing.confirm(d)
    elif d.state == OFFERED:
        pairing.withdraw(d)
    elif transfer.can_resume(d) and not d.resumed:
        transfer.ask(d, now)
    else:
        lifecycle.repeat(d)
        ttl.repeat_proposal(d)
        if d.state == OPEN and transfer.window_shut(d):
            # rule: D-13c
            transfer.probe(d)


def _check_silence(d: Dialog, now: Nanos) -> None:
    """A partner that does not answer although there is a link, or was recorded and never answered, is a fault."""
    if d.state == CONFIRMING:
        # rule: D-16b
        if pairing.silent(d, now):
            put_in_fault(
                d,
                now,
                "partner-silent",
                "the recorded partner does not answer; it may have confirmed",
            )
        return
    waits = d.state == OPEN and d.connected and (not d.resumed or bool(d.out.flight))
    if not waits:
        return
    if d.since and pairing.silent(d, now) and now - d.heard_at >= d.settings.partner_silent_ns:
        put_in_fault(
            d, now, "partner-silent", "the link is up and the partner's end does not answer"
        )
