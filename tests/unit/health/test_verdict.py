"""One definition of 'fine', whatever form the attribute values come in (H7, H15)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.health.classify import CLASSES
from holdfast.health.frames import PathRow
from holdfast.health.placement.needs import Needs
from holdfast.health.verdict import STATES, Vector, find_errors, judge, unmet, vector_of
from holdfast.telemetry.facts import PathFact

FINE = Vector(size=1500, size_max=1500)


def test_what_one_kind_shows_in_both_directions_is_one_way_for_none() -> None:
    """A pattern in both directions was called one way for 0.7 s, because TCP showed it in one of them first."""
    bad = Vector(bad_patterns=("55",))
    first, later = Vector(kind="tcp", bad_patterns=("55",)), Vector(kind="tcp")
    assert {e.one_way for e in find_errors([bad, first], [bad, later])} == {False}
    assert [e.one_way for e in find_errors([Vector(), first], [bad, later])] == [True]
    small, smaller = Vector(size=1000, size_max=1500), Vector(kind="tcp", size=576, size_max=1500)
    assert {e.one_way for e in find_errors([small, smaller], [small, later])} == {False}
    filtered = Vector(kind="frag", alive=False), Vector(kind="multicast", alive=False)
    assert {e.one_way for e in find_errors([Vector(), *filtered], [Vector(), filtered[1]])} == {
        True,
        False,
    }


def test_a_connection_that_stalls_because_of_heavy_loss_is_no_filter() -> None:
    """At 70 % loss in one direction, 'TCP does not pass, both ways' was claimed besides."""
    lossy, clean = Vector(loss_ppm=700_000), Vector()
    stuck = Vector(kind="tcp", alive=False)
    assert [e.error_class for e in find_errors([lossy, stuck], [clean, stuck])] == ["loss"]
    assert find_errors([clean, stuck], [lossy, stuck]) == ()
    some = Vector(loss_ppm=200_000)
    assert [e.error_class for e in find_errors([some, stuck], [clean, stuck])] == [
        "protocol",
        "loss",
    ]


def vector(**values: Any) -> Vector:
    return msgspec.structs.replace(FINE, **values)


@pytest.mark.parametrize(
    ("values", "state", "error_class"),
    [
        ({}, "ok", ""),
        ({"size": 0, "size_max": 0}, "ok", ""),
        ({"size": 0}, "unknown", ""),
        ({"size": 1499}, "soft error", "size"),
        ({"holes": (1280,)}, "soft error", "size"),
        ({"bad_patterns": ("55",)}, "soft error", "pattern"),
        ({"flows": 4, "flows_bad": 1}, "soft error", "flows"),
        ({"loss_ppm": 19_999}, "ok", ""),
        ({"loss_ppm": 20_000}, "soft error", "loss"),
        ({"data_lost": True}, "soft error", "data"),
        ({"loss_ppm": 500_000, "outage_ms": 300}, "soft error", "flapping"),
        ({"rtt_us": 300_000, "delay_us": 299_000}, "soft error", "delay"),
        ({"rtt_us": 19_000, "delay_us": 18_000}, "ok", ""),
        ({"rtt_us": 190_000, "delay_us": 90_000}, "ok", ""),
        ({"rate_limit_kbps": 256}, "soft error", "congested"),
        ({"alive": False}, "dead", "dead"),
        ({"stale": True}, "stale", ""),
        ({"stale": True, "alive": False}, "stale", ""),
    ],
)
def test_every_attribute_below_its_maximum_is_a_soft_error_of_its_class(
    values: dict[str, Any], state: str, error_class: str
) -> None:
    verdict = judge([vector(**values)])
    assert (verdict.state, verdict.error_class) == (state, error_class)
    assert verdict.fine is (state == "ok")


def test_a_path_of_which_nothing_is_known_is_not_called_fine() -> None:
    assert judge([]).state == "unknown"


def test_a_congested_path_is_accused_of_nothing_else() -> None:
    """What a full queue drops looks like a size limit, a bad pattern and a bad connection."""
    full = vector(
        rate_limit_kbps=256, size=576, bad_patterns=("00",), flows=2, flows_bad=1, loss_ppm=400_000
    )
    tcp = vector(kind="tcp", alive=False)
    assert judge([full, tcp]).classes == ("congested",)


def test_flapping_in_both_directions_is_not_called_one_way() -> None:
    assert judge([FINE], [FINE], flapping=True).direction == "one way"
    assert judge([FINE], [FINE], flapping=True, reverse_flapping=True).direction == "both ways"


@pytest.mark.parametrize(
    ("back", "direction"),
    [
        ([], "unknown"),
        ([vector(alive=False)], "unknown"),
        ([vector(stale=True)], "unknown"),
        ([FINE], "one way"),
        ([vector(size=1000)], "both ways"),
    ],
)
def test_a_direction_is_claimed_only_while_the_opposite_path_is_heard(
    back: list[Vector], direction: str
) -> None:
    assert judge([vector(size=1400)], back).direction == direction


def test_loss_is_one_error_and_not_one_of_each_kind_of_datagrams() -> None:
    """Fragments and multicast have no heartbeats of their own: their rows repeat the loss of others."""
    kinds = [vector(kind=kind, loss_ppm=200_000) for kind in ("udp", "frag", "multicast")]
    assert [(error.error_class, error.kind) for error in find_errors(kinds)] == [("loss", "udp")]


def test_a_verdict_states_limit_loss_and_window() -> None:
    verdict = judge([vector(size=1400), vector(kind="tcp", loss_ppm=210_000, loss_window_ms=4000)])
    assert (verdict.limit, verdict.loss_ppm, verdict.loss_window_ms) == (1400, 210_000, 4000)
    assert "21.0 % of TCP packets are lost (in the last 4 s)" in verdict.text
    assert verdict.label == "1400"
    assert verdict.text.startswith("UDP packets over 1400 bytes")


def test_the_same_values_give_the_same_verdict_as_row_fact_and_status() -> None:
    """H7, P2: the pipeline, the page and the node judge alike. Text with commas is how telemetry writes lists."""
    row = PathRow(
        *(b"a" * 16, "red", b"b" * 16, "red", "udp", 1, 1, True, 1400, 9000, 30_000, 500),
        patterns=("00", "55"),
        bad_patterns=("55",),
        holes=(1280,),
    )
    fact = PathFact(
        *(0, "change", "aa", "a", "red", "red", "red", "udp", True, 1400, 9000, 30_000, 500, 1, 1),
        patterns="00,55",
        bad_patterns="55",
        holes="1280",
    )
    status = {**msgspec.to_builtins(fact), "holes": [1280], "bad_patterns": ["55"]}
    verdicts = [judge([vector_of(source)]) for source in (row, fact, status)]
    assert verdicts[0].classes == ("size", "pattern", "loss")
    assert verdicts[0] == verdicts[1] == verdicts[2]


ODD = (
    None,
    -1,
    0,
    1,
    1 << 70,
    True,
    0.5,
    "",
    "55",
    "1,x,²",
    "9" * 5000,
    (),
    (1280, "55"),
    b"x",
    {},
)


@given(st.dictionaries(st.sampled_from(Vector.__struct_fields__), st.sampled_from(ODD)))
def test_whatever_a_mapping_holds_there_is_a_verdict(values: dict[str, Any]) -> None:
    """Rows come from peers and from files."""
    verdict = judge([vector_of(values)], [vector_of(values)])
    assert verdict.state in STATES
    assert all(name in CLASSES for name in verdict.classes)


@pytest.mark.parametrize(
    ("values", "needs", "lacks"),
    [
        ({"size": 1000}, Needs(), ""),
        ({"size": 1000}, Needs(size=1200), "packets over 1000 bytes"),
        ({"loss_ppm": 50_000}, Needs(), ""),
        ({"loss_ppm": 50_000}, Needs(loss_ppm_max=10_000), "5.0 % is lost, at most 1 %"),
        ({"loss_ppm": 200_000}, Needs(), "20.0 % is lost"),
        ({"data_lost": True}, Needs(), "application data"),
        ({"outage_ms": 300}, Needs(), "nothing passes for a moment"),
        ({"alive": False}, Needs(), "nothing arrives"),
    ],
)
def test_each_client_is_judged_against_its_own_needs(
    values: dict[str, Any], needs: Needs, lacks: str
) -> None:
    """H11. The reason states what was measured: 5 % is never called 'more than 15 %'."""
    reason = unmet([vector(**values)], "udp", needs)
    assert reason.startswith(lacks)
    assert bool(reason) is bool(lacks)


def test_outages_state_how_long_they_last_and_how_often_they_come() -> None:
    verdict = judge([vector(loss_ppm=200_000, outage_ms=310, outage_every_ms=1490)])
    assert verdict.classes == ("flapping",)
    assert verdict.text == "nothing passes for 0.3 s, about every 1.5 s"


@pytest.mark.parametrize(("loss_ppm", "direction"), [(0, "one way"), (15_000, "unknown")])
def test_outages_are_not_called_one_way_while_the_reverse_path_loses_packets(
    loss_ppm: int, direction: str
) -> None:
    verdict = judge([vector(outage_ms=300, outage_every_ms=600)], [vector(loss_ppm=loss_ppm)])
    assert (verdict.error_class, verdict.direction) == ("flapping", direction)


def test_fragments_share_the_limit_of_whole_packets() -> None:
    errors = find_errors([vector(size=1400), Vector(kind="frag", size=1500, size_max=4000)])
    assert [(error.error_class, error.kind) for error in errors] == [("size", "udp")]


LIMITED = {"kind": "udp", "size": 1000}
BASICS_ONLY = {"kind": "udp", "size": 128}


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([LIMITED, {"kind": "multicast", "size": 1000}], [("size", "udp")]),
        (
            [LIMITED, {"kind": "multicast", "alive": False}],
            [("multicast", "multicast"), ("size", "udp")],
        ),
        ([{"kind": "udp"}, {"kind": "multicast", "size": 1000}], [("size", "multicast")]),
        ([BASICS_ONLY, {"kind": "multicast", "alive": False, "size": 0}], [("size", "udp")]),
        ([BASICS_ONLY, {"kind": "tcp", "alive": False}], [("size", "udp")]),
        ([LIMITED, {"kind": "tcp", "alive": False}], [("protocol", "tcp"), ("size", "udp")]),
        (
            [
                {"kind": "udp", "alive": False},
                {"kind": "tcp"},
                {"kind": "frag", "alive": False},
                {"kind": "multicast", "alive": False},
            ],
            [("protocol", "udp")],
        ),
    ],
)
def test_kinds_that_suffer_from_the_same_fault_are_not_accused_apart(
    kinds: list[dict[str, Any]], found: list[tuple[str, str]]
) -> None:
    """Fragments and multicast are datagrams. Where only heartbeats pass, TCP stops at the first segment."""
    errors = find_errors([vector(**kind) for kind in kinds])
    assert sorted((error.error_class, error.kind) for error in errors) == found
