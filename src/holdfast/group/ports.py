"""What crosses the border of a group: the application that is replicated, and the driver that runs it.

The application runs off the event loop, in one worker per replica, in the order in which it is asked. The driver
bounds what waits for it by `Applied`: a replica never has more than `APPLY_MAX` bytes outstanding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from holdfast.wire.frames import StreamId

APPLY_MAX: Final = 16 << 20


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one stream, in their place in the order."""

    position: int
    """Of the first message; the others follow without a hole."""
    stream: StreamId
    first: int
    messages: Sequence[memoryview]


class Context(msgspec.Struct, frozen=True):
    """What an application may use besides the messages: the same on every replica."""

    group: str
    log_ns: int
    """Time as the leader stamped it; never goes back."""
    random: Random
    """Seeded by the position: every replica draws the same."""


class Replica(ABC):
    """An application with replicas. Its state may depend on what `apply` is given and on nothing else."""

    @abstractmethod
    def apply(self, batch: Batch, context: Context) -> None:
        """Process messages, in order. An exception suspends this replica."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, as it is between two calls of `apply`."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Replace the whole state by what `snapshot` gave, on this replica or another."""


# -- requests of the application, to a replica's or a source's unit ----------------------------------------------


class Multicast(msgspec.Struct, frozen=True, gc=False):
    """Send messages to all replicas of the group, as the next numbers of this node's stream."""

    messages: list[bytes]


class AddReplica(msgspec.Struct, frozen=True, gc=False):
    """Let a replica into the group, or change whether it votes. Given to any replica; the leader does it."""

    name: str
    voter: bool = True


class RemoveReplica(msgspec.Struct, frozen=True, gc=False):
    """Take a replica out of the group, for good: it is let in again only by `AddReplica`."""

    name: str


class HandOver(msgspec.Struct, frozen=True, gc=False):
    """Let another replica lead, one of these if possible. Only the one that leads does anything."""

    prefer: tuple[str, ...] = ()


class Refound(msgspec.Struct, frozen=True, gc=False):
    """An operator's last resort, when the memory of a majority is lost: this replica goes on alone with what it has.
    Others that still remember do not follow it before they are restarted."""


# -- effects for the driver --------------------------------------------------------------------------------------


class Apply(msgspec.Struct, frozen=True, gc=False):
    """Hand a batch to the application; answered by `Applied` or `AppFailed`."""

    unit: str
    index: int
    log_ns: int
    batch: Batch
    size: int


class TakeSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Ask the application for its state, after what it was given so far; answered by `SnapshotTaken`."""

    unit: str
    request: int
    index: int
    """The index of the last entry that was handed to the application."""


class RestoreState(msgspec.Struct, frozen=True, gc=False):
    """Give the application a state; answered by `Restored`."""

    unit: str
    index: int
    data: bytes


class SourceRoom(msgspec.Struct, frozen=True, gc=False):
    """How many bytes a source's buffer holds that some replica may still need; the driver stops senders above its
    bound."""

    unit: str
    held: int


# -- inputs from the driver --------------------------------------------------------------------------------------


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The application has processed everything up to entry `index`."""

    index: int
    size: int


class SnapshotTaken(msgspec.Struct, frozen=True, gc=False):
    request: int
    index: int
    data: bytes


class Restored(msgspec.Struct, frozen=True, gc=False):
    index: int


class AppFailed(msgspec.Struct, frozen=True, gc=False):
    """The application raised. The replica is suspended; the message names the entry."""

    index: int
    error: str
