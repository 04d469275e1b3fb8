"""How frames get from files and into files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holdfast.pipeline.snapshot import Part, TableFile
from holdfast.pipeline.storage.port import Store, join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GLOB_SIGNS = re.compile(r"([\\{}\[\]*?])")
_UNIT = re.compile(r"/unit=([^/]+)/")
_WHAT = re.compile(r"/what=([^/]+)/")


def literally(uri: str) -> str:
    """A location as Spark must be given it: it takes one for a pattern, also where a name only looks like one."""
    return _GLOB_SIGNS.sub(r"\\\1", uri)


def read_files(session: SparkSession, schema: str, uris: Sequence[str]) -> DataFrame:
    """The rows of some Parquet files; columns that a file lacks are empty. No file gives no rows."""
    if not uris:
        # Spark plans no work for this.
        return (
            session.createDataFrame([], schema) if _is_nested(schema) else _nothing(session, schema)
        )
    return session.read.schema(schema).parquet(*map(literally, uris))


_ARROW: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "array<string>": pa.list_(pa.string()),
}


def arrow_of(schema: str) -> pa.Schema:
    """The Arrow schema of a table with plain columns."""
    columns = (column.split() for column in schema.replace("\n", " ").split(","))
    return pa.schema([(name.strip("`"), _ARROW[kind]) for name, kind in columns])


def _is_nested(schema: str) -> bool:
    return "<" in schema


def _nothing(session: SparkSession, schema: str) -> DataFrame:
    columns = (column.split() for column in schema.replace("\n", " ").split(","))
    cast = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns)
    return session.sql(f"SELECT {cast} WHERE false")


def read_parts(session: SparkSession, root: str, schema: str, parts: Sequence[Part]) -> DataFrame:
    return read_files(
        session, schema, [join(root, file.name) for part in parts for file in part.files]
    )


def files_by_unit(store: Store, root: str, target: str) -> dict[str, list[TableFile]]:
    """The Parquet files that a write has left under `target`, by the unit in their path (empty: none)."""
    return {unit: files for (_, unit), files in files_by_what(store, root, target).items()}


def files_by_what(store: Store, root: str, target: str) -> dict[tuple[str, str], list[TableFile]]:
    """The same, by the values of `what=` and `unit=` in their paths."""
    found: dict[tuple[str, str], list[TableFile]] = {}
    for stat in store.files(target):
        name = stat.uri.rpartition("/")[2]
        if not name.endswith(".parquet") or name.startswith((".", "_")):
            continue
        below = stat.uri.removeprefix(root).lstrip("/")
        what, unit = _WHAT.search(stat.uri), _UNIT.search(stat.uri)
        key = (what[1] if what else "", unit[1] if unit else "")
        found.setdefault(key, []).append(TableFile(below, stat.size))
    return found
