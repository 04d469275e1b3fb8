"""Schedules for rules of DESIGN 'Groups' that no other file here has; `scripts/rules-off` lists one test for each rule,
and shows that it fails without it."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

from tests.unit.group.harness import World, leader, ready, settle
from tests.unit.group.test_group import started, talk, texts
from tests.unit.group.test_loss import answer, delivered, losing, lossy, numbers, send
from tests.unit.group.test_views import parts

from holdfast.group.actions import DROP
from holdfast.group.ports import AddReplica
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.frames import Append, Appended, Payload


def also_dropping(world: World, drop: Any) -> None:
    """Lose these frames besides those that are lost already."""
    before = world.drop
    world.drop = lambda sender, target, frame: (
        drop(sender, target, frame) or (before is not None and before(sender, target, frame))
    )


def test_a_decision_that_is_not_committed_is_told_to_nobody_and_dies_with_its_leader() -> None:
    """Rule 3. n1 lacks message 2 and drops it, but nobody hears of that. The next leader has message 2."""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    also_dropping(
        world,
        lambda sender, _, frame: (
            sender == "n1" and isinstance(frame, Append) and bool(frame.entries)
        ),
    )
    send(world, 3)
    world.run(100 * MILLISECOND)
    assert world.hosts["n1"].asked, "it was asked, and has answered"
    assert (world.hosts["n1"].told, numbers(world)) == ([], [])
    world.isolate("n1")
    world.run_until(lambda: numbers(world, "n2") == [1, 2, 3], 5 * SECOND)
    world.drop = None
    world.heal_all()
    delivered(world, [1, 2, 3])
    assert world.hosts["n1"].told == []


def test_a_new_leader_asks_nothing_before_a_majority_has_said_what_it_holds() -> None:
    """Rule 6. n2 takes over and lacks message 2, which n3 has. Nobody has told it yet: it must not decide that."""
    world = lossy(never_lead=("n3",))
    answer(world, DROP)
    losing(world, range(2, 3), "n1", "n2")
    world.hosts["n1"].on_loss = lambda _: None
    send(world, 3)
    world.run(3 * MILLISECOND)
    also_dropping(world, lambda _s, _t, frame: isinstance(frame, Appended) and frame.all_marks)
    world.kill("s1")
    world.kill("n1")
    world.run_until(lambda: leader(world) == "n2", 5 * SECOND)
    world.run(120 * MILLISECOND)
    assert world.hosts["n2"].asked == []
    world.drop = None
    world.run_until(lambda: 3 in numbers(world, "n3"), 5 * SECOND)


def test_a_last_message_that_nobody_got_is_found_by_the_word_of_its_source() -> None:
    """Rule 7: idle streams repeat their last number. Nothing comes after it, and no replica has it to speak of it."""
    world = started(1, sources=1)
    world.drop = lambda sender, _, frame: sender == "s1" and isinstance(frame, Payload)
    world.send("s1", [b"the last one"])
    world.run(2 * MILLISECOND)
    world.drop = None
    settle(world, 1, limit_ns=SECOND)


def test_a_majority_is_one_of_the_view_in_the_log_decided_or_not() -> None:
    """Rule 6. j1 is to vote as a fourth. That is decided by three of four, not by two of the three before it."""
    world = started(1, joiners=1)
    world.inject("n1", AddReplica("j1"))
    quiet = ("n3", "j1")

    def learnt() -> bool:
        return parts(world, "n1").get("j1") == "learner"

    world.run_until(learnt, 5 * SECOND)
    world.drop = lambda sender, _, frame: (
        sender in quiet and isinstance(frame, Appended) and frame.match >= last[0]
    )
    last = [1 << 60]
    replica = world.hosts["n1"].replica
    assert replica is not None
    log = replica._core.log

    def voting() -> bool:
        if log.tail.view is not None and len(log.tail.view.voters) == 4:
            last[0] = log.view_index
        return last[0] < 1 << 60

    world.run_until(voting, 5 * SECOND)
    world.run(60 * MILLISECOND)
    assert replica._core.leadership.leading
    assert log.commit < last[0], "two of four have it"
    world.drop = None
    world.run_until(lambda: parts(world, leader(world) or "n1").get("j1") == "voter", 5 * SECOND)


def test_a_state_is_that_of_one_position_whatever_is_delivered_meanwhile() -> None:
    """Rule 9. The application of the giver takes its time; messages are handed to it while its state is awaited."""
    world = started(1)
    sent = talk(world, ("n1", "n2"))
    settle(world, sent)
    world.app_delay_us = (3_000, 5_000)
    world.restart("n3")
    for _ in range(30):
        world.send("n1", texts("on", 2))
        world.run(2 * MILLISECOND)
    ready(world)
    settle(world, sent + 60)
    assert world.events("restored")


def test_every_rule_that_can_be_switched_off_is_where_the_script_looks_for_it() -> None:
    """`scripts/rules-off` takes minutes; that it still names real code and real tests is seen here."""
    root = Path(__file__).parents[3]
    script = run_path(str(root / "scripts" / "rules-off"))
    assert len(script["RULES"]) > 40
    for rule in script["RULES"]:
        for file, code in ((rule.file, rule.code), rule.also[:2]):
            text = (root / "src" / "holdfast" / "group" / f"{file}.py").read_text() if file else ""
            assert code in text, rule
        where, _, name = rule.test.partition("::")
        found = list((root / "tests").rglob(where.rpartition("/")[2]))
        assert any(f"def {name.partition('[')[0]}(" in path.read_text() for path in found), (
            rule.test
        )
