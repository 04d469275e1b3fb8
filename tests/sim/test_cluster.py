"""Real nodes in a simulated world: they form a domain, deliver one order, and every seed repeats itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.sim import app
from holdfast.sim.checkers import CheckFailed
from holdfast.sim.cluster import Cluster
from holdfast.sim.facts import FactBook
from holdfast.sim.scenario import load_scenario, parse_scenario
from holdfast.telemetry.facts import DeliveryFact
from holdfast.types import SECOND

ROOT = Path(__file__).parents[2]
SMALL = ("run", "--nodes", "3", "--seconds", "3")


def test_nodes_form_a_domain_and_deliver_the_messages_of_all() -> None:
    cluster = Cluster(1, nodes=4, until_ns=3 * SECOND, quiet_ns=SECOND)
    summary = cluster.run()
    sent = sum(sender.sent for sender in cluster.senders)
    assert sent > 1000
    assert summary["delivered"] == 3 * sent
    assert set(summary["states"].values()) == {"up"}


def test_a_secure_domain_delivers_as_well() -> None:
    summary = Cluster(1, 3, secure=True, until_ns=2 * SECOND, quiet_ns=SECOND).run()
    assert summary["delivered"] > 0


def test_a_replica_that_crashes_catches_up() -> None:
    scenario = parse_scenario("at 1s crash n3\nat 2s start n3")
    cluster = Cluster(2, 3, scenario=scenario, until_ns=5 * SECOND, quiet_ns=2 * SECOND)
    summary = cluster.run()
    assert summary["starts"] == 4
    counts = [
        worker.replica.state.count  # type: ignore[attr-defined]
        for host in cluster.world.hosts.values()
        for worker in host.workers.values()
    ]
    assert len(counts) == 3
    assert len(set(counts)) == 1


def test_messages_that_never_arrive_fail_the_run() -> None:
    scenario = parse_scenario("at 1s break * n4<->* blackout")
    cluster = Cluster(1, 4, scenario=scenario, until_ns=3 * SECOND, quiet_ns=SECOND)
    with pytest.raises(CheckFailed, match=r"delivered at the end.*of \d+ messages of n4 to book"):
        cluster.run()


def test_facts_of_real_nodes_can_be_collected() -> None:
    book = FactBook()
    cluster = Cluster(1, 3, until_ns=2 * SECOND, quiet_ns=SECOND, facts=book)
    cluster.run()
    facts = list(book.of(DeliveryFact))
    assert sum(fact.last - fact.first + 1 for fact in facts) == cluster.order.delivered > 0


def run_elsewhere(hash_seed: str, trace: Path) -> str:
    code = "import sys; from holdfast.cli.sim import app; app(sys.argv[1:])"
    scenario = trace.with_suffix(".txt")
    scenario.write_text("at 1s crash n3\nat 1.5s start n3\nat 1s break red n1->n2 loss 20%\n")
    arguments = [
        *SMALL,
        "--seed",
        "5",
        "--scenario",
        str(scenario),
        "--json",
        "--trace",
        str(trace),
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Whether all checks hold is not the question here.
    assert done.returncode in (0, 1), done.stderr
    return str(json.loads(done.stdout)["trace"])


def test_real_nodes_repeat_themselves_to_the_byte_under_another_hash_seed(tmp_path: Path) -> None:
    first = run_elsewhere("1", tmp_path / "first")
    second = run_elsewhere("4242", tmp_path / "second")
    assert first == second
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


# -- the command -------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_good_run_prints_a_summary_and_exits_0() -> None:
    code, output = invoke(*SMALL, "--seed", "3", "--scenario", "quiet")
    assert code == 0
    assert output.startswith("seed 3: fine, 3 s of 3 nodes")


def test_json_is_one_object_for_each_seed() -> None:
    code, output = invoke(*SMALL, "--seeds", "3..4", "--scenario", "quiet", "--json")
    assert code == 0
    assert [json.loads(line)["seed"] for line in output.splitlines()] == [3, 4]


def test_a_failed_check_exits_1_and_prints_the_command_that_repeats_it(tmp_path: Path) -> None:
    scenario = tmp_path / "for ever.txt"
    scenario.write_text("at 1s pause n3\n")
    code, output = invoke(*SMALL, "--seed", "3", "--scenario", str(scenario))
    assert code == 1
    assert "seed 3: FAILED" in output
    assert "replicas agree at the end: violated at 3s" in output
    command = output.splitlines()[-1].removeprefix("replay: ")
    assert command == f"holdfast sim run --seed 3 --nodes 3 --seconds 3 --scenario '{scenario}'"


def test_the_plan_of_a_seed_is_a_scenario_that_can_be_run_as_a_file(tmp_path: Path) -> None:
    code, output = invoke("run", "--seed", "9", "--nodes", "3", "--seconds", "20", "--plan")
    assert code == 0
    assert len(parse_scenario(output).steps) > 10
    (tmp_path / "plan.txt").write_text(output)
    assert load_scenario(str(tmp_path / "plan.txt")).text() == output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--seeds", "5"), "--seeds '5' is not A..B"),
        (("--seeds", "1..9999999"), "more than 1000000 runs"),
        (("--scenario", "nope"), "there is no scenario 'nope'"),
        (("--seeds", "1..2", "--trace", "t"), "--trace takes one seed"),
        (("--nodes", "1"), "the nemesis needs two nodes"),
        (("--nodes", "2", "--scenario", "restart"), "there is no host n3"),
    ],
)
def test_misuse_exits_2_with_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    code, output = invoke("run", "--seconds", "3", *arguments)
    assert code == 2
    assert complaint in output
    assert len(output.splitlines()) == 1
