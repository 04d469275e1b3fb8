"""The pipeline reads exactly the columns that nodes write."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from holdfast.pipeline.schemas import COLUMNS, arrow_schema, spark_schema
from holdfast.pipeline.tables import TABLES
from holdfast.stores.segments import arrow_schema as written_schema
from holdfast.telemetry.facts import KINDS


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_the_columns_are_those_that_the_segment_writer_writes(kind: str) -> None:
    assert arrow_schema(kind).equals(written_schema(kind))


def test_every_kind_of_fact_has_columns_and_so_has_what_was_lost() -> None:
    assert sorted(COLUMNS) == sorted([*(fact.kind for fact in KINDS), "lost"])


def test_spark_reads_facts_with_an_explicit_schema() -> None:
    assert spark_schema("group") == (
        "`schema` int, `node` string, `name` string, `incarnation` bigint, `n` bigint, `at` timestamp, "
        "`now_ns` bigint, `group` string, `event` string, `term` bigint, `index` bigint, `detail` string"
    )


def test_only_columns_with_a_default_may_be_missing() -> None:
    optional = [column.name for column in COLUMNS["node"] if column.optional]
    assert optional == ["detail", "count"]


REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md").read_text()


def _section(title: str) -> str:
    """What the reference says under a heading that starts with `title`."""
    found = re.search(rf"^### `{title}`:.*?(?=^##|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert found, f"the reference has no section on {title}"
    return found[0]


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_the_reference_names_every_column_of_every_kind(kind: str) -> None:
    front, own = COLUMNS[kind][:7], COLUMNS[kind][7:]
    assert all(f"| `{column.name}` |" in REFERENCE for column in front)
    section = _section(kind)
    assert [column.name for column in own if f"`{column.name}`" not in section] == []


@pytest.mark.parametrize(
    ("table", "module"),
    [
        ("path_health", "path_health"),
        ("path_troubles", "path_health"),
        ("deliveries", "delivery_audit"),
        ("delivery_audit", "delivery_audit"),
        ("delivery_violations", "delivery_audit"),
        ("recording", "recording"),
    ],
)
def test_the_reference_names_every_column_of_every_table(table: str, module: str) -> None:
    schema = getattr(
        importlib.import_module(f"holdfast.pipeline.transforms.{module}"), table.upper()
    )
    names = [part.split()[0].strip("`") for part in schema.split(",")]
    # Keys of paths are named once, for both tables of paths.
    section = _section(table) + (_section("path_health") if table == "path_troubles" else "")
    assert [name for name in names if f"`{name}`" not in section] == []
    assert table in [made.name for made in TABLES]
