"""The status as Prometheus text: the node's own figures, then those of each subsystem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.subsystem import Family, Subsystem
from holdfast.subsystem.metrics import one, part

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(status: Mapping[str, Any], subsystems: Sequence[Subsystem] = SUBSYSTEMS) -> str:
    """All metrics of a status; missing parts are left out."""
    lines: list[str] = []
    families = [*_node(status), *(f for s in subsystems for f in s.metrics(status))]
    for name, kind, help_text, samples in families:
        body = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if body:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *body]
    return "".join(f"{line}\n" for line in lines)


def _node(status: Mapping[str, Any]) -> Iterator[Family]:
    node = part(status, "node")
    about = {key: node.get(key, "") for key in ("name", "domain", "security", "version", "id")}
    yield "holdfast_info", "gauge", "The node; always 1.", [(about, 1)] if node else []
    yield "holdfast_uptime_seconds", "gauge", "Time since the node started.", one(node, "uptime_s")
    yield (
        "holdfast_incarnation",
        "gauge",
        "How often the node has started.",
        one(node, "incarnation"),
    )
    stopped = len(node.get("stopped_units") or ())
    help_text = "Units that failed twice and are stopped."
    yield "holdfast_stopped_units", "gauge", help_text, [({}, stopped)] if node else []
    queues = part(status, "queues")
    waiting: list[tuple[Mapping[str, object], Any]] = [
        ({"queue": name}, value) for name, value in queues.items()
    ]
    yield "holdfast_queue", "gauge", "Items waiting in a queue of the node.", waiting
    telemetry = part(status, "telemetry")
    yield "holdfast_facts_total", "counter", "Facts recorded.", one(telemetry, "facts")
    yield "holdfast_facts_lost_total", "counter", "Facts that were lost.", one(telemetry, "lost")


def _labels(labels: Mapping[str, object]) -> str:
    inside = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
