"""The facts that dialogs record: their lives, and the messages that passed, for an audit of delivery."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import ClassVar, Final

from xxhash import xxh3_64_intdigest

from holdfast.telemetry.facts import Fact


class DialogFact(Fact, frozen=True, gc=False):
    """The life of one end of a dialog: every event except `available`."""

    kind: ClassVar[str] = "dialog"
    event: str
    """The event, as the application learns it."""
    dialog: str
    """The id in hexadecimal."""
    uri: str = ""
    """The service that the dialog is with."""
    code: str = ""
    """The reason of a fault or an end, as one word."""
    detail: str = ""
    """The same in plain words."""
    number: int = 0
    """The first message that it concerns."""
    count: int = 0
    """How many messages it concerns."""


class DialogRangeFact(Fact, frozen=True, gc=False):
    """Messages `first` to `last` of one direction of a dialog: `captured` (the sender's store has them), `taken` (the
    receiving application has them, or has committed their processing) or `deleted` (removed without being received).

    An audit needs nothing else: with at-least-once every captured number is taken or deleted in the end; with
    at-most-once the taken ranges of one dialog never overlap; in order they grow; and over the same numbers the digests
    of both ends add up to the same.
    """

    kind: ClassVar[str] = "dialog_range"
    event: str
    """One of those above."""
    dialog: str
    """The id in hexadecimal; both ends have the same, up to the highest bit of its counter."""
    sender: str
    """The end that sent them: `creator` or `acceptor`."""
    assurances: int
    """At-least-once 4, at-most-once 2, in-order 1."""
    first: int
    """The first number."""
    last: int
    """The last number."""
    digest: int
    """The sum of the hashes of the messages, each seeded by its number, below 2 ** 63."""
    epoch: int = 0
    """How often this end has moved."""
    transaction: str = ""
    """The transaction that it was part of, in hexadecimal; empty: none."""


class DialogTransactionFact(Fact, frozen=True, gc=False):
    """How a transaction over dialogs ended: `committed` or `aborted`. What it comprised must have happened as a whole,
    or not at all; the facts of its ranges name it."""

    kind: ClassVar[str] = "dialog_transaction"
    event: str
    """One of those above."""
    transaction: str
    """The id in hexadecimal."""
    dialogs: int
    """How many dialogs took part."""
    taken: int
    """How many messages it received."""
    sent: int
    """How many messages it sent."""


MASK: Final = (1 << 63) - 1


def digest_of(first: int, bodies: Iterable[bytes | bytearray | memoryview]) -> int:
    """The digest of consecutive messages. Those of neighbouring ranges add up."""
    return sum(map(xxh3_64_intdigest, bodies, count(first))) & MASK
