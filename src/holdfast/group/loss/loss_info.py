"""The loss information that an application receives with a loss question (L2)."""

from __future__ import annotations

import msgspec

from holdfast.group.frames import StreamId
from holdfast.group.streams.values import Indication
from holdfast.types import Nanos

Range = tuple[int, int]
"""Numbers of a stream, both ends included."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The cluster status. A leader that is alone would stop the group by suspending itself."""

    replicas: int
    """Of the group, including this one."""
    reachable: int
    """... of which this many are reachable now, including this one."""
    alone: bool
    """No other voter is reachable."""
    names: tuple[str, ...]
    """The other reachable replicas."""


class TransportInfo(msgspec.Struct, frozen=True):
    """The source, and statistics of the transport."""

    source: str
    """The name of the node of the source; its id in hexadecimal if unknown."""
    source_reachable: bool
    source_gone: bool
    """It has restarted, stopped normally, or was unreachable for long: it will supply nothing."""
    stream: StreamId
    topics: tuple[str, ...]
    """Of the known messages before and after the gap, each once."""
    transport: str
    """`channel` or `datagram`."""
    rate_per_s: int
    """Messages per second of the source, by its own clock; 0 while unknown."""
    packets: int
    """Payload frames of the stream that were received here."""
    messages: int
    nacks: int
    """Retransmission requests that this replica has sent for the stream."""


class NextMessage(msgspec.Struct, frozen=True):
    """An available message."""

    number: int
    priority: int
    topic: str
    message: bytes


class MessageHolder(msgspec.Struct, frozen=True):
    """A node that has lost messages."""

    kind: str
    """`source`, `replica` or `log`."""
    name: str
    numbers: int
    """How many of the lost messages."""


class RecoveryInfo(msgspec.Struct, frozen=True):
    """Whether recovery is likely to work, and its results so far."""

    places: tuple[MessageHolder, ...]
    estimate_ns: Nanos
    """The estimated duration, from earlier recoveries; 0 if there is nowhere to recover from."""
    recovered: tuple[Range, ...] = ()
    """Messages that an earlier answer has recovered."""
    reasons: tuple[str, ...] = ()
    """Why the rest was not."""
    messages: tuple[NextMessage, ...] = ()
    """The first recovered messages, as far as they are still held here."""

    @property
    def possible(self) -> bool:
        return bool(self.places)


class AgeInfo(msgspec.Struct, frozen=True):
    """The estimated age of the lost messages."""

    oldest_ns: Nanos
    youngest_ns: Nanos


class LossInfo(msgspec.Struct, frozen=True):
    """The lost messages of one stream, with everything known about them."""

    group: str
    question: int
    attempt: int
    """1 for the first question about these messages; more after a failed recovery or a refused suspension."""
    lost: tuple[Range, ...]
    count: int
    cluster: ClusterStatus
    transport: TransportInfo
    priorities: Indication
    next: tuple[NextMessage, ...]
    """The first available messages after the first gap."""
    recovery: RecoveryInfo
    age: AgeInfo
    refused: str = ""
    """Why an earlier answer could not be executed."""
