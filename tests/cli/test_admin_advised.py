"""H17, P9: advice about placements becomes a move of a group replica, planned and carried out with real nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from tests.support.advice import edition
from tests.support.command_line import NAMES, agreed, book_domain, holdfast, leader, parts, until

from holdfast.cli.placing import leaving
from holdfast.recording.advice import encode_advice
from holdfast.telemetry.advice import PPM, Placement


def status(unsound: list[str], view: list[str], **bad: float) -> dict[str, Any]:
    """Members a to d, of which `view` have a replica of the group `book`."""
    return {
        "members": [{"id": name * 4, "name": name, "state": "up"} for name in "abcd"],
        "advice": {
            "unsound": [{"node": name * 4} for name in unsound],
            "placements": {name * 4: share for name, share in bad.items()},
        },
        "groups": [
            {
                "name": "book",
                "leader": "a",
                "state": "leading",
                "view": [{"name": name, "part": "voter"} for name in view],
            }
        ],
    }


def test_the_replica_on_the_worst_node_leaves_and_one_at_a_time() -> None:
    (one,) = leaving(status(["b", "a"], ["a", "b"], a=0.6, b=0.75))
    assert (one.group, one.node) == ("book", "b")
    assert one.why == "75% of the paths of b are bad or at risk"


def test_nothing_leaves_without_need() -> None:
    assert leaving(status([], ["a", "b"])) == []
    assert leaving(status(["d"], ["a", "b"])) == []


@pytest.fixture
def domain(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Nodes that look for advice."""
    advice = tmp_path / "advice"
    advice.mkdir()
    with book_domain(tmp_path, f'[advice]\ndirectory = "{advice}"\nevery_s = 0.2') as files:
        yield files


def test_advice_moves_a_replica_off_a_node_with_bad_paths(
    domain: dict[str, Path], tmp_path: Path
) -> None:
    now = agreed(domain)
    first = leader(now)
    sick, spare = (name for name in NAMES if name != first)
    refused = holdfast("admin", "advised", domain[first])
    assert "no advice is in force" in refused.stderr
    assert holdfast("groups", "remove", domain[first], "book", spare).returncode == 0
    until(domain[first], lambda now: spare not in parts(now))
    ids = {member["name"]: member["id"] for member in now["members"]}
    placements = tuple(
        Placement(ids[name], PPM // 10 if name == sick else PPM, 0) for name in NAMES
    )
    advice = edition(time_ns() // 1000, placements=placements)
    (tmp_path / "advice" / "00000001.parquet").write_bytes(encode_advice(advice))
    until(domain[first], lambda now: now["advice"]["unsound"])
    plan = holdfast("admin", "advised", domain[first], "--json")
    assert [step["state"] for step in json.loads(plan.stdout)["steps"]] == ["planned"]
    assert sick in parts(until(domain[first], parts))
    done = holdfast("admin", "advised", domain[first], "--apply", "--json")
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)["steps"]
    assert [(step["add"], step["remove"], step["state"]) for step in steps] == [
        (spare, sick, "done"),
    ]
    assert sorted(parts(until(domain[first], parts))) == sorted([first, spare])
    assert holdfast("admin", "advised", domain[first]).stdout.strip().endswith("nothing to move")
