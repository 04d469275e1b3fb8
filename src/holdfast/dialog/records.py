"""Tables, keys and rows of a dialog store.

| table      | key                    | value |
| ---------- | ---------------------- | ----- |
| `dialog`   | dialog id              | `DialogRow`: identity, state, terms; changes rarely |
| `position` | dialog id              | `PositionRow`: numbers assigned, acknowledged, received, taken |
| `inactive` | dialog id              | both rows of a deactivated dialog |
| `quiet`    | wall time, dialog id   | empty: since when an inactive dialog is inactive |
| `block`    | number, 8 bytes        | list of `Record`: the messages of one turn, of all dialogs |
| `staged`   | transaction id, index  | `StagedRow`: sent in a committed transaction, not numbered yet |
| `taken`    | dialog id, number      | `TakenRow`: received in a committed transaction, not yet in `position` |
| `tx`       | transaction id         | outcome, `c` or `a` |
| `kept`     | transaction id         | wall time: committed, and its application may still ask |
| `exported` | dialog id              | the state of an end that moved, until the target has it |
| `attempt`  | dialog id              | `AttemptRow`: deliveries that were begun |
| `ended`    | creator node and store | flat ranges of the counters of dialogs that ended |
| `ending`   | dialog id              | `EndingRow`: how it ended; kept for a time |
| `counter`  | empty                  | the next counter, 8 bytes |

A row of `staged` is unnumbered by existing: the batch that numbers its messages erases it. So nothing depends on the
order in which transactions commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from holdfast.dialog.config import Settings
from holdfast.dialog.frames import Terms
from holdfast.dialog.ids import End

DIALOG: Final = "dialog"
POSITION: Final = "position"
INACTIVE: Final = "inactive"
QUIET: Final = "quiet"
BLOCK: Final = "block"
STAGED: Final = "staged"
TAKEN: Final = "taken"
TX: Final = "tx"
KEPT: Final = "kept"
EXPORTED: Final = "exported"
ATTEMPT: Final = "attempt"
ENDED: Final = "ended"
ENDING: Final = "ending"
COUNTER: Final = "counter"

TABLES: Final = (
    DIALOG, POSITION, INACTIVE, QUIET, BLOCK, STAGED, TAKEN, TX, KEPT, EXPORTED, ATTEMPT, ENDED, ENDING, COUNTER,
)  # fmt: skip
LOADED: Final = tuple(table for table in TABLES if table not in (INACTIVE, QUIET))
"""Tables that a manager reads at its start. Inactive dialogs cost only disk."""

COMMITTED: Final = b"c"
ABORTED: Final = b"a"

NUMBER_BYTES: Final = 8
OUT: Final = 0
IN: Final = 1


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A run of messages in a block."""

    kind: int
    session: bytes
    first: int
    count: int
    check: int
    body: memoryview
    due: int = 0
    """Wall time by which they must be acknowledged; 0: no limit."""
    after: int = 0
    """Wall time before which they must not be transmitted."""


class DialogRow(msgspec.Struct, frozen=True, array_like=True):
    """Everything about a dialog that changes rarely."""

    state: str
    epoch: int
    creator: bool
    uri: str
    key: bytes
    partner: End | None
    partner_epoch: int
    partner_owner: int
    terms: Terms
    settings: Settings
    secret: bytes
    expires: int
    """Wall time at which the session ends; 0: never."""
    ttl_number: int
    fault: str
    detail: str
    faulted_at: int
    attempt: int
    touched: int
    """Wall time of the last change; only for people and for collecting what was abandoned."""
    moved_to: End | None = None
    confirmed: bool = False


class PositionRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where both directions of a dialog stand."""

    next: int
    acked: list[int]
    limit: int
    received: list[int]
    taken: list[int]
    expected: int
    total_out: int
    total_in: int
    done_in: bool
    notified: list[int] = []
    """Numbers that have had their notice of expiry, as ranges."""
    extension: tuple[int, int] = (0, 0)
    """Numbers below the first have the second as their time of expiry, whatever their record says."""


class InactiveRow(msgspec.Struct, frozen=True, array_like=True):
    dialog: DialogRow
    position: PositionRow
    since: int = 0
    """Wall time of the deactivation, or of the last time that its partner was found linked."""


class StagedRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    session: bytes
    body: memoryview
    due: int
    after: int


class TakenRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    session: bytes
    first: int
    stop: int
    epoch: int


class AttemptRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    single_below: int
    """Numbers below this are delivered one at a time: a batch with them was aborted, or did not return."""
    counts: list[tuple[int, int]]
    """Number and deliveries begun, where it was delivered alone."""
    aside: list[int]
    """Numbers that are poison."""


class EndingRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    how: str
    ranges: list[int]
    reason: str
    wall: int


encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T")
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def decode(kind: type[T], value: bytes | memoryview) -> T:
    """A row that this package wrote. Raises `msgspec.DecodeError` for one that it did not."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    row: T = decoder.decode(value)
    return row


_records: Final = msgspec.msgpack.Decoder(list[Record])


def decode_block(value: bytes) -> list[Record]:
    return _records.decode(value)


def number_key(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def quiet_key(wall: int, dialog: bytes = b"") -> bytes:
    """A row of `quiet`: by time, so that what is due is one range."""
    return number_key(max(0, wall)) + dialog


def flat(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Ranges as one list of numbers."""
    return [number for pair in ranges for number in pair]


def pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def after(key: bytes) -> bytes:
    """The lowest key above `key`: the end of a range that holds just it."""
    return key + b"\x00"
