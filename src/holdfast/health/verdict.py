"""Is this path fine? One function decides, for every view: node, command line, page, metrics and pipeline.

    from holdfast.health.verdict import judge, vector_of

    verdict = judge([vector_of(row)])                 # one kind of packets
    verdict = judge(kinds, reverse=back)              # a whole path, with the direction of its errors
    verdict.fine, verdict.state, verdict.error_class, verdict.direction, verdict.limit, verdict.text

- `Vector` holds the attribute values of one kind of packets (`udp`, `tcp`, `frag`, `multicast`) on one path.
- `vector_of(source)` makes one from a table row, a `PathFact`, a row of the status, or a mapping with the same names.
  Lists may be tuples or, as in telemetry, text with commas. Names that are missing keep their defaults.
- `judge(vectors, reverse=(), ...)` is pure and total. `vectors` are all kinds of one path; `reverse` are those of the
  opposite path, as its own listener reports them. Without `reverse` the direction is `unknown`.
- `Verdict.state` is one of `STATES`: `ok`, `soft error`, `dead`, `unknown` (no size measured yet), `stale` (the
  listener is itself not heard, so its rows are out of date). `fine` is true for `ok` only.
- `Verdict.error_class` is the gravest class (`CLASSES`), `classes` has all of them, `direction` is `one way`, `both
  ways` or `unknown`, `limit` the largest packet that passes (0: no limit), `loss_ppm` with `loss_window_ms` the
  estimate of loss and the time it covers, `label` a few characters for a narrow column, `text` one sentence.
- `find_errors(vectors, reverse, ...)` gives each error with its values, for incidents and history.
- `unmet(vectors, transport, needs, ...)` names what a path lacks for one client's needs; empty when it satisfies them.
- Thresholds live here and nowhere else: `LOSSY_PPM`, `slow()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.health.classify import (
    CLASSES,
    CONGESTED,
    DATA,
    DEAD,
    DELAY,
    FLAPPING,
    FLOWS,
    LOSS,
    MULTICAST,
    PATTERN,
    PROTOCOL,
    SIZE,
    SoftError,
    label_of,
    symptom_of,
)
from holdfast.health.config import BASIC_SIZE
from holdfast.health.placement.needs import Needs

OK: Final = "ok"
SOFT: Final = "soft error"
UNKNOWN: Final = "unknown"
STALE: Final = "stale"
STATES: Final = (DEAD, SOFT, STALE, UNKNOWN, OK)
"""All states, worst first."""

ONE_WAY: Final = "one way"
BOTH_WAYS: Final = "both ways"
DIRECTION_UNKNOWN: Final = "unknown"

LOSSY_PPM: Final = 20_000
"""From this loss on a path has a soft error."""
STALLS_PPM: Final = 500_000
"""From this loss on, in either direction, a TCP connection makes no progress."""
SUSPECT_PPM: Final = 10_000
"""From this loss on, a path may turn out to have one."""
_OF_THE_LINE: Final = {SIZE, PATTERN}
"""Classes of errors that all kinds of packets have if one does, as a rule."""
DELAY_US_MIN: Final = 20_000
"""A delay of less than this is no error."""


class Vector(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The attribute values of one kind of packets on one path. The defaults describe a path that is fine."""

    kind: str = "udp"
    alive: bool = True
    size: int = 0
    size_max: int = 0
    holes: tuple[int, ...] = ()
    bad_patterns: tuple[str, ...] = ()
    loss_ppm: int = 0
    loss_window_ms: int = 0
    flows: int = 0
    flows_bad: int = 0
    rtt_us: int = 0
    delay_us: int = 0
    """How much longer than usual packets take, in this direction."""
    rate_limit_kbps: int = 0
    """Packets are lost because more is sent than this; 0: no limit has shown."""
    data_lost: bool = False
    """Application data fails here and passes on another path, and no probe says why."""
    stale: bool = False
    """The listener itself is not heard: these values are out of date."""
    outage_ms: int = 0
    """How long nothing passes, where that happens again and again; 0: it does not."""
    outage_every_ms: int = 0
    """The time from the beginning of one such outage to that of the next."""

    @property
    def limit(self) -> int:
        """The largest size up to which everything passes; 0 when all sizes pass or nothing is known."""
        if not self.size or not self.size_max:
            return 0
        if self.holes:
            return max(1, min(self.size, min(self.holes) - 1))
        return self.size if self.size < self.size_max else 0


class Verdict(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Whether a path is fine, and if not, what is wrong with it."""

    fine: bool
    state: str
    error_class: str = ""
    kind: str = ""
    """The kind of packets that shows the gravest error; empty when all do."""
    direction: str = ""
    limit: int = 0
    loss_ppm: int = 0
    loss_window_ms: int = 0
    label: str = ""
    text: str = ""
    classes: tuple[str, ...] = ()
    """All classes of error that the path has, gravest first."""


def judge(
    vectors: Iterable[Vector],
    reverse: Iterable[Vector] = (),
    *,
    flapping: bool = False,
    reverse_flapping: bool = False,
) -> Verdict:
    """Decide whether a path is fine, from all kinds of packets on it."""
    kinds = _by_kind(vectors)
    if not kinds:
        return _without_errors(UNKNOWN, kinds, "nothing is known yet")
    if all(vector.stale for vector in kinds.values()):
        return _without_errors(STALE, kinds, "out of date: the listener is not heard itself")
    errors = find_errors(kinds.values(), reverse, flapping, reverse_flapping)
    if not errors:
        if any(vector.size_max and not vector.size for vector in kinds.values()):
            return _without_errors(UNKNOWN, kinds, "no size has been measured yet")
        return _without_errors(OK, kinds, "everything passes")
    first = errors[0]
    state = DEAD if first.error_class == DEAD else SOFT
    loss = _worst_loss(kinds)
    limits = [vector.limit for vector in kinds.values() if vector.alive and vector.limit]
    return Verdict(
        fine=False,
        state=state,
        error_class=first.error_class,
        kind=first.kind,
        direction=_direction(first.one_way),
        limit=min(limits, default=0),
        loss_ppm=loss.loss_ppm,
        loss_window_ms=loss.loss_window_ms,
        label=label_of(first),
        text="; ".join(symptom_of(error) for error in errors),
        classes=tuple(dict.fromkeys(error.error_class for error in errors)),
    )


def find_errors(
    vectors: Iterable[Vector],
    reverse: Iterable[Vector] = (),
    flapping: bool = False,
    reverse_flapping: bool = False,
) -> tuple[SoftError, ...]:
    """Everything that is wrong with a path, gravest first, each with its direction.

    A direction is claimed only while the opposite path is heard: nothing is known of it otherwise.
    """
    back = {kind: vector for kind, vector in _by_kind(reverse).items() if not vector.stale}
    back_heard = any(vector.alive for vector in back.values())
    kinds = _by_kind(vectors)
    # A TCP connection needs both directions: where little or nothing comes back, it says nothing of this one.
    back_dead = bool(back) and not back_heard
    tcp_stalls = back_dead or any(
        "udp" in way and (way["udp"].loss_ppm >= STALLS_PPM or way["udp"].outage_ms)
        for way in (kinds, back)
    )
    both = {(error.error_class, error.kind) for error in _one_direction(back, reverse_flapping)}
    both.add((PROTOCOL, "tcp"))  # no connection works in either direction, whichever is filtered
    found = _one_direction(kinds, flapping)
    # What one kind of packets shows in both directions, the others find out one after the other.
    shared = {e.error_class for e in found if (e.error_class, e.kind) in both} & _OF_THE_LINE
    both |= {(e.error_class, e.kind) for e in found if e.error_class in shared}
    return tuple(
        msgspec.structs.replace(
            error, one_way=_is_one_way(error, both, back) if back_heard else None
        )
        for error in found
        if not (tcp_stalls and error.error_class == PROTOCOL and error.kind == "tcp")
    )


def _is_one_way(
    error: SoftError, both: set[tuple[str, str]], back: Mapping[str, Vector]
) -> bool | None:
    """Whether only this direction has the error; None while the opposite one may have it."""
    if (error.error_class, error.kind) in both:
        return False
    vector = back.get(error.kind or "udp")
    lossy = vector is not None and vector.loss_ppm >= SUSPECT_PPM
    if lossy and error.error_class in (LOSS, FLAPPING):
        return None
    return True


def unmet(
    vectors: Iterable[Vector],
    transport: str,
    needs: Needs,
    *,
    sealed: bool = False,
    strict: bool = False,
    limit: int | None = None,
) -> str:
    """What a flow of this transport lacks for `needs`; empty when it satisfies them.

    `sealed`: payload is encrypted, so patterns of the payload do not appear on the wire. `strict`: the path failed
    these needs a moment ago and must be clearly better before it counts as good again. `limit`: the size limit to
    assume, where it is not that of the transport's own vector.
    """
    kinds = _by_kind(vectors)
    own = kinds.get(transport)
    if own is not None and not own.alive:
        return "nothing arrives"
    limit = usable_size(kinds, transport) if limit is None else limit
    return next(_unmet(kinds, transport, needs, limit, sealed, strict), "")


def slow(vector: Vector) -> bool:
    """Whether packets take much longer than usual: by 20 ms, and by as much as the usual round trip."""
    usual = max(0, vector.rtt_us - vector.delay_us)
    return vector.delay_us >= max(DELAY_US_MIN, usual)


def usable_size(kinds: Mapping[str, Vector], transport: str) -> int:
    """The size limit that holds for a transport. Segments that were not measured share the limit of datagrams."""
    own = kinds.get(transport)
    if transport == "tcp" and (own is None or not own.size_max):
        own = kinds.get("udp")
    return own.limit if own is not None else 0


def path_loss_ppm(kinds: Mapping[str, Vector], transport: str) -> int:
    """What is lost on the path. A TCP connection shows no loss, because the kernel repeats; but it stalls."""
    names = ("tcp", "udp") if transport == "tcp" else (transport,)
    found = [kinds[name] for name in names if name in kinds]
    return max((vector.loss_ppm for vector in found if vector.alive), default=0)


def vector_of(source: object, stale: bool = False) -> Vector:
    """The vector of a table row, a fact, a status row, or a mapping. Values of a wrong type keep the default."""

    def get(name: str) -> Any:
        return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)

    values: dict[str, Any] = {"kind": str(get("transport") or get("kind") or "udp")}
    for name in _NUMBERS:
        value = get(name)
        if isinstance(value, int) and value > 0:
            values[name] = value
    alive = get("alive")
    values["alive"] = bool(alive) if alive is not None else True
    values["data_lost"] = bool(get("data_lost"))
    values["stale"] = stale or bool(get("stale"))
    values["holes"] = tuple(sorted(filter(None, map(_size, _items(get("holes"))))))
    values["bad_patterns"] = tuple(str(pattern) for pattern in _items(get("bad_patterns")))
    return Vector(**values)


_NUMBERS: Final = (
    *("size", "size_max", "loss_ppm", "loss_window_ms", "flows", "flows_bad"),
    *("rtt_us", "delay_us", "rate_limit_kbps", "outage_ms", "outage_every_ms"),
)


def _items(value: object) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return list(value) if isinstance(value, list | tuple) else []


def _size(item: object) -> int:
    text = str(item)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def _by_kind(vectors: Iterable[Vector]) -> dict[str, Vector]:
    return {vector.kind: vector for vector in vectors}


def _without_errors(state: str, kinds: Mapping[str, Vector], text: str) -> Verdict:
    loss = _worst_loss(kinds)
    return Verdict(
        fine=state == OK,
        state=state,
        loss_ppm=loss.loss_ppm,
        loss_window_ms=loss.loss_window_ms,
        text=text,
    )


def _worst_loss(kinds: Mapping[str, Vector]) -> Vector:
    heard = [vector for vector in kinds.values() if vector.alive]
    return max(heard, key=lambda vector: vector.loss_ppm, default=Vector())


def _direction(one_way: bool | None) -> str:
    if one_way is None:
        return DIRECTION_UNKNOWN
    return ONE_WAY if one_way else BOTH_WAYS


def _one_direction(kinds: Mapping[str, Vector], flapping: bool) -> list[SoftError]:
    if not kinds:
        return []
    errors = _flapping(kinds, flapping)
    if not any(vector.alive for vector in kinds.values()):
        return [SoftError(DEAD, ""), *errors]
    congested = max((vector.rate_limit_kbps for vector in kinds.values()), default=0)
    if congested:
        # A full queue drops large packets and bursts first: nothing else can be told from what is missing.
        return [*errors, SoftError(CONGESTED, "", congested)]
    for kind in sorted(kinds):
        errors += _of_kind(kinds[kind], kinds)
    rank = list(CLASSES)
    return sorted(errors, key=lambda error: rank.index(error.error_class))


def _flapping(kinds: Mapping[str, Vector], flapping: bool) -> list[SoftError]:
    """`flapping`: other errors have come and gone too often."""
    for vector in kinds.values():
        if vector.outage_ms:
            return [SoftError(FLAPPING, "", vector.outage_ms, (str(vector.outage_every_ms),))]
    return [SoftError(FLAPPING, "")] if flapping else []


def _of_kind(vector: Vector, kinds: Mapping[str, Vector]) -> Iterator[SoftError]:
    kind = vector.kind
    if kind == "frag" and _limited(kinds.get("udp")) and (not vector.alive or vector.limit):
        return  # fragments are as large as packets can be: it is the same limit
    if kind in ("frag", "multicast") and "udp" in kinds and not kinds["udp"].alive:
        return  # both are datagrams: where those are filtered, so are they
    if kind == "tcp" and not vector.alive and kinds.get("udp", vector).size == BASIC_SIZE:
        return  # a connection stops behind its first larger segment
    if kind == "multicast" and _limited(kinds.get("udp")):
        if vector.alive and vector.limit:
            return  # multicast packets are datagrams: it is the same limit
        if not vector.alive and kinds["udp"].size <= BASIC_SIZE:
            return  # not even the smallest size passes, of multicast as of all datagrams
    if not vector.alive:
        yield SoftError(MULTICAST if kind == "multicast" else PROTOCOL, kind)
        return
    if vector.holes or vector.limit:
        yield SoftError(SIZE, kind, vector.size, tuple(str(size) for size in vector.holes))
    if vector.bad_patterns:
        yield SoftError(PATTERN, kind, len(vector.bad_patterns), vector.bad_patterns)
    if vector.flows_bad:
        yield SoftError(FLOWS, kind, vector.flows_bad, (str(vector.flows),))
    if vector.data_lost:
        yield SoftError(DATA, kind)
    borrowed = kind in ("frag", "multicast") and len(kinds) > 1
    # They have no heartbeats of their own; and what is lost in outages says how long those last.
    if vector.loss_ppm >= LOSSY_PPM and not borrowed and not vector.outage_ms:
        window = (str(vector.loss_window_ms),) if vector.loss_window_ms else ()
        yield SoftError(LOSS, kind, vector.loss_ppm, window)
    if slow(vector):
        yield SoftError(DELAY, kind, vector.delay_us)


def _limited(vector: Vector | None) -> bool:
    return vector is not None and vector.alive and 0 < vector.size < vector.size_max


def _unmet(
    kinds: Mapping[str, Vector],
    transport: str,
    needs: Needs,
    limit: int,
    sealed: bool,
    strict: bool,
) -> Iterator[str]:
    own = kinds.get(transport)
    if transport == "tcp":
        if limit:
            # The kernel cuts the segments, and joins small writes when it sends again.
            yield f"segments over {limit} bytes do not pass"
    elif needs.size and limit and limit < needs.size:
        yield f"packets over {limit} bytes do not pass, {needs.size} are needed"
    elif needs.size and own is not None and 0 < own.size_max < needs.size:
        yield f"packets over {own.size_max} bytes are not carried whole, {needs.size} are needed"
    bad = own.bad_patterns if own is not None else ()
    if needs.pattern in bad:
        yield f"packets with the pattern {needs.pattern} do not pass"
    elif not needs.pattern and bad and not sealed:
        yield f"packets with the pattern {bad[0]} do not pass"
    if any(vector.rate_limit_kbps for vector in kinds.values()):
        yield "more is sent than it carries"
    if any(vector.outage_ms for vector in kinds.values()):
        yield "nothing passes for a moment, again and again"
    if own is not None and own.data_lost:
        yield "application data does not pass"
    if needs.protocol == "multicast" and not kinds.get("multicast", Vector()).alive:
        yield "multicast does not pass"
    loss_ppm = path_loss_ppm(kinds, transport)
    if loss_ppm > (needs.loss_ppm_max // 2 if strict else needs.loss_ppm_max):
        most = needs.loss_ppm_max / 10_000
        yield f"{loss_ppm / 10_000:.1f} % is lost, at most {most:g} % may be"
    latency_us = needs.latency_us * 3 // 4 if strict else needs.latency_us
    if latency_us and own is not None and own.rtt_us > 2 * latency_us:
        yield f"it takes longer than {needs.latency_us} us"


__all__ = [
    "BOTH_WAYS",
    "DEAD",
    "LOSSY_PPM",
    "OK",
    "ONE_WAY",
    "SOFT",
    "STALE",
    "STATES",
    "UNKNOWN",
    "Vector",
    "Verdict",
    "find_errors",
    "judge",
    "path_loss_ppm",
    "slow",
    "unmet",
    "usable_size",
    "vector_of",
]
