"""Identities: of a dialog, of one end of it, of a transaction."""

from __future__ import annotations

from typing import Final, NewType

import msgspec

from holdfast.types import NodeId

DialogId = NewType("DialogId", bytes)
"""32 bytes: the node that created the dialog (16), its store (8), a counter of that store (8)."""

StoreId = NewType("StoreId", bytes)
"""8 bytes, made once when a store is created. A memory store gets a new one at each start."""

TransactionId = NewType("TransactionId", bytes)
"""16 bytes, unique; the application's side makes it."""

NODE_BYTES: Final = 16
STORE_BYTES: Final = 8
COUNTER_BYTES: Final = 8
DIALOG_BYTES: Final = NODE_BYTES + STORE_BYTES + COUNTER_BYTES
TRANSACTION_BYTES: Final = 16
SECRET_BYTES: Final = 32
COUNTER_MAX: Final = (1 << 63) - 1


class End(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One end of a dialog: a node and the store that holds its state there. The instance of rule 16."""

    node: bytes
    store: bytes


def dialog_id(creator: NodeId, store: StoreId, counter: int) -> DialogId:
    """The id of the dialog that a store creates as its `counter`-th."""
    return DialogId(creator + store + counter.to_bytes(COUNTER_BYTES, "big"))


def creator_of(dialog: bytes) -> bytes:
    """Node and store that created the dialog: what the counters of ended dialogs are kept by."""
    return dialog[: NODE_BYTES + STORE_BYTES]


def counter_of(dialog: bytes) -> int:
    return int.from_bytes(dialog[NODE_BYTES + STORE_BYTES :], "big")


def twin(dialog: bytes) -> DialogId:
    """The id of the other end of a dialog whose two ends are in one store: the counter with its top bit flipped."""
    at = NODE_BYTES + STORE_BYTES
    return DialogId(dialog[:at] + bytes((dialog[at] ^ 0x80,)) + dialog[at + 1 :])


def is_twin(dialog: bytes) -> bool:
    return bool(dialog[NODE_BYTES + STORE_BYTES] & 0x80)


def dialog_name(dialog: bytes) -> str:
    """What people see: the creator's first digits and the counter."""
    return f"{dialog[:4].hex()}-{dialog[16:18].hex()}-{counter_of(dialog)}"
