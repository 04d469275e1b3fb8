"""Frames of health: heartbeats, signatures, verdicts, and stress runs."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from holdfast.wire.codec import learn
from holdfast.wire.frames import FilledFrame, Frame


class Heartbeat(Frame, frozen=True, gc=False, array_like=True, tag=20):
    """A basic heartbeat of minimal size. `next_ns` announces the latest time of the next one.

    Its packet identifies source and destination (by the session) and carries the checksum. `n` counts the basic
    heartbeats of a flow, so that gaps show losses.
    """

    by_multicast: ClassVar[bool] = True

    n: int
    sent_ns: int
    next_ns: int
    echo_ns: int = 0
    """`sent_ns` of the last basic heartbeat received on the reverse path, and its age: gives the round trip."""
    echo_age_ns: int = 0
    grace: int = 0
    """How many heartbeats of its kind must be missing before that counts."""
    plan: int = 0
    """The plan (see `Signature`) that numbers the probes, and the round to which they belong."""
    pair: int = 0
    sent: bytes = b""
    """The probes sent together with this heartbeat, one byte each."""
    lag: int = 0
    """How late the sender ran lately, in steps of 8 ms: that much of a delay is not one of the path."""


class Probe(FilledFrame, frozen=True, gc=False, array_like=True, tag=21):
    """A diagnostic heartbeat whose packet has `size` bytes on the wire, including IP and UDP headers.

    `code` is its combination of attributes in the plan of the sender. `pair` is its round; a basic heartbeat announces
    the probes of a round. A small probe that passes and a large one that does not show a size limit.
    """

    by_multicast: ClassVar[bool] = True

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
    """From a sender to one listener: what it sends from `adapter` to `listener_adapter`.

    Lanes, sizes and patterns number all combinations. `active` and `retry` are the numbers of the combinations sent
    because they pass, and of those retried because they do not.
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


class SignatureAck(Frame, frozen=True, gc=False, array_like=True, tag=24):
    """From a listener: it has `Signature` number `n`, and uses the periods in it to judge silence."""

    adapter: str
    listener_adapter: str
    n: int


class Notice(Frame, frozen=True, gc=False, array_like=True, tag=25):
    """From a listener to the sender: combinations that are missing, or that arrive although they had failed."""

    adapter: str
    listener_adapter: str
    plan: int
    codes: bytes


class Settled(Frame, frozen=True, gc=False, array_like=True, tag=26):
    """From a listener: what passes now on one lane. `done`: no suspicion is left."""

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
    """From the sender: it has applied `Settled` number `n` of a lane to its signatures. The listener can publish it."""

    adapter: str
    listener_adapter: str
    lane: str
    n: int


class PathRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a listener reports about one flow towards it. Rows belong to their listener, which versions them."""

    sender: bytes
    sender_adapter: str
    listener: bytes
    listener_adapter: str
    transport: str
    incarnation: int
    n: int
    alive: bool
    size: int
    """The largest probed packet that passes; 0 if unknown."""
    size_max: int
    """The largest probed packet size; if `size` is below it, the path has a soft error."""
    loss_ppm: int
    rtt_us: int
    patterns: tuple[str, ...] = ()
    """The probed bit patterns in hexadecimal, and those that do not pass."""
    bad_patterns: tuple[str, ...] = ()
    holes: tuple[int, ...] = ()
    """Sizes that do not pass although larger ones do."""
    jitter_us: int = 0
    rate_kbps: int = 0
    """Throughput estimate for packets of the usable size; 0 if there is none."""
    flows: int = 0
    """The number of probed 5-tuples of the path, and of those that carry less than the others."""
    flows_bad: int = 0
    loss_window_ms: int = 0
    """The time that the estimate of loss covers."""
    delay_us: int = 0
    """How much longer than usual packets take, in this direction; 0 while it is not clearly more."""
    rate_limit_kbps: int = 0
    """What the path carries, where packets were dropped because more was sent; 0: no such limit has shown."""
    data_lost: bool = False
    """Application data does not arrive although probes do."""
    outage_ms: int = 0
    """How long nothing passes, where that happens again and again; 0: it does not."""
    outage_every_ms: int = 0
    """The time from the beginning of one such outage to that of the next."""


class Edition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The version of all rows of one listener, issued by the listener; `n` increases with every change.

    `n` is also the version of the row that changed, so no two rows of a listener have the same version.
    """

    listener: bytes
    incarnation: int
    n: int
    digest: int
    """Digest of all its rows, independent of their order."""
    left: bool = False
    """The listener left the domain intentionally and has no rows."""
    kept: tuple[int, ...] | None = None
    """The versions of all its rows, if included in an answer: other rows are gone."""


class PathRows(Frame, frozen=True, gc=False, array_like=True, tag=22):
    """Rows of the path table and the editions they belong to, as reported by their listener."""

    rows: tuple[PathRow, ...]
    editions: tuple[Edition, ...] = ()
    repair: bool = False
    """They were requested, and need not be forwarded."""


class TableDigest(Frame, frozen=True, gc=False, array_like=True, tag=30):
    """Compares tables. `digest` covers all editions. The answer to a different digest contains the editions of the
    listeners in `[first, stop)` (an empty `stop`: to the end), and in `bases` how complete the sender's rows of each
    are."""

    digest: int
    first: bytes = b""
    stop: bytes = b""
    editions: tuple[Edition, ...] = ()
    bases: tuple[int, ...] = ()


class RowsRequest(Frame, frozen=True, gc=False, array_like=True, tag=31):
    """Requests the rows of these listeners that are newer than the version held: (listener, incarnation, n)."""

    wanted: tuple[tuple[bytes, int, int], ...]


# -- stress ------------------------------------------------------------------------------------------------------


class StressOrder(Frame, frozen=True, gc=False, array_like=True, tag=36):
    """Requests that the receiver sends every combination of attributes to `target` and reports to the sender of this
    frame."""

    run: int
    target: bytes
    rounds: int
    bytes_per_s: int
    sizes: tuple[int, ...] = ()
    """IP packet sizes; empty for those of the health configuration."""
    patterns: tuple[str, ...] = ()


class StressProbe(Probe, frozen=True, gc=False, array_like=True, tag=37):
    """A packet of a stress run, encoded like a probe. `pair` is the lane, `plan` the run, and `size` a number that
    distinguishes packets of the same combination."""


class StressCounts(Frame, frozen=True, gc=False, array_like=True, tag=38):
    """From a listener: how many packets of each combination arrived, one byte each, by lane. Empty: a request for
    it."""

    run: int
    counts: tuple[bytes, ...] = ()


class StressCell(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The result of one combination on one path."""

    adapter: str
    listener_adapter: str
    subnet: str
    kind: str
    size: int
    pattern: str
    """In hexadecimal; empty for a neutral fill."""
    sent: int
    heard: int


class StressReport(Frame, frozen=True, gc=False, array_like=True, tag=39):
    """To the node that ordered the run: its progress and, at the end, its result."""

    run: int
    target: bytes
    done: int
    total: int
    over: bool = False
    failure: str = ""
    cells: tuple[StressCell, ...] = ()


HEALTH_FRAMES: Final[tuple[type[Frame], ...]] = (
    Heartbeat,
    Probe,
    Signature,
    SignatureAck,
    Notice,
    Settled,
    Confirm,
    PathRows,
    TableDigest,
    RowsRequest,
    StressOrder,
    StressProbe,
    StressCounts,
    StressReport,
)
learn(HEALTH_FRAMES)
