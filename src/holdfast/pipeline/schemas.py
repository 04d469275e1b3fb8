"""The columns of telemetry segments, derived from the facts, as Spark and Arrow name them.

`holdfast.telemetry.facts` is the schema; nothing here repeats a fact's fields. A column with a default was added
after the first version, or may be: it can be missing in a segment and is then empty. All others must be there.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

from holdfast.node.subsystems import fact_types

LOST: Final = "lost"
"""The kind in which a node records which facts it could not keep."""


class Column(msgspec.Struct, frozen=True):
    """One column of a segment: its name, Spark's and Arrow's word for its type, whether it may be missing."""

    name: str
    spark: str
    arrow: pa.DataType
    optional: bool = False


_STRING: Final = ("string", pa.string())
_INT: Final = ("bigint", pa.int64())
_BOOL: Final = ("boolean", pa.bool_())
_TYPES: Final[dict[object, tuple[str, pa.DataType]]] = {str: _STRING, int: _INT, bool: _BOOL}

FRONT: Final = (
    Column("schema", "int", pa.int32()),
    Column("node", *_STRING),
    Column("name", *_STRING),
    Column("incarnation", *_INT),
    Column("n", *_INT),
    Column("at", "timestamp", pa.timestamp("us", "UTC")),
    Column("now_ns", *_INT),
)
"""What the writer puts in front of every fact."""

_LOST_COLUMNS: Final = (
    Column("lost_kind", *_STRING),
    Column("first", *_INT),
    Column("last", *_INT),
    Column("reason", *_STRING),
    Column("lost_incarnation", *_INT, optional=True),
)


def _of_fact(fact: type[msgspec.Struct]) -> tuple[Column, ...]:
    front = {column.name for column in FRONT}
    return FRONT + tuple(
        Column(field.name, *_TYPES[field.type], optional=not field.required)
        for field in msgspec.structs.fields(fact)
        if field.name not in front
    )


COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    **{fact.kind: _of_fact(fact) for fact in fact_types()},
    LOST: FRONT + _LOST_COLUMNS,
}
"""Kind of fact to the columns of its segments."""


def spark_schema(kind: str) -> str:
    """The schema with which Spark reads segments of a kind."""
    return ", ".join(f"`{column.name}` {column.spark}" for column in COLUMNS[kind])


def arrow_schema(kind: str) -> pa.Schema:
    """The schema of a segment of a kind that has every column."""
    return pa.schema([(column.name, column.arrow) for column in COLUMNS[kind]])
