"""The pipeline reads exactly the columns that nodes write."""

from __future__ import annotations

import pytest

from holdfast.pipeline.schemas import COLUMNS, arrow_schema, spark_schema
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
