"""Metrics of paths. Only paths that this node listens on: n nodes would otherwise export n^3 series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.subsystem import Family
from holdfast.subsystem.metrics import part, rows


def path_metrics(status: Mapping[str, Any]) -> Iterator[Family]:
    paths = rows(status, "paths")
    states = Counter((str(path.get("subnet", "")), path.get("state", "unknown")) for path in paths)
    counts: list[tuple[Mapping[str, object], Any]] = [
        ({"subnet": subnet, "state": state}, count)
        for (subnet, state), count in sorted(states.items())
    ]
    yield "holdfast_paths", "gauge", "Paths of the whole domain, by state.", counts

    listener = part(status, "node").get("name")
    heard = [path for path in paths if path.get("listener") == listener]
    yield _heard("size_bytes", "Largest packet that passes.", heard, "size", 1)
    yield _heard("size_bytes_max", "Largest packet that is probed.", heard, "size_max", 1)
    yield _heard("loss_ratio", "Share of packets lost.", heard, "loss_ppm", 1e-6)
    yield _heard("rtt_seconds", "Round trip.", heard, "rtt_us", 1e-6)
    alive: list[tuple[Mapping[str, object], Any]] = [
        (_labels(path), bool(path.get("alive"))) for path in heard
    ]
    yield "holdfast_path_alive", "gauge", "1 if this node hears the sender.", alive
    yield from advice_metrics(status)


def advice_metrics(status: Mapping[str, Any]) -> Iterator[Family]:
    advice = part(status, "advice")
    if not advice.get("source"):
        return
    in_force: list[tuple[Mapping[str, object], Any]] = [({}, bool(advice.get("in_force")))]
    yield "holdfast_advice_in_force", "gauge", "1 if advice is followed.", in_force
    avoided: list[tuple[Mapping[str, object], Any]] = [({}, len(advice.get("avoided") or ()))]
    yield "holdfast_advice_paths_avoided", "gauge", "Paths that advice avoids.", avoided


def _heard(
    name: str, help_text: str, paths: list[Mapping[str, Any]], key: str, factor: float
) -> Family:
    samples: list[tuple[Mapping[str, object], Any]] = [
        (_labels(path), path[key] * factor)
        for path in paths
        if isinstance(path.get(key), int | float)
    ]
    return f"holdfast_path_{name}", "gauge", help_text, samples


def _labels(path: Mapping[str, Any]) -> Mapping[str, object]:
    keys = ("sender", "sender_adapter", "listener_adapter", "subnet", "transport")
    return {key: path.get(key, "") for key in keys}
