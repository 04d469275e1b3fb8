"""A run that is killed at any step of its publication leaves whole tables, and the next run completes the work."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.making import NOON, fact, write_segment

from holdfast.pipeline.jobs import run_pipeline
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.storage.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOW = NOON + timedelta(hours=1)
STEPS = (
    "before the snapshot",
    "after the snapshot",
    *(pytest.param(step, marks=pytest.mark.campaign) for step in ("ledger", "report", "garbage")),
)


class Killed(BaseException):
    """As a signal would: nothing in the run may handle it."""


class DyingStore(LocalStore):
    """The process dies at one step of the publication. `discard` does not happen either."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step, self.dead = step, False

    def _die(self) -> None:
        self.dead = True
        raise Killed(self.step)

    def create(self, uri: str, content: bytes) -> None:
        if self.dead:
            raise Killed(self.step)
        if "/ledger/" in uri and self.step == "ledger":
            self._die()
        if "/snapshots/" in uri and self.step == "before the snapshot":
            self._die()
        super().create(uri, content)
        if "/snapshots/" in uri and self.step == "after the snapshot":
            self._die()

    def replace(self, uri: str, content: bytes) -> None:
        if self.dead or self.step == "report":
            self._die()
        super().replace(uri, content)

    def remove(self, uri: str) -> None:
        if self.dead or self.step == "garbage":
            self._die()
        super().remove(uri)


def starts(landing: Path, *names: str) -> None:
    for name in names:
        write_segment(landing, "node", [fact("node", name, 0, 0.0, event="start")])


def names(out: Path) -> list[str]:
    return sorted(row["name"] for row in open_tables(out).rows("nodes"))


@pytest.fixture(scope="module")
def first(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory after one run. Tables name their files relative to it, so it can be copied; the ledger names
    segments by their full path, so copies share the landing."""
    root = tmp_path_factory.mktemp("publication")
    starts(root / "landing", "alba")
    run_pipeline(root / "landing", root / "out", session=spark, now=NOW)
    return root


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_leaves_whole_tables(
    step: str, spark: SparkSession, first: Path, tmp_path: Path
) -> None:
    """Rule 7: attempt directories become visible by one exclusive creation, and garbage goes by reference and age."""
    landings, out = [first / "landing", tmp_path / "landing"], tmp_path / "out"
    shutil.copytree(first / "out", out)
    starts(tmp_path / "landing", "brno")
    store = DyingStore(step)
    died = False
    try:
        # A day later, so that there is garbage to remove.
        run_pipeline(landings, out, session=spark, store=store, now=NOW + timedelta(days=1))
    except Killed:
        died = True
    assert died or step == "garbage", "a second run need not have garbage yet"
    published = step in ("after the snapshot", "report", "garbage")
    assert names(out) == (["alba", "brno"] if published else ["alba"])
    starts(tmp_path / "landing", "cork")
    report = run_pipeline(landings, out, session=spark, now=NOW + timedelta(days=2))
    assert names(out) == ["alba", "brno", "cork"]
    assert report.conflicts == report.duplicates == 0
    assert Path(report.report).exists()
