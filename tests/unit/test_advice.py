"""P9, rule 16: advice only ranks, is damped, expires by the node's own clock, and never breaks a node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.recording.advice import decode_advice, encode_advice, newest_advice
from holdfast.telemetry.advice import (
    PPM,
    Advice,
    BusyWindow,
    Follower,
    PathId,
    PathRisk,
    Placement,
    mark_avoided,
)

S = 1_000_000
NOW = 1_800_000_000 * S


def path(number: int) -> PathId:
    return ("aa", f"eth{number}", "bb", f"eth{number}", "lan1", "udp")


def risk(number: int, share: float, avoid: bool = True, until_s: int = 3600) -> PathRisk:
    return PathRisk(path(number), round(share * PPM), NOW + until_s * S, avoid, "fails at night")


def advice(*risks: PathRisk, snapshot: int = 1, **more: int) -> Advice:
    usual = {"created_us": NOW, "valid_until_us": NOW + 3600 * S} | more
    return Advice(snapshot=snapshot, risks=risks, **usual)


def test_a_path_at_risk_goes_to_the_end_and_is_still_there() -> None:
    follower = Follower()
    follower.take(advice(risk(1, 0.9)), NOW)
    assert follower.rank([path(1), path(2), path(3)]) == [path(2), path(3), path(1)]
    assert follower.rank([path(1)]) == [path(1)]


def test_advice_never_adds_a_path_that_does_not_satisfy_now() -> None:
    follower = Follower()
    follower.take(advice(risk(1, 0.9), risk(2, 0.0)), NOW)
    assert follower.rank([path(3)]) == [path(3)]


def test_a_path_is_left_only_well_below_the_threshold_and_after_a_while() -> None:
    """Enter at 0.5, leave at 0.3, stay for ten minutes: a risk that wavers moves traffic once."""
    follower = Follower()
    seen = []
    for minute, share in enumerate(
        (0.49, 0.51, 0.45, 0.55, 0.35, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2)
    ):
        now = NOW + minute * 60 * S
        follower.take(advice(risk(1, share), snapshot=minute), now)
        seen.append(bool(follower.avoided()))
    assert seen == [False] + [True] * 10 + [False]


def test_without_a_mark_of_the_pipeline_a_path_is_not_avoided() -> None:
    """The cap on moves is the domain's: the pipeline decides which paths are among them."""
    follower = Follower()
    follower.take(advice(risk(1, 0.9, avoid=False)), NOW)
    assert follower.avoided() == ()


def test_a_node_avoids_no_more_paths_than_the_domain_may_move() -> None:
    follower = Follower()
    follower.take(advice(*(risk(i, 0.6 + i / 100) for i in range(9)), moves_max=3), NOW)
    assert [a.path for a in follower.avoided()] == [path(8), path(7), path(6)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"valid_until_us": NOW - 5 * S}, "it expired 5 s ago"),
        ({"created_us": NOW + 3600 * S}, "made in the future"),
        ({"version": 9}, "version 9"),
        ({"leave_ppm": 600_000}, "leave < enter"),
        ({"moves_max": -1}, "negative"),
    ],
)
def test_advice_that_must_not_be_followed_is_named_and_changes_nothing(
    change: dict[str, int], problem: str
) -> None:
    follower = Follower()
    follower.take(advice(risk(1, 0.9)), NOW)
    assert follower.avoided()
    follower.take(msgspec.structs.replace(advice(risk(1, 0.9), snapshot=2), **change), NOW)
    assert problem in follower.problem
    assert follower.avoided() == ()
    assert follower.rank([path(1), path(2)]) == [path(1), path(2)]


def test_advice_expires_by_the_clock_of_the_node() -> None:
    follower = Follower()
    follower.take(advice(risk(1, 0.9)), NOW)
    follower.refresh(NOW + 3601 * S)
    assert follower.avoided() == ()
    assert "expired" in follower.problem


def test_an_older_edition_does_not_replace_a_newer_one() -> None:
    follower = Follower()
    follower.take(advice(risk(1, 0.9), snapshot=5), NOW)
    follower.take(advice(snapshot=4), NOW)
    assert (follower.snapshot, len(follower.avoided())) == (5, 1)


def test_busy_windows_lower_the_share_of_probes_while_they_last() -> None:
    follower = Follower()
    window = BusyWindow("aa", "eth1", NOW, NOW + 60 * S, 250_000)
    follower.take(msgspec.structs.replace(advice(), busy=(window,)), NOW)
    assert follower.probe_share_ppm("aa", "eth1", NOW + 1) == 250_000
    assert follower.probe_share_ppm("aa", "eth1", NOW + 60 * S) == PPM
    assert follower.probe_share_ppm("aa", "eth2", NOW) == PPM


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, PPM), max_size=30),
    st.integers(0, 8),
    st.lists(st.integers(0, 29), unique=True),
)
def test_the_domain_never_marks_more_paths_than_it_may_move(
    shares: list[int], moves_max: int, before: list[int]
) -> None:
    risks = [PathRisk(path(i), share, NOW) for i, share in enumerate(shares)]
    held = {path(i): 600_000 for i in before}
    marked = mark_avoided(risks, held, 500_000, 300_000, moves_max)
    assert len(marked) == len(risks)
    avoided = [r for r in marked if r.avoid]
    assert len(avoided) <= moves_max
    assert all(r.risk_ppm >= (300_000 if r.path in held else 500_000) for r in avoided)


def test_a_marked_path_is_not_displaced_by_a_slightly_graver_one() -> None:
    risks = [PathRisk(path(1), 510_000, NOW), PathRisk(path(2), 520_000, NOW)]
    first = mark_avoided(risks[:1], {}, 500_000, 300_000, 1)
    held = {r.path: r.risk_ppm for r in first if r.avoid}
    second = mark_avoided(risks, held, 500_000, 300_000, 1)
    assert [r.path for r in second if r.avoid] == [path(1)]


WHOLE = msgspec.structs.replace(
    advice(risk(1, 0.9), risk(2, 0.4, avoid=False), snapshot=42),
    busy=(
        BusyWindow("aa", "eth1", NOW, NOW + S, 250_000),
        BusyWindow("cc", "eth1", NOW, NOW + S, 1),
    ),
    placements=(Placement("aa", 900_000, 10_000),),
)


def test_advice_survives_its_file_and_a_node_reads_its_own_part() -> None:
    assert decode_advice(encode_advice(WHOLE)) == WHOLE
    mine = decode_advice(encode_advice(WHOLE), "cc")
    assert (mine.risks, [window.node for window in mine.busy], mine.snapshot) == ((), ["cc"], 42)
    assert len(decode_advice(encode_advice(WHOLE), "bb").risks) == 2


def test_the_newest_readable_edition_counts_and_damage_is_reported(tmp_path: Path) -> None:
    (tmp_path / "00000042.parquet").write_bytes(encode_advice(WHOLE))
    (tmp_path / "00000043.parquet").write_bytes(encode_advice(WHOLE)[:-20])
    (tmp_path / "notes.parquet").write_bytes(b"")
    found = newest_advice(tmp_path)
    assert found.advice == WHOLE
    assert found.path.endswith("00000042.parquet")
    (problem,) = found.problems
    assert "00000043.parquet: not an advice file" in problem


def test_no_advice_is_no_problem(tmp_path: Path) -> None:
    assert newest_advice(tmp_path / "nowhere").advice is None
    assert Follower().rank([path(2), path(1)]) == [path(2), path(1)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_are_advice_or_a_value_error(noise: bytes, cut: int) -> None:
    content = encode_advice(WHOLE)
    damaged = content[: len(content) // (cut + 1)] + noise
    said = ""
    try:
        decode_advice(damaged)
    except ValueError as error:
        said = str(error)
    assert not said or "not an advice file" in said


# -- placements (H17) ------------------------------------------------------------------------------------------------


def placed(*bad: float, **more: int) -> Advice:
    """Nodes n0, n1 and so on, with these shares of bad paths."""
    placements = tuple(
        Placement(f"n{number}", PPM - round(share * PPM), 0) for number, share in enumerate(bad)
    )
    return msgspec.structs.replace(advice(**more), placements=placements)


def left(follower: Follower) -> list[str]:
    return [one.node for one in follower.unsound()]


def test_every_node_gets_all_placements_and_only_its_own_risks() -> None:
    whole = msgspec.structs.replace(placed(0.9, 0.0, 0.1), risks=(risk(1, 0.9),))
    mine = decode_advice(encode_advice(whole), "n2")
    assert mine.placements == whole.placements
    assert mine.risks == ()


def test_replicas_leave_a_node_with_many_bad_paths_and_stay_away_for_a_while() -> None:
    """Enter at 0.5, leave at 0.3, stay for ten minutes, as for paths."""
    follower = Follower()
    seen = []
    for minute, share in enumerate((0.4, 0.6, 0.4, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2)):
        edition = placed(0.0, share, 0.1, snapshot=minute)
        now = NOW + minute * 60 * S
        follower.take(msgspec.structs.replace(edition, created_us=now), now)
        seen.append(left(follower) == ["n1"])
    assert seen == [False, *[True] * 10, False]


def test_paths_at_risk_count_as_bad() -> None:
    assert Placement("n1", 700_000, 300_000).bad_ppm == 600_000
    assert Placement("n1", 0, PPM).bad_ppm == PPM


def test_half_of_the_nodes_are_never_left() -> None:
    """Then it is no fault of nodes, and there is no place to go."""
    follower = Follower()
    follower.take(placed(0.9, 0.95, 0.8, 0.7, 0.0), NOW)
    assert left(follower) == ["n1", "n0"]
    follower = Follower()
    follower.take(placed(0.9, 0.0), NOW)
    assert left(follower) == []


def test_expired_advice_leaves_no_node() -> None:
    follower = Follower()
    follower.take(placed(0.9, 0.0, 0.0), NOW)
    assert left(follower) == ["n0"]
    follower.refresh(NOW + 7200 * S)
    assert left(follower) == []
