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
OUTCOMES_NS: Final = 3600 * SECOND
"""How long the outcomes of an earlier owner's transactions stay: an application may be asking for one."""
KEPT_NS: Final = 7 * 86_400 * SECOND
"""An outcome that was not confirmed is forgotten after this time."""


class Staged:
    """Messages that a transaction sends on one dialog."""

    __slots__ = ("after", "bodies", "dialog", "due", "index")

    def __init__(self, dialog: bytes, bodies: list[bytes], due: int, after: int) -> None:
        self.dialog = dialog
        self.bodies = bodies
        self.due = due
        self.after = after
        self.index = 0
        """Its place among the sends of the transaction."""


class Transaction:
    __slots__ = ("broken", "dialogs", "id", "place", "prepared", "ranges", "sends")

    def __init__(self, tx: bytes) -> None:
        self.id = tx
        self.dialogs: dict[bytes, None] = {}
        """Every dialog that takes part."""
        self.sends: list[Staged] = []
        self.ranges: dict[bytes, list[tuple[int, int]]] = {}
        """Received numbers, by dialog; fixed when the transaction is prepared."""
        self.prepared = False
        self.broken = False
        """A dialog lost what the transaction had received or reserved: it cannot commit."""
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
            staged.index = index
            body = memoryview(pack_block(staged.bodies))
            value = encode(StagedRow(staged.dialog, body, staged.due, staged.after))
            rows.append(Put(STAGED, self._staged_key(staged), value))
        # rule: D-12c
        if kept_at:
            rows.append(Put(KEPT, self.id, number_key(kept_at)))
        # rule: D-6a
        rows.append(Put(TX, self.id, COMMITTED))
        return rows

    def split(self, dialogs: list[bytes]) -> Transaction:
        """Take the part of some dialogs off; gives that part."""
        part = Transaction(self.id)
        part.prepared, part.place = self.prepared, self.place
        part.sends = [staged for staged in self.sends if staged.dialog in dialogs]
        self.sends = [staged for staged in self.sends if staged.dialog not in dialogs]
        for dialog in dialogs:
            del self.dialogs[dialog]
            part.dialogs[dialog] = None
            if dialog in self.ranges:
                part.ranges[dialog] = self.ranges.pop(dialog)
        return part

    def erasures(self) -> list[Write]:
        """Remove the rows again, in the batch that has folded them."""
        writes: list[Write] = []
        for dialog, ranges in self.ranges.items():
            for first, _ in ranges:
                key = dialog + number_key(first)
                writes.append(Erase(TAKEN, key, after(key)))
        for staged in self.sends:
            key = self._staged_key(staged)
            writes.append(Erase(STAGED, key, after(key)))
        return writes

    def _staged_key(self, staged: Staged) -> bytes:
        return number_key(self.place) + self.id + staged.index.to_bytes(4, "big")


def place_of(staged_key: bytes) -> int:
    """The place of the transaction that a staged row is from."""
    return int.from_bytes(staged_key[:NUMBER_BYTES], "big")


def transaction_of(staged_key: bytes) -> bytes:
    """The id of the transaction that a staged row is from."""
    return staged_key[NUMBER_BYTES:-4]
