"""The interface of a group to the replicated application and to the driver.

The application runs outside the event loop, in one worker per replica, in order. `Applied` bounds its queue: a replica
never has more than `APPLY_MAX` bytes outstanding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import ClassVar, Final
from zlib import crc32

import msgspec

from holdfast.errors import MisuseError
from holdfast.group.frames import StreamId
from holdfast.group.loss.actions import Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.streams.values import Note

APPLY_MAX: Final = 16 << 20
OUTPUT_MAX: Final = 1 << 20
DESTINATION_MAX: Final = 200


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one stream, at their position in the order."""

    position: int
    """Of the first message; the others follow without a gap."""
    stream: StreamId
    first: int
    messages: Sequence[memoryview]


class Output(msgspec.Struct, frozen=True, gc=False):
    """An output of the application, identified by its group, `history`, `position` and `k`, whichever replica sends
    it."""

    position: int
    """Of the first message of its batch."""
    k: int
    destination: str
    payload: bytes
    group_epoch: int = 0
    """The group epoch of the sender: a group that was re-created, or restarted with `recover`, has another one and may
    reuse positions. Set where the output arrives; 0 in the application that creates it."""


class Context:
    """Inputs of an application besides the messages; the same on every replica."""

    __slots__ = ("_random", "group", "locks", "log_ns", "outputs", "position")

    def __init__(
        self,
        group: str,
        log_ns: int,
        position: int = 0,
        outputs: list[Output] | None = None,
        locks: Mapping[str, int] | None = None,
    ) -> None:
        self.group = group
        self.log_ns = log_ns
        """Time as stamped by the leader: never goes back, continues across leaders, is not the time of day."""
        self.position = position
        self.outputs = outputs
        self.locks: Mapping[str, int] = locks or {}
        """The locks of the group that are held at this place of the order, with their tokens: a message whose token is
        another one comes from a holder that has lost its lock."""
        self._random: Random | None = None

    @property
    def random(self) -> Random:
        """Seeded by the position, so every replica draws the same. Created on demand, because seeding is expensive."""
        if self._random is None:
            # rule: 9d
            self._random = Random(crc32(f"{self.group}/{self.position}".encode()))
        return self._random

    def output(self, destination: str, payload: bytes) -> None:
        """Send an output to a destination, during `apply`. Every replica creates the same output, and one of them sends
        it.

        `node:NAME` is a node of the domain, which receives each output once; any other destination is served by the
        leader at least once, with the id.
        """
        if self.outputs is None:
            raise MisuseError(
                "outputs can be created only in `apply`, and not after it has returned; nothing was "
                "sent"
            )
        if not is_text(destination) or not isinstance(payload, bytes | bytearray | memoryview):
            raise MisuseError(
                f"a destination must be text and an output bytes, not {destination!r} and "
                f"{type(payload).__name__}; nothing was sent"
            )
        if not 0 < len(destination) <= DESTINATION_MAX or len(payload) > OUTPUT_MAX:
            raise MisuseError(
                f"a destination has 1 to {DESTINATION_MAX} letters, an output at most {OUTPUT_MAX} "
                "bytes; nothing was sent"
            )
        self.outputs.append(Output(self.position, len(self.outputs), destination, bytes(payload)))


def is_text(value: object) -> bool:
    """Whether it can be encoded: not every `str` can."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Decision(msgspec.Struct, frozen=True, gc=False):
    """An entry about messages that are not delivered, as passed to applications."""

    index: int
    kind: str
    """`decision`: the answer about lost messages. `skip`: a range that is not delivered. `ignore`, `resume`: a
    criterion starts or ends."""
    stream: StreamId | None
    first: int
    last: int
    text: str
    """For display: the action and its origin, why a range is skipped, what is ignored."""


class Replica(ABC):
    """A replicated application. Its state must depend only on what `apply` receives."""

    quick: ClassVar[bool] = False
    """True declares that `apply` does not block (no lock, disk or network) and takes microseconds. It may then be
    called on the event loop, where messages arrive earlier. An application that works for more than 10 ms at a time
    gets a thread anyway."""

    @abstractmethod
    def apply(self, batch: Batch, context: Context) -> None:
        """Process messages, in order. An exception suspends this replica."""

    def on_loss(self, info: LossInfo) -> Action | None:
        """Decides about lost messages; called on the leader only. None leaves the decision to the configured rules. It
        must not change the state: the other replicas are not asked."""
        return None

    def on_decision(self, decision: Decision, context: Context) -> None:  # noqa: B027  # need not be overridden
        """A decision about lost or ignored messages, passed to every replica at its position in the order, so the state
        may depend on it. An exception suspends this replica."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, between two calls of `apply`. An exception is reported, and a replica that needs a snapshot
        asks another one; this one continues."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Replace the whole state by a result of `snapshot`, of this replica or another."""


# -- requests of the application, to a replica's or a source's unit ----------------------------------------------


class Multicast(msgspec.Struct, frozen=True, gc=False):
    """Send messages to all replicas of the group, as the next numbers of the stream of this node."""

    messages: list[bytes]
    notes: tuple[tuple[int, Note], ...] = ()
    """(place in `messages`, note) of those that have a priority, a topic or a request id, in order."""
    stream: int = -1
    """The stream for which they were accepted; -1: the current one. A stream that was started after a failure accepts
    nothing meant for the previous one, so that a loss is at its end and not in the middle."""


class Flush(msgspec.Struct, frozen=True, gc=False):
    """Request a report when the messages of this node up to a number are committed: `SourceRoom.settled`."""

    number: int


class AddReplica(msgspec.Struct, frozen=True, gc=False):
    """Add a replica to the group, or change whether it votes. Given to any replica; the leader executes it."""

    name: str
    voter: bool = True


class RemoveReplica(msgspec.Struct, frozen=True, gc=False):
    """Remove a replica from the group until `AddReplica`."""

    name: str


class HandOver(msgspec.Struct, frozen=True, gc=False):
    """Hand leadership to another replica, one of these if possible. Only the leader acts on it."""

    prefer: tuple[str, ...] = ()


class RestartFromSurvivor(msgspec.Struct, frozen=True, gc=False):
    """Last resort of an operator after a majority lost its state: this replica restarts the group alone. Others that
    still have their state do not follow it before they are restarted. `force`: even if the loss was not observed,
    because the missing replicas are permanently gone."""

    force: bool = False


# -- effects for the driver --------------------------------------------------------------------------------------


class Apply(msgspec.Struct, frozen=True, gc=False):
    """Pass a batch to the application; answered by `Applied` or `AppFailed`."""

    unit: str
    index: int
    log_ns: int
    batch: Batch
    size: int
    locks: Mapping[str, int] | None = None
    """The tokens of the locks that are held at this entry, by name; None: there are none."""


class TakeSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Request a snapshot from the application, after what it was given so far; answered by `SnapshotTaken`."""

    unit: str
    request: int
    index: int
    """The index of the last entry passed to the application."""


class RestoreState(msgspec.Struct, frozen=True, gc=False):
    """Restore a state of the application; answered by `Restored`."""

    unit: str
    index: int
    data: bytes


class AskLoss(msgspec.Struct, frozen=True, gc=False):
    """Ask the application what to do about lost messages; answered by `LossAnswered`."""

    unit: str
    question: int
    info: LossInfo


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Inform the application of a decision, after what it was given so far. Not answered."""

    unit: str
    index: int
    log_ns: int
    decision: Decision


class SendOutputs(msgspec.Struct, frozen=True, gc=False):
    """Pass outputs to a destination that is not a node of the domain; answered by `OutputsSent` when they arrived."""

    unit: str
    destination: str
    outputs: tuple[Output, ...]


class StopOutputs(msgspec.Struct, frozen=True, gc=False):
    """This replica no longer leads: outputs without an acknowledgement are the task of the next leader."""

    unit: str


class OutputsReady(msgspec.Struct, frozen=True, gc=False):
    """Outputs of a group for the application of this node, each once, in order; answered by `OutputsTaken` when it has
    been called with them, or by `OutputsRefused`."""

    group: str
    outputs: tuple[Output, ...]
    group_epoch: int = 0
    """The group epoch of the outputs."""
    after: tuple[int, int] = (0, -1)
    """The last one that was passed on and not acknowledged yet: if that was refused, so are these."""

    def taken(self) -> OutputsTaken:
        """The answer."""
        last = self.outputs[-1]
        return OutputsTaken(self.group, self.group_epoch, last.position, last.k)


class SourceRoom(msgspec.Struct, frozen=True, gc=False):
    """How many bytes the buffer of a source holds that some replica may still need; the driver stops senders above its
    bound."""

    unit: str
    held: int
    taken: int
    """Bytes of all messages that this source ever received, each with four more. The sender derives from it what it has
    passed on and the source has not seen yet."""
    settled: int
    """Every message up to this number is committed or dropped. Not reported beyond what a `Flush` requested or what is
    freed."""


# -- inputs from the driver --------------------------------------------------------------------------------------


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The application has processed everything up to entry `index`."""

    index: int
    size: int
    outputs: tuple[Output, ...] = ()
    """Its outputs, in order."""


class SnapshotTaken(msgspec.Struct, frozen=True, gc=False):
    request: int
    index: int
    data: bytes
    error: str = ""
    """Why there is none."""


class Restored(msgspec.Struct, frozen=True, gc=False):
    index: int


class LossAnswered(msgspec.Struct, frozen=True, gc=False):
    """The application's decision about lost messages; None leaves it to the rules."""

    question: int
    action: Action | None
    error: str = ""
    """The error that the application raised instead of an answer."""


class OutputsTaken(msgspec.Struct, frozen=True, gc=False):
    """The application of this node has been called with the outputs of a group up to this one."""

    group: str
    group_epoch: int
    position: int
    k: int


class OutputsRefused(msgspec.Struct, frozen=True, gc=False):
    """There is no listener to these outputs, and no room for them. Outputs of the group that were passed on and not
    acknowledged count as not passed on."""

    group: str
    group_epoch: int


class OutputsSent(msgspec.Struct, frozen=True, gc=False):
    """A destination that is not a node has accepted outputs up to this one."""

    destination: str
    position: int
    k: int


class EndIgnoring(msgspec.Struct, frozen=True, gc=False):
    """An operator ends a criterion, by its id; a follower asks its leader."""

    criterion: int


class AppFailed(msgspec.Struct, frozen=True, gc=False):
    """The application raised. The replica is suspended; the message names the entry."""

    index: int
    error: str
