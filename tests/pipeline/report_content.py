"""Content of a report: rows of published tables, made by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.pipeline.making import NOON, node_id

from holdfast.pipeline.page import Content
from holdfast.pipeline.quality import Check


def path(sender: str, listener: str, **fields: Any) -> dict[str, Any]:
    """A row of `path_health` for a path that is well."""
    return {
        "sender": node_id(sender),
        "sender_name": sender,
        "sender_adapter": "eth0",
        "listener": node_id(listener),
        "listener_name": listener,
        "listener_adapter": "eth0",
        "subnet": "lan1",
        "transport": "udp",
        "state": "ok",
        "alive": True,
        "size": 1472,
        "size_max": 1472,
        "first_seen": NOON,
        "last_seen": NOON + timedelta(minutes=10),
        "facts": 10,
        "observed_s": 600.0,
        "alive_ratio": 1.0,
        "soft_error_s": 0.0,
        "dead_s": 0.0,
        "degradations": 0,
        "deaths": 0,
        "worst_size": 1472,
        "heard": 100,
        "expected": 100,
        "loss_ratio": 0.0,
        "rtt_p50_us": 200.0,
        "rtt_p99_us": 900.0,
    } | fields


def soft(sender: str, listener: str) -> dict[str, Any]:
    return path(sender, listener) | {
        "state": "soft error",
        "size": 577,
        "soft_error_s": 300.0,
        "degradations": 1,
        "worst_size": 577,
    }


def dead(sender: str, listener: str) -> dict[str, Any]:
    return path(sender, listener) | {
        "state": "dead",
        "alive": False,
        "dead_s": 60.0,
        "deaths": 1,
        "loss_ratio": 0.1,
    }


def incident(of: dict[str, Any], error_class: str = "size", **fields: Any) -> dict[str, Any]:
    """A row of `incidents` on a path."""
    return of | {
        "error_class": error_class,
        "start_at": NOON + timedelta(minutes=5),
        "end_at": None,
        "open": True,
        "ended_by": "",
        "seconds": 300.0,
        "repeats": 0,
        "flapping": False,
        "worst": of["size"],
        "direction": "one way",
        "moves": 2,
        "unobserved_s": 0.0,
        "text": f"{error_class} from {of['sender_name']} to {of['listener_name']}",
        **fields,
    }


def verdict(group: str, word: str, **fields: Any) -> dict[str, Any]:
    usual = {"epoch": 0, "coverage": 0.5, "why": "because", "named": []}
    return {"group": group, "verdict": word} | usual | fields


def recorded(name: str, kind: str = "path", **fields: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "node": node_id(name),
        "name": name,
        "incarnations": 1,
        "facts": 10,
        "first_at": NOON,
        "last_at": NOON + timedelta(minutes=10),
        "missing": 0,
        "said_lost": 0,
        "uncounted_losses": 0,
        "unexplained": 0,
        "reasons": [],
    } | fields


def content(**parts: Any) -> Content:
    nothing: dict[str, Any] = {
        "snapshot": 42,
        "recording": [recorded("alba"), recorded("brno")],
        "health": [path("alba", "brno"), path("brno", "alba")],
    }
    return Content(**(nothing | parts))


FULL = content(
    health=[soft("alba", "brno"), path("brno", "alba"), dead("cork", "alba")],
    incidents=[
        incident(soft("alba", "brno")),
        incident(dead("cork", "alba"), "dead", open=False, ended_by="repaired", seconds=60.0),
    ],
    hours=[
        path("alba", "brno", hour=f"2026-11-15T{hour}", ok_us=9, soft_us=hour - 10, dead_us=0)
        for hour in (10, 11, 12)
    ],
    checks=[Check("clocks are monotonic", False, "3 facts")],
    ranges=[
        {
            "group": "orders",
            "epoch": 0,
            "first_index": 2,
            "last_index": 90,
            "entries": 80,
            "verdict": "violated",
            "why": "recorded differently",
            "replicas": ["alba", "brno"],
        }
    ],
    recording=[
        recorded("alba"),
        recorded("brno", missing=7, said_lost=5, unexplained=2, reasons=["buffer full"]),
    ],
    deliveries=[
        {
            "group": "orders",
            "epoch": 0,
            "replica": node_id("alba"),
            "replica_name": "alba",
            "incarnations": 1,
            "entries": 12,
            "messages": 3456,
            "first_index": 2,
            "last_index": 90,
        }
    ],
    localisation=[
        {
            "kind": "adapter_send",
            "name": f"{node_id('alba')}/eth0",
            "groups": [
                {"kind": "adapter_send", "name": f"{node_id('alba')}/eth0"},
                {"kind": "node", "name": node_id("alba")},
            ],
            "error_classes": ["size"],
            "start_at": NOON,
            "end_at": NOON + timedelta(minutes=10),
            "confidence": 0.9,
            "failing": 3,
            "passing": 1,
        }
    ],
    scores=[
        {
            "model": "logistic",
            "chosen": True,
            "is_baseline": False,
            "precision": 0.9,
            "precision_low": 0.7,
            "recall": 0.8,
            "brier": 0.01,
            "why": "precise enough",
            "bins": [{"mean": 0.9, "observed": 0.85, "rows": 40}],
        }
    ],
    audit=[verdict("orders", "violated", named=["agreement: row one | row two"])],
    set_aside=[("torn-1-0.parquet", "torn", "not a whole Parquet file")],
)
