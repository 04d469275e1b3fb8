"""The pipeline reads exactly the columns that nodes write."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from holdfast.node.subsystems import fact_types
from holdfast.pipeline.schemas import COLUMNS, arrow_schema, spark_schema
from holdfast.pipeline.tables import HOURLY, VIEWS
from holdfast.recording.segment_writer import arrow_schema as written_schema


@pytest.mark.parametrize("kind", sorted(COLUMNS))
def test_the_columns_are_those_that_the_segment_writer_writes(kind: str) -> None:
    assert arrow_schema(kind).equals(written_schema(kind))


def test_every_kind_of_fact_has_columns_and_so_has_what_was_lost() -> None:
    assert sorted(COLUMNS) == sorted([*(fact.kind for fact in fact_types()), "lost"])


def test_spark_reads_facts_with_an_explicit_schema() -> None:
    assert spark_schema("group") == (
        "`schema` int, `node` string, `name` string, `incarnation` bigint, `n` bigint, `at` timestamp, "
        "`now_ns` bigint, `group` string, `event` string, `term` bigint, `index` bigint, `detail` string, "
        "`epoch` bigint, `rollback_index` bigint"
    )


def test_only_columns_with_a_default_may_be_missing() -> None:
    optional = [column.name for column in COLUMNS["node"] if column.optional]
    assert optional == ["detail", "count"]


REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "pipeline.md").read_text()

TABLES = {
    "nodes": ("recording", "NODES"),
    "recording": ("recording", "RECORDING"),
    "path_health": ("path_health", "PATH_HEALTH"),
    "incidents": ("incidents", "INCIDENTS"),
    "deliveries": ("audit_view", "DELIVERIES"),
    "delivery_audit": ("audit_view", "DELIVERY_AUDIT"),
    "audit_ranges": ("audit_view", "AUDIT_RANGES"),
    "audit_frontier": ("audit_frontier", "AUDIT_FRONTIER"),
    "delivery_violations": ("audit_view", "DELIVERY_VIOLATIONS"),
    "dialog_audit": ("dialog_ranges", "DIALOG_AUDIT"),
    "dialog_violations": ("dialog_ranges", "DIALOG_VIOLATIONS"),
    "guarantee_audit": ("guarantee_view", "GUARANTEE_AUDIT"),
    "guarantee_violations": ("guarantee_view", "GUARANTEE_VIOLATIONS"),
    "path_hours": ("incidents", "PATH_HOURS"),
}


def _section(title: str) -> str:
    """What the reference says under a heading that starts with `title`."""
    found = re.search(rf"^### `{title}`.*?(?=^##|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert found, f"the reference has no section on {title}"
    return found[0]


@pytest.mark.parametrize("table", TABLES)
def test_the_reference_names_every_column_of_every_table(table: str) -> None:
    module, name = TABLES[table]
    schema = getattr(importlib.import_module(f"holdfast.pipeline.transforms.{module}"), name)
    columns = [part.split()[0].strip("`") for part in re.sub(r"<.*?>", "", schema).split(",")]
    # Keys of paths are named once, under path_health.
    section = _section(table) + _section("path_health")
    assert [column for column in columns if f"`{column}`" not in section] == []


def test_every_view_is_in_the_reference() -> None:
    assert {view.name for view in VIEWS} <= TABLES.keys() | {"path_hours"}
    assert len({table.name for table in HOURLY}) == len(HOURLY)
