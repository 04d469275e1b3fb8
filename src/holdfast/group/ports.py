"""What crosses the border of a group: the application that is replicated, and the driver that runs it.

The application runs off the event loop, in one worker per replica, in the order in which it is asked. The driver
bounds what waits for it by `Applied`: a replica never has more than `APPLY_MAX` bytes outstanding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final
from zlib import crc32

import msgspec

from holdfast.errors import MisuseError
from holdfast.group.actions import Action
from holdfast.group.loss import LossInfo
from holdfast.group.metadata import Note
from holdfast.wire.frames import StreamId

APPLY_MAX: Final = 16 << 20
OUTPUT_MAX: Final = 1 << 20
DESTINATION_MAX: Final = 200


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one stream, in their place in the order."""

    position: int
    """Of the first message; the others follow without a hole."""
    stream: StreamId
    first: int
    messages: Sequence[memoryview]


class Output(msgspec.Struct, frozen=True, gc=False):
    """Something that the application says to the outside: known by its group, `history`, `position` and `k`, whoever
    sends it."""

    position: int
    """Of the first message of the batch that it came from."""
    k: int
    destination: str
    payload: bytes
    history: int = 0
    """Which founding of the group sends it: one that begins anew, or goes on after `recover`, is another, and says
    other things under the same positions. Known where it arrives; 0 in the application that says it."""


class Context:
    """What an application may use besides the messages: the same on every replica."""

    __slots__ = ("_random", "group", "log_ns", "outputs", "position")

    def __init__(
        self, group: str, log_ns: int, position: int = 0, outputs: list[Output] | None = None
    ) -> None:
        self.group = group
        self.log_ns = log_ns
        """Time as the leader stamped it: never goes back, counts on across leaders, is not the time of day."""
        self.position = position
        self.outputs = outputs
        self._random: Random | None = None

    @property
    def random(self) -> Random:
        """Seeded by the position: every replica draws the same. Made when it is asked for; seeding is not cheap."""
        if self._random is None:
            self._random = Random(crc32(f"{self.group}/{self.position}".encode()))
        return self._random

    def output(self, destination: str, payload: bytes) -> None:
        """Say something to a destination, during `apply`. Every replica says the same; one of them sends it, once.

        `node:NAME` is a node of the domain, which gets each output once; anything else is handed to the node that
        leads, at least once, with its id.
        """
        if self.outputs is None:
            raise MisuseError(
                "outputs come from `apply` only, and not after it has returned; nothing was sent"
            )
        if not is_text(destination) or not isinstance(payload, bytes | bytearray | memoryview):
            raise MisuseError(
                f"a destination is a text and an output bytes, not {destination!r} and "
                f"{type(payload).__name__}; nothing was sent"
            )
        if not 0 < len(destination) <= DESTINATION_MAX or len(payload) > OUTPUT_MAX:
            raise MisuseError(
                f"a destination has 1 to {DESTINATION_MAX} letters, an output at most {OUTPUT_MAX} bytes; "
                "nothing was sent"
            )
        self.outputs.append(Output(self.position, len(self.outputs), destination, bytes(payload)))


def is_text(value: object) -> bool:
    """Whether it can be written down: not everything of type `str` can."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Decision(msgspec.Struct, frozen=True, gc=False):
    """An entry of the order about messages that nobody delivers, as applications are told it."""

    index: int
    kind: str
    """`decision`: what was answered about lost messages. `skip`: a range that nobody delivers. `ignore`, `resume`: a
    criterion begins, ends."""
    stream: StreamId | None
    first: int
    last: int
    text: str
    """For people: the action and who answered, why a range is skipped, what is ignored."""


class Replica(ABC):
    """An application with replicas. Its state may depend on what `apply` is given and on nothing else."""

    quick: ClassVar[bool] = False
    """True says that `apply` waits for nothing (no lock, no disk, no network) and takes microseconds. It may then be
    called on the node's event loop, where messages come earlier. One that works for more than 10 ms at a time gets a
    thread after all, as any other has."""

    @abstractmethod
    def apply(self, batch: Batch, context: Context) -> None:
        """Process messages, in order. An exception suspends this replica."""

    def on_loss(self, info: LossInfo) -> Action | None:
        """What to do about lost messages, asked of the leader's application only; None leaves it to the table of the
        configuration. It must not change the state: the other replicas are not asked."""
        return None

    def on_decision(self, decision: Decision, context: Context) -> None:  # noqa: B027  # need not be overridden
        """What was decided about lost or ignored messages: told to every replica, in its place in the order, so the
        state may depend on it. An exception suspends this replica."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state, as it is between two calls of `apply`. An exception is reported, and who needs a state asks
        another replica; this one goes on."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Replace the whole state by what `snapshot` gave, on this replica or another."""


# -- requests of the application, to a replica's or a source's unit ----------------------------------------------


class Multicast(msgspec.Struct, frozen=True, gc=False):
    """Send messages to all replicas of the group, as the next numbers of this node's stream."""

    messages: list[bytes]
    notes: tuple[tuple[int, Note], ...] = ()
    """(place in `messages`, note) of those that have a priority, a topic or a request id, in order."""
    stream: int = -1
    """Which stream of this node's they were accepted for; -1: whichever there is. A stream that was begun after a
    failure takes nothing that was meant for the one before: what is lost is then the end, not a part in the middle."""


class Flush(msgspec.Struct, frozen=True, gc=False):
    """Find out when it is decided what becomes of this node's messages up to a number: `SourceRoom.settled` says it."""

    number: int


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
    Others that still remember do not follow it before they are restarted. `force`: also where that is not seen, because
    those that are missing are gone for good."""

    force: bool = False


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


class AskLoss(msgspec.Struct, frozen=True, gc=False):
    """Ask the application what to do about lost messages; answered by `LossAnswered`."""

    unit: str
    question: int
    info: LossInfo


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Tell the application what was decided, after what it was given so far. Not answered."""

    unit: str
    index: int
    log_ns: int
    decision: Decision


class SendOutputs(msgspec.Struct, frozen=True, gc=False):
    """Hand outputs to a destination that is no node of the domain; answered by `OutputsSent` when they arrived."""

    unit: str
    destination: str
    outputs: tuple[Output, ...]


class StopOutputs(msgspec.Struct, frozen=True, gc=False):
    """This replica does not lead any more: what it handed out and did not hear of is another one's business."""

    unit: str


class OutputsReady(msgspec.Struct, frozen=True, gc=False):
    """Outputs of a group for this node's application, each once, in order; answered by `OutputsTaken` when it has been
    called with them, or by `OutputsRefused`."""

    group: str
    outputs: tuple[Output, ...]
    history: int = 0
    """Which founding of the group they are of."""
    after: tuple[int, int] = (0, -1)
    """The last one that was handed over before and not taken yet: if that was refused, so are these."""

    def taken(self) -> OutputsTaken:
        """The answer."""
        last = self.outputs[-1]
        return OutputsTaken(self.group, self.history, last.position, last.k)


class ReadLog(msgspec.Struct, frozen=True, gc=False):
    """Read a table of a message log; answered by `LogRead`."""

    unit: str
    table: str


class SourceRoom(msgspec.Struct, frozen=True, gc=False):
    """How many bytes a source's buffer holds that some replica may still need; the driver stops senders above its
    bound."""

    unit: str
    held: int
    taken: int
    """Bytes of all messages that this source was ever given, each with four more: whoever sends knows by it what it
    has handed over and the source has not seen yet."""
    settled: int
    """It is decided what becomes of every message up to this number. Not said of more than a `Flush` asked for, or is
    free."""


# -- inputs from the driver --------------------------------------------------------------------------------------


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The application has processed everything up to entry `index`."""

    index: int
    size: int
    outputs: tuple[Output, ...] = ()
    """What it said to the outside on the way, in order."""


class SnapshotTaken(msgspec.Struct, frozen=True, gc=False):
    request: int
    index: int
    data: bytes
    error: str = ""
    """Why there is none."""


class Restored(msgspec.Struct, frozen=True, gc=False):
    index: int


class LossAnswered(msgspec.Struct, frozen=True, gc=False):
    """What the application wants done about lost messages; None leaves it to the table."""

    question: int
    action: Action | None
    error: str = ""
    """What the application raised instead of an answer."""


class LogRead(msgspec.Struct, frozen=True, gc=False):
    """What a table of a message log holds, by key."""

    table: str
    rows: list[tuple[bytes, bytes]]


class OutputsTaken(msgspec.Struct, frozen=True, gc=False):
    """This node's application has been called with the outputs of a group up to this one."""

    group: str
    history: int
    position: int
    k: int


class OutputsRefused(msgspec.Struct, frozen=True, gc=False):
    """Nobody listens to these outputs, and there is no room for them. What was handed over of the group and not taken
    counts as not handed over."""

    group: str
    history: int


class OutputsSent(msgspec.Struct, frozen=True, gc=False):
    """A destination that is no node has taken outputs up to this one."""

    destination: str
    position: int
    k: int


class EndIgnoring(msgspec.Struct, frozen=True, gc=False):
    """An operator ends a criterion, by its id; a replica that follows asks its leader."""

    criterion: int


class AppFailed(msgspec.Struct, frozen=True, gc=False):
    """The application raised. The replica is suspended; the message names the entry."""

    index: int
    error: str
