"""Transactions over sends and receives on several dialogs of one store.

| step     | dialogs | store |
| -------- | ------- | ----- |
| active   | received messages are leased; room for sent ones is reserved | the application's own statements |
| prepared | every dialog agreed; the rows are fixed | fence, then `taken`, `staged`, and the transaction's id last |
| outcome  | committed: leases are settled, sends numbered; aborted: all as before | the unit folds and erases rows |

A transaction never numbers a message: only the unit does, in its own batch, after the commit. At a start the unit
folds whatever rows it finds, which covers a death between commit and notice. It folds staged messages in the order in
which their transactions were prepared: one that began after another had committed was prepared after it.
"""

from __future__ import annotations

from typing import Final

from holdfast.dialog.facts import DialogTransactionFact
from holdfast.dialog.incoming import Piece
from holdfast.dialog.records import (
    COMMITTED,
    KEPT,
    NUMBER_BYTES,
    STAGED,
    TAKEN,
    TX,
    StagedRow,
    TakenRow,
    after,
    encode,
    number_key,
)
from holdfast.machine import Erase, Put, Write
from holdfast.types import SECOND, Nanos
from holdfast.wire.blocks import pack_block

TRANSACTIONS_MAX: Final = 4096
KEPT_NS: Final = 7 * 86_400 * SECOND
"""An outcome that was not confirmed is forgotten after this time."""


class Staged:
    """Messages that a transaction sends on one dialog."""

    __slots__ = ("after", "bodies", "dialog", "due")

    def __init__(self, dialog: bytes, bodies: list[bytes], due: int, after: int) -> None:
        self.dialog = dialog
        self.bodies = bodies
        self.due = due
        self.after = after


class Transaction:
    __slots__ = ("dialogs", "id", "place", "prepared", "ranges", "sends")

    def __init__(self, tx: bytes) -> None:
        self.id = tx
        self.dialogs: dict[bytes, None] = {}
        """Every dialog that takes part."""
        self.sends: list[Staged] = []
        self.ranges: dict[bytes, list[tuple[int, int]]] = {}
        """What was received, by dialog; fixed when it is prepared."""
        self.prepared = False
        self.place = 0
        """Its place in the order in which transactions were prepared."""

    def fact(self, now: Nanos, committed: bool) -> DialogTransactionFact:
        """What it comprised and how it ended, for the audit."""
        taken = sum(stop - first for ranges in self.ranges.values() for first, stop in ranges)
        sent = sum(len(staged.bodies) for staged in self.sends)
        event = "committed" if committed else "aborted"
        return DialogTransactionFact(now, event, self.id.hex(), len(self.dialogs), taken, sent)

    def lease_ranges(self, dialog: bytes, pieces: list[Piece]) -> None:
        self.ranges[dialog] = [(piece.first, piece.stop) for piece in pieces]

    def inserts(self, epoch: int, kept_at: int = 0) -> list[Put]:
        """The rows that commit it. Each must be new; the id comes last. `kept_at` is the wall time of an outcome that
        stays."""
        rows: list[Put] = []
        for dialog, ranges in self.ranges.items():
            for first, stop in ranges:
                value = encode(TakenRow(dialog, first, stop, epoch))
                rows.append(Put(TAKEN, dialog + number_key(first), value))
        for index, staged in enumerate(self.sends):
            body = memoryview(pack_block(staged.bodies))
            value = encode(StagedRow(staged.dialog, body, staged.due, staged.after))
            rows.append(Put(STAGED, self._staged_key() + index.to_bytes(4, "big"), value))
        if kept_at:
            rows.append(Put(KEPT, self.id, number_key(kept_at)))
        rows.append(Put(TX, self.id, COMMITTED))
        return rows

    def erasures(self) -> list[Write]:
        """Remove the rows again, in the batch that has folded them."""
        writes: list[Write] = []
        for dialog, ranges in self.ranges.items():
            for first, _ in ranges:
                key = dialog + number_key(first)
                writes.append(Erase(TAKEN, key, after(key)))
        if self.sends:
            key = self._staged_key()
            writes.append(Erase(STAGED, key, key + b"\xff" * 5))
        writes.append(Erase(TX, self.id, after(self.id)))
        return writes

    def _staged_key(self) -> bytes:
        return number_key(self.place) + self.id


def place_of(staged_key: bytes) -> int:
    """The place of the transaction that a staged row is from."""
    return int.from_bytes(staged_key[:NUMBER_BYTES], "big")


def transaction_of(staged_key: bytes) -> bytes:
    """The id of the transaction that a staged row is from."""
    return staged_key[NUMBER_BYTES:-4]
