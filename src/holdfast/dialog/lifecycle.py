"""The end of a dialog: completion by both ends, termination by one, what remains of it."""

from __future__ import annotations

from typing import Final

from holdfast.dialog.frames import Done, Ended, Fin, Terminate
from holdfast.dialog.ports import Answer, Refused
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import COMPLETED, MOVED, OPEN, TERMINATED
from holdfast.types import Nanos

REASON_MAX: Final = 500
ENDED_TEXT: Final = "the dialog has ended; nothing took effect"


def complete(d: Dialog, token: int) -> None:
    """This end sends no more. Recorded with this turn; the partner learns it by `Fin`."""
    if d.state in (TERMINATED, COMPLETED, MOVED):
        d.refuse(token, "ended", f"the dialog is {d.state}; nothing was changed")
    elif d.quota.waiting or d.quota.reserved:
        d.refuse(
            token, "misuse", "sends of this dialog are under way; wait for them, then complete"
        )
    else:
        if d.total_out < 0:
            d.total_out = d.out.next
            d.stage.position = True
        d.answer(token, None)


def advance(d: Dialog, now: Nanos) -> None:
    """Say `Fin` and `Done` when they are due, and end the dialog when both ends are done."""
    if d.state != OPEN or d.total_out < 0 or not d.resumed:
        return
    if not d.fin_sent:
        d.fin_sent = True
        d.post(Fin(d.to, d.far, d.epoch, d.total_out))
    if not all_here(d):
        return
    if not d.done_sent:
        d.done_sent = True
        d.post(Done(d.to, d.far, d.epoch))
    # rule: D-life-1a
    if d.done_in and d.done_acked:
        # The partner repeats its `Done` if the acknowledgement is lost, and learns that this end is over.
        d.change(COMPLETED, now)
        d.event("completed", count=d.out.next)
        d.stage.ended = ("completed", "")


def repeat(d: Dialog) -> None:
    """Say again what the partner has not confirmed."""
    if d.state != OPEN or d.total_out < 0 or not d.resumed:
        return
    if not d.fin_acked:
        d.post(Fin(d.to, d.far, d.epoch, d.total_out))
    if all_here(d) and not d.done_acked:
        d.post(Done(d.to, d.far, d.epoch))


def repeats(d: Dialog) -> bool:
    """Whether something must be said again until it is confirmed."""
    if d.state != OPEN or d.total_out < 0 or not d.resumed:
        return False
    return not d.fin_acked or (all_here(d) and not d.done_acked)


def all_here(d: Dialog) -> bool:
    """This end sent all, all of it was acknowledged, and the application took everything that the partner sent."""
    if d.total_out < 0 or d.total_in < 0 or not d.inc.empty or d.out.buffered:
        return False
    # rule: D-life-1b
    return not d.rules.acknowledges or d.inc.received_count >= d.total_in


def on_fin(d: Dialog, frame: Fin) -> None:
    if d.state != OPEN or not d.resumed:
        return
    stops = d.inc.received.stops
    if frame.total < (stops[-1] if stops and d.rules.acknowledges else 0):
        d.env.count("malformed")
        return
    if d.total_in < 0:
        d.total_in = frame.total
        d.stage.position = True
        if not d.rules.acknowledges:
            d.inc.collapse(min(frame.total, d.inc.limit))
    d.ack_due = True


def on_done(d: Dialog, frame: Done) -> None:
    if d.state != OPEN or not d.resumed or frame.session != d.id:
        return
    if not d.done_in:
        d.done_in = True
        d.stage.position = True
    d.ack_due = True


def terminate(d: Dialog, now: Nanos, reason: str) -> None:
    """End the dialog from this side. The partner gets one notice, best effort."""
    reason = reason[:REASON_MAX]
    unacknowledged = d.out.buffered
    if d.partner is not None and d.confirmed:
        d.post(Terminate(d.to, d.far, d.epoch, reason, d.ranges()))
    if d.state != TERMINATED:
        d.change(TERMINATED, now)
    d.event("terminated", reason, count=unacknowledged)
    fail_waiting(d, ENDED_TEXT)
    d.stage.ended = ("terminated", reason)


def on_terminate(d: Dialog, now: Nanos, frame: Terminate) -> None:
    """The partner ended the dialog. Its messages that are here can still be read."""
    if d.state in (TERMINATED, COMPLETED):
        return
    if d.out.valid(frame.ranges):
        d.free_runs(d.out.acknowledge(frame.ranges))
    over(d, now, "terminated", frame.reason[:REASON_MAX])


def over(d: Dialog, now: Nanos, how: str, reason: str) -> None:
    """The dialog is over at the other end."""
    unacknowledged = d.out.buffered
    d.change(TERMINATED, now)
    for run in d.out.clear():
        d.stage.freed.append((run.place, run.count))
    d.event("terminated", reason, count=unacknowledged)
    fail_sends(d, "the partner has ended the dialog; nothing was sent")
    # rule: D-life-2a
    if d.inc.empty:
        d.stage.ended = (how, reason)


def on_ended(d: Dialog, now: Nanos, frame: Ended) -> None:
    """The partner's end is over for good. The final ranges say what arrived there."""
    if d.state in (TERMINATED, COMPLETED):
        return
    if d.out.valid(frame.ranges):
        d.free_runs(d.out.acknowledge(frame.ranges))
    if frame.how == "completed" and not d.out.buffered and d.total_out >= 0:
        # It completed, so it had everything and said so; only the last word was lost.
        d.change(COMPLETED, now)
        d.event("completed", count=d.out.next)
        d.stage.ended = ("completed", "")
        return
    over(
        d, now, "terminated", f"the partner's end is over: {frame.how} {frame.reason[:REASON_MAX]}"
    )


def fail_sends(d: Dialog, text: str) -> None:
    for request in d.quota.waiting:
        d.stage.effects.append(Answer(request.token, Refused("ended", text)))
    d.quota.waiting.clear()


def fail_waiting(d: Dialog, text: str) -> None:
    fail_sends(d, text)
    for taker in d.takers:
        d.stage.effects.append(Answer(taker.token, Refused("ended", text)))
    d.takers.clear()
    if d.proposal is not None:
        d.stage.effects.append(Answer(d.proposal[0], Refused("ended", text)))
        d.proposal = None


def drained(d: Dialog) -> None:
    """A dialog that the partner terminated goes when the application has read everything."""
    if d.state == TERMINATED and d.inc.empty and d.stage.ended is None:
        d.stage.ended = ("terminated", d.detail)
