"""Blocks: the messages of one turn, of all dialogs, sent and received, as one row of the store.

A block goes when none of its messages is needed any more; consecutive ones go together. A block that only a few old
messages keep alive has those copied forward into the block of the present turn.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from holdfast.dialog.outgoing import Run
from holdfast.dialog.place import Parcel, Place
from holdfast.dialog.records import BLOCK, IN, OUT, Record, encode, number_key
from holdfast.machine import Erase, Put, Write
from holdfast.wire.blocks import pack_block

BLOCK_BYTES: Final = 64 << 10
STRAGGLERS_AFTER: Final = 256
"""A block with so many newer ones, of which less than a quarter is needed, is copied forward."""


class _Block:
    __slots__ = ("live", "needed", "total")

    def __init__(self) -> None:
        self.live: dict[bytes, int] = {}
        """Messages that are needed, by dialog."""
        self.needed = 0
        self.total = 0


class Blocks:
    """Which blocks the store has, and what keeps them."""

    __slots__ = ("_blocks", "_dead", "_records", "_size", "_writes", "next")

    def __init__(self) -> None:
        self.next = 1
        self._blocks: dict[int, _Block] = {}
        self._dead: list[int] = []
        self._records: list[Record] = []
        self._size = 0
        self._writes: list[Write] = []

    def __len__(self) -> int:
        return len(self._blocks)

    # -- what this turn adds -------------------------------------------------------------------------------------

    def add_run(self, dialog: bytes, run: Run) -> None:
        body = memoryview(run.body)
        record = Record(OUT, dialog, run.first, run.count, run.check, body, run.due, run.after)
        self._add(record, run.place)

    def add_parcel(self, dialog: bytes, parcel: Parcel) -> None:
        body, check = parcel.body, parcel.check
        if body is None:
            body = memoryview(pack_block(parcel.messages))
            check = xxh3_64_intdigest(body)
        record = Record(IN, dialog, parcel.first, len(parcel.messages), check, body)
        self._add(record, parcel.place)

    def _add(self, record: Record, place: Place) -> None:
        if self._records and self._size + len(record.body) > BLOCK_BYTES:
            self._seal()
        self._records.append(record)
        self._size += len(record.body)
        place.block = self.next
        self.restore(self.next, record.session, record.count)

    def _seal(self) -> None:
        """End the block of this turn; it is written if something in it is still needed."""
        if not self._records:
            return
        if self._blocks[self.next].needed:
            self._writes.append(Put(BLOCK, number_key(self.next), encode(self._records)))
        else:
            del self._blocks[self.next]
        self.next += 1
        self._records, self._size = [], 0

    def restore(self, block: int, dialog: bytes, count: int) -> None:
        """A block holds `count` messages of a dialog that are needed."""
        held = self._blocks.get(block)
        if held is None:
            held = self._blocks[block] = _Block()
        held.live[dialog] = held.live.get(dialog, 0) + count
        held.needed += count
        held.total += count

    # -- what is not needed any more -----------------------------------------------------------------------------

    def free(self, block: int, dialog: bytes, count: int) -> None:
        if not block:
            return  # A copy of a message that was taken before: it was never stored.
        held = self._blocks.get(block)
        assert held is not None, "a message is freed once"
        left = held.live.get(dialog, 0) - count
        assert left >= 0, "a message is freed once"
        if left:
            held.live[dialog] = left
        else:
            held.live.pop(dialog, None)
        held.needed -= count
        # The block of this turn stays: messages of other dialogs may follow into it.
        # rule: D-1b
        if not held.needed and block != self.next:
            del self._blocks[block]
            self._dead.append(block)

    def forget(self, dialog: bytes) -> None:
        """None of a dialog's messages is needed, or they are counted again from the store."""
        for block in [b for b, held in self._blocks.items() if dialog in held.live]:
            self.free(block, dialog, self._blocks[block].live[dialog])

    def lift(self, dialog: bytes) -> None:
        """A dialog's messages are about to be counted again from the store; `sweep` follows."""
        for held in self._blocks.values():
            count = held.live.pop(dialog, 0)
            held.needed -= count
            held.total -= count

    def sweep(self) -> None:
        """Blocks that nothing needs go."""
        for block in [b for b, held in self._blocks.items() if not held.needed and b != self.next]:
            del self._blocks[block]
            self._dead.append(block)

    def unused(self, block: int) -> None:
        """A block in the store of which nothing is needed."""
        if block not in self._blocks:
            self._dead.append(block)

    def straggler(self) -> tuple[int, list[bytes]] | None:
        """The oldest block, if it should be copied forward, and the dialogs that need something of it."""
        for block, held in self._blocks.items():
            if self.next - block < STRAGGLERS_AFTER or 4 * held.needed >= held.total:
                return None
            return block, list(held.live)
        return None

    def writes(self) -> list[Write]:
        """The writes of the turn: one row for each block, one erasure for each range of blocks that went."""
        self._seal()
        writes, self._writes = self._writes, []
        if self._dead:
            dead, self._dead = sorted(self._dead), []
            first = last = dead[0]
            for block in dead[1:]:
                if block != last + 1:
                    writes.append(Erase(BLOCK, number_key(first), number_key(last + 1)))
                    first = block
                last = block
            writes.append(Erase(BLOCK, number_key(first), number_key(last + 1)))
        return writes
