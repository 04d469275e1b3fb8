"""The results of a sweep as text: verdicts on the claims, and tables for experiments beyond the paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import msgspec

from holdfast.experiments.bad_links import PlacementPoint
from holdfast.experiments.claims import Verdict, check_claims
from holdfast.experiments.joining import JoinPoint, RidePoint
from holdfast.experiments.journal import Record
from holdfast.experiments.points import PAPER_NAMES, Point
from holdfast.experiments.results import Results, plain_point
from holdfast.experiments.sets import read_point

_WORDS = {True: "confirmed", False: "not confirmed", None: "no data"}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def claims_text(verdicts: Sequence[Verdict]) -> str:
    rows = [
        (v.figure, v.claim, v.density, v.wanted, v.measured, _WORDS[v.confirmed])
        for v in verdicts
        if v.confirmed is not None
    ]
    header = ("figure", "claim", "topologies", "expected", "measured", "verdict")
    return table(header, rows)


def curves_text(results: Results) -> str:
    """All indices, averaged over topologies, for the points that are as in the paper."""
    rows = []
    for density in sorted(results.densities()):
        for protocol, name in PAPER_NAMES.items():
            for nodes, runs in results.runs(protocol, density).items():
                mean = lambda index, runs=runs: fmean(index(run) for run in runs)
                rows.append((
                    density, name, nodes, len(runs),
                    f"{mean(lambda o: o.first_ns) / 1e6:.2f}", f"{mean(lambda o: o.last_ns) / 1e6:.2f}",
                    f"{mean(lambda o: o.load):.0f}", f"{mean(lambda o: o.longest_queue):.0f}",
                    f"{mean(lambda o: o.hops):.0f}", f"{mean(lambda o: o.messages):.0f}",
                    f"{mean(lambda o: o.joins):.0f}",
                ))  # fmt: skip
    header = ("topologies", "protocol", "nodes", "runs", "first ms", "last ms", "load", "queue",
              "hops", "messages", "joins")  # fmt: skip
    return table(header, rows)


def variants_text(results: Results) -> str:
    """Points that differ from the paper, next to the plain ones on the same topologies."""
    known = dict(results.rows())
    groups: dict[tuple[str, str, int, str], list[tuple[float, float, float, float]]] = {}
    for point, outcome in known.items():
        base = known.get(plain_point(point))
        what = _differences(point)
        if base is None or not what or (point.failed and not point.routers_down):
            continue
        key = (what, point.protocol, point.nodes, point.density)
        pair = (outcome.last_ns / 1e6, base.last_ns / 1e6, outcome.messages, base.messages)
        groups.setdefault(key, []).append(pair)
    rows = []
    for (what, protocol, nodes, density), found in sorted(groups.items()):
        last, last_base, sent, sent_base = (fmean(column) for column in zip(*found, strict=True))
        rows.append((what, PAPER_NAMES[protocol], nodes, density, len(found), f"{last:.1f}",
                     f"{last_base:.1f}", f"{sent:.0f}", f"{sent_base:.0f}"))  # fmt: skip
    header = ("variant", "protocol", "nodes", "topologies", "runs", "last ms", "plain", "messages",
              "plain")  # fmt: skip
    return table(header, rows)


def _differences(point: Point) -> str:
    plain = msgspec.structs.asdict(plain_point(point))
    names = [
        f"{name} {value}" if not isinstance(value, bool) else name.replace("_", " ")
        for name, value in msgspec.structs.asdict(point).items()
        if value != plain[name]
    ]
    return ", ".join(names)


def beyond_text(records: Iterable[Record]) -> str:
    """Placement, joins and piggybacking: averages over seeds."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in records:
        point = read_point(record.task)
        if record.result is None or isinstance(point, Point):
            continue
        groups.setdefault(_beyond_key(point), []).append(record.result)
    rows = []
    for key, found in groups.items():
        mean = lambda name, found=found: (
            f"{fmean(r[name] for r in found):.0f}" if name in found[0] else ""
        )
        ms = f"{fmean(r['last_ns'] for r in found) / 1e6:.1f}"
        packets = mean("packets") or mean("messages")
        rows.append((*key, len(found), ms, packets, mean("edge_cost"), mean("rode")))
    header = ("experiment", "setting", "runs", "last ms", "packets", "cost of edges", "rode")
    return table(header, sorted(rows))


def _beyond_key(point: PlacementPoint | JoinPoint | RidePoint) -> tuple[str, ...]:
    if isinstance(point, PlacementPoint):
        how = "by path quality" if point.placed else "at random"
        return "placement", f"{point.nodes} nodes, {point.bad_share:.0%} bad links, {how}"
    if isinstance(point, JoinPoint):
        every = f", one every {point.every_us / 1000:g} ms" if point.joins else ""
        return "joins", f"{point.nodes} nodes, {point.joins} joins{every}"
    how = "riding" if point.ride else "separate packets"
    return "riding", f"{point.nodes} nodes, traffic every {point.every_us / 1000:g} ms, {how}"


def report_text(records: Sequence[Record]) -> str:
    """Everything as one Markdown page."""
    results = Results.of(records)
    failed = [record for record in records if record.result is None]
    parts = [
        "# Stability experiments\n",
        f"{len(records) - len(failed)} points measured, {len(failed)} without a result.\n",
        "## Claims of the paper\n",
        claims_text(check_claims(results)),
        "## Variants and losses\n",
        variants_text(results),
        "## Placement, joins, piggybacking\n",
        beyond_text(records),
        "## All curves\n",
        curves_text(results),
    ]
    if failed:
        rows = [(f"`{record.task}`", record.error.splitlines()[0]) for record in failed]
        parts += ["## Points without a result\n", table(("point", "why"), rows)]
    return "\n".join(parts)
