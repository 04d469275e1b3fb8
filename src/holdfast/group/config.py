"""How a group is set up, the names of its units, and which of them a frame is for."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.entries import VOTERS_MAX
from holdfast.group.metadata import LEVELS_MAX
from holdfast.group.policy import Rule
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, Nanos
from holdfast.wire.frames import (
    AnyFrame,
    Append,
    Appended,
    Ballot,
    Found,
    Freed,
    Idle,
    Lost,
    Nack,
    Outputs,
    OutputsHere,
    Payload,
    Placed,
    Seek,
    Standing,
    StateChunk,
    StateRequest,
    Vote,
)

MAY_BE_ZERO: Final = ("message_log_bytes",)
ENTRY_BYTES: Final = 400
"""What an entry of the log takes in memory, about."""


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One group, the same on every node that has to do with it. Nodes are named by their names."""

    name: str
    voters: tuple[str, ...]
    """Whose acknowledgements make a majority, when the group begins; its view says who they are afterwards."""
    leader: str = ""
    """The voter that leads at first; the first one that may lead when left out. Elections decide afterwards."""
    learners: tuple[str, ...] = ()
    """Replicas that deliver everything and never count in a majority."""
    never_lead: tuple[str, ...] = ()
    """Replicas that vote but are not elected."""

    durability: Literal["memory", "durable"] = "memory"
    """`durable`: messages and entries are on disk before they are acknowledged."""
    delivery: Literal["safe", "fast"] = "safe"
    """`safe`: what a majority has is delivered. `fast`: what a replica has, which may turn out to be undecided."""
    mode: Literal["majority", "availability"] = "majority"
    """`availability`: a side without a majority goes on as well; when they meet again, one side loses what it did."""

    window_bytes: int = 16 << 20
    """What a source keeps until every replica has it; a replica holds at most twice that for each stream."""
    payload_bytes: int = 60_000
    """About the size of a payload frame."""
    entry_bytes: int = 1 << 20
    """An entry of the order covers about this much, so that the application is handed bounded batches."""
    log_entries: int = 1 << 16
    """The leader orders nothing more while its log holds this many entries."""
    streams: int = 16_384
    """Streams that a replica knows at the same time: as many sources may send at once."""
    state_bytes: int = 1 << 30
    """The largest state that is taken in from another replica."""

    append_period_ns: Nanos = 40 * MILLISECOND
    """How often the leader is heard when there is nothing to say."""
    election_ns: Nanos = 150 * MILLISECOND
    """So long a leader may be silent; replicas wait for up to twice that, by chance, before they want to be elected.
    A leader that has not heard a majority for this long does not lead any more."""
    stall_ns: Nanos = 400 * MILLISECOND
    """A leader that hears everybody but gets nothing decided for this long lets another try."""
    reorder_ns: Nanos = 300 * MICROSECOND
    """How long later messages of its stream may be here before a message that was sent as a datagram."""
    nack_delay_ns: Nanos = MILLISECOND
    """How long a message may be heard of before it comes."""
    nack_retry_ns: Nanos = 20 * MILLISECOND
    """How long a node may take to bring back what it was asked for, while it is not known how long it takes."""
    nack_delay_max_ns: Nanos = SECOND
    idle_first_ns: Nanos = 5 * MILLISECOND
    """How soon a source that has nothing more to send says what its last number was."""
    idle_max_ns: Nanos = SECOND
    free_period_ns: Nanos = 5 * MILLISECOND
    """The leader tells what may be freed at most this often, and a replica how far its application has come."""
    query_period_ns: Nanos = 50 * MILLISECOND
    """How often a replica without a state asks who has what."""
    transfer_retry_ns: Nanos = 200 * MILLISECOND
    patience_ns: Nanos = 10 * SECOND
    """A connected replica whose application does not move for this long no longer holds the others back."""
    lack_ns: Nanos = 2 * SECOND
    """A replica that cannot get a message of the order for this long asks to be suspended, and takes a state."""
    rejoin_ns: Nanos = SECOND
    """A replica whose application failed asks for a state after this time; each further failure doubles it."""
    snapshot_bytes: int = 64 << 20
    """`durable`: a state is written after so many bytes of messages, and what is below it is erased."""

    # -- messages that get lost --

    transport: Literal["channel", "datagram"] = "channel"
    """How messages travel from their source: reliably, or as datagrams, each of which may be lost."""
    datagram_bytes: int = 1100
    """About the size of a payload frame that travels as a datagram."""
    datagram_window: int = 512 << 10
    """Of datagrams at most this much is on its way."""
    priorities: int = 1
    """Levels of priority; 0 is the most urgent, messages have the lowest unless their sender says otherwise."""
    policy: tuple[Rule, ...] = ()
    """What to do about lost messages; the first rule that matches decides, when the application leaves it to them."""
    late_ns: Nanos = 10 * MILLISECOND
    """How long, on a reliable channel, a message may be heard of before it comes."""
    seek_ns: Nanos = SECOND
    """How long the leader waits for those that can be reached to say what they have of what it lost."""
    recover_ns: Nanos = 5 * SECOND
    """How long recovery may take when the answer does not say."""
    answer_ns: Nanos = 10 * SECOND
    """How long the application may think; then the table decides."""
    gone_ns: Nanos = 30 * SECOND
    """A source that cannot be reached for this long is not expected to bring anything back."""
    output_bytes: int = 16 << 20
    """What the application has said to destinations that have not got it yet; above that it is given nothing more."""
    output_retry_ns: Nanos = SECOND
    """How long a destination may take to say that it has what it was sent."""
    message_log_bytes: int = 0
    """Replicas write messages down, up to this much each, to recover from when no buffer has them; 0: they do not."""
    close_delay_ns: Nanos = SECOND
    """How long after its source has begun a new life a stream is closed."""

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
                raise ConfigError(f"group {self.name}: never_lead: {name!r} is no replica of it")
        if not self.founder:
            raise ConfigError(
                f"group {self.name}: nobody may lead: every voter, or its leader, is in never_lead"
            )
        if self.election_ns < 2 * self.append_period_ns:
            raise ConfigError(
                f"group {self.name}: election_ns is {self.election_ns}, at least twice append_period_ns "
                f"({self.append_period_ns}) is needed, or replicas elect while the leader is well"
            )
        if self.payload_bytes < 1000 or self.window_bytes < 8 * self.payload_bytes:
            raise ConfigError(
                f"group {self.name}: window_bytes is {self.window_bytes}, at least 8 x payload_bytes "
                f"({self.payload_bytes}, itself at least 1000) are needed"
            )
        if self.priorities > LEVELS_MAX:
            raise ConfigError(
                f"group {self.name}: {self.priorities} priorities, at most {LEVELS_MAX}"
            )
        for rule in self.policy:
            if rule.priority is not None and rule.priority >= self.priorities:
                raise ConfigError(
                    f"group {self.name}: a rule about lost messages has priority {rule.priority}, no message has it: "
                    f"there are 0 to {self.priorities - 1} (`priorities`)"
                )
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.type is int and value <= 0 and field.name not in MAY_BE_ZERO:
                raise ConfigError(f"group {self.name}: {field.name} is {value}, must be positive")

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def founder(self) -> str:
        """The voter that begins the group, and leads it first; empty when nobody may."""
        eligible = [voter for voter in self.voters if voter not in self.never_lead]
        if self.leader:
            return self.leader if self.leader in eligible else ""
        return eligible[0] if eligible else ""

    @property
    def is_durable(self) -> bool:
        return self.durability == "durable"

    def memory_bytes(self, streams: int) -> int:
        """What one member holds of the group at most, whatever the others do, with so many streams: up to two windows
        of each as a replica, its own as a source (sent, queued, not yet taken), the log, and its outputs."""
        held = 2 * self.window_bytes * streams + 3 * self.window_bytes
        return held + self.log_entries * ENTRY_BYTES + self.output_bytes

    @property
    def tight_bytes(self) -> int:
        """Whoever waits for room to send has at least so much in the buffers of all replicas: a sender may have half a
        window there, and its next message, of at most a quarter, does not fit any more."""
        if self.transport == "datagram":
            return min(self.window_bytes // 4, self.datagram_window // 2)
        return self.window_bytes // 4

    @property
    def message_bytes(self) -> int:
        """The largest message that a source takes."""
        return self.window_bytes // 4


def source_unit(group: str) -> str:
    return "source/" + group


def replica_unit(group: str) -> str:
    return "replica/" + group


def log_unit(group: str) -> str:
    """Where the group's messages are written down on a node, if they are."""
    return "messages/" + group


SINK: Final = "outputs"
"""The unit of a node where outputs of groups arrive."""

GROUP_FRAMES: Final = frozenset(
    {
        Payload, Idle, Nack, Append, Appended, StateRequest, StateChunk, Freed, Ballot, Vote, Seek, Standing,
        Lost, Found, Outputs, OutputsHere, Placed,
    }
)  # fmt: skip
"""The frames that `units_for` knows."""


def units_for(frame: AnyFrame) -> tuple[str, ...]:
    """The units that a frame of a group is for; units that a node does not have are left out by the turn.

    A source and a replica on the same node both hold messages and both free them, so `Nack` and `Freed` go to
    both; each ignores what is not its own. Of `Placed` one takes the question and the other the answer.
    """
    kind = type(frame)
    if kind is Placed:
        return ((source_unit if frame.yes else replica_unit)(frame.group),)  # type: ignore[union-attr]
    if kind is Nack and frame.from_log:  # type: ignore[union-attr]  # it is one
        return (log_unit(frame.group),)  # type: ignore[union-attr]
    return _units(kind, frame.group) if kind in GROUP_FRAMES else ()  # type: ignore[union-attr]  # all have one


@lru_cache(maxsize=256)
def _units(kind: type[AnyFrame], group: str) -> tuple[str, ...]:
    if kind is Nack or kind is Freed:
        return (source_unit(group), replica_unit(group))
    if kind is Payload or kind is Lost:
        return (replica_unit(group), log_unit(group))
    return (SINK,) if kind is Outputs else (replica_unit(group),)
