"""Moving one end of a dialog, with its state, to another node.

The source records `moved`, with the epoch of the new end and where it is, before the state leaves it. From then on it
only says where the dialog went. The target records the state under its own store and resumes with the partner, which
demands proof by the secret of `Confirm` and refuses every lower epoch. So a source that was frozen cannot come back.
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_64_intdigest

from holdfast.dialog.frames import Moved
from holdfast.dialog.ids import End
from holdfast.dialog.lifecycle import fail_waiting
from holdfast.dialog.proof import prove, proven
from holdfast.dialog.records import IN, OUT, DialogRow, PositionRow, Record, decode, encode
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import FAULTED, MOVED, OPEN
from holdfast.types import Nanos
from holdfast.wire.blocks import pack_block


class State(msgspec.Struct, frozen=True, array_like=True):
    """An exported end."""

    dialog: bytes
    row: DialogRow
    position: PositionRow
    records: list[Record]
    target: End


def refusal(d: Dialog) -> str:
    """Why this end cannot move now; empty when it can."""
    if d.state not in (OPEN, FAULTED) or not d.confirmed:
        return f"the dialog is {d.state}; only a paired dialog moves"
    if d.quota.reserved or any(not lease.startswith(b"poison") for lease in d.inc.leases):
        return "a transaction uses the dialog; move it when that has ended"
    return ""


def move_out(d: Dialog, now: Nanos, target: End) -> bytes:
    """Record that the dialog has moved, and give its state. It leaves when the record is durable."""
    row = msgspec.structs.replace(
        d.row(), epoch=d.epoch + 1, state=OPEN, fault="", detail="", moved_to=None
    )
    state = State(d.id, row, d.position(), _records(d), target)
    data = encode(state)
    fail_waiting(d, "the dialog moves to another node; nothing took effect here")
    d.change(MOVED, now)
    # rule: D-18b
    d.epoch += 1
    d.moved_to = target
    for run in d.out.clear():
        d.stage.freed.append((run.place, run.count))
    d.free_pieces(d.inc.clear())
    d.event("moved", "this end moved to another node")
    return data


def _records(d: Dialog) -> list[Record]:
    records = [
        Record(OUT, d.id, run.first, run.count, run.check, memoryview(run.body), run.due, run.after)
        for run in d.out.runs()
    ]
    pieces = [*d.inc.ready, *d.inc.early.values()]
    for leased in d.inc.leases.values():
        pieces += leased
    for piece in pieces:
        body = pack_block(piece.messages)
        check = xxh3_64_intdigest(body)
        records.append(Record(IN, d.id, piece.first, len(piece.messages), check, memoryview(body)))
    return records


def read_state(data: bytes) -> State | str:
    """An exported state, or why it is none."""
    try:
        return decode(State, data)
    except (msgspec.DecodeError, ValueError) as error:
        return f"not an exported dialog ({error})"


def redirect(d: Dialog) -> Moved:
    """The answer of an end that has moved, to every frame."""
    target = d.moved_to
    assert target is not None
    proof = prove(d.secret, d.id, d.epoch, target)
    return Moved(d.to, d.far, d.epoch, target.node, target.store, proof)


def on_moved(d: Dialog, frame: Moved) -> bool:
    """The partner's end is elsewhere now. True when it is, and resuming must follow."""
    target = End(frame.node, frame.store)
    if frame.epoch <= d.partner_epoch:
        d.env.count("stale_epoch")
        return False
    # rule: D-18h
    if not proven(frame.proof, d.secret, d.id, frame.epoch, target):
        d.env.count("forged")
        return False
    d.partner, d.partner_epoch, d.partner_owner = target, frame.epoch, 0
    d.resumed = False
    d.out.requeue()
    d.stage.row = True
    d.event("moved", "the partner's end moved to another node")
    return True
