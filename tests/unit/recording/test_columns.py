"""Facts become columns without work per fact where that is possible, and never with another value."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.recording.archive import FRAME_ROWS
from holdfast.recording.columns import Layout, Origin, complete
from holdfast.recording.landing import write_parquet
from holdfast.telemetry.facts import DeliveryFact

LAYOUT = Layout(DeliveryFact)


def delivery(index: Any, group: str = "orders") -> DeliveryFact:
    return DeliveryFact(7, group, 1, index, 10, "s", 1, 9, 77)


@pytest.mark.parametrize(
    "indexes",
    [[5, 5, 5], [1, 2, 3], [-(2**63), 0, 2**63 - 1], [4, 5, 4]],
    ids=["constant", "growing", "limits", "equal ends"],
)
def test_a_column_holds_the_values_of_the_facts(indexes: list[int]) -> None:
    batch = LAYOUT.encode(100, [delivery(index) for index in indexes])
    assert batch.column("n").to_pylist() == [100, 101, 102]
    assert batch.column("index").to_pylist() == indexes
    assert batch.column("group").to_pylist() == ["orders"] * 3
    batch.validate(full=True)


@pytest.mark.parametrize("wrong", [2.5, 2**63, "2"])
def test_a_number_that_is_none_is_lost_alone_and_is_not_rounded(wrong: Any) -> None:
    found = list(LAYOUT.encode_most(0, [delivery(1), delivery(wrong), delivery(3)]))
    batches = [piece for piece in found if isinstance(piece, pa.RecordBatch)]
    assert [index for batch in batches for index in batch.column("index").to_pylist()] == [1, 3]
    ((n, reason),) = [piece for piece in found if isinstance(piece, tuple)]
    assert n == 1
    assert "not writable" in reason


def test_a_value_that_is_missing_is_a_null() -> None:
    batch = LAYOUT.encode(0, [delivery(1), delivery(None), delivery(3)])
    assert batch.column("index").to_pylist() == [1, None, 3]


def test_a_frame_of_facts_starts_no_garbage_collection() -> None:
    """A collection holds the interpreter, so the node would wait for its telemetry."""
    facts = [delivery(index) for index in range(FRAME_ROWS)]
    LAYOUT.encode(0, facts)
    collections: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        LAYOUT.encode(0, facts)
    finally:
        gc.callbacks.remove(note)
    assert collections == []


def test_a_constant_column_is_made_once_for_all_frames() -> None:
    one, other = (LAYOUT.encode(n, [delivery(n), delivery(n + 1)]) for n in (0, 2))
    addresses = [batch.column("group").buffers()[2].address for batch in (one, other)]
    assert addresses[0] == addresses[1]
    assert LAYOUT.encode(4, [delivery(4, "stock")] * 2).column("group")[0].as_py() == "stock"


def test_a_sealed_segment_holds_regular_facts_in_few_bytes_and_extreme_ones_exactly(
    tmp_path: Path,
) -> None:
    """Numbers are stored as differences: regular facts then cost a sixth of the time and the room of a dictionary."""
    layout, origin = Layout(DeliveryFact), Origin("ab" * 16, "n1", 1, 7)
    regular = [
        DeliveryFact(n * 1_000_000, "g", 1, n, 3 * n, "s", 3 * n, 3 * n + 2, 99, epoch=1)
        for n in range(10_000)
    ]
    table = complete([layout.encode(0, regular)], layout.schema, origin)
    assert write_parquet(table, tmp_path / "regular.parquet") < 2 * len(regular)
    extremes = [
        DeliveryFact(n, "g", 1, index, -index, "s", 0, 0, 0)
        for n, index in enumerate((2**63 - 1, -(2**63) + 1, 2**63 - 1, 0))
    ]
    table = complete([layout.encode(0, extremes)], layout.schema, origin)
    write_parquet(table, tmp_path / "extreme.parquet")
    assert pq.read_table(tmp_path / "extreme.parquet").equals(table)
