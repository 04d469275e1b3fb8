"""Columns of facts on their way to a segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import MisuseError
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.topology import Topology
from holdfast.recording.columns import arrow_schema
from holdfast.telemetry.facts import SCHEMA

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Columns = dict[str, Any]
"""Column name to a numpy array or an Arrow array; `at_s` is seconds after the start of the domain."""

LOAD: Final = "load"
_LOAD_FIELDS: Final = {"adapter": pa.string(), "subnet": pa.string()} | {
    name: pa.int64()
    for name in (
        *("interval_ms", "sent_bytes", "received_bytes", "sent_packets", "received_packets"),
        *("queued_bytes", "drops", "speed_bps"),
    )
}
_PLAIN: Final[Mapping[pa.DataType, object]] = {pa.string(): "", pa.bool_(): False}


class Facts(msgspec.Struct, frozen=True):
    """Facts of one kind, in order of time. `at_s` becomes `at` and `now_ns`; they are numbered when they are sealed."""

    kind: str
    at_s: Any
    columns: Columns
    lost: Any = None
    """Which of them are numbered but not written; a boolean array, or None."""

    @property
    def rows(self) -> int:
        return len(self.at_s)


def schema_of(kind: str) -> pa.Schema:
    """The columns of a sealed segment, as nodes write them."""
    try:
        return arrow_schema(kind)
    except MisuseError:
        if kind != LOAD:
            raise
        front = [field for field in arrow_schema("node") if field.name not in _NODE_FIELDS]
        return pa.schema([*front, *_LOAD_FIELDS.items()])


_NODE_FIELDS: Final = ("event", "detail", "count")


def strings(values: Sequence[str], index: npt.NDArray[np.int64]) -> pa.Array:
    """`values[index]` as Arrow strings."""
    return pa.DictionaryArray.from_arrays(
        pa.array(index, pa.int32()), pa.array(list(values), pa.string())
    ).cast(pa.string())


def table_of(facts: Facts, first: int, life: Life, topology: Topology) -> pa.Table:
    """Facts as the table of a segment: the common columns, the given ones, and plain values for the others."""
    import numpy as np

    rows = facts.rows
    at_s = np.asarray(facts.at_s, dtype=np.float64)
    start_us = topology.options.start_s * 1_000_000
    at_us = start_us + np.round((at_s + life.skew_s) * 1e6).astype(np.int64)
    common: Columns = {
        "schema": np.full(rows, SCHEMA, dtype=np.int32),
        "node": pa.repeat(topology.ids[life.node], rows),
        "name": pa.repeat(topology.name(life.node), rows),
        "incarnation": np.full(rows, life.incarnation, dtype=np.int64),
        "n": np.arange(first, first + rows, dtype=np.int64),
        "at": pa.array(at_us, pa.timestamp("us", tz="UTC")),
        "now_ns": life.boot_ns + np.round((at_s - life.begin) * 1e9).astype(np.int64),
    }
    given = common | facts.columns
    schema = schema_of(facts.kind)
    arrays = []
    for field in schema:
        value = given.get(field.name)
        if value is None:
            value = pa.repeat(pa.scalar(_PLAIN.get(field.type, 0), field.type), rows)
        arrays.append(value if isinstance(value, pa.Array) else pa.array(value, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
