"""The part of the report about paths: how they are now, when they were in trouble, which are the worst."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from holdfast.pipeline.page import Content, Rows, and_more, badge, or_zero, path_name, table
from holdfast.pipeline.pictures import (
    BARS_MAX,
    NODES_MAX,
    Bar,
    Cell,
    Matrix,
    Row,
    draw_hours,
    draw_matrices,
    draw_timeline,
    is_wide,
)
from holdfast.pipeline.report_rows import HOUR_PATHS_MAX, HOURS_MAX
from holdfast.pipeline.words import CROSS, UNKNOWN, duration, microseconds, moment, percent

WORST_MAX: Final = 12
LOSS_WORTH_TELLING: Final = 0.001
_BARS_PER_PATH_MAX: Final = 100
"""A path that flaps all day must not make the page unreadable; the longest troubles show."""
_BADNESS: Final = {"ok": 0, "soft error": 1, "dead": 2}


def show_paths(content: Content, names: Mapping[str, str]) -> str:
    if not content.health:
        return ""
    subnets: dict[str, Rows] = {}
    for row in content.health:
        subnets.setdefault(row["subnet"], []).append(row)
    cards = []
    for subnet, rows in subnets.items():
        nodes = _nodes_worst_first(rows, names)
        note = ""
        if len(nodes) > NODES_MAX:
            note = (
                f'<p class="note">The {NODES_MAX} nodes with the most trouble, of {len(nodes)}.</p>'
            )
        shown = sorted(nodes[:NODES_MAX])
        by_transport: dict[str, Rows] = {}
        for row in rows:
            by_transport.setdefault(row["transport"], []).append(row)
        matrices = [Matrix(t, _cells(of_t, names)) for t, of_t in sorted(by_transport.items())]
        picture = draw_matrices(shown, matrices, f"subnet {subnet}")
        wide = " wide" if is_wide(len(shown), len(matrices)) else ""
        cards.append(
            f'<div class="card{wide}"><h3>Subnet {escape(subnet)}</h3>{note}{picture}</div>'
        )
    return (
        "<h2>Paths now</h2>\n"
        '<p class="note">Each row sends, each column listens. Where two nodes have several paths, the worst shows.</p>'
        '<div class="key"><span class="well"><i></i>ok</span>'
        '<span class="well"><i><b></b></i>ok, was in trouble before</span>'
        '<span class="soft"><i></i>soft error, with the bytes that pass</span>'
        '<span class="dead"><i>&times;</i>dead</span><span><i></i>no path</span></div>\n'
        '<div class="cards">' + "\n".join(cards) + "</div>"
    )


def _nodes_worst_first(rows: Rows, names: Mapping[str, str]) -> list[str]:
    trouble: dict[str, float] = {}
    for row in rows:
        for node in (names[row["sender"]], names[row["listener"]]):
            seconds = row["soft_error_s"] + row["dead_s"] + 1e9 * (row["state"] != "ok")
            trouble[node] = trouble.get(node, 0) + seconds
    return sorted(trouble, key=lambda node: (-trouble[node], node))


def _cells(rows: Rows, names: Mapping[str, str]) -> dict[tuple[str, str], Cell]:
    pairs: dict[tuple[str, str], Rows] = {}
    for row in rows:
        pairs.setdefault((names[row["sender"]], names[row["listener"]]), []).append(row)
    cells: dict[tuple[str, str], Cell] = {}
    for pair, paths in pairs.items():
        worst = max(paths, key=lambda row: (_BADNESS[row["state"]], -row["size"]))
        text = {"ok": "", "dead": CROSS}.get(worst["state"], str(worst["size"]))
        had = any(row["soft_error_s"] + row["dead_s"] > 0 for row in paths)
        tooltip = "\n".join(_path_line(row, names) for row in paths)
        cells[pair] = Cell(worst["state"], text, tooltip, had)
    return cells


def _path_line(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    size = f", {row['size']} of {row['size_max']} bytes" if row["size_max"] else ""
    return (
        f"{path_name(row, names)}: {row['state']}{size}, loss {percent(row['loss_ratio'])}, "
        f"alive {percent(row['alive_ratio'])} of the time"
    )


def _path_place(row: Mapping[str, Any]) -> str:
    """Where the path runs: subnet, transport, and the adapters if their names say more."""
    adapters = sorted({row["sender_adapter"], row["listener_adapter"]} - {row["subnet"]})
    return " · ".join([row["subnet"], row["transport"] or "all transports", *adapters])


def _path_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        row[name] for name in ("sender", "sender_adapter", "listener", "listener_adapter", "subnet")
    )


# -- trouble -----------------------------------------------------------------------------------------------------


def show_timeline(content: Content, names: Mapping[str, str]) -> str:
    if not content.health:
        return ""
    title = "<h2>Incidents</h2>\n"
    if not content.incidents:
        return title + '<p class="note">No path had an incident.</p>'
    watched: dict[tuple[str, ...], tuple[Any, Any]] = {}
    for row in content.health:
        key = _path_key(row)
        first, last = watched.get(key, (row["first_seen"], row["last_seen"]))
        watched[key] = (min(first, row["first_seen"]), max(last, row["last_seen"]))
    by_pair: dict[tuple[str, ...], Rows] = {}
    for incident in content.incidents:
        by_pair.setdefault(_path_key(incident), []).append(incident)
    rows = []
    for key, found in by_pair.items():
        longest = sorted(found, key=lambda incident: -incident["seconds"])[:_BARS_PER_PATH_MAX]
        bars = sorted((_bar(incident) for incident in longest), key=lambda bar: bar.start)
        start, end = watched.get(key, (bars[0].start, bars[-1].start))
        label = f"{path_name(found[0], names)}  {_path_place(found[0])}"
        rows.append(Row(label, start, end, bars))
    rows.sort(key=lambda row: (-sum(bar.seconds for bar in row.bars), row.label))
    more = f" The {BARS_MAX} worst of {len(rows)} paths." if len(rows) > BARS_MAX else ""
    return (
        f"{title}"
        f'<p class="note">Paths with incidents, worst first; times are UTC. '
        f"A number is the largest packet in bytes that passed.{more}</p>"
        '<div class="key"><span class="soft"><i></i>soft error</span><span class="dead"><i></i>dead</span>'
        "<span><i></i>observed, and fine</span><span>an arrow: still open</span></div>\n"
        f'<div class="card timeline">{draw_timeline(rows, "timeline")}</div>' + _newest(content)
    )


def _newest(content: Content) -> str:
    """The incidents that matter most: open ones, then the newest."""
    chosen = sorted(
        content.incidents, key=lambda row: (not row["open"], -row["start_at"].timestamp())
    )
    lines = [
        [
            f"{escape(row['text'])}<small>{escape(_path_place(row))}</small>",
            escape(row["error_class"]) + (" (flapping)" if row["flapping"] else ""),
            moment(row["start_at"]),
            "still open" if row["open"] else duration(row["seconds"]),
            escape(row["direction"]),
            or_zero(row["repeats"], str(row["repeats"])),
            or_zero(row["moves"], f"{row['moves']} moved"),
            or_zero(row["unobserved_s"], duration(row["unobserved_s"])),
        ]
        for row in chosen[:WORST_MAX]
    ]
    header = "Incident |Class |Began |Lasted |Direction |#Returns |#Traffic |#Unobserved"
    return table(header, lines) + and_more(len(chosen) - len(lines), "incident", " in the table")


def _bar(incident: Mapping[str, Any]) -> Bar:
    dead = incident["error_class"] == "dead"
    how = "still open" if incident["open"] else incident["ended_by"]
    return Bar(
        start=incident["start_at"],
        seconds=incident["seconds"],
        state="dead" if dead else "soft error",
        text=str(incident["worst"]) if incident["error_class"] == "size" else "",
        tooltip=f"{incident['text']}, {_path_place(incident)}: from {moment(incident['start_at'])} for "
        f"{duration(incident['seconds'])}, {how}",
        open=incident["open"],
    )


def show_hours(content: Content, names: Mapping[str, str]) -> str:
    """The matrix over time: the worst paths by hour."""
    by_path: dict[tuple[str, ...], dict[str, tuple[float, float]]] = {}
    labels: dict[tuple[str, ...], str] = {}
    for row in content.hours:
        key = (*_path_key(row), row["transport"])
        labels[key] = f"{path_name(row, names)}  {_path_place(row)}"
        watched = row["ok_us"] + row["soft_us"] + row["dead_us"]
        if watched:
            share = ((row["soft_us"] + row["dead_us"]) / watched, row["dead_us"] / watched)
            by_path.setdefault(key, {})[row["hour"]] = share
    hours = sorted({hour for found in by_path.values() for hour in found})
    bad = {key: sum(share for share, _ in found.values()) for key, found in by_path.items()}
    worst = sorted((key for key in bad if bad[key] > 0), key=lambda key: (-bad[key], labels[key]))
    if not worst or len(hours) < 2:
        return ""
    lines = [(labels[key], by_path[key]) for key in worst[:HOUR_PATHS_MAX]]
    return (
        "<h2>Paths by hour</h2>\n"
        '<p class="note">Share of each hour with a soft error (amber) or dead (red). Grey: observed and fine. '
        "Empty: not observed.</p>\n"
        f'<div class="card">{draw_hours(lines, hours[-HOURS_MAX:])}</div>'
    )


def show_worst(content: Content, names: Mapping[str, str]) -> str:
    def badness(row: Mapping[str, Any]) -> tuple[float, float]:
        share = (row["soft_error_s"] + row["dead_s"]) / max(row["observed_s"], 1e-9)
        return share + (row["state"] != "ok"), row["loss_ratio"] or 0

    telling = [
        row
        for row in content.health
        if badness(row)[0] > 0 or (row["loss_ratio"] or 0) >= LOSS_WORTH_TELLING
    ]
    if not telling:
        return ""
    telling.sort(key=lambda row: ([-part for part in badness(row)], path_name(row, names)))
    return (
        "<h2>Worst paths</h2>\n"
        + table(
            "Path |State |#Bytes now |#Fewest |#Soft error |#Dead |#Falls |#Loss |#Round trip, p50 / p99",
            [_worst_cells(row, names) for row in telling[:WORST_MAX]],
        )
        + and_more(len(telling) - WORST_MAX, "path", " with trouble or loss")
    )


def _worst_cells(row: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    falls = row["degradations"] + row["deaths"]
    rtt = UNKNOWN
    if row["rtt_p50_us"] is not None:
        rtt = f"{microseconds(row['rtt_p50_us'])} / {microseconds(row['rtt_p99_us'])}"
    return [
        f"{escape(path_name(row, names))}<small>{escape(_path_place(row))}</small>",
        badge(row["state"]),
        f"{row['size']} / {row['size_max']}" if row["alive"] and row["size_max"] else UNKNOWN,
        str(row["worst_size"] or UNKNOWN),
        or_zero(row["soft_error_s"], duration(row["soft_error_s"])),
        or_zero(row["dead_s"], duration(row["dead_s"])),
        or_zero(falls, str(falls)),
        or_zero(row["loss_ratio"] or 0, percent(row["loss_ratio"])),
        rtt,
    ]
