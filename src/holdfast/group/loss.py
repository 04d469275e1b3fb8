"""What an application is told about lost messages, when it is asked what to do (seed 001, message loss information)."""

from __future__ import annotations

import msgspec

from holdfast.group.metadata import Indication
from holdfast.types import Nanos
from holdfast.wire.frames import StreamId

Range = tuple[int, int]
"""Numbers of a stream, both ends included."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """Who is there. A leader that is alone would stop the group by suspending itself."""

    replicas: int
    """Of the group, this one included."""
    reachable: int
    """... of which so many can be reached now, this one included."""
    alone: bool
    """No other voter can be reached."""
    names: tuple[str, ...]
    """The other replicas that can be reached."""


class TransportInfo(msgspec.Struct, frozen=True):
    """Where the messages came from and what the transport has seen."""

    source: str
    """The name of the source's node; its id in hexadecimal if it was never met."""
    source_reachable: bool
    source_gone: bool
    """It has begun a new life, has said goodbye, or could not be reached for long: it brings nothing back."""
    stream: StreamId
    topics: tuple[str, ...]
    """Of the messages before and after the gap that are known, each once."""
    transport: str
    """`channel` or `datagram`."""
    rate_per_s: int
    """Messages that the source sends in a second, by its own account; 0 while that is not known."""
    packets: int
    """Payload frames that were received of the stream here."""
    messages: int
    nacks: int
    """Requests to send again that this replica has sent for the stream."""


class NextMessage(msgspec.Struct, frozen=True):
    """A message that is available."""

    number: int
    priority: int
    topic: str
    message: bytes


class Place(msgspec.Struct, frozen=True):
    """Where lost messages can be had."""

    kind: str
    """`source`, `replica` or `log`."""
    name: str
    numbers: int
    """How many of the lost messages."""


class RecoveryInfo(msgspec.Struct, frozen=True):
    """Whether recovery is likely to work, and what came of it so far."""

    places: tuple[Place, ...]
    estimate_ns: Nanos
    """How long it is likely to take, from how long it took before; 0 when there is nowhere to recover from."""
    recovered: tuple[Range, ...] = ()
    """What an earlier answer has brought back."""
    reasons: tuple[str, ...] = ()
    """Why the rest was not."""
    messages: tuple[NextMessage, ...] = ()
    """The first of those that were brought back, as far as they are still held here."""

    @property
    def possible(self) -> bool:
        return bool(self.places)


class AgeInfo(msgspec.Struct, frozen=True):
    """An estimate of how long ago the lost messages were created."""

    oldest_ns: Nanos
    youngest_ns: Nanos


class LossInfo(msgspec.Struct, frozen=True):
    """Messages of one stream that are lost to the leader: everything that is known about them."""

    group: str
    question: int
    attempt: int
    """1 for the first question about these messages; more after a recovery that failed, or a suspension refused."""
    lost: tuple[Range, ...]
    count: int
    cluster: ClusterStatus
    transport: TransportInfo
    priorities: Indication
    next: tuple[NextMessage, ...]
    """The first messages that are available after the first gap."""
    recovery: RecoveryInfo
    age: AgeInfo
    refused: str = ""
    """Why an earlier answer could not be carried out."""
