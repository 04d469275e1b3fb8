"""From the store into memory: at a start, after an error, and when an inactive dialog is needed."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.dialog import delivery, pairing, sending, transfer
from holdfast.dialog.core import Core, Parked
from holdfast.dialog.faults import UNPAIRED, put_in_fault
from holdfast.dialog.incoming import Piece
from holdfast.dialog.moving import State
from holdfast.dialog.outgoing import Run
from holdfast.dialog.place import Parcel, Place
from holdfast.dialog.ports import Rows
from holdfast.dialog.records import (
    ATTEMPT,
    BLOCK,
    COUNTER,
    DIALOG,
    ENDED,
    ENDING,
    EXPORTED,
    INACTIVE,
    KEPT,
    OUT,
    POSITION,
    QUIET,
    STAGED,
    TAKEN,
    TX,
    AttemptRow,
    DialogRow,
    InactiveRow,
    PositionRow,
    Record,
    StagedRow,
    TakenRow,
    after,
    decode,
    decode_block,
    encode,
    quiet_key,
)
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import CONFIRMING, FAULTED, INVITING, OFFERED, RESOLVING
from holdfast.dialog.transactions import place_of, transaction_of
from holdfast.machine import Erase, Put, RangeSet
from holdfast.types import Nanos
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected

Table = list[tuple[bytes, bytes]]
Tables = dict[str, Table]


def load(core: Core, tables: Tables) -> None:
    """Everything that the store has, at a start. The batch of the first turn folds what transactions left."""
    for _, value in tables.get(COUNTER, ()):
        core.counter = int.from_bytes(value, "big")
    core.endings.restore(tables.get(ENDED, ()), tables.get(ENDING, ()))
    positions = dict(tables.get(POSITION, ()))
    attempts = dict(tables.get(ATTEMPT, ()))
    for key, value in tables.get(DIALOG, ()):
        core.add(
            _dialog(core, key, decode(DialogRow, value), positions.get(key), attempts.get(key))
        )
    # rule: D-9d
    _fold_taken(core, tables.get(TAKEN, ()))
    _restore_blocks(core, tables.get(BLOCK, []), core.dialogs)
    for key, _ in tables.get(BLOCK, ()):
        core.blocks.unused(int.from_bytes(key, "big"))
    for d in core.dialogs.values():
        _ready(core, d)
    # rule: D-9a
    _fold_staged(core, tables.get(STAGED, ()))
    # No transaction of an earlier owner can still commit: the fence has a new epoch. Its application may not know the
    # outcome yet, and would be told 'aborted' if the row were gone.
    core.outcomes = [key for key, _ in tables.get(TX, ())]
    core.exported = dict(tables.get(EXPORTED, ()))
    core.kept = {key: int.from_bytes(value, "big") for key, value in tables.get(KEPT, ())}


def _dialog(
    core: Core, key: bytes, row: DialogRow, position: bytes | None, attempts: bytes | None
) -> Dialog:
    d = Dialog(core.env, key, row)
    if position is not None:
        d.restore_position(decode(PositionRow, position))
    if attempts is not None:
        poison = d.attempts.restore(decode(AttemptRow, attempts))
        if poison:
            delivery.report_poison(d, poison)
            d.stage.attempt = True
    return d


def _fold_taken(core: Core, rows: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        row = decode(TakenRow, value)
        d = core.dialogs.get(row.session)
        if d is not None:
            d.inc.received.add(row.first, row.stop)
            d.inc.taken.add(row.first, row.stop)
            d.inc.taken_count = d.inc.taken.total()
            d.stage.position = True
            for number in range(row.first, row.stop):
                d.stage.attempt |= d.attempts.counts.pop(number, 0) > 0
                d.attempts.aside.pop(number, None)
        core.writes.append(Erase(TAKEN, key, after(key)))


def _fold_staged(core: Core, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Messages of transactions that committed and were not numbered, in their order: existing is what tells."""
    for key, value in sorted(rows):
        core.prepared = max(core.prepared, place_of(key) + 1)
        row = decode(StagedRow, value)
        d = core.dialogs.get(row.session)
        if d is not None:
            bodies = unpack_block(row.body)
            assert not isinstance(bodies, Rejected), "this node wrote the row"
            sending.capture(d, list(bodies), row.due, row.after, transaction_of(key))
        core.writes.append(Erase(STAGED, key, after(key)))


def _restore_blocks(core: Core, rows: Table, dialogs: dict[bytes, Dialog]) -> None:
    restored: dict[tuple[bytes, int], RangeSet] = {}
    for key, value in rows:
        block = int.from_bytes(key, "big")
        core.blocks.next = max(core.blocks.next, block + 1)
        for record in decode_block(value):
            d = dialogs.get(record.session)
            numbers = restored.setdefault((record.session, record.kind), RangeSet())
            whole = (record.first, record.first + record.count)
            if d is not None and list(numbers.missing(*whole)) == [whole]:
                numbers.add(*whole)
                _restore_record(core, d, block, record)


def _restore_record(core: Core, d: Dialog, block: int, record: Record) -> None:
    before = d.out.buffered + d.inc.buffered
    stop = record.first + record.count
    if record.kind == OUT:
        below, due = d.extension
        run = Run(record.first, stop, bytes(record.body), record.due, record.after)
        run.due = due if record.first < below else record.due
        run.place.block = block
        d.out.restore(run)
    else:
        messages = unpack_block(record.body)
        assert not isinstance(messages, Rejected), "this node wrote the block"
        d.inc.restore_piece(Piece(record.first, messages, Place(block)))
    count = d.out.buffered + d.inc.buffered - before
    if count:
        core.blocks.restore(block, d.id, count)


def _ready(core: Core, d: Dialog) -> None:
    """All records of a dialog are here."""
    runs = d.out.runs()
    d.out.queue.clear()
    d.out.queue.extend(runs)
    d.inc.restored()
    d.advertised = d.inc.limit
    for tx in core.transactions.values():
        if tx.prepared and d.id in tx.ranges:
            # It may be committing: its messages are not for others.
            # rule: D-22e
            d.inc.lease_again(tx.id, tx.ranges[d.id])
    if not d.rules.in_order:
        delivery.set_aside(d)


def start(d: Dialog, now: Nanos) -> None:
    """The dialog is in memory: take up what it was doing."""
    d.since = now
    d.restarted_at = now if d.confirmed else 0
    if d.state in (RESOLVING, INVITING):
        pairing.begin(d, now)
    elif d.state == FAULTED and d.fault in UNPAIRED and d.settings.reroute_ns:
        d.reroute_at = now
    elif d.state in (CONFIRMING, OFFERED):
        d.control_at = now + pairing.INVITE_WAIT
        if d.state == OFFERED:
            d.control_at = now + pairing.OFFER_LIMIT
    elif d.connected and transfer.can_resume(d):
        transfer.begin_resume(d, now)


# -- one dialog --------------------------------------------------------------------------------------------------


def arrived(core: Core, now: Nanos, rows: Rows) -> Parked | None:
    """Rows of one dialog are here. Gives what was parked for it."""
    parked = core.reads.pop(rows.token, None)
    if parked is None:
        return None
    core.parked.pop(parked.dialog, None)
    d = _single(core, parked.dialog, rows.tables)
    if d is None:
        return parked
    core.add(d)
    _fold_taken(core, rows.tables.get(TAKEN, []))
    core.blocks.lift(d.id)
    _restore_blocks(core, rows.tables.get(BLOCK, []), {d.id: d})
    core.blocks.sweep()
    _ready(core, d)
    staged = [(k, v) for k, v in rows.tables.get(STAGED, []) if _belongs(core, d, k, v)]
    _fold_staged(core, staged)
    start(d, now)
    # rule: D-22b
    if parked.after_error:
        put_in_fault(d, now, "internal", "the dialog failed twice within a minute", tell=True)
    return parked


def _belongs(core: Core, d: Dialog, key: bytes, value: bytes) -> bool:
    """A row of this dialog whose transaction will not report its outcome any more."""
    return decode(StagedRow, value).session == d.id and transaction_of(key) not in core.transactions


def _single(core: Core, dialog: bytes, tables: Tables) -> Dialog | None:
    rows = tables.get(DIALOG)
    if rows:
        position = tables.get(POSITION)
        attempts = tables.get(ATTEMPT)
        return _dialog(
            core,
            dialog,
            decode(DialogRow, rows[0][1]),
            position[0][1] if position else None,
            attempts[0][1] if attempts else None,
        )
    inactive = tables.get(INACTIVE)
    if not inactive:
        return None
    core.env.count("reactivated")
    return reactivated(core, dialog, decode(InactiveRow, inactive[0][1]))


def reactivated(core: Core, dialog: bytes, row: InactiveRow) -> Dialog:
    """An inactive dialog as an active one; the rows change with the batch of this turn."""
    d = Dialog(core.env, dialog, row.dialog)
    d.restore_position(row.position)
    quiet = quiet_key(row.since, dialog)
    core.writes += (Erase(INACTIVE, dialog, after(dialog)), Erase(QUIET, quiet, after(quiet)))
    d.stage.row = d.stage.position = True
    return d


def deactivate(core: Core, d: Dialog, now: Nanos) -> None:
    """Keep the dialog in the store only."""
    since = core.env.wall(now)
    value = encode(InactiveRow(d.row(), d.position(), since))
    core.writes += (
        Put(INACTIVE, d.id, value),
        Put(QUIET, quiet_key(since, d.id), b""),
        Erase(DIALOG, d.id, after(d.id)),
        Erase(POSITION, d.id, after(d.id)),
    )
    core.forget(d)
    core.blocks.forget(d.id)
    core.env.count("deactivated")


def imported(core: Core, state: State) -> Dialog:
    """An end that moved here: record it as this store's own."""
    d = Dialog(core.env, state.dialog, state.row)
    d.restore_position(state.position)
    core.add(d)
    for record in state.records:
        messages = unpack_block(record.body)
        if isinstance(messages, Rejected):
            continue
        if record.kind == OUT:
            run = Run(
                record.first,
                record.first + record.count,
                bytes(record.body),
                record.due,
                record.after,
            )
            before = len(d.out.queue)
            d.out.restore(run)
            for part in list(d.out.queue)[before:]:
                part.place = Place()  # Each part is stored, and freed, by itself.
                d.stage.runs.append(part)
        else:
            d.inc.restore_piece(Piece(record.first, messages))
    for piece in d.inc.early.values():
        piece.place = Place()
        d.stage.parcels.append(Parcel(piece.first, piece.messages, piece.place))
    _ready(core, d)
    d.stage.row = d.stage.position = True
    return d
