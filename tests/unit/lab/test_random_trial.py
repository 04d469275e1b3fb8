"""What nodes of a lab show is compared with the fault that was drawn."""

from __future__ import annotations

from typing import Any

from holdfast.bench.health_random import add_figures
from holdfast.bench.report import new_report
from holdfast.lab.random_trial import FAMILIES, RandomOutcome, judge_incidents, without
from holdfast.sim.sweep.draw import FAMILIES as DRAWN
from holdfast.sim.sweep.draw import Case

HIT = ("n1", "n2", "red")
CASE = Case(
    family="size", fault="red n1->n2 over 1100", hit=(HIT,), classes=("size",), limit=1000,
    one_way=True, place="path",
)  # fmt: skip


def incident(**other: Any) -> dict[str, Any]:
    return {
        "error_class": "size",
        "direction": "one way",
        "place": "path n1/red to n2/red",
        "paths": ["n1/red -> n2/red"],
        "kinds": ["udp"],
        "text": "UDP packets over 1000 bytes (972 of payload) vanish from n1/red",
        **other,
    }


def test_the_right_incident_at_the_listener_is_enough() -> None:
    assert judge_incidents(CASE, {"n1": [], "n2": [incident()]}) == ([], [])


def test_a_wrong_direction_a_wrong_limit_and_silence_are_lacking() -> None:
    for other in (
        incident(direction="both ways"),
        incident(text="UDP packets over 576 bytes vanish"),
    ):
        lacking, _ = judge_incidents(CASE, {"n2": [other]})
        assert len(lacking) == 1
    assert judge_incidents(CASE, {"n2": []})[0] == ["size of n1/red -> n2/red is not shown"]


def test_another_class_or_another_path_is_a_false_accusation_wherever_it_is_shown() -> None:
    for other in (incident(error_class="protocol"), incident(paths=["n3/red -> n2/red"])):
        _, false = judge_incidents(CASE, {"n2": [incident()], "n3": [other]})
        assert len(false) == 1
        assert false[0].startswith("n3: ")


def test_what_is_left_of_the_fault_before_is_not_held_against_the_next() -> None:
    """It ended the run."""
    old = incident(error_class="flapping", place="pair n1/red and n2/red")
    left = {(old["place"], old["error_class"]): True}
    told = without({"n1": [old], "n2": [old, incident()]}, left)
    assert judge_incidents(CASE, told) == ([], [])


def outcome(**other: Any) -> RandomOutcome:
    values: dict[str, Any] = {
        "family": "size",
        "fault": CASE.fault,
        "verdict_ms": 900.0,
        "lacking": (),
        "false": (),
        "incidents": 1,
        "place": True,
        "stall_ms": 40.0,
        "missing": 0,
        "worse_moves": 0,
        "group_ms": 50.0,
        "leaders": 0,
    }
    return RandomOutcome(**(values | other))


def test_a_late_verdict_and_a_false_accusation_miss_the_aims() -> None:
    report = new_report("health")
    add_figures(report, [outcome(), outcome()])
    assert all(aim.met for aim in report.aims.values())
    report = new_report("health")
    add_figures(report, [outcome(), outcome(verdict_ms=2500.0), outcome(false=("n1: loss",))])
    assert report.figures["lab_random_right_within_2_s_share"] == 0.333
    missed = [name for name, aim in report.aims.items() if not aim.met]
    assert missed == ["lab_random_right_share", "lab_random_false_accusations"]
    assert len(report.env["lab_random_wrong"]) == 2


def test_a_group_that_halts_or_elects_misses_the_aims() -> None:
    report = new_report("health")
    add_figures(report, [outcome(), outcome(group_ms=250.0), outcome(leaders=1)])
    missed = [name for name, aim in report.aims.items() if not aim.met]
    assert missed == ["lab_random_leadership_changes", "lab_random_group_ms"]
    assert report.figures["lab_random_group_ms_median"] == 50.0


def test_every_family_of_the_lab_is_one_of_the_sweep() -> None:
    assert set(FAMILIES) <= set(DRAWN)
