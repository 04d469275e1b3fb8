"""The sweep without an engine: order, resumption, errors, full disks (S9, P8)."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import MisuseError
from holdfast.experiments.journal import Journal, Record, SweepStopped
from holdfast.experiments.sets import jobs_of, measure, points_of, read_point
from holdfast.experiments.sweep import Job, Progress, bundles, run_task, sweep, waves


def double(task: str) -> dict[str, Any]:
    if task == "bad":
        raise ValueError("this one fails")
    return {"twice": 2 * int(task)}


def test_results_and_errors_are_both_kept(tmp_path: Path) -> None:
    seen: list[Progress] = []
    jobs = [Job("1"), Job("bad"), Job("3")]
    records = sweep(jobs, double, Journal(tmp_path / "j"), progress=seen.append)
    assert records["3"].result == {"twice": 6}
    assert records["bad"].result is None
    assert "ValueError: this one fails (double, line" in records["bad"].error
    assert (seen[-1].done, seen[-1].failed, seen[-1].total) == (3, 1, 3)


def test_a_sweep_goes_on_where_it_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    sweep([Job("1"), Job("2")], double, journal)
    done: list[str] = []

    def watch(task: str) -> dict[str, Any]:
        done.append(task)
        return double(task)

    records = sweep([Job("1"), Job("2"), Job("3")], watch, journal)
    assert done == ["3"]
    assert [records[task].result for task in ("1", "2", "3")] == [{"twice": n} for n in (2, 4, 6)]


def test_failed_points_are_repeated_only_on_request(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    sweep([Job("bad")], double, journal)
    repaired = lambda task: {"twice": 0}
    assert sweep([Job("bad")], repaired, journal)["bad"].error
    assert sweep([Job("bad")], repaired, journal, again=True)["bad"].result == {"twice": 0}
    assert journal.read()["bad"].result == {"twice": 0}


def test_a_line_that_a_crash_cut_off_is_measured_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    sweep([Job("1"), Job("2")], double, journal)
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[:-5])
    assert list(journal.read()) == ["1"]
    sweep([Job("1"), Job("2")], double, journal)
    assert journal.path.read_bytes() == data


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append([Record("1", {"twice": 2})])
    journal.path.write_bytes(journal.path.read_bytes() + b"nonsense\n")
    with pytest.raises(SweepStopped, match="line 2 of"):
        journal.read()


def test_a_killed_sweep_keeps_its_finished_waves(tmp_path: Path) -> None:
    """The process dies in the middle of a wave; the next one does only what is left."""
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from holdfast.experiments.journal import Journal
        from holdfast.experiments.sweep import Job, sweep

        def work(task):
            if task == "5":
                os.kill(os.getpid(), 9)
            return {"twice": 2 * int(task)}

        sweep([Job(str(n), 5.0) for n in range(10)], work, Journal(Path(sys.argv[1])))
        """
    )
    path = tmp_path / "j"
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert list(Journal(path).read()) == ["0", "1", "2", "3"]
    records = sweep([Job(str(n)) for n in range(10)], double, Journal(path))
    assert [record.result for record in records.values()] == [{"twice": 2 * n} for n in range(10)]


def test_a_full_disk_stops_the_sweep_and_says_what_is_kept(tmp_path: Path) -> None:
    """The file may grow to 200 bytes only, as on a disk without room."""
    journal = Journal(tmp_path / "j")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(SweepStopped, match="Make room and run the same command again"):
            sweep([Job(str(n), 100.0) for n in range(20)], double, journal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    kept = journal.read()
    assert 0 < len(kept) < 20
    assert len(sweep([Job(str(n)) for n in range(20)], double, journal)) == 20
    assert journal.path.stat().st_size > 200


def test_waves_have_about_the_same_cost_and_keep_the_order() -> None:
    jobs = [Job(str(n), 10.0) for n in range(20)]
    found = list(waves(jobs, cores=2))
    assert [len(wave) for wave in found] == [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert [job for wave in found for job in wave] == jobs


def test_tasks_of_a_wave_are_balanced() -> None:
    jobs = [Job("large", 10.0), *(Job(f"small {n}", 1.0) for n in range(10))]
    assert [len(tasks) for tasks in bundles(jobs, 2)] == [1, 10]
    assert len(bundles(jobs[:1], 16)) == 1


@pytest.mark.parametrize("name", ["small", "paper", "variants", "large", "beyond"])
def test_every_point_of_a_set_makes_sense_and_is_there_once(name: str) -> None:
    points = points_of(name)
    jobs = jobs_of(points)
    assert len({job.task for job in jobs}) == len(jobs)
    assert [read_point(job.task) for job in jobs[:50]] == list(points[:50])


def test_the_paper_set_is_the_paper_set() -> None:
    """10 to 1900 nodes, FullDist to 400, six topologies, edge probabilities 0.01 to 0.04, 0 to 5 failures."""
    points = points_of("paper")
    assert {point.seed for point in points} == {1, 2, 3, 4, 5, 6}
    assert min(point.nodes for point in points) == 10
    assert max(point.nodes for point in points if point.protocol == "cube") == 1900
    assert max(point.nodes for point in points if point.protocol == "full") == 400
    assert {p.edge_probability for p in points} == {0.0, 0.01, 0.02, 0.04}
    assert {p.failed for p in points} == {0, 1, 2, 3, 4, 5}


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(MisuseError, match="is not a set"):
        points_of("big")


def test_a_point_that_cannot_run_is_an_error_of_that_point() -> None:
    """Failed routers cut this network: the point says so, and no other point is affected."""
    task = '{"kind":"round","nodes":20,"edge_probability":0.01,"seed":2,"failed":3,"routers_down":true}'
    record = run_task(measure, task)
    assert record.result is None
    assert record.error.startswith("Disconnected: ")
