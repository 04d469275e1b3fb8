"""P2, rules 3 and 12: incidents are a fold with a carry; unobserved time is neither clean nor broken."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.pipeline.incident_fold import (
    HOLD_US,
    MERGE_US,
    UNOBSERVED_MERGE_US,
    Fold,
    Incident,
    Run,
    fold_runs,
    open_incidents,
)
from holdfast.pipeline.verdict import Vector

S = 1_000_000
GOOD = Vector(True, 1472, 1472)
SMALL = Vector(True, 600, 1472)
SILENT = Vector(False)
START = 1_763_200_800 * S
"""2025-11-15, at a full hour."""


def run(at_s: float, until_s: float, vector: Vector, kind: str = "udp", **more: Any) -> Run:
    start = START + round(at_s * S)
    hour = f"h{int(at_s // 3600):04d}"
    return Run(
        hour, more.pop("incarnation", 1), start, START + round(until_s * S), kind, vector, 3, **more
    )


def all_incidents(runs: list[Run]) -> list[Incident]:
    fold, carry = fold_runs(None, runs, "h0000")
    return fold.incidents + open_incidents(carry)


def told(runs: list[Run]) -> list[tuple[str, str, float, float, bool, str, int]]:
    return [
        (i.error_class, i.transport, (i.start_us - START) / S, (i.end_us - START) / S, i.open, i.ended_by, i.repeats)
        for i in all_incidents(runs)
    ]  # fmt: skip


def test_a_size_limit_is_an_incident_from_the_first_fact_to_the_repair() -> None:
    runs = [run(0, 100, GOOD), run(105, 400, SMALL), run(405, 1000, GOOD), run(1005, 2000, GOOD)]
    assert told(runs) == [("size", "udp", 105.0, 405.0, False, "repaired", 0)]


def test_an_incident_is_open_across_midnight_until_it_is_repaired() -> None:
    """The hour of the last fact does not matter: an incident is written once it cannot go on."""
    runs = [run(3600 * h + 10, 3600 * h + 3590, SMALL) for h in range(30)]
    (incident,) = all_incidents(runs)
    assert incident.open
    assert (incident.end_us - incident.start_us) // S == 29 * 3600 + 3580
    repaired = [
        *runs,
        run(3600 * 30 + 10, 3600 * 30 + 3590, GOOD),
        run(3600 * 31, 3600 * 31 + 9, GOOD),
    ]
    fold, _ = fold_runs(None, repaired, "h0031")
    assert [(i.hour, i.open) for i in fold.incidents] == [("h0031", False)]


def test_a_trouble_that_returns_soon_is_the_same_incident() -> None:
    gap = MERGE_US / S
    runs = [run(0, 50, SMALL), run(51, 99, GOOD), run(100, 150, SMALL), run(151, 160, GOOD)]
    assert told(runs) == [("size", "udp", 0.0, 151.0, False, "repaired", 1)]
    later = [run(0, 50, SMALL), run(51, 51 + gap, GOOD), run(52 + gap, 90 + gap, SMALL)]
    assert [i[2] for i in told(later)] == [0.0, 52 + gap]


def test_kinds_that_die_and_return_one_after_the_other_are_one_dead_path() -> None:
    """The kernel of a killed process closes its connections at once, and TCP connects with pauses afterwards. Both
    looked like a filter of TCP that had returned (`repeats`), in the report of every killed node."""
    runs = [
        run(0, 100, GOOD),
        run(0, 100, GOOD, "tcp"),
        run(100.02, 100.02, SILENT, "tcp"),
        run(100.55, 100.55, SILENT),
        run(112, 112, GOOD),
        run(115.6, 130, GOOD, "tcp"),
        run(116, 130, GOOD),
    ]
    assert told(runs) == [("dead", "", 100.55, 112.0, False, "repaired", 0)]


def test_a_path_that_flaps_is_not_filtered_however_long_the_samples_of_one_kind_go_on() -> None:
    """A run of facts goes on past the moment at which the other kind falls or returns, too. Its end is no proof that
    the pair looked filtered until then: each flapping path had incidents of filtered UDP and TCP beside its own."""
    runs: list[Run] = []
    for turn in range(4):
        for late, kind in ((0.0, "udp"), (0.2, "tcp")):
            up = 40 * turn + late
            runs += [run(up, up + 25, GOOD, kind), run(up + 26, up + 39, SILENT, kind)]
    runs.sort(key=lambda item: item.start_us)
    assert told(runs) == [("dead", "", 26.2, 159.2, True, "", 3)]


def test_a_filter_counts_from_its_first_fact_once_it_has_been_seen_for_a_second() -> None:
    good = [run(0, 99, GOOD), run(0, 99, GOOD, "tcp"), run(100, 100, SILENT, "tcp")]
    assert told(good) == []
    assert told([*good, run(101, 102, GOOD)]) == [("protocol", "tcp", 100.0, 102.0, True, "", 0)]
    repaired = [*good, run(120, 120, GOOD, "tcp")]
    assert told(repaired) == [("protocol", "tcp", 100.0, 120.0, False, "repaired", 0)]


def test_a_filter_that_waits_to_count_survives_the_end_of_the_hour() -> None:
    before = [run(0, 3599, GOOD), run(0, 3599, GOOD, "tcp"), run(3599.5, 3599.5, SILENT, "tcp")]
    _, carry = fold_runs(None, before, "h0000")
    after = [run(3610, 3610, SILENT, "tcp"), run(3620, 3620, GOOD, "tcp")]
    _, later = fold_runs(carry, after, "h0001")
    (incident,) = open_incidents(later)
    assert (incident.start_us - START, incident.end_us - START) == (3599.5 * S, 3620 * S)


def test_the_classes_of_the_node_are_incidents_here_too() -> None:
    """Findings of nodes that the pipeline did not know: a path was congested at its nodes and fine in the report."""
    narrow = Vector(True, 1472, 1472, rate_limit_kbps=96)
    slow = Vector(True, 1472, 1472, delay_us=286_000)
    swallows = Vector(True, 1472, 1472, data_lost=True)
    flaps = Vector(True, 1472, 1472, loss_ppm=400_000, outage_ms=300, outage_every_ms=700)
    for vector, name, worst in (
        (narrow, "congested", 96),
        (slow, "delay", 286_000),
        (swallows, "data", 0),
        (flaps, "flapping", 300),
    ):
        (incident,) = all_incidents([run(0, 50, GOOD), run(51, 90, vector), run(91, 99, GOOD)])
        assert (incident.error_class, incident.worst) == (name, worst)


def test_many_returns_within_a_minute_are_flapping() -> None:
    runs: list[Run] = []
    for i in range(4):
        runs += [run(10 * i, 10 * i + 4, SMALL), run(10 * i + 5, 10 * i + 9, GOOD)]
    (incident,) = all_incidents(runs)
    assert incident.flapping
    assert incident.repeats == 3


def test_unobserved_time_is_neither_clean_nor_broken() -> None:
    hold = HOLD_US / S
    runs = [run(0, 100, SMALL), run(200 + hold, 400 + hold, SMALL)]
    fold, carry = fold_runs(None, runs, "h0000")
    (incident,) = open_incidents(carry)
    assert incident.open
    assert incident.unobserved_us == (100 + hold) * S
    hours = list(fold.hours.values())
    assert sum(hour.soft_us for hour in hours) == 300 * S
    assert sum(hour.ok_us for hour in hours) == 0


def test_after_a_long_time_without_observation_an_incident_is_over_where_it_was_last_seen() -> None:
    pause = UNOBSERVED_MERGE_US / S + 1
    runs = [run(0, 100, SMALL), run(100 + pause, 200 + pause, SMALL)]
    assert [(i[3], i[4], i[5]) for i in told(runs)] == [
        (100.0, False, "unobserved"),
        (200 + pause, True, ""),
    ]


def test_lost_facts_make_the_time_between_unobserved() -> None:
    """Within the hold time a run goes on; not if facts of its listener were lost in between."""
    runs = [run(0, 100, GOOD), run(160, 200, GOOD, lost_before=True)]
    fold, _ = fold_runs(None, runs, "h0000")
    assert sum(hour.ok_us for hour in fold.hours.values()) == 140 * S
    fold, _ = fold_runs(None, [run(0, 100, GOOD), run(160, 200, GOOD)], "h0000")
    assert sum(hour.ok_us for hour in fold.hours.values()) == 200 * S


def test_one_kind_that_is_silent_is_filtered_and_all_of_them_are_a_dead_path() -> None:
    runs = [
        run(0, 100, GOOD),
        run(1, 99, GOOD, "tcp"),
        run(100, 200, SILENT, "tcp"),
        run(105, 150, GOOD),
        run(151, 199, SILENT),
    ]
    assert [(i[0], i[1], i[2]) for i in told(runs)] == [
        ("dead", "", 151.0),
        ("protocol", "tcp", 100.0),
    ]


def test_what_lasts_for_a_moment_while_kinds_change_one_by_one_is_no_incident() -> None:
    runs = [
        run(0, 100, GOOD),
        run(0, 100, GOOD, "tcp"),
        run(101, 200, SILENT, "tcp"),
        run(101.2, 200, SILENT),
    ]
    assert [i[0] for i in told(runs)] == ["dead"]


def test_a_restart_of_the_listener_ends_what_it_knew_and_the_trouble_may_go_on() -> None:
    runs = [run(0, 100, SMALL), run(130, 200, SMALL, incarnation=2)]
    (incident,) = all_incidents(runs)
    assert incident.unobserved_us == 30 * S
    repaired = [*runs[:1], run(130, 200, GOOD, incarnation=2)]
    assert [(i[3], i[5]) for i in told(repaired)] == [(100.0, "restarted")]


# -- the fold ----------------------------------------------------------------------------------------------------

VECTORS = (GOOD, SMALL, SILENT, Vector(True, 1472, 1472, 50_000), Vector(True, 1472, 1472, 0, "55"))


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    """Runs of two kinds over some hours, sorted as the executors sort them. Those of different kinds overlap."""
    runs: list[Run] = []
    incarnation, now = 1, 0.0
    ends = {"udp": 0.0, "tcp": 0.0}
    for _ in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from((0.5, 5.0, 40.0, 280.0, 400.0, 2000.0, 4000.0)))
        if draw(st.integers(0, 9)) == 0:
            incarnation += 1
            now = max(now, *ends.values())
        kind = draw(st.sampled_from(("udp", "tcp")))
        now = max(now, ends[kind])
        length = draw(st.sampled_from((0.0, 0.4, 30.0, 200.0)))
        # A run never crosses an hour.
        length = min(length, 3599.0 - now % 3600)
        lost = draw(st.integers(0, 9)) == 0
        vector = draw(st.sampled_from(VECTORS))
        runs.append(run(now, now + length, vector, kind, incarnation=incarnation, lost_before=lost))
        ends[kind] = now + length
    return sorted(runs, key=lambda r: (r.hour, r.incarnation, r.start_us))


@settings(max_examples=150, deadline=None)
@given(histories(), st.data())
def test_a_fold_in_pieces_gives_the_rows_of_a_fold_in_one(
    runs: list[Run], data: st.DataObject
) -> None:
    """Rule 3: incremental equals full, wherever the hours are cut."""
    whole, carry = fold_runs(None, runs, "end")
    hours = sorted({r.hour for r in runs})
    cuts = sorted(data.draw(st.lists(st.sampled_from(hours), unique=True)))
    pieces: list[list[Run]] = [[]]
    for item in runs:
        while cuts and item.hour >= cuts[0]:
            cuts.pop(0)
            pieces.append([])
        pieces[-1].append(item)
    state: bytes | None = None
    incidents: list[Incident] = []
    counted: dict[tuple[str, str], Any] = {}
    for piece in pieces:
        fold, state = fold_runs(state, piece, "end")
        incidents += fold.incidents
        for key, row in fold.hours.items():
            assert key not in counted or not (row.ok_us or row.soft_us or row.dead_us)
            counted.setdefault(key, row)
    assert state == carry
    assert sorted(map(str, incidents)) == sorted(map(str, whole.incidents))
    assert {k: msgspec.to_builtins(v) for k, v in counted.items()} == {
        k: msgspec.to_builtins(v) for k, v in whole.hours.items()
    }


@settings(max_examples=100, deadline=None)
@given(histories())
def test_no_time_is_counted_twice(runs: list[Run]) -> None:
    fold, _ = fold_runs(None, runs, "end")
    for kind in ("udp", "tcp"):
        mine = [r for r in runs if r.kind == kind]
        counted = sum(
            h.ok_us + h.soft_us + h.dead_us for (_, k), h in fold.hours.items() if k == kind
        )
        span = max((r.end_us for r in mine), default=0) - min((r.start_us for r in mine), default=0)
        seen = sum(r.end_us - r.start_us for r in mine)
        assert counted <= max(span, 0)
        assert counted >= seen - 1 or len({r.incarnation for r in mine}) > 1


def test_a_fold_without_runs_keeps_its_carry() -> None:
    _, carry = fold_runs(None, [run(0, 50, SMALL)], "h0000")
    fold = Fold(carry)
    assert fold.finish("h0001") == carry
