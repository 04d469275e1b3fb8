"""Every frame there is, in one place, because both ends must agree on all of them.

A frame is a frozen struct, sent as a msgpack array whose first element is its tag. Fields are only ever added at
the end, with a default: an older node ignores them, a newer one fills them in. Tags are never used again.
`HELLO` and `REFUSE` are the same in every version, or two versions could not find out about each other.
"""

from __future__ import annotations

from typing import Final

import msgspec

VERSION_LOW: Final = 1
VERSION_HIGH: Final = 1
"""The range of frame versions that this node speaks; the highest that both speak is used."""


class Frame(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Base of all frames."""


# -- links -------------------------------------------------------------------------------------------------------


class AdapterInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One adapter as others must know it."""

    name: str
    subnet: str
    host: str
    port: int
    transports: tuple[str, ...]
    multicast: str = ""
    """`host:port` of the multicast group that the adapters of its subnet listen to; empty without multicast."""
    mtu: int = 1500
    """The largest packet that it is meant to carry."""
    measure: tuple[str, ...] = ()
    """What is measured with flows of their own, where both ends say so: `alt`, `frag`, `mss`."""


class MemberInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A member of the domain and where it can be reached; a higher incarnation replaces a lower one."""

    node: bytes
    name: str
    incarnation: int
    adapters: tuple[AdapterInfo, ...]


class Hello(Frame, frozen=True, gc=False, array_like=True, tag=1):
    """The first frame on a flow, repeated until the peer's echo shows that it arrived.

    `epoch` counts the sender's sessions on this link; a link's session is the pair of both epochs and both
    incarnations. `session` is the number that the peer must put into packets it sends to the sender. The echo is
    what the sender has heard of the peer on this very flow: both directions of it work once both have echoed.
    """

    low: int
    high: int
    domain: str
    sealed: bool
    member: MemberInfo
    adapter: str
    epoch: int
    session: int
    echo_incarnation: int = 0
    echo_epoch: int = 0
    ask: bool = True
    """The sender has not been echoed on this flow yet: please answer."""
    to: bytes = b""
    """The node that it is meant for, where the sender knows: an address can get a new owner."""
    use: str = ""
    """What the flow is for, as in `links.ports.OpenFlow`: data, or measuring only."""


class Refuse(Frame, frozen=True, gc=False, array_like=True, tag=2):
    """Why the sender of a `Hello` is not let in; it may try again after `retry_ms`."""

    code: str
    text: str
    retry_ms: int = 5000


class Key(Frame, frozen=True, gc=False, array_like=True, tag=3):
    """The key for datagrams to the sender of this frame, under `session`. Only ever sent over TLS."""

    session: int
    key: bytes
    multicast: bytes = b""
    """The key that the sender of this frame puts on what it multicasts."""


class Chunk(Frame, frozen=True, gc=False, array_like=True, tag=4):
    """A piece of a channel's byte stream."""

    channel: int
    offset: int
    data: memoryview


class ChunkAck(Frame, frozen=True, gc=False, array_like=True, tag=5):
    """What arrived of a channel: everything below `upto`, and `ranges` above it. `limit` is the offset that the
    receiver has room for."""

    channel: int
    upto: int
    limit: int
    ranges: tuple[tuple[int, int], ...] = ()


class Hurry(Frame, frozen=True, gc=False, array_like=True, tag=7):
    """The sender waits for acknowledgements: on a stream they would take their time."""


class Members(Frame, frozen=True, gc=False, array_like=True, tag=6):
    """Members that the sender knows of."""

    members: tuple[MemberInfo, ...]


class RawBatch(Frame, frozen=True, gc=False, array_like=True, tag=8):
    """Datagrams of an application, several in one packet: a block (see `wire.blocks`)."""

    port: int
    block: memoryview


class Bye(Frame, frozen=True, gc=False, array_like=True, tag=9):
    """The sender leaves on purpose: it is not dead, and nothing is wrong with its paths."""

    rest: bool = False
    """Only this link is given up, because nobody uses it; the sender stays in the domain."""


# -- health ------------------------------------------------------------------------------------------------------


class Basic(Frame, frozen=True, gc=False, array_like=True, tag=20):
    """A basic heartbeat: as small as can be. `next_ns` promises the latest time of its successor.

    Its packet names source and destination (by the session) and carries the checksum. `n` counts the basics of a
    flow, so that a gap shows what was lost.
    """

    n: int
    sent_ns: int
    next_ns: int
    echo_ns: int = 0
    """`sent_ns` of the last basic heard on the reverse path, and how long ago that was: gives the round trip."""
    echo_age_ns: int = 0
    grace: int = 0
    """How many of its kind must be missing before that means anything."""
    plan: int = 0
    """The plan (see `Signature`) that numbers the probes, and the round that they belong to."""
    pair: int = 0
    sent: bytes = b""
    """The probes that were sent together with this basic, one byte for each."""


class Probe(Frame, frozen=True, gc=False, array_like=True, tag=21):
    """A diagnostic heartbeat that makes the packet `size` bytes long on the wire, headers of IP and UDP included.

    `code` is its combination of attributes in the sender's plan. `pair` is the round that it belongs to, and a basic
    says what belongs to a round: small passed, large did not, is what shows a limit.
    """

    code: int
    size: int
    pair: int
    plan: int
    fill: memoryview


class TunablesInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The tunables of one signature, as in `health.config.Tunables`."""

    signature: str
    period_ns: int
    grace: int
    retry_ns: int


class Signature(Frame, frozen=True, gc=False, array_like=True, tag=23):
    """From a sender to one listener: what it sends on the way from `adapter` to `listener_adapter`.

    Lanes, their sizes and the patterns number all combinations. `active` and `retry` are the numbers of those that
    are sent because they pass, and of those that are tried again because they do not.
    """

    adapter: str
    listener_adapter: str
    n: int
    plan: int
    patterns: tuple[str, ...]
    lanes: tuple[tuple[str, tuple[int, ...]], ...]
    tunables: tuple[TunablesInfo, ...] = ()
    active: bytes = b""
    retry: bytes = b""


class Heeded(Frame, frozen=True, gc=False, array_like=True, tag=24):
    """From a listener: it has `Signature` number `n`, and holds silence against the periods in it."""

    adapter: str
    listener_adapter: str
    n: int


class Notice(Frame, frozen=True, gc=False, array_like=True, tag=25):
    """From a listener to the sender: combinations that it misses, or that it hears although they did not pass."""

    adapter: str
    listener_adapter: str
    plan: int
    codes: bytes


class Settled(Frame, frozen=True, gc=False, array_like=True, tag=26):
    """From a listener: what passes now on one lane. `done`: nothing of it is in doubt any more."""

    adapter: str
    listener_adapter: str
    lane: str
    n: int
    alive: bool
    size: int
    size_max: int
    holes: tuple[int, ...] = ()
    bad_patterns: tuple[str, ...] = ()
    done: bool = True


class Confirm(Frame, frozen=True, gc=False, array_like=True, tag=27):
    """From the sender: it has taken `Settled` number `n` of a lane into its signatures. Now it can be published."""

    adapter: str
    listener_adapter: str
    lane: str
    n: int


class PathRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a listener says of one flow towards it. Rows belong to their listener and are versioned by it."""

    sender: bytes
    sender_adapter: str
    listener: bytes
    listener_adapter: str
    transport: str
    incarnation: int
    n: int
    alive: bool
    size: int
    """The largest probed packet that passes; 0 while nothing is known."""
    size_max: int
    """The largest packet that is probed; below it the path has a soft error."""
    loss_ppm: int
    rtt_us: int
    patterns: tuple[str, ...] = ()
    """The bit patterns that are probed, in hexadecimal, and those of them that do not pass."""
    bad_patterns: tuple[str, ...] = ()
    holes: tuple[int, ...] = ()
    """Sizes that do not pass although larger ones do."""
    jitter_us: int = 0
    rate_kbps: int = 0
    """An estimate of what the path carries with packets of the usable size; 0 while there is none."""
    flows: int = 0
    """How many 5-tuples of the path are probed, and how many of those do not carry what the others do."""
    flows_bad: int = 0


class Edition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The state of one listener's rows, as the listener itself issues it: with every change `n` grows.

    `n` is also the version of the row that changed, so no two rows of a listener share one.
    """

    listener: bytes
    incarnation: int
    n: int
    digest: int
    """Of all its rows together, in whatever order."""
    left: bool = False
    """The listener left the domain on purpose: it has no rows any more."""
    kept: tuple[int, ...] | None = None
    """The versions of all its rows, where an answer says so: what is not among them is gone."""


class PathRows(Frame, frozen=True, gc=False, array_like=True, tag=22):
    """Rows of the path table, and the editions that they belong to: a listener tells everybody what it hears."""

    rows: tuple[PathRow, ...]
    editions: tuple[Edition, ...] = ()
    repair: bool = False
    """They were asked for: no news that would have to be handed on."""


class TableDigest(Frame, frozen=True, gc=False, array_like=True, tag=30):
    """Do we hold the same table? `digest` is of all editions; an answer to one that differs has the editions of
    the listeners in `[first, stop)` (an empty `stop`: to the end), and `bases`: how far the sender's rows of each
    are whole."""

    digest: int
    first: bytes = b""
    stop: bytes = b""
    editions: tuple[Edition, ...] = ()
    bases: tuple[int, ...] = ()


class AskRows(Frame, frozen=True, gc=False, array_like=True, tag=31):
    """Please send the rows of these listeners that are newer than the version held: (listener, incarnation, n)."""

    wanted: tuple[tuple[bytes, int, int], ...]


# -- stress ------------------------------------------------------------------------------------------------------


class StressOrder(Frame, frozen=True, gc=False, array_like=True, tag=36):
    """Please send every combination of attributes to `target`, and report to the sender of this frame."""

    run: int
    target: bytes
    rounds: int
    bytes_per_s: int
    sizes: tuple[int, ...] = ()
    """Sizes of IP packets; empty for those of the health configuration."""
    patterns: tuple[str, ...] = ()


class StressProbe(Probe, frozen=True, gc=False, array_like=True, tag=37):
    """A packet of a stress run. It is made on the wire as any probe is; `pair` is the lane that it was sent on, `plan`
    the run, and `size` a number that tells it from others of the same combination."""


class StressCounts(Frame, frozen=True, gc=False, array_like=True, tag=38):
    """From a listener: how many packets of each combination came, one byte each, by lane. None at all: please tell."""

    run: int
    counts: tuple[bytes, ...] = ()


class StressCell(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What became of one combination on one path."""

    adapter: str
    listener_adapter: str
    subnet: str
    kind: str
    size: int
    pattern: str
    """In hexadecimal; empty for a fill in which no pattern occurs."""
    sent: int
    heard: int


class StressReport(Frame, frozen=True, gc=False, array_like=True, tag=39):
    """To whoever ordered it: how far a run is, and in the end what came of it."""

    run: int
    target: bytes
    done: int
    total: int
    over: bool = False
    failure: str = ""
    cells: tuple[StressCell, ...] = ()


# -- groups ------------------------------------------------------------------------------------------------------


class StreamId(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """A numbered sequence of messages of one source. A restarted source has a new incarnation: a new stream."""

    source: bytes
    incarnation: int
    stream: int


class About(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a source says about the messages of a frame, so that whoever lacks *other* messages can tell what it lacks.

    Distances, ages and earlier numbers are those of the first message of the frame; with the priorities of the others
    they give those of every message in it. Columns have one byte per message, or none at all.
    """

    priorities: bytes = b""
    """Empty: all messages have the lowest priority."""
    distances: tuple[int, ...] = ()
    """Per priority except the lowest: how many messages back the last one of it was; -1 if there was none yet."""
    ages_ns: tuple[int, ...] = ()
    """How much earlier the messages 1, 10, 100 and 1000 back were created; -1 where that is not known."""
    earlier: tuple[int, ...] = ()
    """The last numbers that existed 10 ms, 100 ms, 1 s and 10 s earlier; 0 where that is not known."""
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
    the group must know, and the digests of all others. No parts at all: there is a state to be had, of this index."""

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


AnyFrame = (
    Hello
    | Refuse
    | Key
    | Chunk
    | ChunkAck
    | Hurry
    | Members
    | RawBatch
    | Bye
    | Basic
    | Probe
    | Signature
    | Heeded
    | Notice
    | Settled
    | Confirm
    | PathRows
    | TableDigest
    | AskRows
    | StressOrder
    | StressProbe
    | StressCounts
    | StressReport
    | Payload
    | Idle
    | Nack
    | Append
    | Appended
    | StateRequest
    | StateChunk
    | Freed
    | Ballot
    | Vote
    | Seek
    | Standing
    | Lost
    | Found
    | Outputs
    | OutputsHere
)

IMMEDIATE: Final = frozenset({Basic, Probe, StressProbe, Payload, Idle, Nack, Lost, RawBatch})
"""Frames that promise nothing, so they do not wait for writes."""
