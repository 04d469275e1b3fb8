"""Queries of the table: adapters that can exchange certain packets, values of a subnet, current errors.

Everything is answered from the local copy of the table, which is the same on every node. Rows of a listener that is not
heard any more are shown as `stale` and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.health.causes import (
    ADAPTER,
    EVERYWHERE,
    NODE,
    PAIR,
    PATH,
    RECEIVED_BY,
    SENT_BY,
    SUBNET,
    Cause,
    Names,
    causes_of,
)
from holdfast.health.classify import SIZE, cause_of, size_band, symptom_of, text_of
from holdfast.health.frames import PathRow
from holdfast.health.table.path_gossip import PathGossipMachine, reverse_of
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.values import PathChange
from holdfast.health.verdict import Verdict, judge, vector_of
from holdfast.types import SECOND, Nanos


class PathState(msgspec.Struct, frozen=True, gc=False):
    """One row of the table, with names instead of ids."""

    sender: str
    sender_adapter: str
    listener: str
    listener_adapter: str
    subnet: str
    transport: str
    """The packet kind: udp, tcp, frag (fragmented datagrams) or multicast."""
    alive: bool
    size: int
    size_max: int
    loss_ppm: int
    rtt_us: int
    since_s: float
    holes: tuple[int, ...]
    patterns: tuple[str, ...]
    bad_patterns: tuple[str, ...]
    jitter_us: int
    rate_kbps: int
    flows: int
    flows_bad: int
    errors: tuple[str, ...]
    """The error classes of the whole path, most serious first."""
    stale: bool
    """The listener itself is not heard: these values are out of date."""
    state: str
    """Of this kind of packets: `ok`, `soft error`, `dead`, `unknown` or `stale`."""
    verdict: Verdict
    """Of the whole path."""


class Incident(msgspec.Struct, frozen=True, gc=False):
    """Something that is wrong now: one cause, and all paths that it explains. The ends are those of the first path."""

    sender: str
    sender_adapter: str
    listener: str
    listener_adapter: str
    subnet: str
    error_class: str
    transport: str
    direction: str
    """`one way`, `both ways`, or `unknown` while nothing is heard from the reverse direction."""
    text: str
    cause: str
    band: str
    """For a size limit: below, at or above 1500 or 9000 bytes."""
    since_s: float
    count: int
    place: str = ""
    """What failing paths have in common: `node n1`, `all subnets`, `subnet red`, `adapter n1/red`, `sent by n1/red`,
    `received by n1/red`, `pair n1/red and n2/red`, or `path n1/red to n2/red`."""
    paths: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of packets that show it; empty when all do."""


class AdapterName(msgspec.Struct, frozen=True, gc=False, order=True):
    """An adapter of a member."""

    member: str
    adapter: str
    subnet: str = ""

    def __str__(self) -> str:
        return f"{self.member}/{self.adapter}"


class Found(msgspec.Struct, frozen=True, gc=False):
    """Adapters that can exchange the requested packets."""

    adapters: tuple[AdapterName, ...]
    """Those with at least one partner."""
    pairs: tuple[tuple[AdapterName, AdapterName], ...]
    """Both directions pass."""
    everyone: bool
    """All pairs of adapters of a subnet are included."""


class KindValues(msgspec.Struct, frozen=True, gc=False):
    """The values of one packet kind in a subnet."""

    transport: str
    paths: int
    alive: int
    size_all: int
    """What passes on every path (0 while one of them is dead), and on the best one; what is probed at most."""
    size_best: int
    size_max: int
    patterns: tuple[str, ...]
    """Patterns that pass on all paths, and those that do not pass on some."""
    bad_patterns: tuple[str, ...]
    holes: tuple[int, ...]
    loss_ppm_worst: int
    rtt_us_worst: int


class SubnetValues(msgspec.Struct, frozen=True, gc=False):
    """What passes between the adapters of a subnet."""

    subnet: str
    adapters: tuple[AdapterName, ...]
    kinds: tuple[KindValues, ...]


class Explanation(msgspec.Struct, frozen=True, gc=False):
    """What is known about one path, in words."""

    sender: AdapterName
    listener: AdapterName
    state: str
    """`ok`, `soft error`, `dead`, `stale` or `unknown`."""
    kinds: tuple[str, ...]
    """One line per packet kind."""
    findings: tuple[str, ...]
    """The errors and their likely causes."""
    last_errors: tuple[tuple[str, Nanos], ...]
    """Error classes that a path of this node had, with the last time (wall clock)."""


# -- the table ---------------------------------------------------------------------------------------------------


def states(path_gossip: PathGossipMachine, now: Nanos) -> list[PathState]:
    """The whole table, sorted by path."""
    return _states(path_gossip, path_gossip.paths(), now)


def main_states(
    path_gossip: PathGossipMachine, now: Nanos, paths_max: int
) -> tuple[list[PathState], int]:
    """The most relevant part of the table, sorted by path, and how many paths were left out: this node's own paths
    first, then those with an error, then the others."""
    paths = path_gossip.paths()
    if len(paths) > paths_max:
        me = path_gossip.table.me

        def rank(path: PathKey) -> int:
            return 0 if me in (path[0], path[2]) else 1 if path in path_gossip.alarms.active else 2

        paths = sorted(sorted(paths, key=rank)[:paths_max])
    return _states(path_gossip, paths, now), len(path_gossip.paths()) - len(paths)


def _states(path_gossip: PathGossipMachine, paths: list[PathKey], now: Nanos) -> list[PathState]:
    alive = path_gossip.table.living()
    return [
        state(path_gossip, path, row, now, path[2] not in alive)
        for path in paths
        for _, row in sorted(path_gossip.rows_of(path).items())
    ]


def state(
    path_gossip: PathGossipMachine, path: PathKey, row: PathRow, now: Nanos, stale: bool = False
) -> PathState:
    """One row, with names."""
    since = path_gossip.table.since.get((*path, row.transport), now)
    name_of = path_gossip.roster.name_of
    alarms = path_gossip.alarms.active.get(path, {})
    return PathState(
        sender=name_of(row.sender),
        sender_adapter=row.sender_adapter,
        listener=name_of(row.listener),
        listener_adapter=row.listener_adapter,
        subnet=_subnet(path_gossip, path),
        transport=row.transport,
        alive=row.alive,
        size=row.size,
        size_max=row.size_max,
        loss_ppm=row.loss_ppm,
        rtt_us=row.rtt_us,
        since_s=round((now - since) / SECOND, 1),
        holes=row.holes,
        patterns=row.patterns,
        bad_patterns=row.bad_patterns,
        jitter_us=row.jitter_us,
        rate_kbps=row.rate_kbps,
        flows=row.flows,
        flows_bad=row.flows_bad,
        errors=tuple(dict.fromkeys(error_class for error_class, _ in alarms)),
        stale=stale,
        state=judge([vector_of(row, stale)]).state,
        verdict=path_gossip.verdict(now, path),
    )


def incidents(path_gossip: PathGossipMachine, now: Nanos) -> list[Incident]:
    """Everything that is wrong now, longest first."""
    alive = path_gossip.table.living()
    known = [path for path in path_gossip.paths() if path[2] in alive]
    active = {
        path: alarms for path, alarms in path_gossip.alarms.active.items() if path[2] in alive
    }
    names = Names(path_gossip.roster.name_of, path_gossip.roster.subnet_of)
    return [_incident(path_gossip, cause, now) for cause in causes_of(active, known, names)]


def bad_pairs(path_gossip: PathGossipMachine) -> list[tuple[bytes, bytes]]:
    """The nodes at the two ends of every path that has an error now: sender, listener."""
    alive = path_gossip.table.living()
    active = path_gossip.alarms.active
    return [
        (path[0], path[2]) for path, alarms in sorted(active.items()) if alarms and path[2] in alive
    ]


def _incident(path_gossip: PathGossipMachine, cause: Cause, now: Nanos) -> Incident:
    alarm = cause.alarm
    error = alarm.error
    sender, listener = _ends(path_gossip, alarm.path)
    ways = {True: "one way", False: "both ways", None: "unknown"}
    return Incident(
        sender=sender.member,
        sender_adapter=sender.adapter,
        listener=listener.member,
        listener_adapter=listener.adapter,
        subnet=_subnet(path_gossip, alarm.path),
        error_class=error.error_class,
        transport=error.kind,
        direction=ways[error.one_way],
        text=_cause_text(cause, str(sender), str(listener)),
        cause=cause_of(error),
        band=size_band(error.value) if error.error_class == SIZE and not error.values else "",
        since_s=round((now - alarm.since_ns) / SECOND, 1),
        count=alarm.count,
        place=" ".join(cause.place).rstrip(),
        paths=tuple(" -> ".join(map(str, _ends(path_gossip, path))) for path in cause.paths),
        kinds=cause.kinds,
    )


def _cause_text(cause: Cause, sender: str, listener: str) -> str:
    error, (kind, name) = cause.alarm.error, cause.place
    if kind in (PAIR, PATH):
        return text_of(error, sender, listener)
    if kind == NODE:
        return f"{name} is not heard on any path: the machine or the process is down, or all its adapters are cut off"
    where = {
        EVERYWHERE: "everywhere on all subnets",
        SUBNET: f"everywhere on subnet {name}",
        ADAPTER: f"to and from {name}",
        SENT_BY: f"in everything that {name} sends",
        RECEIVED_BY: f"in everything that {name} receives",
    }[kind]
    return f"{symptom_of(error)} {where} ({len(cause.paths)} paths): {cause_of(error)}"


# -- 3.A: who can exchange packets like these --------------------------------------------------------------------


def carries(row: PathRow, size: int = 0, pattern: str = "") -> bool:
    """Whether packets of at least this size and with this pattern are known to pass."""
    if not row.alive or (size and (row.size < size or any(hole >= size for hole in row.holes))):
        return False
    return not pattern or (pattern in row.patterns and pattern not in row.bad_patterns)


def find(
    path_gossip: PathGossipMachine,
    size: int = 0,
    protocol: str = "",
    pattern: str = "",
    subnet: str = "",
) -> Found:
    """Adapters, of one subnet or of any, that can exchange packets of at least `size` bytes with this protocol and this
    pattern, in both directions."""
    paths = {
        path: any(
            carries(row, size, pattern)
            for kind, row in path_gossip.rows_of(path).items()
            if protocol in ("", kind)
        )
        for path in _fresh_paths(path_gossip, subnet)
    }
    asked: dict[str, dict[AdapterName, bool]] = {}
    pairs = []
    for path, passes in paths.items():
        one, two = _ends(path_gossip, path)
        asked.setdefault(one.subnet, {}).update({one: True, two: True})
        if passes and one < two and paths.get(reverse_of(path)):
            pairs.append((one, two))
    adapters = {adapter: True for pair in pairs for adapter in pair}
    wanted = sum(len(members) * (len(members) - 1) // 2 for members in asked.values())
    return Found(
        tuple(sorted(adapters)), tuple(sorted(pairs)), bool(pairs) and len(pairs) == wanted
    )


# -- 3.B: what holds in a subnet ---------------------------------------------------------------------------------


def values(path_gossip: PathGossipMachine, subnet: str) -> SubnetValues:
    """What passes between the adapters of a subnet."""
    by_kind: dict[str, list[PathRow]] = {}
    adapters: dict[AdapterName, bool] = {}
    for path in _fresh_paths(path_gossip, subnet):
        adapters.update(dict.fromkeys(_ends(path_gossip, path), True))
        for kind, row in path_gossip.rows_of(path).items():
            by_kind.setdefault(kind, []).append(row)
    kinds = tuple(_kind_values(kind, rows) for kind, rows in sorted(by_kind.items()))
    return SubnetValues(subnet, tuple(sorted(adapters)), kinds)


def _kind_values(kind: str, rows: list[PathRow]) -> KindValues:
    alive = [row for row in rows if row.alive]
    probed = sorted({pattern for row in rows for pattern in row.patterns})
    bad = sorted({pattern for row in alive for pattern in row.bad_patterns})
    return KindValues(
        transport=kind,
        paths=len(rows),
        alive=len(alive),
        size_all=min((row.size for row in alive), default=0) if len(alive) == len(rows) else 0,
        size_best=max((row.size for row in alive), default=0),
        size_max=max((row.size_max for row in rows), default=0),
        patterns=tuple(pattern for pattern in probed if pattern not in bad),
        bad_patterns=tuple(bad),
        holes=tuple(sorted({hole for row in alive for hole in row.holes})),
        loss_ppm_worst=max((row.loss_ppm for row in alive), default=0),
        rtt_us_worst=max((row.rtt_us for row in alive), default=0),
    )


# -- one path, in plain words ------------------------------------------------------------------------------------


def explain(path_gossip: PathGossipMachine, path: PathKey, now: Nanos) -> Explanation:
    """Everything that is known about one path."""
    rows = path_gossip.rows_of(path)
    sender, listener = _ends(path_gossip, path)
    errors = path_gossip.errors_now(now, path)
    wall = now + path_gossip.wall_offset_ns
    marks = path_gossip.history.errors_of(path, wall)
    return Explanation(
        sender,
        listener,
        path_gossip.verdict(now, path).state,
        tuple(_line(row) for _, row in sorted(rows.items())),
        tuple(text_of(error, str(sender), str(listener)) for error in errors),
        tuple(marks.items()),
    )


def _line(row: PathRow) -> str:
    if not row.alive:
        return f"{row.transport}: nothing is heard"
    parts = []
    if row.size_max:
        parts.append(f"packets up to {row.size} of {row.size_max} bytes pass")
    if row.holes:
        parts.append(f"but not those of {', '.join(map(str, row.holes))}")
    if row.patterns:
        good = [pattern for pattern in row.patterns if pattern not in row.bad_patterns]
        parts.append(f"patterns that pass: {' '.join(good) or 'none'}")
    if row.bad_patterns:
        parts.append(f"that do not: {' '.join(row.bad_patterns)}")
    if row.flows:
        parts.append(f"{row.flows - row.flows_bad} of {row.flows} connections are good")
    parts.append(f"loss {row.loss_ppm / 10_000:.1f} %")
    parts.append(f"round trip {row.rtt_us} µs")
    return f"{row.transport}: {', '.join(parts)}"


def paths_between(path_gossip: PathGossipMachine, one: bytes, two: bytes) -> list[PathKey]:
    """Every path from one node to another, and back."""
    both = ((one, two), (two, one))
    return [path for path in path_gossip.paths() if (path[0], path[2]) in both]


def change_text(path_gossip: PathGossipMachine, change: PathChange) -> str:
    """One line of history."""
    sender, listener = _ends(path_gossip, change.path)
    where = f"{sender} -> {listener}"
    if change.row is None:
        return f"{where}: history reset by {change.by}: {change.note or 'no reason given'}"
    errors = f" ({', '.join(change.errors)})" if change.errors else ""
    return f"{where}: {_line(change.row)}{errors}"


# -- names -------------------------------------------------------------------------------------------------------


def _fresh_paths(path_gossip: PathGossipMachine, subnet: str) -> Iterator[PathKey]:
    alive = path_gossip.table.living()
    for path in path_gossip.paths():
        if path[2] in alive and subnet in ("", _subnet(path_gossip, path)):
            yield path


def _subnet(path_gossip: PathGossipMachine, path: PathKey) -> str:
    return path_gossip.roster.subnet_of(path[2], path[3])


def _ends(path_gossip: PathGossipMachine, path: PathKey) -> tuple[AdapterName, AdapterName]:
    roster = path_gossip.roster
    return (
        AdapterName(roster.name_of(path[0]), path[1], roster.subnet_of(path[0], path[1])),
        AdapterName(roster.name_of(path[2]), path[3], roster.subnet_of(path[2], path[3])),
    )
