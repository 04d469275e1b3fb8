"""Frames of groups: messages, the order, elections, states, what is lost."""

from __future__ import annotations

import msgspec

from holdfast.wire.frames.base import Frame


class StreamId(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """A numbered sequence of messages of one source. A restarted source has a new incarnation: a new stream."""

    source: bytes
    incarnation: int
    stream: int


class About(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a source says about the messages of a frame, so that whoever lacks *other* messages can tell what it lacks.

    Distances and ages are those of the first message of the frame; with the priorities of the others
    they give those of every message in it. Columns have one byte per message, or none at all.
    """

    priorities: bytes = b""
    """Empty: all messages have the lowest priority."""
    distances: tuple[int, ...] = ()
    """Per priority except the lowest: how many messages back the last one of it was; -1 if there was none yet."""
    ages_ns: tuple[int, ...] = ()
    """How much earlier the messages 1, 10, 100 and 1000 back were created; -1 where that is not known."""
    earlier: tuple[int, ...] = ()
    """Nothing. It keeps its place, because stores have frames as they were written."""
    topics: tuple[str, ...] = ()
    topic_column: bytes = b""
    """Per message: 0 for none, or the place of its topic in `topics`, counted from 1."""
    requests: tuple[tuple[int, bytes], ...] = ()
    """(place in the frame, request id) of messages that must not be delivered twice, whoever sends them again."""
    resyncs: tuple[int, ...] = ()
    """Places in the frame of messages after which the source is in step with the group again."""


class Payload(Frame, frozen=True, gc=False, array_like=True, tag=40):
    """Messages `first`, `first + 1`, ... of a stream, straight from the source to every replica."""

    group: str
    stream: StreamId
    first: int
    count: int
    created_ns: int
    block: memoryview
    """The messages, packed as in `wire.blocks`."""
    about: About | None = None


class Idle(Frame, frozen=True, gc=False, array_like=True, tag=41):
    """The source has sent everything up to `last`: what is missing below is lost, not late."""

    group: str
    stream: StreamId
    last: int
    freed: int
    """Everything up to this number may be gone from the source's buffer."""
    created_ns: int = 0
    """Of message `last`, by the source's clock."""
    about: About | None = None
    """As a message `last + 1` would have it if it were sent now."""


class Nack(Frame, frozen=True, gc=False, array_like=True, tag=42):
    """Please send these ranges `[from, to]` of a stream again, to the sender of this frame."""

    group: str
    stream: StreamId
    ranges: tuple[tuple[int, int], ...]
    from_log: bool = False
    """From the message log, because no buffer has them."""


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One entry of the order. `kind` says what it does; ranges are inclusive."""

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
    """The leader's entries after `(prev_index, prev_term)`; empty ones are its heartbeat."""

    group: str
    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()
    contact_ns: int = 0
    """How long ago the leader last heard from a majority."""
    history: int = 0
    """Which founding of the group this order goes back to."""


class Appended(Frame, frozen=True, gc=False, array_like=True, tag=44):
    """A replica has everything up to `match`, messages included (and on disk, where the group is durable)."""

    group: str
    term: int
    match: int
    ok: bool
    hint: int = 0
    """Where the leader should go on when `ok` is false."""
    marks: tuple[tuple[StreamId, int], ...] = ()
    """The highest number held of each stream: a number that anybody holds is a gap for the leader."""
    applied: int = 0
    """The index up to which the replica's application has come: what nobody needs any more may be freed."""
    history: int = 0
    all_marks: bool = False
    """`marks` speaks of every stream, not only of those that have changed."""
    failed: int = 0
    """The entry at which the replica's application failed, and why; 0 while it works."""
    why: str = ""


class StateRequest(Frame, frozen=True, gc=False, array_like=True, tag=45):
    """A replica without a usable state asks for one: for these parts `[from, to]` of it, first of all for part 0. None
    means that it has all. `least`: a state from before that entry is of no use."""

    group: str
    request: int
    ranges: tuple[tuple[int, int], ...] = ()
    least: int = 0


class StateChunk(Frame, frozen=True, gc=False, array_like=True, tag=46):
    """A piece of a snapshot of the application and of what the group must know with it. The first `head` parts are what
    the group must know, and the digests of all others. No parts at all: there is a state to be had, of this index; or,
    where it answers a request, the application is still at it."""

    group: str
    request: int
    index: int
    part: int
    parts: int
    data: memoryview
    head: int = 0


class Freed(Frame, frozen=True, gc=False, array_like=True, tag=47):
    """Every replica has these numbers of the source's streams: the source may forget them."""

    group: str
    upto: tuple[tuple[StreamId, int], ...]
    view: int = 0
    """The number of the view that is decided, and the names of the replicas in it: sources send to these."""
    replicas: tuple[str, ...] = ()
    index: int = 0
    """Every replica has the entries up to this one."""


class Ballot(Frame, frozen=True, gc=False, array_like=True, tag=48):
    """Asks for a vote. `kind`: 0 would I get it (a pre-vote, changes nothing), 1 give it to me, 2 from the leader:
    campaign at once, in my place."""

    group: str
    history: int
    kind: int
    term: int
    last_term: int
    last_index: int
    view: bytes = b""
    """Who is in the group, as the sender's log has it: one that has just started finds itself in it, or not."""


class Vote(Frame, frozen=True, gc=False, array_like=True, tag=49):
    """The answer to a `Ballot`. A refusal carries the term that its sender is in."""

    group: str
    history: int
    kind: int
    term: int
    granted: bool


class Seek(Frame, frozen=True, gc=False, array_like=True, tag=50):
    """A replica without a place in the group is here, and looks for those who have one. `kind`: 0 let me in,
    1 add the replica `name` (as a voter if `voter`), 2 remove it, 3 ignore no more by the criterion of this id."""

    group: str
    history: int = 0
    kind: int = 0
    name: str = ""
    voter: bool = True
    criterion: int = 0


class Standing(Frame, frozen=True, gc=False, array_like=True, tag=51):
    """The answer to a `Seek`: what its sender is. `history` is 0 when it has none: a group that is new, or forgot."""

    group: str
    history: int
    term: int
    leader: str = ""
    removed: bool = False
    """The one that seeks was removed from the group, and will not be let in before somebody adds it."""


class Lost(Frame, frozen=True, gc=False, array_like=True, tag=52):
    """The leader has lost these ranges `[from, to]` of a stream: who has them?"""

    group: str
    question: int
    stream: StreamId
    ranges: tuple[tuple[int, int], ...]


class Found(Frame, frozen=True, gc=False, array_like=True, tag=53):
    """What a replica has of what the leader seeks: in its buffers, and in its message log."""

    group: str
    question: int
    stream: StreamId
    held: tuple[tuple[int, int], ...] = ()
    priorities: bytes = b""
    """Of the held messages, one after the other, as far as they are told."""
    logged: tuple[tuple[int, int], ...] = ()
    from_log: bool = False
    """This is the answer of the message log, not of the replica."""


class Outputs(Frame, frozen=True, gc=False, array_like=True, tag=54):
    """What a group's application says to the node that gets this frame: (position, k, payload), in order."""

    group: str
    history: int
    after: tuple[int, int]
    """The id (position, k) of the output before the first one here: a receiver that lacks it waits for it."""
    floor: tuple[int, int]
    """Everything up to this one is known to have arrived, at this node or an earlier life of it."""
    items: tuple[tuple[int, int, bytes], ...]


class OutputsHere(Frame, frozen=True, gc=False, array_like=True, tag=55):
    """The sender of this frame has every output of the group up to this one."""

    group: str
    history: int
    position: int
    k: int


class Placed(Frame, frozen=True, gc=False, array_like=True, tag=56):
    """A source asks whether it is decided what becomes of its messages up to `number`; a replica says so (`yes`). One
    that does not know does not answer."""

    group: str
    stream: StreamId
    number: int
    yes: bool = False
