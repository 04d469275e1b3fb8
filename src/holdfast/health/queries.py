"""Questions to the table: which adapters can talk with packets like these, what holds in a subnet, what is wrong.

Everything is answered from what this node holds, which is what every node holds. Rows of a listener that nobody
hears any more are shown as `stale` and count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.health.alarms import Alarm
from holdfast.health.classify import SIZE, cause_of, size_band, text_of
from holdfast.health.history import PathChange
from holdfast.health.keeper import KeeperMachine, reverse_of
from holdfast.health.table import PathKey
from holdfast.types import SECOND, Nanos
from holdfast.wire.frames import PathRow


class PathState(msgspec.Struct, frozen=True, gc=False):
    """One row of the table, with names instead of ids."""

    sender: str
    sender_adapter: str
    listener: str
    listener_adapter: str
    subnet: str
    transport: str
    """The kind of packets: udp, tcp, frag (fragmented datagrams) or multicast."""
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
    """The classes of error of the whole path, gravest first."""
    stale: bool
    """The listener itself is not heard by anybody: this is of the past."""


class Incident(msgspec.Struct, frozen=True, gc=False):
    """Something that is wrong with a path now."""

    sender: str
    sender_adapter: str
    listener: str
    listener_adapter: str
    subnet: str
    error_class: str
    transport: str
    direction: str
    """`one way`, `both ways`, or `unknown` while nothing is heard on the way back."""
    text: str
    cause: str
    band: str
    """For a size limit: below, at or above 1500 or 9000 bytes."""
    since_s: float
    count: int


class AdapterName(msgspec.Struct, frozen=True, gc=False, order=True):
    """An adapter of a member."""

    member: str
    adapter: str
    subnet: str = ""

    def __str__(self) -> str:
        return f"{self.member}/{self.adapter}"


class Found(msgspec.Struct, frozen=True, gc=False):
    """Adapters that can exchange what was asked for."""

    adapters: tuple[AdapterName, ...]
    """Those with at least one partner."""
    pairs: tuple[tuple[AdapterName, AdapterName], ...]
    """Both directions pass."""
    everyone: bool
    """Every two of the adapters of a subnet are such a pair: they can be used without looking further."""


class KindValues(msgspec.Struct, frozen=True, gc=False):
    """What holds for one kind of packets in a subnet."""

    transport: str
    paths: int
    alive: int
    size_all: int
    """What passes on every path that is alive, and on the best one; what is probed at most."""
    size_best: int
    size_max: int
    patterns: tuple[str, ...]
    """Patterns that pass everywhere, and those that somewhere do not."""
    bad_patterns: tuple[str, ...]
    holes: tuple[int, ...]
    loss_ppm_worst: int
    rtt_us_worst: int


class SubnetValues(msgspec.Struct, frozen=True, gc=False):
    """The attribute values with regard to which the adapters of a subnet are connected."""

    subnet: str
    adapters: tuple[AdapterName, ...]
    kinds: tuple[KindValues, ...]


class Explanation(msgspec.Struct, frozen=True, gc=False):
    """What is known of one path, in plain words."""

    sender: AdapterName
    listener: AdapterName
    state: str
    """`sound`, `soft error`, `dead`, `stale` or `unknown`."""
    kinds: tuple[str, ...]
    """One line for each kind of packets."""
    findings: tuple[str, ...]
    """What is wrong and what it most likely comes from."""
    last_errors: tuple[tuple[str, Nanos], ...]
    """Classes of error that a path of this node had, and when last (wall clock)."""


# -- the table ---------------------------------------------------------------------------------------------------


def states(keeper: KeeperMachine, now: Nanos) -> list[PathState]:
    """The whole table, sorted by path."""
    return _states(keeper, keeper.paths(), now)


def main_states(keeper: KeeperMachine, now: Nanos, paths_max: int) -> tuple[list[PathState], int]:
    """What of the table matters here, sorted by path, and how many paths were left out: this node's own come first,
    then those with an error, then the others, as many paths as asked for."""
    paths = keeper.paths()
    if len(paths) > paths_max:
        me = keeper.table.me

        def rank(path: PathKey) -> int:
            return 0 if me in (path[0], path[2]) else 1 if path in keeper.alarms.active else 2

        paths = sorted(sorted(paths, key=rank)[:paths_max])
    return _states(keeper, paths, now), len(keeper.paths()) - len(paths)


def _states(keeper: KeeperMachine, paths: list[PathKey], now: Nanos) -> list[PathState]:
    alive = keeper.table.living()
    return [
        state(keeper, path, row, now, path[2] not in alive)
        for path in paths
        for _, row in sorted(keeper.rows_of(path).items())
    ]


def state(
    keeper: KeeperMachine, path: PathKey, row: PathRow, now: Nanos, stale: bool = False
) -> PathState:
    """One row, with names."""
    since = keeper.table.since.get((*path, row.transport), now)
    name_of = keeper.roster.name_of
    alarms = keeper.alarms.active.get(path, {})
    return PathState(
        sender=name_of(row.sender),
        sender_adapter=row.sender_adapter,
        listener=name_of(row.listener),
        listener_adapter=row.listener_adapter,
        subnet=_subnet(keeper, path),
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
    )


def incidents(keeper: KeeperMachine, now: Nanos) -> list[Incident]:
    """Everything that is wrong now, longest first."""
    found = [
        _incident(keeper, path, alarm, now)
        for path, alarms in keeper.alarms.active.items()
        for alarm in alarms.values()
    ]
    return sorted(found, key=lambda incident: -incident.since_s)


def _incident(keeper: KeeperMachine, path: PathKey, alarm: Alarm, now: Nanos) -> Incident:
    error = alarm.error
    sender, listener = _ends(keeper, path)
    ways = {True: "one way", False: "both ways", None: "unknown"}
    return Incident(
        sender=sender.member,
        sender_adapter=sender.adapter,
        listener=listener.member,
        listener_adapter=listener.adapter,
        subnet=_subnet(keeper, path),
        error_class=error.error_class,
        transport=error.kind,
        direction=ways[error.one_way],
        text=text_of(error, str(sender), str(listener)),
        cause=cause_of(error),
        band=size_band(error.value) if error.error_class == SIZE and not error.values else "",
        since_s=round((now - alarm.since_ns) / SECOND, 1),
        count=alarm.count,
    )


# -- 3.A: who can exchange packets like these --------------------------------------------------------------------


def carries(row: PathRow, size: int = 0, pattern: str = "") -> bool:
    """Whether packets of at least this size, and with this pattern, are known to pass."""
    if not row.alive or (size and (row.size < size or any(hole >= size for hole in row.holes))):
        return False
    return not pattern or (pattern in row.patterns and pattern not in row.bad_patterns)


def find(
    keeper: KeeperMachine, size: int = 0, protocol: str = "", pattern: str = "", subnet: str = ""
) -> Found:
    """Adapters, of one subnet or of any, that can exchange packets of at least `size` bytes with this protocol and
    this pattern, in both directions."""
    paths = {
        path: any(
            carries(row, size, pattern)
            for kind, row in keeper.rows_of(path).items()
            if protocol in ("", kind)
        )
        for path in _fresh_paths(keeper, subnet)
    }
    asked: dict[str, dict[AdapterName, bool]] = {}
    pairs = []
    for path, passes in paths.items():
        one, two = _ends(keeper, path)
        asked.setdefault(one.subnet, {}).update({one: True, two: True})
        if passes and one < two and paths.get(reverse_of(path)):
            pairs.append((one, two))
    adapters = {adapter: True for pair in pairs for adapter in pair}
    wanted = sum(len(members) * (len(members) - 1) // 2 for members in asked.values())
    return Found(
        tuple(sorted(adapters)), tuple(sorted(pairs)), bool(pairs) and len(pairs) == wanted
    )


# -- 3.B: what holds in a subnet ---------------------------------------------------------------------------------


def values(keeper: KeeperMachine, subnet: str) -> SubnetValues:
    """The attribute values with regard to which the adapters of a subnet are connected."""
    by_kind: dict[str, list[PathRow]] = {}
    adapters: dict[AdapterName, bool] = {}
    for path in _fresh_paths(keeper, subnet):
        adapters.update(dict.fromkeys(_ends(keeper, path), True))
        for kind, row in keeper.rows_of(path).items():
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
        size_all=min((row.size for row in alive), default=0),
        size_best=max((row.size for row in alive), default=0),
        size_max=max((row.size_max for row in rows), default=0),
        patterns=tuple(pattern for pattern in probed if pattern not in bad),
        bad_patterns=tuple(bad),
        holes=tuple(sorted({hole for row in alive for hole in row.holes})),
        loss_ppm_worst=max((row.loss_ppm for row in alive), default=0),
        rtt_us_worst=max((row.rtt_us for row in alive), default=0),
    )


# -- one path, in plain words ------------------------------------------------------------------------------------


def explain(keeper: KeeperMachine, path: PathKey, now: Nanos) -> Explanation:
    """Everything that is known of one path."""
    rows = keeper.rows_of(path)
    sender, listener = _ends(keeper, path)
    errors = keeper.errors(path, keeper.alarms.flapping(now, path))
    stale = path[2] not in keeper.table.living()
    if not rows:
        state = "unknown"
    elif stale:
        state = "stale"
    elif not any(row.alive for row in rows.values()):
        state = "dead"
    else:
        state = "soft error" if errors else "sound"
    wall = now + keeper.wall_offset_ns
    marks = keeper.history.errors_of(path, wall)
    return Explanation(
        sender,
        listener,
        state,
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


def paths_between(keeper: KeeperMachine, one: bytes, two: bytes) -> list[PathKey]:
    """Every path from one node to another, and back."""
    both = ((one, two), (two, one))
    return [path for path in keeper.paths() if (path[0], path[2]) in both]


def change_text(keeper: KeeperMachine, change: PathChange) -> str:
    """One line of history."""
    sender, listener = _ends(keeper, change.path)
    where = f"{sender} -> {listener}"
    if change.row is None:
        return f"{where}: history reset by {change.by}: {change.note or 'no reason given'}"
    errors = f" ({', '.join(change.errors)})" if change.errors else ""
    return f"{where}: {_line(change.row)}{errors}"


# -- names -------------------------------------------------------------------------------------------------------


def _fresh_paths(keeper: KeeperMachine, subnet: str) -> Iterator[PathKey]:
    alive = keeper.table.living()
    for path in keeper.paths():
        if path[2] in alive and subnet in ("", _subnet(keeper, path)):
            yield path


def _subnet(keeper: KeeperMachine, path: PathKey) -> str:
    return keeper.roster.subnet_of(path[2], path[3])


def _ends(keeper: KeeperMachine, path: PathKey) -> tuple[AdapterName, AdapterName]:
    roster = keeper.roster
    return (
        AdapterName(roster.name_of(path[0]), path[1], roster.subnet_of(path[0], path[1])),
        AdapterName(roster.name_of(path[2]), path[3], roster.subnet_of(path[2], path[3])),
    )
