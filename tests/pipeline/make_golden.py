"""Golden segments of the current schema: `python -m tests.pipeline.make_golden` writes those that are missing.

Run it once when a version is published, and commit the files. They are never written again: they show that segments of
that version stay readable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tests.pipeline.making import NOON, SECOND, node_id

from holdfast.node.subsystems import fact_types
from holdfast.recording.columns import Layout, LostFact, Origin, complete
from holdfast.recording.landing import write_parquet
from holdfast.telemetry.facts import SCHEMA, Fact

GOLDEN = Path(__file__).parent / "golden"
_VALUES: dict[type, tuple[Any, Any]] = {
    int: (0, 2**63 - 1),
    str: ("", "größer"),
    bool: (False, True),
}


def example(fact: type[Fact], place: int) -> Fact:
    """A fact with the smallest or the largest value in each of its fields."""
    values = {field.name: _VALUES[field.type][place] for field in msgspec.structs.fields(fact)}
    return fact(**(values | {"now_ns": place * SECOND}))


def main() -> None:
    folder = GOLDEN / f"schema-{SCHEMA}"
    folder.mkdir(parents=True, exist_ok=True)
    origin = Origin(node_id("alba"), "alba", 1, int(NOON.timestamp()) * SECOND - 60 * SECOND)
    for fact in (*fact_types(), LostFact):
        path, layout = folder / f"{fact.kind}.parquet", Layout(fact)
        if not path.exists():
            batch = layout.encode(0, [example(fact, place) for place in (0, 1)])
            write_parquet(complete([batch], layout.schema, origin), path)


if __name__ == "__main__":
    main()
