"""The tables of the pipeline, in one place: how each is made, of what, with which columns.

Three kinds, in the order in which a run makes them:

- *hourly* tables are functions of the facts of an hour and are kept per unit;
- the *path fold* writes four more per unit (`incident_history`, `path_hours`, `path_carry`, `path_rollup`);
- *views* are small, made of hourly tables, and rebuilt as a whole. They are what people and nodes read.

`version` grows whenever other rows come out for the same facts; the table is then rebuilt from what is kept.
Transforms are imported when a table is built, so that a run without news starts no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.pipeline.schemas import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Facts = Mapping[str, "DataFrame"]
"""Kind to its facts."""


class Source(Protocol):
    """What a view is made of."""

    def hourly(self, name: str, look_back_days: int | None = None) -> DataFrame:
        """An hourly table, of the last days or of all units that are kept."""

    def carry(self) -> DataFrame | None:
        """The newest carry of the path fold; None if no path was ever recorded."""

    def view(self, name: str) -> DataFrame:
        """A view that this run has made before."""

    def facts(self, kind: str, look_back_days: int | None = None) -> DataFrame:
        """Facts from the fact store. Only for what no roll-up can answer."""

    def hours(self, name: str, spans: Sequence[tuple[str, str]]) -> DataFrame:
        """An hourly table: the units in the look-back that hold hours of a span, from its first to its last."""

    def changed_since(self, view: str) -> str:
        """The first hour with new facts for the hourly tables that a view is made of.

        `frontier.NOTHING` if there are none, `frontier.EVERYTHING` if the view or those tables have another version.
        """

    def published(self, view: str, schema: str) -> DataFrame:
        """A view as the snapshot before has it."""

    def published_rows(self, view: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The same, some columns of it, on the driver; empty if there is none."""

    def first_day(self, look_back_days: int) -> str:
        """The first of the last days."""

    @property
    def first_open(self) -> str:
        """The first day whose hours are units."""

    def facts_around(self, kind: str, hours: Sequence[str]) -> DataFrame:
        """The facts of the units that hold some hours, and of the unit before each."""

    def incident_rows(self) -> DataFrame:
        """Written incidents and those that are still open, as rows of the history."""

    def settled_incidents(self) -> DataFrame | None:
        """Published incidents that were over before the time that this run may have changed; None if there are none."""

    def hours_of_incidents(self) -> DataFrame:
        """Path runs of the hours in which incidents began that are not settled."""

    def moves_of_incidents(self) -> DataFrame:
        """Link moves since the first incident began that is not settled."""

    @property
    def look_back_days(self) -> int: ...

    @property
    def now(self) -> datetime:
        """The wall clock of the run."""

    @property
    def inventory(self) -> Sequence[str]:
        """The lines of the inventory of the network; empty if the run has none."""

    @property
    def memo(self) -> dict[str, object]:
        """What several views of one run share."""

    @property
    def spark(self) -> SparkSession: ...


class Hourly(msgspec.Struct, frozen=True):
    """A table that is a function of the facts of each hour. Rows have a column `hour`."""

    name: str
    kinds: tuple[str, ...]
    schema: str
    build: Callable[[Facts], DataFrame]
    version: int = 1
    sparse: bool = False
    """Kinds without facts in the units are left out: most units have few of the kinds."""


class View(msgspec.Struct, frozen=True):
    """A table that is rebuilt as a whole from hourly tables and earlier views."""

    name: str
    inputs: tuple[str, ...]
    """Tables whose change makes a rebuild necessary."""
    sort: tuple[str, ...]
    build: Callable[[Source], DataFrame]
    chain: str
    """Views of one chain share work, and are made one after the other. Chains are independent of each other."""
    needs: str = ""
    """A table without which the view says nothing: it is not made before that one exists."""
    version: int = 1


def _path_runs(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.path_runs import path_runs

    return path_runs(facts["path"])


def _link_moves(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.link_moves import link_moves

    return link_moves(facts["link"])


def _recording_hours(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.recording import recording_hours

    return recording_hours(facts)


def _recording(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.recording import recording

    return recording(source.hourly("recording_hours", source.look_back_days))


def _nodes(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.recording import nodes

    return nodes(source.hourly("recording_hours", source.look_back_days))


def _path_health(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.path_health import path_health

    rollups = source.hourly("path_rollup", source.look_back_days)
    return path_health(rollups, source.carry(), source.view("nodes"))


def _incidents(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.incidents import incidents

    return incidents(
        source.incident_rows(),
        source.hours_of_incidents(),
        source.moves_of_incidents(),
        source.view("nodes"),
        source.settled_incidents(),
    )


def _load_hours(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.load_hours import load_hours

    return load_hours(facts["load"])


def _delivery_blocks(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.delivery_blocks import delivery_blocks

    return delivery_blocks(facts["delivery"])


def _group_events(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.group_events import group_events

    return group_events(facts["group"], facts["order"])


def _audit_frontier(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.audit_frontier import audit_frontier

    return audit_frontier(source)


def _deliveries(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.audit_view import deliveries

    return deliveries(source)


def _delivery_audit(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.audit_view import delivery_audit

    return delivery_audit(source)


def _audit_ranges(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.audit_view import audit_ranges

    return audit_ranges(source)


def _delivery_violations(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.audit_view import delivery_violations

    return delivery_violations(source)


def _dialog_ranges(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.dialog_ranges import dialog_ranges

    return dialog_ranges(facts["dialog_range"], facts["dialog"])


def _dialog_audit(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.dialog_view import dialog_audit

    return dialog_audit(source)


def _dialog_violations(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.dialog_view import dialog_violations

    return dialog_violations(source)


def _guarantee_events(facts: Facts) -> DataFrame:
    from holdfast.pipeline.transforms.guarantee_events import guarantee_events

    return guarantee_events(facts)


def _guarantee_audit(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.guarantee_view import guarantee_audit

    return guarantee_audit(source)


def _guarantee_violations(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.guarantee_view import guarantee_violations

    return guarantee_violations(source)


_RUNS: Final = "path_runs"
_GUARANTEED: Final = ("guarantee_events", "recording_hours")
_DIALOGS: Final = ("dialog_ranges", "recording_hours")
_AUDITED: Final = ("delivery_blocks", "group_events", "recording_hours")


def _schema(module: str, name: str) -> str:
    """A schema constant of a transform's module."""
    import importlib

    return str(getattr(importlib.import_module(f"holdfast.pipeline.transforms.{module}"), name))


PATH_SORT: Final = (
    *("subnet", "transport", "sender_name", "sender", "sender_adapter"),
    *("listener_name", "listener", "listener_adapter"),
)

HOURLY: Final = (
    Hourly(
        "recording_hours",
        tuple(COLUMNS),
        "recording.RECORDING_HOURS",
        _recording_hours,
        sparse=True,
    ),
    Hourly(_RUNS, ("path",), "path_runs.PATH_RUNS", _path_runs, version=2),
    Hourly(
        "delivery_blocks",
        ("delivery",),
        "delivery_blocks.DELIVERY_BLOCKS",
        _delivery_blocks,
        version=2,
    ),
    Hourly("group_events", ("group", "order"), "group_events.GROUP_EVENTS", _group_events),
    Hourly(
        "dialog_ranges",
        ("dialog_range", "dialog"),
        "dialog_ranges.DIALOG_RANGES",
        _dialog_ranges,
    ),
    Hourly(
        "guarantee_events",
        (
            *("stability", "group", "lock", "dialog_transaction", "dialog_range"),
            *("object", "object_op", "link"),
        ),
        "guarantee_events.GUARANTEE_EVENTS",
        _guarantee_events,
        sparse=True,
    ),
    Hourly("load_hours", ("load",), "load_hours.LOAD_HOURS", _load_hours),
    Hourly("link_moves", ("link",), "link_moves.LINK_MOVES", _link_moves),
)

INCIDENTS_VERSION: Final = 5
FOLD_VERSION: Final = 3
FOLD_TABLES: Final = {
    "incident_history": "incidents.INCIDENT_HISTORY",
    "path_hours": "incidents.PATH_HOURS",
    "path_carry": "incidents.PATH_CARRY",
    "path_rollup": "path_rollup.PATH_ROLLUP",
}
"""Tables that the path fold writes, to the schema."""

NODES: Final = "nodes"
PATHS: Final = "paths"
"""Chains of views. All others come after `NODES`; `PATHS` begins with the fold."""

VIEWS: Final = (
    View("nodes", ("recording_hours",), ("name", "node"), _nodes, NODES),
    View("recording", ("recording_hours",), ("kind", "node"), _recording, "recording"),
    View(
        "path_health",
        ("path_rollup", "path_carry", "recording_hours"),
        PATH_SORT,
        _path_health,
        PATHS,
        needs="path_rollup",
    ),
    View(
        "incidents",
        ("incident_history", "path_carry", _RUNS, "link_moves", "recording_hours"),
        ("start_at", "id"),
        _incidents,
        PATHS,
        needs="path_carry",
        version=INCIDENTS_VERSION,
    ),
    View(
        "deliveries",
        _AUDITED,
        ("group", "epoch", "replica"),
        _deliveries,
        "deliveries",
        needs="delivery_blocks",
    ),
    View(
        "delivery_audit",
        _AUDITED,
        ("group", "epoch"),
        _delivery_audit,
        "deliveries",
        needs="delivery_blocks",
    ),
    View(
        "audit_ranges",
        _AUDITED,
        ("group", "epoch", "first_index"),
        _audit_ranges,
        "deliveries",
        needs="delivery_blocks",
    ),
    View(
        "delivery_violations",
        _AUDITED,
        ("group", "epoch", "index", "claim"),
        _delivery_violations,
        "deliveries",
        needs="delivery_blocks",
    ),
    View(
        "audit_frontier",
        _AUDITED,
        ("group", "epoch", "first_block"),
        _audit_frontier,
        "deliveries",
        needs="delivery_blocks",
    ),
    View(
        "dialog_audit",
        _DIALOGS,
        ("dialog", "sender"),
        _dialog_audit,
        "dialogs",
        needs="dialog_ranges",
    ),
    View(
        "dialog_violations",
        _DIALOGS,
        ("dialog", "sender", "claim"),
        _dialog_violations,
        "dialogs",
        needs="dialog_ranges",
    ),
    View(
        "guarantee_audit",
        _GUARANTEED,
        ("guarantee", "subject"),
        _guarantee_audit,
        "guarantees",
        needs="guarantee_events",
    ),
    View(
        "guarantee_violations",
        _GUARANTEED,
        ("guarantee", "subject", "claim", "text"),
        _guarantee_violations,
        "guarantees",
        needs="guarantee_events",
    ),
)


def schema_of(table: str) -> str:
    """The schema of an hourly table."""
    named = {hourly.name: hourly.schema for hourly in HOURLY} | FOLD_TABLES
    module, _, name = named[table].partition(".")
    return _schema(module, name)
