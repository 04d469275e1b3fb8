"""The status as Prometheus text. Only what this node knows best: its own counters, and the paths that it listens on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

LOSS_PPM_MAX: Final = 10_000
"""More loss than this is a soft error, here and on the page (`model.js`)."""

Labels = Mapping[str, object]
Samples = Iterable[tuple[Labels, object]]
Family = tuple[str, str, str, Samples]
"""Name, type, help, samples."""


def metrics_text(status: Mapping[str, Any]) -> str:
    """All metrics of a status; parts that it lacks are left out."""
    lines: list[str] = []
    for name, kind, told, samples in _families(status):
        body = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if body:
            lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}", *body]
    return "".join(f"{line}\n" for line in lines)


def path_state(path: Mapping[str, Any]) -> str:
    """`ok`, `soft`, `dead`, or `unknown` while no size has been measured. As on the page (`model.js`)."""
    if not path.get("alive"):
        return "dead"
    size, size_max = path.get("size") or 0, path.get("size_max") or 0
    if 0 < size < size_max or (path.get("loss_ppm") or 0) >= LOSS_PPM_MAX:
        return "soft"
    if any(path.get(key) for key in ("holes", "bad_patterns", "flows_bad")):
        return "soft"
    # Where no size is probed, to be heard is all there is to know.
    return "ok" if size or not size_max else "unknown"


def _families(status: Mapping[str, Any]) -> Iterator[Family]:
    node = _part(status, "node")
    told = {key: node.get(key, "") for key in ("name", "domain", "security", "version", "id")}
    yield "holdfast_info", "gauge", "The node; always 1.", [(told, 1)] if node else []
    yield "holdfast_uptime_seconds", "gauge", "Since the node started.", _one(node, "uptime_s")
    yield "holdfast_incarnation", "gauge", "How often the node started.", _one(node, "incarnation")
    stopped: Samples = [({}, len(node.get("stopped_units") or ()))] if node else []
    yield "holdfast_stopped_units", "gauge", "Units that failed twice and stay off.", stopped

    members = Counter(str(member.get("state", "unknown")) for member in _rows(status, "members"))
    yield (
        "holdfast_members",
        "gauge",
        "Members of the domain, by state.",
        _counted("state", members),
    )
    yield from _path_families(status, node.get("name"))

    groups = _rows(status, "groups")
    for key, told_group in _GROUP.items():
        yield f"holdfast_group_{key}", "gauge", told_group, _each(groups, "group", "name", key)
    leading = [({"group": g.get("name", "")}, g.get("state") == "leading") for g in groups]
    yield "holdfast_group_leading", "gauge", "1 where this node leads the group.", leading

    for key, told_link in _LINK.items():
        samples = [
            ({"peer": link.get("peer", "")}, sum(c.get(key) or 0 for c in _rows(link, "channels")))
            for link in _rows(status, "links")
        ]
        yield f"holdfast_link_{key}", "gauge", told_link, samples
    queues = [({"queue": name}, waiting) for name, waiting in _part(status, "queues").items()]
    yield "holdfast_queue", "gauge", "What waits in a queue of the node.", queues
    telemetry = _part(status, "telemetry")
    yield "holdfast_facts_total", "counter", "Facts recorded.", _one(telemetry, "facts")
    yield "holdfast_facts_lost_total", "counter", "Facts that were lost.", _one(telemetry, "lost")


_GROUP: Final = {
    "term": "Term of the group's order.",
    "commit": "Highest entry agreed on.",
    "applied": "Highest entry that the application has processed.",
    "lag": "Entries agreed on but not processed yet.",
}
_LINK: Final = {
    "queued": "What waits to be sent, over all channels.",
    "unacked": "What is sent and not acknowledged, over all channels.",
    "moves": "How often a channel changed its path.",
}


def _path_families(status: Mapping[str, Any], listener: object) -> Iterator[Family]:
    paths = _rows(status, "paths")
    states = Counter((str(path.get("subnet", "")), path_state(path)) for path in paths)
    counts = [
        ({"subnet": subnet, "state": state}, count)
        for (subnet, state), count in sorted(states.items())
    ]
    yield "holdfast_paths", "gauge", "Paths of the whole domain, by state.", counts

    # Rows of other listeners are on their own nodes: n nodes would else tell n times n times n series.
    heard = [path for path in paths if path.get("listener") == listener]
    yield _heard("size_bytes", "Largest packet that passes.", heard, "size", 1)
    yield _heard("size_bytes_max", "Largest packet that is probed.", heard, "size_max", 1)
    yield _heard("loss_ratio", "Share of packets lost.", heard, "loss_ppm", 1e-6)
    yield _heard("rtt_seconds", "Round trip.", heard, "rtt_us", 1e-6)
    alive = [(_path_labels(path), bool(path.get("alive"))) for path in heard]
    yield "holdfast_path_alive", "gauge", "1 where this node hears the sender.", alive


def _heard(name: str, told: str, paths: list[Mapping[str, Any]], key: str, factor: float) -> Family:
    samples = [
        (_path_labels(path), path[key] * factor)
        for path in paths
        if isinstance(path.get(key), int | float)
    ]
    return f"holdfast_path_{name}", "gauge", told, samples


def _path_labels(path: Mapping[str, Any]) -> Labels:
    keys = ("sender", "sender_adapter", "listener_adapter", "subnet", "transport")
    return {key: path.get(key, "") for key in keys}


def _one(part: Mapping[str, Any], key: str) -> Samples:
    return [({}, part[key])] if part.get(key) is not None else []


def _each(rows: list[Mapping[str, Any]], label: str, name: str, key: str) -> Samples:
    return [({label: row.get(name, "")}, row[key]) for row in rows if row.get(key) is not None]


def _counted(label: str, counts: Counter[str]) -> Samples:
    return [({label: key}, count) for key, count in sorted(counts.items())]


def _part(status: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = status.get(key)
    return part if isinstance(part, Mapping) else {}


def _rows(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = status.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _labels(labels: Labels) -> str:
    inside = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
