"""The facts that machines record, one struct per kind. This file is the schema, version 1.

A fact holds plain values only. The writer puts these columns in front of each: `schema` (version), `node` (hex),
`name`, `incarnation`, `n` (numbered per node, incarnation and kind, so that a gap shows a loss), `at` (UTC,
microseconds) and `now_ns` (the node's own monotonic time: nothing is ordered by wall clock). Columns are only ever
added, with a default, and widened, never renamed.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

SCHEMA: Final = 1


class Fact(msgspec.Struct, frozen=True, gc=False):
    """Base of all facts; `kind` names the table that it lands in."""

    kind: ClassVar[str]
    now_ns: int


class NodeFact(Fact, frozen=True, gc=False):
    """The life of a node: `start`, `stop`, `unit_failed`, `unit_stopped`, `refused`, `rejected`, and the `alarm`s of
    paths that it listens on (`alarm_over` when they end)."""

    kind: ClassVar[str] = "node"
    event: str
    detail: str = ""
    count: int = 1


class LinkFact(Fact, frozen=True, gc=False):
    """A link or its channels: `up`, `down`, `flow_ready`, `flow_lost`, `flow_unheard` (one that was to measure could
    not be agreed on), `moved` (from one flow's path to another's)."""

    kind: ClassVar[str] = "link"
    event: str
    peer: str
    peer_name: str
    path: str = ""
    """`local adapter/remote adapter/transport`, and `+use` for a flow that measures"""
    path_before: str = ""
    reason: str = ""


class PathFact(Fact, frozen=True, gc=False):
    """What a listener hears on one path: at every `change`, and a `sample` now and then."""

    kind: ClassVar[str] = "path"
    event: str
    sender: str
    sender_name: str
    sender_adapter: str
    listener_adapter: str
    subnet: str
    transport: str
    alive: bool
    size: int
    size_max: int
    loss_ppm: int
    rtt_us: int
    heard: int
    """Basics heard since the last fact on this path, and how many were expected."""
    expected: int
    patterns: str = ""
    """Bit patterns that are probed, and those that do not pass; in hexadecimal, with commas."""
    bad_patterns: str = ""
    holes: str = ""
    """Sizes that do not pass although larger ones do, with commas."""
    jitter_us: int = 0
    rate_kbps: int = 0
    flows: int = 0
    """How many 5-tuples of the path are probed, and how many of those do not carry what the others do."""
    flows_bad: int = 0
    worsened: int = 0
    """How often this path has become worse since it is watched."""


class OrderFact(Fact, frozen=True, gc=False):
    """The order as the leader decided it: one fact per entry it appends."""

    kind: ClassVar[str] = "order"
    group: str
    term: int
    index: int
    entry: str
    position: int
    stream: str
    first: int
    last: int


class DeliveryFact(Fact, frozen=True, gc=False):
    """Messages `first` to `last` of a stream delivered at `position` and on, with a digest of their bytes."""

    kind: ClassVar[str] = "delivery"
    group: str
    term: int
    index: int
    position: int
    stream: str
    first: int
    last: int
    digest: int
    """The sum of the hashes of all messages up to here, each seeded by its position, so that replicas can be compared
    without the messages."""


class GroupFact(Fact, frozen=True, gc=False):
    """The life of a replica: `leads`, `follows`, `gap`, `recovered`, `state_sent`, `restored`, `suspended`."""

    kind: ClassVar[str] = "group"
    group: str
    event: str
    term: int
    index: int
    detail: str = ""


KINDS: Final[tuple[type[Fact], ...]] = (
    NodeFact,
    LinkFact,
    PathFact,
    OrderFact,
    DeliveryFact,
    GroupFact,
)
