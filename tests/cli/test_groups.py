"""`holdfast groups`: a group of real processes, looked at and changed from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

import pytest
from tests.conformance.worlds import free_port
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.runtime import control

PATIENCE_S = 60
ROOF, WELL = "7389047a" * 4, "02f977b2" * 4
LOSSES: dict[str, Any] = {
    "members": [{"id": ROOF, "name": "roof"}, {"id": "bec51d5e" * 4, "name": "ann"}],
    "groups": [
        {"name": "sensors", "state": "leading", "why": "", "leader": "ann", "term": 12, "position": 1_403_117,
         "last": 1_403_222, "commit": 1_403_221, "applied": 1_403_219, "lag": 3, "digest": "3e6dc1fe",
         "memory": "whole", "peers": [], "view": [], "gaps": 1, "nacks": 95,
         "streams": {f"{ROOF}/1/0": {"next": 1415, "lag": 2, "held": 572},
                     f"{WELL}/3/0": {"next": 1, "lag": 0, "held": 0}},
         "losses": {"from source": 94, "from log": 1, "questions": 4, "dropped": 11, "ignored": 5},
         "ignoring": [{"id": 7, "what": "stream 7389047a/1/0, topic rain for 9 messages", "left": 4},
                      {"id": 8, "what": "source 02f977b2 for ever", "left": 0}],
         "decisions": [{"stream": f"{ROOF}/1/0", "lost": 2, "first": 385, "attempt": 2, "by": "application",
                        "leader": "ben", "index": 388, "action": "recover else drop"}]},
    ],
}  # fmt: skip


def test_losses_and_decisions_are_shown_with_the_names_of_their_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each on a line of its own, however narrow the terminal is."""
    monkeypatch.setattr(control, "ask", lambda *_: LOSSES)
    monkeypatch.setenv("COLUMNS", "60")
    result = CliRunner().invoke(app, ["groups", str(tmp_path)], catch_exceptions=False)
    lines = [line.strip() for line in result.stdout.splitlines()]
    for line in (
        "leader ann, term 12, position 1403117, entries 1403222 (decided 1403221, applied 1403219), lag 3",
        "lost messages since it started: from source 94, from log 1, questions 4, dropped 11, ignored 5",
        "ignores (criterion 7): stream roof/1/0, topic rain for 9 messages, 4 more",
        "ignores (criterion 8): source 02f977b2 for ever",
        "decided: recover else drop: 2 of roof/1/0 from 385 (by application, ben led, entry 388, question 2)",
    ):
        assert line in lines
    assert "│ roof/1/0" in result.stdout
    assert "│ 02f977b2/3/0" in result.stdout


def holdfast(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Three nodes with a replica each, as processes."""
    directory = tmp_path_factory.mktemp("domain")
    names = ["n1", "n2", "n3"]
    ports = {name: free_port(["127.0.0.1"]) for name in names}
    files = {}
    for name in names:
        files[name] = directory / f"{name}.toml"
        files[name].write_text(
            f"""
domain = "groups"
name = "{name}"
data = "{directory / name}"
join = ["127.0.0.1:{ports["n1"]}"]
[security]
mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:{ports[name]}"
[[group]]
name = "book"
voters = {json.dumps(names)}
application = "holdfast.sim.ledger:Ledger"
"""
        )
    with ExitStack() as stack:
        for file in files.values():
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "node", str(file), "--quiet"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
        until(files["n1"], lambda group: len(group["view"]) == 3 and group["leader"])
        yield files


def shown(where: Path) -> dict[str, Any]:
    done = holdfast("groups", where, "--json")
    groups: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    return groups[0] if groups else {"view": [], "leader": ""}


def until(where: Path, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while not holds(group := shown(where)):
        assert monotonic_ns() < deadline_ns, group
        sleep(0.05)
    return group


def parts(group: dict[str, Any]) -> dict[str, str]:
    return {member["name"]: member["part"] for member in group["view"]}


def test_a_group_is_shown_with_its_leader_members_and_positions(domain: dict[str, Path]) -> None:
    leader = shown(domain["n1"])["leader"]
    done = holdfast("groups", domain["n1"])
    assert done.returncode == 0, done.stderr
    assert f"leader {leader}, term" in done.stdout
    assert "lag 0" in done.stdout
    for name in domain:
        assert f"│ {name}" in done.stdout


def test_a_replica_is_removed_and_let_in_again(domain: dict[str, Path]) -> None:
    leader = shown(domain["n1"])["leader"]
    other = next(name for name in domain if name != leader)
    done = holdfast("groups", "remove", domain[leader], "book", other)
    assert done.returncode == 0, done.stderr
    assert f"asked book: remove {other}" in done.stdout
    until(domain[leader], lambda group: other not in parts(group))
    assert holdfast("groups", "add", domain[leader], "book", other).returncode == 0
    until(domain[leader], lambda group: parts(group).get(other) == "voter")


def test_another_replica_leads_when_asked(domain: dict[str, Path]) -> None:
    leader = until(domain["n1"], lambda group: group["leader"])["leader"]
    other = next(name for name in domain if name != leader)
    refused = holdfast("groups", "hand-over", domain[other], "book", other)
    assert refused.returncode == 2
    assert f"{leader} leads group 'book': ask there" in refused.stderr
    assert holdfast("groups", "hand-over", domain[leader], "book", other).returncode == 0
    until(domain[leader], lambda group: group["leader"] == other)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("show", "--group", "nope"), "no replica of a group 'nope'"),
        (("remove", "nope", "n2"), "no replica of a group 'nope'"),
        (("end-ignoring", "book", "7"), "no criterion '7': it ignores nothing"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(
    domain: dict[str, Path], arguments: tuple[str, ...], complaint: str
) -> None:
    verb, *rest = arguments
    done = holdfast("groups", verb, domain["n1"], *rest)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_recovery_is_not_begun_without_being_sure(domain: dict[str, Path]) -> None:
    done = holdfast("groups", "recover", domain["n1"], "book")
    assert done.returncode == 1
    assert "will be lost for good" in done.stdout
