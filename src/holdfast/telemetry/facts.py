"""The facts that machines record, one struct per kind. This file is the schema.

A fact holds plain values only. The writer puts these columns in front of each: `schema` (version), `node` (hex),
`name`, `incarnation`, `n` (numbered per node, incarnation and kind, so that a gap shows a loss), `at` (UTC,
microseconds) and `now_ns` (the node's own monotonic time: nothing is ordered by wall clock). Columns are only ever
added, with a default, and widened, never renamed.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

SCHEMA: Final = 2
"""Version 2 added the group epoch, rollbacks, and the kinds `load` and `sampling`."""


class Fact(msgspec.Struct, frozen=True, gc=False):
    """Base of all facts; `kind` names the table that it lands in."""

    kind: ClassVar[str]
    now_ns: int


class NodeFact(Fact, frozen=True, gc=False):
    """The life of a node: `start`, `stop`, `unit_failed`, `unit_stopped`, `refused`, `rejected`, and the `alarm`s of
    paths that it listens on (`alarm_over` when they end), and `advice` (followed or not, and what is avoided)."""

    kind: ClassVar[str] = "node"
    event: str
    """One of those above."""
    detail: str = ""
    """For people."""
    count: int = 1
    """How many events this fact stands for."""


class LinkFact(Fact, frozen=True, gc=False):
    """A link or its channels: `up`, `down`, `flow_ready`, `flow_lost`, `flow_unheard` (one that was to measure could
    not be agreed on), `moved` (from one flow's path to another's)."""

    kind: ClassVar[str] = "link"
    event: str
    """One of those above."""
    peer: str
    """The node at the other end, 32 hexadecimal digits."""
    peer_name: str
    """Its name, if known."""
    path: str = ""
    """`local adapter/remote adapter/transport`, and `+use` for a flow that measures."""
    path_before: str = ""
    """Of `moved`: the path that was left."""
    reason: str = ""
    """Why, in words."""


class PathFact(Fact, frozen=True, gc=False):
    """The state of one path as its listener measures it: at every `change`, and a `sample` periodically."""

    kind: ClassVar[str] = "path"
    event: str
    """`change` or `sample`."""
    sender: str
    """The node that sends on this path, 32 hexadecimal digits."""
    sender_name: str
    """Its name; empty while it is not known."""
    sender_adapter: str
    """Its adapter."""
    listener_adapter: str
    """The adapter of the node that recorded this."""
    subnet: str
    """The subnet of both adapters."""
    transport: str
    """The kind of packets: `udp`, `tcp`, `multicast` or `frag` (fragmented UDP)."""
    alive: bool
    """Whether anything of this kind is heard."""
    size: int
    """The largest packet that passes, in bytes; 0 while it is not known."""
    size_max: int
    """The largest that is tried; 0 if sizes are not measured."""
    loss_ppm: int
    """Loss, in parts per million."""
    rtt_us: int
    """Round trip; 0 if it was not measured."""
    heard: int
    """Basics heard since the last fact on this path."""
    expected: int
    """How many basics were expected since then."""
    patterns: str = ""
    """Bit patterns that are probed, in hexadecimal, with commas."""
    bad_patterns: str = ""
    """Bit patterns that do not pass."""
    holes: str = ""
    """Sizes that do not pass although larger ones do, with commas."""
    jitter_us: int = 0
    """Variation of the round trip."""
    rate_kbps: int = 0
    """Estimated throughput; 0 while it is not known."""
    flows: int = 0
    """How many 5-tuples of the path are probed."""
    flows_bad: int = 0
    """How many of them do not carry what the others do."""
    worsened: int = 0
    """How often this path has become worse since it is watched."""
    loss_window_ms: int = 0
    """The time that `loss_ppm` covers."""
    delay_us: int = 0
    """How much longer than usual packets take, in this direction."""
    rate_limit_kbps: int = 0
    """The rate that the path carries, where packets were dropped because more was sent."""
    data_lost: bool = False
    """Application data does not arrive although probes do."""
    outage_ms: int = 0
    """How long nothing passes, where that happens again and again; 0: it does not."""
    outage_every_ms: int = 0
    """The time from the beginning of one such outage to that of the next."""


class OrderFact(Fact, frozen=True, gc=False):
    """The order as the leader decided it: one fact per entry it appends."""

    kind: ClassVar[str] = "order"
    group: str
    """Name of the group."""
    term: int
    """Term of the leader."""
    index: int
    """Index of the entry in the log."""
    entry: str
    """`order`, `skip`, `open`, `close`, `ignore`, `resume`, `decision`, `outputs`, `view` or `term`."""
    position: int
    """Position of the first message."""
    stream: str
    """Label of the stream; empty if the entry has none."""
    first: int
    """First number of the stream in this entry."""
    last: int
    """Last number of the stream in this entry."""
    epoch: int = 0
    """The group epoch: it changes when the group is re-created; 0 in facts of schema 1. Indexes of two epochs are
    unrelated."""


class DeliveryFact(Fact, frozen=True, gc=False):
    """Messages `first` to `last` of a stream delivered at `position` and on, with a digest of their bytes."""

    kind: ClassVar[str] = "delivery"
    group: str
    """Name of the group."""
    term: int
    """Term of the entry."""
    index: int
    """Index of the entry in the log."""
    position: int
    """Position of the first message."""
    stream: str
    """Label of the stream."""
    first: int
    """First number of the stream in this entry."""
    last: int
    """Last number of the stream in this entry."""
    digest: int
    """The sum of the hashes of all messages up to here, each seeded by its position, so that replicas can be compared
    without the messages."""
    epoch: int = 0
    """The group epoch, as in `order`."""


class MessageFact(Fact, frozen=True, gc=False):
    """One message that was delivered. Recorded only by groups with `trace = true`."""

    kind: ClassVar[str] = "message"
    group: str
    """Name of the group."""
    index: int
    """Index of the entry in the log."""
    position: int
    """Position of the message."""
    stream: str
    """Label of the stream."""
    number: int
    """Its number in the stream."""
    size: int
    """Its length in bytes."""
    digest: int
    """A hash of its bytes, seeded by its position: the same on every replica."""
    epoch: int = 0
    """The group epoch, as in `order`."""


class GroupFact(Fact, frozen=True, gc=False):
    """The life of a replica: `leads`, `follows`, `gap`, `restored`, `suspended`, `rolled_back` and so on."""

    kind: ClassVar[str] = "group"
    group: str
    """Name of the group."""
    event: str
    """See the events of a replica below."""
    term: int
    """Its term."""
    index: int
    """The last index of its log."""
    detail: str = ""
    """For people."""
    epoch: int = 0
    """The group epoch, as in `order`."""
    rollback_index: int = -1
    """Entries from this index on that the replica delivered before are void; -1 unless `event` is `rolled_back`."""


class LoadFact(Fact, frozen=True, gc=False):
    """The traffic of one adapter during an interval. The pipeline derives busy windows from it."""

    kind: ClassVar[str] = "load"
    adapter: str
    """Name of the adapter."""
    subnet: str
    """Its subnet."""
    interval_ms: int
    """Length of the interval that ends now."""
    sent_bytes: int
    """Bytes sent in it."""
    received_bytes: int
    """Bytes received in it."""
    sent_packets: int
    """Packets sent in it."""
    received_packets: int
    """Packets received in it."""
    queued_bytes: int = 0
    """The longest send queue of the interval."""
    drops: int = 0
    """Packets that the adapter's queue refused."""
    speed_bps: int = 0
    """Speed of the adapter, as the system states it; 0 if unknown."""


class SamplingFact(Fact, frozen=True, gc=False):
    """From here on the node records one of `every` facts of a kind, or all of them again (`every` is 1)."""

    kind: ClassVar[str] = "sampling"
    sampled_kind: str
    """The kind of facts."""
    every: int
    """One of so many samples is recorded."""
    reason: str = ""
    """Why, in words."""


KINDS: Final[tuple[type[Fact], ...]] = (
    NodeFact,
    LinkFact,
    PathFact,
    OrderFact,
    DeliveryFact,
    MessageFact,
    GroupFact,
    LoadFact,
    SamplingFact,
)
