"""What really happened, as tables beside the telemetry (`<out>/truth/<name>/`), and the inventory of the network."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.pipeline.synth.faults import Fault
from holdfast.pipeline.synth.groups import Group, groups_of, violation_entry
from holdfast.pipeline.synth.landing import LandingWriter, Store
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.load_facts import busy_truth
from holdfast.pipeline.synth.options import VIOLATIONS
from holdfast.pipeline.synth.path_facts import PathTimeline
from holdfast.pipeline.synth.topology import Topology
from holdfast.pipeline.synth.violations import VICTIM
from holdfast.pipeline.transforms.risk_groups import InventoryRow

TRUTH: Final = "truth"
INVENTORY_NAME: Final = "inventory.csv"
_TIME: Final = pa.timestamp("us", tz="UTC")
_PATH: Final = [
    (name, pa.string())
    for name in (
        *("sender", "sender_adapter", "listener", "listener_adapter", "subnet", "transport"),
    )
]

FAULTS: Final = pa.schema(
    [
        ("fault", pa.int64()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("error_class", pa.string()),
        ("transport", pa.string()),
        ("start_at", _TIME),
        ("end_at", _TIME),
        ("recurring", pa.bool_()),
        ("cause", pa.string()),
    ]
)
"""One row per time that a fault occurred."""

INCIDENTS: Final = pa.schema(
    [
        *_PATH,
        ("error_class", pa.string()),
        ("start_at", _TIME),
        ("end_at", _TIME),
        ("fault", pa.int64()),
    ]
)
"""One row per path and time that a fault showed on it; `fault` is -1 for noise."""

COVERAGE: Final = pa.schema([*_PATH, ("start_at", _TIME), ("end_at", _TIME)])
"""One row per path and life of its listener."""

VIOLATION: Final = pa.schema(
    [
        ("group", pa.string()),
        ("violation", pa.string()),
        ("claim", pa.string()),
        ("index", pa.int64()),
        ("replica", pa.string()),
    ]
)

BUSY: Final = pa.schema(
    [
        ("node", pa.string()),
        ("adapter", pa.string()),
        ("weekday", pa.int32()),
        ("hour", pa.int32()),
        ("hours", pa.int32()),
    ]
)

NOISE: Final = pa.schema([("what", pa.string()), ("node", pa.string()), ("detail", pa.string())])


def write_plan(store: Store, faults: list[Fault], topology: Topology) -> None:
    """The truth that follows from the plan alone."""
    write = lambda rows, schema, name: store.write(
        pa.Table.from_pylist(rows, schema), TRUTH, name, "part-plan.parquet"
    )
    write(_fault_rows(faults, topology), FAULTS, "faults")
    write(_violation_rows(topology), VIOLATION, "violations")
    windows = (
        window for node in range(topology.options.nodes) for window in busy_truth(topology, node)
    )
    write([msgspec.structs.asdict(window) for window in windows], BUSY, "busy")
    store.write_text(_inventory(topology.inventory()), TRUTH, INVENTORY_NAME)
    store.write_text(msgspec.json.encode(topology.options).decode() + "\n", TRUTH, "options.json")


def write_life(
    store: Store, life: Life, paths: list[PathTimeline], writer: LandingWriter, topology: Topology
) -> None:
    """What happened on the paths that one node listened on in one life, and the noise in its files."""
    part = f"part-{topology.ids[life.node]}-{life.incarnation}.parquet"
    incidents = [
        row | {"error_class": hit.error_class, "fault": hit.fault}
        for line in paths
        for hit in line.hits
        if (row := _span(line, max(hit.begin, life.begin), min(hit.end, life.end), topology))
    ]
    covered = [_span(line, life.begin, life.end, topology) for line in paths]
    noise = [
        {"what": "late file", "node": topology.ids[life.node], "detail": f"{name}, sealed {day}"}
        for name, day in writer.late
    ]
    if abs(life.skew_s) > 1:
        noise.append(
            {
                "what": "skewed clock",
                "node": topology.ids[life.node],
                "detail": f"{life.skew_s:.3f} s ahead",
            }
        )
    for rows, schema, name in (
        (incidents, INCIDENTS, "incidents"),
        (covered, COVERAGE, "coverage"),
        (noise, NOISE, "noise"),
    ):
        store.write(pa.Table.from_pylist(rows, schema), TRUTH, name, part)


def moment(at_s: float, topology: Topology) -> datetime:
    return datetime.fromtimestamp(topology.options.start_s, UTC) + timedelta(seconds=at_s)


def _span(
    line: PathTimeline, begin: float, end: float, topology: Topology
) -> dict[str, Any] | None:
    if begin >= end:
        return None
    path = line.path
    return {
        "sender": topology.ids[path.sender],
        "sender_adapter": topology.adapter(path.sender_adapter),
        "listener": topology.ids[path.listener],
        "listener_adapter": topology.adapter(path.listener_adapter),
        "subnet": topology.subnet(path.listener_adapter),
        "transport": path.transport,
        "start_at": moment(begin, topology),
        "end_at": moment(end, topology),
    }


def _fault_rows(faults: list[Fault], topology: Topology) -> list[dict[str, Any]]:
    return [
        {
            "fault": fault.number,
            "kind": fault.group.kind,
            "name": fault.group.name,
            "error_class": fault.error_class,
            "transport": fault.transport,
            "start_at": moment(begin, topology),
            "end_at": moment(end, topology),
            "recurring": fault.recurring,
            "cause": fault.cause,
        }
        for fault in faults
        for begin, end in fault.times
    ]


def _violation_rows(topology: Topology) -> list[dict[str, Any]]:
    planted: list[Group] = [group for group in groups_of(topology.options) if group.violation]
    return [
        {
            "group": group.name,
            "violation": group.violation,
            "claim": VIOLATIONS[group.violation],
            "index": violation_entry(group, topology.options) + 1,
            "replica": topology.ids[group.replicas[VICTIM]],
        }
        for group in planted
    ]


def _inventory(rows: Sequence[InventoryRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(InventoryRow.__struct_fields__)
    writer.writerows(msgspec.structs.astuple(row) for row in rows)
    return text.getvalue()
