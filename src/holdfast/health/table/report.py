"""The raw report of one adapter: what its listeners receive from it. The format is that of the diagnostic-heartbeating
document (docs/design/requirements.md), section 4.3."""

from __future__ import annotations

from holdfast.health.config import Signatures, Tunables
from holdfast.health.frames import PathRow
from holdfast.health.table.path_gossip import PathGossipMachine
from holdfast.types import MILLISECOND

_NAMES = {"udp": "UDP", "tcp": "TCP", "multicast": "multicast", "frag": "UDP fragments"}


def raw_report(
    path_gossip: PathGossipMachine, node: bytes, adapter: str, signatures: Signatures
) -> str:
    """Text, one fact per line. `max` is the largest probed value; 1 passes, 0 does not, - is unknown."""
    paths = [path for path in path_gossip.paths() if path[:2] == (node, adapter)]
    listeners = [path_gossip.ends(path)[1] for path in paths]
    vectors = [path_gossip.rows_of(path) for path in paths]
    kinds = sorted({kind for rows in vectors for kind in rows})
    everything = [row for rows in vectors for row in rows.values()]
    lines = [
        f"adapter: {path_gossip.roster.name_of(node)}/{adapter}",
        f"listeners: {', '.join(listeners) or 'none'}",
        f"diagnostics monitored: {', '.join(_monitored(kinds, everything))}",
        f"collated diagnostics: {', '.join(_collated(kind, everything) for kind in kinds)}",
        f"diagnostics range: {_range(everything)}",
    ]
    width = max([14, *map(len, listeners)]) + 2
    lines.append(
        "values by listeners:".ljust(28) + "".join(name.ljust(width) for name in listeners)
    )
    for kind in kinds:
        rows = [vector.get(kind) for vector in vectors]
        for title, cells in (
            (f"packet_size ({_NAMES.get(kind, kind)})", [_size(row) for row in rows]),
            (f"bit_pattern ({_NAMES.get(kind, kind)})", [_pattern(row) for row in rows]),
        ):
            lines.append(title.ljust(28) + "".join(cell.ljust(width) for cell in cells))
    lines.append("tunables (ms):".ljust(28) + "frequency  grace-period  retry-frequency")
    for name, active, retry in (
        ("basic", signatures.basic_active, signatures.basic_retry),
        ("diag", signatures.diag_active, signatures.diag_retry),
    ):
        lines.append(f"{name}:".ljust(28) + _tunables(active, retry))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _monitored(kinds: list[str], rows: list[PathRow]) -> list[str]:
    found = ["packet_size"] if any(row.size_max for row in rows) else []
    found += [_NAMES.get(kind, kind) for kind in kinds]
    return found + (["bitpattern_test"] if any(row.patterns for row in rows) else [])


def _collated(kind: str, rows: list[PathRow]) -> str:
    mine = [row for row in rows if row.transport == kind]
    parts = ["packet_size"] if any(row.size_max for row in mine) else []
    parts.append(_NAMES.get(kind, kind))
    parts += ["bitpattern_test"] if any(row.patterns for row in mine) else []
    return f"({', '.join(parts)})"


def _range(rows: list[PathRow]) -> str:
    largest = max((row.size_max for row in rows), default=0)
    patterns = sorted({pattern for row in rows for pattern in row.patterns})
    return f"size: max: {largest}, bit_patterns: {' '.join(patterns) or 'none'}"


def _size(row: PathRow | None) -> str:
    if row is None or (row.alive and not row.size):
        return "-"
    if not row.alive:
        return "0"
    holes = f" without {'/'.join(map(str, row.holes))}" if row.holes else ""
    return ("max" if row.size >= row.size_max else str(row.size)) + holes


def _pattern(row: PathRow | None) -> str:
    if row is None or not row.patterns:
        return "-"
    if not row.alive:
        return "0"
    return f"0 ({' '.join(row.bad_patterns)})" if row.bad_patterns else "1"


def _tunables(active: Tunables, retry: Tunables) -> str:
    period = active.period_ns // MILLISECOND
    grace = active.grace * active.period_ns // MILLISECOND
    return f"{period:<11}{grace:<14}{retry.period_ns // MILLISECOND}"
