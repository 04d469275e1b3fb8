"""Time to live: of messages (notice, extension, expiry) and of the session (negotiated, renegotiated).

Expiry of a message with at-least-once delivery is a notice: 'not acknowledged', never 'not delivered'. Nothing is
deleted; the application extends or terminates. Without at-least-once an expired message that was not transmitted is
dropped. Expiry of the session faults both ends and deletes nothing.
"""

from __future__ import annotations

from holdfast.dialog.faults import MIRRORED, back_in_service, put_in_fault
from holdfast.dialog.frames import TtlAnswer, TtlProposal
from holdfast.dialog.ports import Agreed, ExtendSession
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import FAULTED, OPEN
from holdfast.machine import RangeSet
from holdfast.types import NEVER, SECOND, Nanos

RESUME_GRACE: Nanos = 60 * SECOND
"""After a start, expiry waits for the partner's answer for at most this time: the acknowledgement may be there."""


# -- messages ----------------------------------------------------------------------------------------------------


def next_expiry(d: Dialog) -> Nanos:
    """When the next message expires, in the machine's time; never before the grace after a start."""
    if not d.out.timed:
        return NEVER
    due = NEVER
    for run in d.out.runs():
        if run.due and not d.notified.covers(run.first, run.stop):
            due = min(due, max(0, run.due - d.env.wall_offset))
    # rule: D-19c
    return max(due, d.restarted_at + RESUME_GRACE) if d.restarted_at else due


def _may_expire(d: Dialog, now: Nanos) -> bool:
    """Resume before expiring: what looks unacknowledged after a restart may have arrived long ago."""
    return not d.restarted_at or now - d.restarted_at >= RESUME_GRACE


def expire(d: Dialog, now: Nanos) -> None:
    """Give notice of messages that were not acknowledged in time."""
    wall = d.env.wall(now)
    if not d.rules.acknowledges:
        dropped = d.out.drop_expired(wall)
        d.free_runs(dropped)
        for run in dropped:
            d.env.count("expired", run.count)
            # rule: D-ttl-1b
            d.event("dropped", "expired before transmission", run.first, run.count)
        return
    # rule: D-19b
    if not _may_expire(d, now):
        return
    for run in d.out.runs():
        if not run.due or run.due > wall:
            continue
        for first, stop in list(d.notified.missing(run.first, run.stop)):
            d.notified.add(first, stop)
            d.stage.position = True
            d.env.count("expired", stop - first)
            # rule: D-19a
            d.event("expired", "not acknowledged in time", first, stop - first)
    if d.out.lowest and d.stage.position:
        # Acknowledged numbers need no record; without this a long dialog would keep one range for each notice.
        d.notified.add(0, d.out.lowest)


def extend_messages(d: Dialog, now: Nanos, token: int, ttl_ns: Nanos) -> None:
    """New time to live for everything unacknowledged."""
    due = d.env.wall(now) + ttl_ns if ttl_ns else 0
    # rule: D-ttl-1a
    d.extension = (d.out.next, due)
    for run in d.out.runs():
        run.due = due
    d.out.timed = d.out.timed or bool(due)
    d.notified = RangeSet()
    d.stage.position = True
    d.answer(token, None)


# -- the session -------------------------------------------------------------------------------------------------


def start_session_clock(d: Dialog, now: Nanos) -> None:
    ttl = d.terms.session_ttl_ns
    d.expires = d.env.wall(now) + ttl if ttl else 0
    d.stage.row = True


def session_expiry(d: Dialog) -> Nanos:
    if not d.expires or d.state != OPEN:
        return NEVER
    due = max(0, d.expires - d.env.wall_offset)
    # rule: D-19d
    return max(due, d.restarted_at + RESUME_GRACE) if d.restarted_at else due


def expire_session(d: Dialog, now: Nanos) -> None:
    if d.state == OPEN and session_expiry(d) <= now:
        # rule: D-19e
        put_in_fault(d, now, "session-ttl", "the session did not complete within its time to live")


def propose(d: Dialog, request: ExtendSession) -> None:
    """Ask the partner for a new time to live from now."""
    if d.state not in (OPEN, FAULTED) or not d.confirmed:
        d.refuse(
            request.token, "state", f"the dialog is {d.state}; its time to live was not changed"
        )
        return
    if d.proposal is not None:
        d.refuse(request.token, "busy", "another proposal is under way; nothing was changed")
        return
    if request.ttl_ns <= 0:
        d.refuse(request.token, "misuse", "a time to live must be positive; nothing was changed")
        return
    d.ttl_number += 1
    d.stage.row = True
    d.proposal = (request.token, request.ttl_ns, d.ttl_number, request.deadline)
    repeat_proposal(d)


def repeat_proposal(d: Dialog) -> None:
    if d.proposal is not None:
        _, ttl_ns, number, _ = d.proposal
        d.post(TtlProposal(d.to, d.far, d.epoch, number, ttl_ns))


def on_proposal(d: Dialog, now: Nanos, frame: TtlProposal) -> None:
    """Accept within this end's own limit; the answer says what holds."""
    # rule: D-ttl-2a
    accepted = 0 < frame.ttl_ns <= d.settings.session_ttl_ns_max and d.state in (OPEN, FAULTED)
    if accepted:
        _extended(d, now, frame.ttl_ns)
    left = max(0, d.expires - d.env.wall(now)) if d.expires else 0
    d.post(
        TtlAnswer(d.to, d.far, d.epoch, frame.number, accepted, frame.ttl_ns if accepted else left)
    )


def on_answer(d: Dialog, now: Nanos, frame: TtlAnswer) -> None:
    if d.proposal is None or d.proposal[2] != frame.number:
        return
    token, ttl_ns, _, _ = d.proposal
    d.proposal = None
    if frame.accepted:
        _extended(d, now, ttl_ns)
        d.answer(token, Agreed(ttl_ns))
    else:
        d.refuse(
            token, "declined", "the partner does not agree to this time to live; the old one holds"
        )


def time_out_proposal(d: Dialog, now: Nanos) -> None:
    if d.proposal is not None and d.proposal[3] <= now:
        token = d.proposal[0]
        d.proposal = None
        d.refuse(
            token,
            "timeout",
            "the partner did not answer; it may still agree, the old time to live holds here",
        )


def _extended(d: Dialog, now: Nanos, ttl_ns: Nanos) -> None:
    d.expires = d.env.wall(now) + ttl_ns
    d.stage.row = True
    if d.state == FAULTED and d.fault.removeprefix(MIRRORED) == "session-ttl":
        back_in_service(d, now)
