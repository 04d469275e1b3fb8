"""Frames of health: heartbeats, what they mean, verdicts, and stress runs."""

from __future__ import annotations

import msgspec

from holdfast.wire.frames.base import Frame


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
