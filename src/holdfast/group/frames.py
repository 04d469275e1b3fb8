"""Frames of groups: messages, order, elections, state transfer, lost messages."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.wire.codec import learn
from holdfast.wire.frames import Frame


class StreamId(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """A numbered sequence of messages of one source. A restarted source has a new incarnation and therefore a new
    stream."""

    source: bytes
    incarnation: int
    stream: int


class MessageMetadata(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Metadata of the messages in a frame, from which a receiver can derive which *other* messages it lacks.

    Distances and ages are those of the first message of the frame. Together with the priorities of the others, they
    give those of every message. Columns have one byte per message, or are empty.
    """

    priorities: bytes = b""
    """Empty: all messages have the lowest priority."""
    distances: tuple[int, ...] = ()
    """Per priority except the lowest: the distance back to the last message of that priority; -1 if there was none."""
    ages_ns: tuple[int, ...] = ()
    """How much earlier the messages 1, 10, 100 and 1000 back were created; -1 if unknown."""
    earlier: tuple[int, ...] = ()
    """Unused. It keeps its place, because stores contain encoded frames."""
    topics: tuple[str, ...] = ()
    topic_column: bytes = b""
    """Per message: 0 for none, or the 1-based index of its topic in `topics`."""
    requests: tuple[tuple[int, bytes], ...] = ()
    """(place in the frame, request id) of messages that must be delivered only once, whichever node sends them
    again."""
    resyncs: tuple[int, ...] = ()
    """Places in the frame of messages after which the source is in step with the group again."""


class Payload(Frame, frozen=True, gc=False, array_like=True, tag=40):
    """Messages `first`, `first + 1`, ... of a stream, sent directly from the source to every replica."""

    group: str
    stream: StreamId
    first: int
    count: int
    created_ns: int
    block: memoryview
    """The messages, packed as in `wire.blocks`."""
    about: MessageMetadata | None = None


class Idle(Frame, frozen=True, gc=False, array_like=True, tag=41):
    """The source has sent everything up to `last`: missing messages below it are lost, not late."""

    group: str
    stream: StreamId
    last: int
    freed: int
    """The source may have forgotten everything up to this number."""
    created_ns: int = 0
    """Creation time of message `last`, by the clock of the source."""
    about: MessageMetadata | None = None
    """The metadata that a message `last + 1` would have if it were sent now."""


class Nack(Frame, frozen=True, gc=False, array_like=True, tag=42):
    """Requests retransmission of these ranges `[from, to]` of a stream to the sender of this frame."""

    group: str
    stream: StreamId
    ranges: tuple[tuple[int, int], ...]
    from_log: bool = False
    """From the message log, because no buffer has them."""


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One log entry. `kind` states its effect; ranges are inclusive."""

    term: int
    index: int
    position: int
    """The position of its first message; an entry without messages has the position of the next one."""
    log_ns: int
    kind: int
    stream: StreamId | None = None
    first: int = 0
    last: int = 0
    data: bytes = b""


class Append(Frame, frozen=True, gc=False, array_like=True, tag=43):
    """Entries of the leader after `(prev_index, prev_term)`; without entries it is a heartbeat."""

    group: str
    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()
    contact_ns: int = 0
    """The time since the leader last heard from a majority."""
    group_epoch: int = 0
    """The group epoch of this log."""


class AppendResponse(Frame, frozen=True, gc=False, array_like=True, tag=44):
    """A replica has everything up to `match`, including the messages (in durable groups, on disk)."""

    group: str
    term: int
    match: int
    ok: bool
    hint: int = 0
    """Where the leader should continue if `ok` is false."""
    marks: tuple[tuple[StreamId, int], ...] = ()
    """The highest number held of each stream: a number that any replica holds is a gap for the leader."""
    applied: int = 0
    """The index up to which the application has applied; used for garbage collection."""
    group_epoch: int = 0
    all_marks: bool = False
    """`marks` covers every stream, not only those that have changed."""
    failed: int = 0
    """The entry at which the application failed, and the error; 0 if it works."""
    why: str = ""
    commit: int = 0
    """Up to where this replica knows that its log is committed."""
    held_bytes: int = -1
    """What it keeps of all streams, for people; -1: as before."""


class StateRequest(Frame, frozen=True, gc=False, array_like=True, tag=45):
    """A replica without a usable state requests these parts `[from, to]` of a snapshot, part 0 first. No parts: it has
    all of them. `least`: an older snapshot is of no use."""

    group: str
    request: int
    ranges: tuple[tuple[int, int], ...] = ()
    least: int = 0


class StateChunk(Frame, frozen=True, gc=False, array_like=True, tag=46):
    """A part of a snapshot of the application and of the group metadata. The first `head` parts contain the metadata
    and the digests of all others. Without parts: a snapshot of this index is available, or, as an answer to a request,
    the application is still creating it."""

    group: str
    request: int
    index: int
    part: int
    parts: int
    data: memoryview
    head: int = 0


class Freed(Frame, frozen=True, gc=False, array_like=True, tag=47):
    """Every replica has applied these numbers of the streams of the source: they leave its window."""

    group: str
    upto: tuple[tuple[StreamId, int], ...]
    view: int = 0
    """The number of the committed view, and the names of its replicas, to which sources send."""
    replicas: tuple[str, ...] = ()
    index: int = 0
    """Every replica has the entries up to this one."""
    held: tuple[tuple[StreamId, int], ...] = ()
    """Every replica holds these numbers and committed entries cover them: the source may forget their bytes."""


class VoteRequest(Frame, frozen=True, gc=False, array_like=True, tag=48):
    """A vote request. `kind`: 0 is a pre-vote, which changes nothing; 1 is a vote; 2 comes from the leader: start an
    election at once, in its place."""

    group: str
    group_epoch: int
    kind: int
    term: int
    last_term: int
    last_index: int
    view: bytes = b""
    """The members according to the log of the sender, so that a replica that just started can find itself in it."""


class VoteResponse(Frame, frozen=True, gc=False, array_like=True, tag=49):
    """The answer to a `VoteRequest`. A refusal carries the term that its sender is in."""

    group: str
    group_epoch: int
    kind: int
    term: int
    granted: bool


class JoinRequest(Frame, frozen=True, gc=False, array_like=True, tag=50):
    """A replica that is not in the view looks for the group. Every node that gets it answers; the leader admits it."""

    group: str


class JoinResponse(Frame, frozen=True, gc=False, array_like=True, tag=51):
    """The answer to a `JoinRequest`: the state of the replica that answers. `group_epoch` is 0 if it knows no group:
    the group is new, or this replica has lost its state."""

    group: str
    group_epoch: int
    term: int
    leader: str = ""
    removed: bool = False
    """The replica that asks was removed from the group. It is admitted again only after an operator adds it."""


class LossQuery(Frame, frozen=True, gc=False, array_like=True, tag=52):
    """The leader lacks these ranges `[from, to]` of a stream and asks which replicas have them."""

    group: str
    question: int
    stream: StreamId
    ranges: tuple[tuple[int, int], ...]


class LossReply(Frame, frozen=True, gc=False, array_like=True, tag=53):
    """Which of the ranges that the leader lacks a replica has, in its buffers and in its message log."""

    group: str
    question: int
    stream: StreamId
    held: tuple[tuple[int, int], ...] = ()
    priorities: bytes = b""
    """The priorities of the held messages, in order, as far as they are known."""
    logged: tuple[tuple[int, int], ...] = ()
    from_log: bool = False
    """This is the answer of the message log, not of the replica."""


class Outputs(Frame, frozen=True, gc=False, array_like=True, tag=54):
    """Outputs of a group for the receiving node: (position, k, payload), in order."""

    group: str
    group_epoch: int
    after: tuple[int, int]
    """The id (position, k) of the output before the first one here; a receiver that lacks it waits for it."""
    floor: tuple[int, int]
    """Everything up to this output is known to have arrived, at this incarnation of the node or an earlier one."""
    items: tuple[tuple[int, int, bytes], ...]


class OutputsAck(Frame, frozen=True, gc=False, array_like=True, tag=55):
    """The sender of this frame has every output of the group up to this one."""

    group: str
    group_epoch: int
    position: int
    k: int


class CommitQuery(Frame, frozen=True, gc=False, array_like=True, tag=56):
    """A source asks whether all its messages up to `number` are committed, as delivered or as skipped. A replica that
    does not know does not answer."""

    group: str
    stream: StreamId
    number: int


class CommitReply(Frame, frozen=True, gc=False, array_like=True, tag=57):
    """The answer to a `CommitQuery`: every message of the stream up to `number` is committed."""

    group: str
    stream: StreamId
    number: int


class AdminRequest(Frame, frozen=True, gc=False, array_like=True, tag=58):
    """An operator's request to another replica, passed on to the leader."""

    group: str
    group_epoch: int
    action: str
    """`add` the replica `name` (as a voter if `voter`), `remove` it, or `resume` what `criterion` ignores."""
    name: str = ""
    voter: bool = True
    criterion: int = 0


class FeedRequest(Frame, frozen=True, gc=False, array_like=True, tag=59):
    """A learner asks the receiver to pass messages on to it, or to stop. Valid for a few seconds, then repeated."""

    group: str
    wanted: bool


GROUP_FRAMES: Final[tuple[type[Frame], ...]] = (
    Payload,
    Idle,
    Nack,
    Append,
    AppendResponse,
    StateRequest,
    StateChunk,
    Freed,
    VoteRequest,
    VoteResponse,
    JoinRequest,
    JoinResponse,
    LossQuery,
    LossReply,
    Outputs,
    OutputsAck,
    CommitQuery,
    CommitReply,
    AdminRequest,
    FeedRequest,
)
learn(GROUP_FRAMES)

IMMEDIATE: Final = frozenset({Payload, Idle, Nack, LossQuery})
"""Frames that promise nothing and therefore do not wait for writes."""
