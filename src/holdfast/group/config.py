"""The settings of a group, the names of its units, and the routing of its frames."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.frames import (
    GROUP_FRAMES,
    CommitReply,
    Freed,
    LossQuery,
    Nack,
    Outputs,
    Payload,
)
from holdfast.group.log.entries import VOTERS_MAX
from holdfast.group.loss.rule import Rule
from holdfast.group.ports import APPLY_MAX
from holdfast.group.services.frames import SERVICE_FRAMES, ServiceReply
from holdfast.group.streams.message_metadata import LEVELS_MAX
from holdfast.stability import StabilityConfig
from holdfast.stability.config import AUTO
from holdfast.stability.frames import STABILITY_FRAMES
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, Nanos
from holdfast.wire.frames import Frame

GROUP_STABILITY: Final = StabilityConfig(
    period_ns=5 * MILLISECOND,
    gap_ns=2 * MILLISECOND,
    calm_ns=20 * MILLISECOND,
    calm_bytes=128 << 10,
)
"""Rounds follow each other faster than by default, because sources wait for them. No source waits while replicas hold
little, and the rounds after lone messages would cost a quarter of the CPU time."""
MAY_BE_ZERO: Final = ("message_log_bytes",)
ZONE_MAX: Final = 64
ENTRY_BYTES: Final = 400
"""The approximate size of a log entry in memory."""


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One group, with the same settings on every node that uses it. Nodes are given by name."""

    name: str
    voters: tuple[str, ...]
    """The initial voters, whose majority commits; afterwards the view defines them."""
    leader: str = ""
    """The first leader; by default the first voter that may lead. Elections decide afterwards."""
    learners: tuple[str, ...] = ()
    """Replicas that deliver everything and never count in a majority."""
    never_lead: tuple[str, ...] = ()
    """Replicas that vote but are not elected."""

    durability: Literal["memory", "durable"] = "memory"
    """`durable`: messages and entries are on disk before they are acknowledged."""
    delivery: Literal["safe", "fast"] = "safe"
    """`safe`: committed entries are delivered. `fast`: a replica delivers what it has, which may be rolled back."""
    mode: Literal["majority", "availability"] = "majority"
    """`availability`: a side without a majority continues as well; when the sides meet, one is rolled back."""

    window_bytes: int = 16 << 20
    """How much a source buffers until every replica has it; a replica holds at most twice that per stream."""
    payload_bytes: int = 60_000
    """The approximate size of a payload frame."""
    entry_bytes: int = 1 << 20
    """The approximate size of the messages of one entry, so that batches for the application are bounded."""
    log_entries: int = 1 << 16
    """The leader orders nothing more while its log has this many entries."""
    streams: int = 16_384
    """Concurrent streams that a replica accepts: the maximum number of sources."""
    marks: int = 1024
    """Streams of which a replica reports its highest number in one answer to the leader."""
    apply_bytes: int = APPLY_MAX
    """The maximum that a replica has passed to its application and that is not applied yet."""
    first_messages: int = 64
    """The maximum number of messages in an application before its output rate is known."""
    stored_chunk_bytes: int = 256 << 10
    """`durable`: a snapshot is written to the store in pieces of this size."""
    state_bytes: int = 1 << 30
    """The largest snapshot that is accepted from another replica."""

    trace: bool = False
    """Record a fact for every delivered message, besides the facts per range. For finding single messages."""

    append_period_ns: Nanos = 40 * MILLISECOND
    """The heartbeat period of the leader."""
    election_ns: Nanos = 150 * MILLISECOND
    """The minimum election timeout; replicas wait for up to twice that, at random. A leader that has not heard from a
    majority for this long steps down."""
    stall_ns: Nanos = 400 * MILLISECOND
    """A leader that hears the others but cannot commit for this long hands over."""
    reorder_ns: Nanos = 300 * MICROSECOND
    """How long later messages of its stream may be present before a datagram message is requested."""
    nack_delay_ns: Nanos = MILLISECOND
    """How long a message may be known from others before it is requested."""
    nack_retry_ns: Nanos = 20 * MILLISECOND
    """The timeout of a retransmission request while the round trip is not measured."""
    nack_delay_max_ns: Nanos = SECOND
    idle_first_ns: Nanos = 5 * MILLISECOND
    """How soon an idle source repeats its last number."""
    idle_max_ns: Nanos = SECOND
    free_period_ns: Nanos = 5 * MILLISECOND
    """The minimum interval at which the leader announces what may be freed, and a replica its progress."""
    stability: StabilityConfig = GROUP_STABILITY
    """How the replicas determine what all of them have applied, so that buffers can be freed."""
    relay_from: int = 65
    """The number of members from which sources send to the voters only, and learners receive messages from other
    replicas."""
    query_period_ns: Nanos = 50 * MILLISECOND
    """How often a replica without a state looks for its group."""
    transfer_retry_ns: Nanos = 200 * MILLISECOND
    patience_ns: Nanos = 10 * SECOND
    """A connected replica whose application makes no progress for this long no longer blocks the others."""
    lack_ns: Nanos = 2 * SECOND
    """A replica that cannot obtain an ordered message for this long asks to be suspended, and installs a snapshot."""
    rejoin_ns: Nanos = SECOND
    """A replica whose application failed asks for a snapshot after this time; each further failure doubles it."""
    snapshot_bytes: int = 64 << 20
    """`durable`: a snapshot is written after this many bytes of messages, and everything below it is erased."""

    zones: dict[str, tuple[str, ...]] = {}
    """The replicas that deliver messages sent to a zone. All others only order and keep them."""

    # -- lost messages --

    transport: Literal["channel", "datagram"] = "channel"
    """How messages travel from their source: reliably, or as datagrams, each of which may be lost."""
    datagram_bytes: int = 1100
    """The approximate size of a payload frame that is sent as a datagram, until all paths are known to carry more."""
    datagram_window: int = 512 << 10
    """The maximum of datagram messages in flight."""
    priorities: int = 1
    """Priority levels, 0 the most urgent; the lowest is the default of a message."""
    policy: tuple[Rule, ...] = ()
    """Rules for lost messages: the first that matches decides, if the application does not."""
    late_ns: Nanos = 10 * MILLISECOND
    """How long, on a reliable channel, a message may be known from others before it is requested."""
    seek_ns: Nanos = SECOND
    """How long the leader waits for reachable replicas to report what they have of its lost messages."""
    recover_ns: Nanos = 5 * SECOND
    """Time limit of recovery, if the action sets none."""
    answer_ns: Nanos = 10 * SECOND
    """The timeout of `on_loss`; then the rules decide."""
    gone_ns: Nanos = 30 * SECOND
    """A source that is unreachable for this long is treated as gone."""
    output_bytes: int = 16 << 20
    """The limit of undelivered outputs; above it, the application receives no more messages."""
    output_retry_ns: Nanos = SECOND
    """How long a destination may take to acknowledge outputs."""
    message_log_bytes: int = 0
    """The size of the message log of each replica; 0: none."""
    close_delay_ns: Nanos = SECOND
    """How long after a restart of its source a stream is closed."""

    def __post_init__(self) -> None:
        replicas = self.voters + self.learners
        if not self.name or not self.voters:
            raise ConfigError(f"group {self.name!r} needs a name and at least one voter")
        if len(self.voters) > VOTERS_MAX:
            raise ConfigError(
                f"group {self.name}: {len(self.voters)} voters, at most {VOTERS_MAX}; make some learners"
            )
        if len(dict.fromkeys(replicas)) != len(replicas):
            raise ConfigError(
                f"group {self.name}: a replica is listed twice in {', '.join(replicas)}"
            )
        if self.leader and self.leader not in self.voters:
            raise ConfigError(f"group {self.name}: leader {self.leader!r} is not one of its voters")
        for name in self.never_lead:
            if name not in replicas:
                raise ConfigError(
                    f"group {self.name}: never_lead: {name!r} is not one of its replicas"
                )
        if not self.founder:
            raise ConfigError(
                f"group {self.name}: no replica may lead: every voter, or the leader, is in never_lead"
            )
        if self.election_ns < 2 * self.append_period_ns:
            raise ConfigError(
                f"group {self.name}: election_ns is {self.election_ns}, but must be at least twice "
                f"append_period_ns ({self.append_period_ns}); otherwise replicas start elections "
                "while the leader is healthy"
            )
        if self.payload_bytes < 1000 or self.window_bytes < 8 * self.payload_bytes:
            raise ConfigError(
                f"group {self.name}: window_bytes is {self.window_bytes}, but must be at least 8 x "
                f"payload_bytes ({self.payload_bytes}, itself at least 1000)"
            )
        if self.priorities > LEVELS_MAX:
            raise ConfigError(
                f"group {self.name}: {self.priorities} priorities, at most {LEVELS_MAX}"
            )
        self._check_stability()
        self._check_zones()
        for rule in self.policy:
            if rule.priority is not None and rule.priority >= self.priorities:
                raise ConfigError(
                    f"group {self.name}: a loss rule has priority {rule.priority}, which no message has: "
                    f"priorities are 0 to {self.priorities - 1} (`priorities`)"
                )
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.type is int and value <= 0 and field.name not in MAY_BE_ZERO:
                raise ConfigError(f"group {self.name}: {field.name} is {value}, must be positive")

    def _check_stability(self) -> None:
        if self.mode == "availability" and self.stability.protocol != AUTO:
            raise ConfigError(
                f"group {self.name}: stability is {self.stability.protocol!r}, but an availability group frees by its "
                f"leader's account: leave it out"
            )

    def _check_zones(self) -> None:
        for zone, names in self.zones.items():
            if not zone or "/" in zone or len(zone) > ZONE_MAX:
                raise ConfigError(
                    f"group {self.name}: zone {zone!r} needs a name of 1 to {ZONE_MAX} characters, without '/'"
                )
            for name in names:
                if name not in self.replicas:
                    raise ConfigError(
                        f"group {self.name}: zone {zone!r}: {name!r} is not one of its replicas"
                    )
        if not self.zones:
            return
        sets = [self.zones_of(name) for name in self.replicas]
        for name, zones in zip(self.replicas, sets, strict=True):
            if sets.count(zones) < 2 and len(sets) > 1:
                raise ConfigError(
                    f"group {self.name}: no other replica is in the same zones as {name} "
                    f"({', '.join(zones) or 'none'}), so none could give it a state; every combination of zones "
                    "needs at least two replicas"
                )

    def zones_of(self, name: str) -> tuple[str, ...]:
        """The zones of a replica."""
        return tuple(zone for zone, names in self.zones.items() if name in names)

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def founder(self) -> str:
        """The voter that creates the group and leads it first; empty if none may."""
        eligible = [voter for voter in self.voters if voter not in self.never_lead]
        if self.leader:
            return self.leader if self.leader in eligible else ""
        return eligible[0] if eligible else ""

    @property
    def is_durable(self) -> bool:
        return self.durability == "durable"

    def memory_bytes(self, streams: int) -> int:
        """The maximum that one member holds of the group with this many streams: up to two windows of each as a
        replica, its own as a source (sent, queued, not yet taken), the log, and its outputs."""
        held = 2 * self.window_bytes * streams + 3 * self.window_bytes
        return held + self.log_entries * ENTRY_BYTES + self.output_bytes

    @property
    def tight_bytes(self) -> int:
        """A sender that waits for room has at least this much in the buffers of all replicas: it may have half a window
        there, and its next message, of at most a quarter, does not fit."""
        if self.transport == "datagram":
            return min(self.window_bytes // 4, self.datagram_window // 2)
        return self.window_bytes // 4

    @property
    def calm_bytes(self) -> int:
        """While a replica holds less than this of each source, none of them waits for room. Sources of datagrams repeat
        their last number until they know that it has arrived, so they wait for stability at all times."""
        return (
            min(self.stability.calm_bytes, self.tight_bytes // 4)
            if self.transport == "channel"
            else 0
        )

    @property
    def message_bytes(self) -> int:
        """The largest message that a source accepts."""
        return self.window_bytes // 4


def source_unit(group: str) -> str:
    return "source/" + group


def replica_unit(group: str) -> str:
    return "replica/" + group


def services_unit(group: str) -> str:
    """The unit of a node that asks for locks and barriers of a group."""
    return "services/" + group


def log_unit(group: str) -> str:
    """The unit of the message log of a group."""
    return "messages/" + group


OUTPUT_RECEIVER: Final = "outputs"
"""The unit of a node that receives outputs of groups."""


def units_for(frame: Any) -> tuple[str, ...]:
    """The units that receive a frame of a group; the turn skips units that a node does not have.

    A source and a replica on the same node both hold messages and both free them, so `Nack` and `Freed` go to
    both; each ignores what is not its own.
    """
    kind = type(frame)
    if kind is Nack and frame.from_log:
        return (log_unit(frame.group),)
    return _units(kind, frame.group) if kind in _GROUP_FRAMES else ()


_GROUP_FRAMES: Final = frozenset((*GROUP_FRAMES, *STABILITY_FRAMES, *SERVICE_FRAMES))


@lru_cache(maxsize=256)
def _units(kind: type[Frame], group: str) -> tuple[str, ...]:
    if kind is Nack or kind is Freed:
        return (source_unit(group), replica_unit(group))
    if kind is CommitReply:
        return (source_unit(group),)
    if kind is ServiceReply:
        return (services_unit(group),)
    if kind is Payload or kind is LossQuery:
        return (replica_unit(group), log_unit(group))
    return (OUTPUT_RECEIVER,) if kind is Outputs else (replica_unit(group),)
