"""Messages, acknowledgements, windows and resuming between two ends that are paired."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_intdigest

from holdfast.dialog.faults import mirror, put_in_fault, recovered
from holdfast.dialog.frames import RANGES_MAX, Ack, Messages, Resume, WindowProbe
from holdfast.dialog.ids import End
from holdfast.dialog.place import Parcel
from holdfast.dialog.proof import prove, proven
from holdfast.dialog.records import flat
from holdfast.dialog.resume import disagreement
from holdfast.dialog.schedule import opens_at
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import FAULTED, OPEN
from holdfast.types import NEVER, SECOND, Nanos
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected

REPEAT_FIRST: Final = SECOND // 2
REPEAT_MAX: Final = 30 * SECOND
ASK_AGAIN: Final = SECOND // 4
"""A question that is older is asked again when the partner comes; a younger one is on its way."""
FIN: Final = 1
DONE: Final = 2


# -- messages in -------------------------------------------------------------------------------------------------


def on_messages(d: Dialog, frame: Messages) -> None:
    """Apply the receive rules; what is new is stored with this turn, and acknowledged after that."""
    env = d.env
    # rule: D-4a
    if d.state != OPEN or not d.resumed:
        # Before the resume the numbers may be used a second time. The partner sends again after it.
        env.count("messages_before_resume", frame.count)
        return
    # rule: D-frames-1a
    if frame.check != xxh3_64_intdigest(frame.body):
        env.count("damaged")
        return
    messages = unpack_block(frame.body)
    if isinstance(messages, Rejected) or len(messages) != frame.count or frame.first < 0:
        env.count("malformed")
        return
    # rule: D-frames-1b
    if max(map(len, messages), default=0) > d.terms.message_bytes_max:
        env.count("oversized", frame.count)
        return
    if d.settings.simplex == "send":
        env.count("simplex_violated", frame.count)
        return
    inc = d.inc
    arrival = inc.arrive(frame.first, messages)
    if arrival.stored:
        for piece in arrival.stored:
            body = frame.body if len(piece.messages) == frame.count else None
            parcel = Parcel(piece.first, piece.messages, piece.place, body, frame.check)
            d.stage.parcels.append(parcel)
        d.stage.position = True
    if arrival.discarded:
        env.count("duplicates_discarded", arrival.discarded)
    if arrival.refused:
        env.count("outside_window", arrival.refused)
    d.ack_due = True


def on_ack(d: Dialog, now: Nanos, frame: Ack) -> None:
    if not d.resumed or d.state != OPEN:
        return
    out = d.out
    # rule: D-2b
    if not out.valid(frame.ranges) or not out.credible(frame.ranges):
        # Never frees anything: a peer that acknowledges what was not sent is wrong about everything.
        d.env.count("false_acknowledgements")
        return
    d.free_runs(out.acknowledge(frame.ranges, now))
    if frame.limit > out.limit:
        out.limit = frame.limit
        d.control_tries = 0
    note_lowest(d, frame.lowest)
    if frame.heard & FIN and d.total_out >= 0:
        d.fin_acked = True
    if frame.heard & DONE:
        d.done_acked = True


def on_window_probe(d: Dialog, frame: WindowProbe) -> None:
    if d.resumed and d.state == OPEN:
        note_lowest(d, frame.lowest)
        d.ack_due = True


def note_lowest(d: Dialog, lowest: int) -> None:
    """Without at-least-once: numbers below the lowest that may still be sent are settled."""
    # rule: D-21a
    if not d.rules.acknowledges and 0 < lowest <= d.inc.limit and d.inc.collapse(lowest):
        d.stage.position = True


# -- messages out ------------------------------------------------------------------------------------------------


def transmit_at(d: Dialog, now: Nanos) -> Nanos:
    """When the next run may be transmitted; `NEVER` while something else must happen first."""
    out = d.out
    if d.state != OPEN or not d.resumed or not d.connected or not out.queue:
        return NEVER
    run = out.queue[0]
    if run.first >= out.limit:
        return NEVER
    wall = d.env.wall(now)
    opens = opens_at(d.settings.hours, max(wall, run.after)) - d.env.wall_offset
    # rule: D-schedule-1a
    return max(opens, d.pace.opens_at(now))


def transmit(d: Dialog, now: Nanos) -> int:
    """Transmit one run; gives the bytes."""
    out = d.out
    run = out.transmit(now)
    if not out.acknowledges:
        d.free_runs([run])
        _post_run(d, run.first, run.count, run.check, run.body)
    else:
        for part in out.trimmed(run) if run.sends > 1 else [run]:
            _post_run(d, part.first, part.count, part.check, part.body)
    d.pace.used(now, run.count)
    if not d.since:
        d.since = now
    return run.size


def _post_run(d: Dialog, first: int, count: int, check: int, body: bytes) -> None:
    d.stage.frames.append(Messages(d.to, d.far, d.epoch, first, count, check, memoryview(body)))


def flush(d: Dialog) -> None:
    """End of the turn: tell the partner what arrived and how far it may send."""
    if not d.resumed or not d.connected or d.state != OPEN:
        return
    limit = d.inc.open_window()
    opened = limit - d.advertised
    if opened and (opened >= max(1, d.inc.quota_messages // 4) or _nearly_shut(d)):
        d.ack_due = True
    if d.ack_due:
        d.ack_due = False
        d.advertised = limit
        heard = (FIN if d.total_in >= 0 else 0) | (DONE if d.done_in else 0)
        d.post(Ack(d.to, d.far, d.epoch, d.ranges(), limit, d.out.lowest, heard))


def _nearly_shut(d: Dialog) -> bool:
    stops = d.inc.received.stops
    return d.advertised - (stops[-1] if stops else 0) <= d.inc.quota_messages // 8


def retransmit(d: Dialog, now: Nanos) -> None:
    """Queue again what was not acknowledged in time."""
    late = d.out.overdue(now)
    if late:
        d.env.count("retransmitted", sum(run.count for run in late))


def probe(d: Dialog) -> None:
    d.post(WindowProbe(d.to, d.far, d.epoch, d.out.next, d.out.lowest))


def window_shut(d: Dialog) -> bool:
    """Something is queued, the window does not let it go, and no acknowledgement is under way that could open it."""
    out = d.out
    return bool(out.queue) and out.queue[0].first >= out.limit and not out.flight


# -- resuming ----------------------------------------------------------------------------------------------------


def begin_resume(d: Dialog, now: Nanos) -> None:
    """A link session has begun, or this end has: ask where the partner stands, and say where this end does."""
    d.resumed = False
    d.out.requeue()
    d.control_tries = 0
    d.since = now
    ask(d, now)


def ask(d: Dialog, now: Nanos) -> None:
    """Only an answer to this question counts, compared with what this end knew when it asked: whatever was under way
    at that time is older than the answer."""
    d.asked_at = now
    d.question = d.question + 1 if d.question else 1 + int.from_bytes(d.env.entropy(7), "big")
    stops = d.inc.received.stops
    d.asked = (stops[-1] if stops else 0, flat(d.out.acked))
    d.post(resume_frame(d, d.question, 0))


def resume_frame(d: Dialog, question: int, echo: int) -> Resume:
    out, inc = d.out, d.inc
    proof = b""
    if d.epoch and d.secret:
        proof = prove(d.secret, d.id, d.epoch, End(d.env.node, d.env.store))
    return Resume(
        d.to, d.far, d.epoch, d.env.store, d.env.owner_epoch, out.next, d.ranges(), inc.open_window(), out.lowest,
        question, echo, proof, d.total_out, d.fault,
    )  # fmt: skip


def on_resume(d: Dialog, now: Nanos, peer: bytes, frame: Resume) -> None:
    """The partner asks where this end stands, or says where it does."""
    if not _admitted(d, peer, frame):
        return
    well_formed = _sorted(frame.ranges) and min(frame.next, frame.lowest, frame.limit) >= 0
    if not well_formed or len(frame.ranges) > RANGES_MAX:
        d.env.count("malformed")
        return
    d.heard_at = now
    if frame.ask:
        _asked(d, now, frame)
    # rule: D-4f
    if frame.echo and frame.echo == d.question and not d.resumed:
        _answered(d, now, frame)


def _asked(d: Dialog, now: Nanos, frame: Resume) -> None:
    if frame.ask > d.last_asked:
        # It has begun a new session, so what is in flight may be lost.
        d.last_asked = frame.ask
        d.out.requeue()
        if not frame.fault and recovered(d, now):
            begin_resume(d, now)
        elif d.state == OPEN and not d.resumed and now - d.asked_at >= ASK_AGAIN:
            # The partner was not there when this end asked.
            ask(d, now)
    d.post(resume_frame(d, 0, frame.ask))


def _answered(d: Dialog, now: Nanos, frame: Resume) -> None:
    """Compare; go on, or fault both ends."""
    # rule: D-4g
    top, acked = d.asked
    problem = disagreement(d.out, d.inc, frame, top, acked)
    if problem:
        put_in_fault(d, now, "position", problem, tell=True)
        return
    if frame.fault and d.state == OPEN:
        mirror(d, now, frame.fault)
    elif not frame.fault:
        recovered(d, now)
    _adopt(d, frame)


def _admitted(d: Dialog, peer: bytes, frame: Resume) -> bool:
    """Whether the frame comes from the partner's present end. A newer end must prove that it is one."""
    partner = d.partner
    assert partner is not None, "frames of a dialog without a partner are refused before"
    env = d.env
    # rule: D-18c
    if frame.epoch < d.partner_epoch:
        env.count("stale_epoch")
        return False
    end = End(peer, frame.store)
    if frame.epoch > d.partner_epoch or end != partner:
        # rule: D-18d
        if frame.epoch <= d.partner_epoch or not proven(
            frame.proof, d.secret, d.id, frame.epoch, end
        ):
            env.count("forged")
            return False
        d.partner, d.partner_epoch, d.partner_owner = end, frame.epoch, frame.owner_epoch
        d.out.requeue()
        d.resumed = False
        d.last_asked = 0
        d.stage.row = True
        d.event("moved", "the partner's end moved to another node")
    if frame.owner_epoch < d.partner_owner:
        env.count("stale_owner")
        return False
    if frame.owner_epoch > d.partner_owner:
        d.partner_owner = frame.owner_epoch
        d.last_asked = 0  # A new unit counts its questions from another number.
        d.stage.row = True
    return True


def _adopt(d: Dialog, frame: Resume) -> None:
    """The positions agree: free what arrived, and go on from there."""
    out = d.out
    d.free_runs(out.acknowledge(frame.ranges))
    out.requeue()
    out.limit = max(out.limit, frame.limit)
    note_lowest(d, frame.lowest)
    if frame.total >= 0 and d.total_in < 0:
        d.total_in = frame.total
        d.stage.position = True
    d.resumed = d.state == OPEN
    d.since = d.restarted_at = 0
    d.control_tries = 0
    d.advertised = max(d.advertised, d.inc.limit)
    # Said again in this session, in case the partner did not get it in the last one.
    d.fin_sent = d.done_sent = d.fin_acked = d.done_acked = False


def _sorted(ranges: list[int]) -> bool:
    if len(ranges) % 2 or (ranges and ranges[0] < 0):
        return False
    return all(a < b for a, b in pairwise(ranges))


def can_resume(d: Dialog) -> bool:
    return d.confirmed and d.partner is not None and d.state in (OPEN, FAULTED)
