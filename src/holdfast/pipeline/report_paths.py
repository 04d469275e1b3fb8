"""The part of the report about paths: how they are now, when they were in trouble, which are the worst."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from holdfast.pipeline.page import Content, Rows, badge, or_zero, table
from holdfast.pipeline.pictures import (
    BARS_MAX,
    NODES_MAX,
    Bar,
    Cell,
    Matrix,
    Row,
    draw_matrices,
    draw_timeline,
    is_wide,
)
from holdfast.pipeline.words import CROSS, UNKNOWN, count, duration, microseconds, moment, percent

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
        f"{_path_name(row, names)}: {row['state']}{size}, loss {percent(row['loss_ratio'])}, "
        f"alive {percent(row['alive_ratio'])} of the time"
    )


def _path_name(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    return f"{names[row['sender']]} → {names[row['listener']]}"


def _path_place(row: Mapping[str, Any]) -> str:
    """Where the path runs: subnet, transport, and the adapters if their names say more."""
    adapters = sorted({row["sender_adapter"], row["listener_adapter"]} - {row["subnet"]})
    return " · ".join([row["subnet"], row["transport"], *adapters])


def _path_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        row[name]
        for name in (
            *("sender", "sender_name", "sender_adapter", "listener", "listener_name"),
            *("listener_adapter", "subnet", "transport"),
        )
    )


# -- trouble -----------------------------------------------------------------------------------------------------


def show_timeline(content: Content, names: Mapping[str, str]) -> str:
    if not content.health:
        return ""
    title = "<h2>Times of trouble</h2>\n"
    if not content.troubles:
        return title + '<p class="note">No path was in trouble at any time.</p>'
    by_path: dict[tuple[str, ...], Rows] = {}
    for trouble in content.troubles:
        by_path.setdefault(_path_key(trouble), []).append(trouble)
    rows = []
    for path in content.health:
        longest = sorted(by_path.get(_path_key(path), []), key=lambda trouble: -trouble["seconds"])
        bars = [_bar(trouble, names) for trouble in longest[:_BARS_PER_PATH_MAX]]
        if bars:
            label = f"{_path_name(path, names)}  {_path_place(path)}"
            ordered = sorted(bars, key=lambda bar: bar.start)
            rows.append(Row(label, path["first_seen"], path["last_seen"], ordered))
    rows.sort(key=lambda row: (-sum(bar.seconds for bar in row.bars), row.label))
    more = f" The {BARS_MAX} worst of {len(rows)} paths." if len(rows) > BARS_MAX else ""
    return (
        f"{title}"
        f'<p class="note">Paths that were in trouble, worst first; times are UTC. '
        f"A number is the largest packet in bytes that passed.{more}</p>"
        '<div class="key"><span class="soft"><i></i>soft error</span><span class="dead"><i></i>dead</span>'
        "<span><i></i>watched, and well</span><span>an arrow: it goes on</span></div>\n"
        f'<div class="card timeline">{draw_timeline(rows, "timeline")}</div>'
    )


def _bar(trouble: Mapping[str, Any], names: Mapping[str, str]) -> Bar:
    soft = trouble["state"] == "soft error"
    what = f"soft error, {trouble['size']} of {trouble['size_max']} bytes" if soft else "dead"
    how = "still so" if trouble["open"] else trouble["ended_by"]
    return Bar(
        start=trouble["start_at"],
        seconds=trouble["seconds"],
        state=trouble["state"],
        text=str(trouble["size"]) if soft else "",
        tooltip=f"{_path_name(trouble, names)}, {_path_place(trouble)}: {what} from "
        f"{moment(trouble['start_at'])} for {duration(trouble['seconds'])}, {how}",
        open=trouble["open"],
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
    telling.sort(key=lambda row: ([-part for part in badness(row)], _path_name(row, names)))
    more = len(telling) - WORST_MAX
    note = (
        f'<p class="note">And {count(more, "more path")} with trouble or loss.</p>'
        if more > 0
        else ""
    )
    return (
        "<h2>Worst paths</h2>\n"
        + table(
            "Path |State |#Bytes now |#Fewest |#Soft error |#Dead |#Falls |#Loss |#Round trip, p50 / p99",
            [_worst_cells(row, names) for row in telling[:WORST_MAX]],
        )
        + note
    )


def _worst_cells(row: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    falls = row["degradations"] + row["deaths"]
    rtt = UNKNOWN
    if row["rtt_p50_us"] is not None:
        rtt = f"{microseconds(row['rtt_p50_us'])} / {microseconds(row['rtt_p99_us'])}"
    return [
        f"{escape(_path_name(row, names))}<small>{escape(_path_place(row))}</small>",
        badge(row["state"]),
        f"{row['size']} / {row['size_max']}" if row["alive"] and row["size_max"] else UNKNOWN,
        str(row["worst_size"] or UNKNOWN),
        or_zero(row["soft_error_s"], duration(row["soft_error_s"])),
        or_zero(row["dead_s"], duration(row["dead_s"])),
        or_zero(falls, str(falls)),
        or_zero(row["loss_ratio"] or 0, percent(row["loss_ratio"])),
        rtt,
    ]
