"""The tables that a run makes: from which kinds of facts, by which transform, sorted by what.

Transforms are imported when a table is built, so that a run without news starts no Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.pipeline.schemas import COLUMNS, LOST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Facts = Mapping[str, "DataFrame"]
"""Kind to its facts."""
Made = Callable[[str], "DataFrame"]
"""A table that this run has made before, by its name."""


class Table(msgspec.Struct, frozen=True):
    """One table. `version` grows whenever other rows come out for the same facts, here or in a table it is made of."""

    name: str
    kinds: tuple[str, ...]
    sort: tuple[str, ...]
    build: Callable[[Facts, Made], DataFrame]
    version: int = 1

    def run_id(self, contents: Iterable[tuple[str, str, str]]) -> str:
        """Names the run that makes this table of these `(kind, day, digest)`: the same facts, the same name."""
        mine = [item for item in contents if item[0] in self.kinds]
        newest = max((day for _, day, _ in mine), default="empty")
        inputs = sorted({(kind, digest) for kind, _, digest in mine})
        name = hashlib.sha256(msgspec.json.encode((self.name, self.version, inputs)))
        return f"{newest}-{name.hexdigest()[:16]}"


def _recording(facts: Facts, _: Made) -> DataFrame:
    from holdfast.pipeline.transforms.recording import recording

    return recording({kind: facts[kind] for kind in COLUMNS if kind != LOST}, facts[LOST])


def _path_health(facts: Facts, _: Made) -> DataFrame:
    from holdfast.pipeline.transforms.path_health import path_health

    return path_health(facts["path"])


def _path_troubles(facts: Facts, _: Made) -> DataFrame:
    from holdfast.pipeline.transforms.path_health import path_troubles

    return path_troubles(facts["path"])


def _deliveries(facts: Facts, _: Made) -> DataFrame:
    from holdfast.pipeline.transforms.delivery_audit import deliveries

    return deliveries(facts["delivery"])


def _delivery_audit(facts: Facts, made: Made) -> DataFrame:
    from holdfast.pipeline.transforms.delivery_audit import delivery_audit

    return delivery_audit(facts["delivery"], facts["group"], made("delivery_violations"))


def _delivery_violations(facts: Facts, _: Made) -> DataFrame:
    from holdfast.pipeline.transforms.delivery_audit import delivery_violations

    return delivery_violations(facts["delivery"], facts["group"])


_PATH_SORT: Final = (
    *("subnet", "transport", "sender_name", "sender", "sender_adapter"),
    *("listener_name", "listener", "listener_adapter"),
)

# In the order in which they are made: a table may be made of an earlier one, if both are made of the same kinds.
TABLES: Final = (
    Table("recording", tuple(COLUMNS), ("kind", "node"), _recording),
    Table("path_health", ("path",), _PATH_SORT, _path_health),
    Table("path_troubles", ("path",), (*_PATH_SORT, "incarnation", "start_ns"), _path_troubles),
    Table("deliveries", ("delivery",), ("group", "replica"), _deliveries),
    Table(
        "delivery_violations",
        ("delivery", "group"),
        ("group", "index", "claim", "position"),
        _delivery_violations,
    ),
    Table("delivery_audit", ("delivery", "group"), ("group",), _delivery_audit),
)
