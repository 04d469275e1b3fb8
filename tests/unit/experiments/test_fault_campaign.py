"""Fault campaigns as tasks of a sweep (P8): outcomes, replay commands, telemetry, the audit beside the simulator."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.errors import MisuseError
from holdfast.experiments.fault_campaign import (
    CampaignReport,
    Trial,
    run_trial,
    summary,
    trials,
    with_audit,
)
from holdfast.experiments.journal import Record
from holdfast.experiments.sweep import run_task


def test_a_trial_is_the_run_that_its_replay_command_repeats(tmp_path: Path) -> None:
    """The same seed gives the same deliveries and packets as `holdfast sim groups`."""
    trial = Trial("groups", 4, 2, str(tmp_path))
    found = run_trial(trial.key)
    assert found["error"] is None
    assert found["replay"] == "holdfast sim groups --seed 4 --seconds 2"
    again = run_trial(Trial("groups", 4, 2).key)
    for name in ("delivered", "packets_sent", "packets_lost", "starts", "coverage"):
        assert again[name] == found[name], name
    assert found["facts"] > 0
    assert list((tmp_path / "groups-4" / "landing").glob("delivery/day=*/*.parquet"))


@pytest.mark.campaign
def test_a_domain_trial_runs_nodes_under_random_faults() -> None:
    found = run_trial(Trial("domain", 3, 2).key)
    assert found["error"] is None
    assert found["replay"] == "holdfast sim run --seed 3 --seconds 2 --nodes 5"


def test_failures_come_with_their_replay_command() -> None:
    """A violated invariant, and a task that did not end, are both failures of their seed."""
    records = [
        Record(
            Trial("groups", 1, 12).key, {"error": None, "delivered": 5, "starts": 3, "calm_ms": 9}
        ),
        Record(Trial("groups", 2, 12).key, {"error": "agreement violated", "delivered": 1}),
        Record(Trial("groups", 3, 12).key, error="the worker failed: killed"),
    ]
    report = summary(records)
    assert (report.runs, report.deliveries, report.slowest_ms) == (3, 6, 9)
    assert [found["seed"] for found in report.failed] == ["2", "3"]
    assert report.failed[0]["replay"] == "holdfast sim groups --seed 2 --seconds 12"


def test_the_audit_accuses_a_seed_by_its_group_epoch() -> None:
    """A group in availability mode may have two orders; any other may not."""
    records = [
        Record(Trial("groups", 1, 12).key, {"epochs": [11], "mode": "majority"}),
        Record(Trial("groups", 2, 12).key, {"epochs": [22], "mode": "availability"}),
        Record(Trial("groups", 3, 12).key, {"epochs": [33], "mode": "majority"}),
    ]
    verdicts = [
        {"epoch": 11, "verdict": "violated", "why": "two entries at 5"},
        {"epoch": 22, "verdict": "violated", "why": "two entries at 6"},
        {"epoch": 33, "verdict": "holds", "why": ""},
    ]
    report: CampaignReport = with_audit(summary(records), records, verdicts)
    assert report.audited == {"holds": 1, "violated": 1, "violated (availability)": 1}
    (accused,) = report.accused
    assert accused["seed"] == "1"
    assert accused["replay"] == "holdfast sim groups --seed 1 --seconds 12"


def test_an_unknown_campaign_is_refused() -> None:
    with pytest.raises(MisuseError, match="is not a campaign"):
        trials("nodes", [1], 12)


def test_a_task_that_is_no_trial_is_an_error_of_that_task() -> None:
    record = run_task(run_trial, msgspec.json.encode({"kind": "groups"}).decode())
    assert record.result is None
    assert "seed" in record.error
