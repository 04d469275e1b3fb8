"""`pipeline watch`: run after run as segments arrive; a look that fails does not end it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JNetworkError
from tests.pipeline.making import NOON, fact, write_segment

from holdfast.errors import MisuseError
from holdfast.pipeline.jobs import PipelineBusy, PipelineFailed, RunReport, run_pipeline
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.watching import KeptEngine, keep_watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pauses:
    """Stands in for time: in each pause the test does something."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self.between = list(between)
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.between:
            self.between.pop(0)()


@pytest.mark.spark
def test_segments_are_taken_as_they_arrive(spark: SparkSession, tmp_path: Path) -> None:
    """P1, rules 3 and 9: batches, again and again, with one engine. A look without news changes nothing. Facts beyond
    the limit for late ones are stored and counted, and tables are as without them."""
    landing = tmp_path / "landing"
    reports: list[RunReport] = []
    arrive = lambda name, at_s=0.0: write_segment(
        landing, "node", [fact("node", name, 0, at_s, event="start")]
    )
    arrive("alba")

    def two_more() -> None:
        arrive("brno")
        arrive("cork", -10 * 86_400.0)

    def look() -> None:
        now = NOON + timedelta(hours=1)
        reports.append(run_pipeline(landing, tmp_path / "out", session=spark, now=now))

    pauses = Pauses(lambda: None, two_more)
    keep_watching(look, 7.0, 3, lambda _: None, pauses)
    assert [(report.snapshot, report.nothing_new) for report in reports] == [
        (1, False),
        (1, True),
        (2, False),
    ]
    assert pauses.slept == [7.0, 7.0]
    assert [(report.facts, report.too_late) for report in reports] == [(1, 0), (0, 0), (2, 1)]
    tables = open_tables(tmp_path / "out")
    assert sorted(tables.snapshot.parts("facts/node")) == ["2026-11-05", "2026-11-15T12"]
    assert [row["name"] for row in tables.rows("nodes")] == ["alba", "brno"]


def test_a_look_that_fails_is_told_and_the_next_one_succeeds() -> None:
    outcomes: list[Exception | None] = [PipelineFailed("busy"), OSError(28, "full"), None]
    told: list[str] = []

    def look() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    keep_watching(look, 1.0, 3, told.append, Pauses())
    assert outcomes == []
    assert told == ["busy", "[Errno 28] full"]


class Engines:
    """Counts engines that were started and stopped; a session is the number of its engine."""

    def __init__(self) -> None:
        self.started = self.stopped = 0

    @contextmanager
    def start(self) -> Iterator[Any]:
        self.started += 1
        yield self.started
        self.stopped += 1


def test_an_engine_that_failed_a_run_is_replaced_before_the_next_one() -> None:
    """Java that was killed, or a cluster that was restarted, fails every later run of the same session."""
    engines = Engines()
    failures: list[Exception | None] = [
        None,
        PipelineBusy("another run"),
        PipelineFailed("the engine failed"),
        Py4JNetworkError("no answer from Java"),
        ConnectionRefusedError("no Java"),
        None,
    ]
    told: list[str] = []
    used: list[object] = []
    with KeptEngine(engines.start) as kept:

        def look() -> None:
            failure = failures[len(used)]
            with kept.renewed_after_failure() as session:
                used.append(session)
                if failure is not None:
                    raise failure

        keep_watching(look, 1.0, len(failures), told.append, Pauses())
        assert (engines.started, engines.stopped) == (4, 3)
    assert used == [1, 1, 1, 2, 3, 4], "a busy directory keeps the engine"
    assert engines.stopped == 4
    assert len(told) == 4
    assert "unchanged. no answer from Java" in told[2]


_DYING = """
import os, signal, subprocess
from pathlib import Path
from holdfast.pipeline.engine import open_engine
from holdfast.pipeline.jobs import PipelineFailed
from holdfast.pipeline.watching import KeptEngine
with KeptEngine(lambda: open_engine("local[1]")) as kept:
    try:
        with kept.renewed_after_failure() as session:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            (java,) = (int(p) for p in children if Path(f"/proc/{p}/comm").read_text().strip() == "java")
            os.kill(java, signal.SIGKILL)
            while Path(f"/proc/{java}/task").exists() and "Z" not in Path(f"/proc/{java}/stat").read_text().split():
                pass
            raise PipelineFailed("the engine failed")
    except PipelineFailed:
        pass
    with kept.renewed_after_failure() as session:
        print(session.range(4).count())
"""


@pytest.mark.spark
@pytest.mark.campaign
def test_the_next_engine_works_although_the_java_of_the_last_one_was_killed() -> None:
    """In a process of its own: the tests of this process keep a session."""
    done = subprocess.run(
        [sys.executable, "-c", _DYING], capture_output=True, text=True, check=False, timeout=280
    )
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr[-2000:]


def test_a_wrong_call_ends_it() -> None:
    def look() -> None:
        raise MisuseError("no landing/ directory")

    pauses = Pauses()
    with pytest.raises(MisuseError, match="no landing"):
        keep_watching(look, 1.0, 0, lambda _: None, pauses)
    assert pauses.slept == []
