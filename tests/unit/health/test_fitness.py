"""What a flow is worth to traffic with a need of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.health.frames import PathRow
from holdfast.health.placement.fitness import NEEDS_MAX, Placement
from holdfast.health.placement.needs import NEVER, Needs, SetNeeds
from holdfast.links.ports import (
    BARRED,
    DATAGRAMS,
    FIT,
    HELD,
    UNFIT,
    Fitness,
    FlowReady,
    FlowVerdict,
)
from holdfast.types import DATA, SECOND, SYNC, FlowId, Nanos, NodeId

ME, PEER, OTHER = (NodeId(bytes([n]) * 16) for n in (1, 2, 3))
NAMES = {PEER: "n2", OTHER: "n3"}
DAY = 86_400 * SECOND
T = 1000 * SECOND
PORT = 20


def placement(sealed: bool = True) -> Placement:
    place = Placement(ME, sealed)
    place.names.update(NAMES)
    return place


def ready(
    transport: str = "udp", adapter: str = "red", flow: int = 1, peer: NodeId = PEER, use: str = ""
) -> FlowReady:
    return FlowReady(peer, FlowId(flow), adapter, adapter, f"{adapter}-net", transport, use)


def row(transport: str = "udp", *, adapter: str = "red", **values: Any) -> PathRow:
    known: dict[str, Any] = {
        "alive": True,
        "size": 1500 if transport == "udp" else 0,
        "size_max": 1500 if transport == "udp" else 0,
        "loss_ppm": 0,
        "rtt_us": 500,
    }
    return PathRow(ME, adapter, PEER, adapter, transport, 1, 1, **(known | values))


def register(place: Placement, traffic: int = PORT, peer: Any = None, **needs: Any) -> None:
    assert place.set(SetNeeds("test", traffic, Needs(**needs), peer))


def fitness(verdict: FlowVerdict, traffic: int = PORT) -> Fitness:
    return next(fit for fit in verdict.fitness if fit.traffic == traffic)


def judge(place: Placement, *rows: PathRow, now: Nanos = T, **flow: Any) -> Fitness:
    return fitness(place.verdict(now, ready(**flow), list(rows)))


# -- each against its own need -------------------------------------------------------------------------------------


def test_what_is_a_soft_error_for_one_is_none_for_another() -> None:
    """H11: each client is judged against its own need."""
    place = placement()
    register(place, 20, size=1200)
    register(place, 21, size=900)
    verdict = place.verdict(T, ready(), [row(size=1000)])
    assert fitness(verdict, 20) == Fitness(
        20, UNFIT, "packets over 1000 bytes do not pass, 1200 are needed", 0, 1200
    )
    assert fitness(verdict, 21).state == FIT
    assert fitness(verdict, SYNC).state == FIT, "what can be cut is cut"
    assert verdict.degraded
    assert verdict.size == 1000


def test_a_stream_whose_larger_segments_do_not_pass_suits_no_traffic() -> None:
    """The kernel cuts segments as it likes, and joins small writes when it sends again."""
    place = placement()
    register(place, size=300)
    tcp = row("tcp", size=1000, size_max=1500)
    assert judge(place, tcp, transport="tcp").reason == "segments over 1000 bytes do not pass"
    verdict = place.verdict(T, ready("tcp"), [tcp])
    assert fitness(verdict, SYNC).state == UNFIT
    assert verdict.size == 1000, "so that it is used with small writes, if it must be used"


def test_what_datagrams_show_counts_for_streams_that_were_not_measured() -> None:
    assert placement().verdict(T, ready("tcp"), [row(size=1000), row("tcp")]).size == 1000


def test_a_limit_of_datagrams_counts_for_streams_until_they_had_time_to_be_measured() -> None:
    """Traffic is moved first, measuring goes on after."""
    place = placement()
    rows = [row(size=1000), row("tcp", size=1500, size_max=1500)]
    verdict = place.verdict(T, ready("tcp"), rows)
    assert (verdict.size, fitness(verdict, SYNC).state) == (1000, UNFIT)
    over = T + 30 * SECOND
    assert place.deadline == over
    assert place.due(over) == [FlowId(1)]
    verdict = place.verdict(over, ready("tcp"), rows)
    assert (verdict.size, fitness(verdict, SYNC).state) == (0, HELD), "only datagrams are hit"
    assert verdict.degraded, "but something is wrong with the path"
    verdict = place.verdict(over + 5 * SECOND, ready("tcp"), rows)
    assert fitness(verdict, SYNC).state == FIT
    worse = [row(size=576), row("tcp", size=1500, size_max=1500)]
    assert place.verdict(over + 6 * SECOND, ready("tcp"), worse).size == 576, "and again"
    dead = [row(size=576), row("tcp", size=1500, size_max=1500, alive=False)]
    place.verdict(over + 60 * SECOND, ready("tcp"), dead)
    again = place.verdict(over + 61 * SECOND, ready("tcp"), worse)
    assert again.size == 576, "a stream that died meanwhile was hit, whatever it measured before"


def test_loss_that_datagrams_show_counts_for_streams_which_show_none() -> None:
    place = placement()
    register(place)
    rows = (row(loss_ppm=200_000), row("tcp"))
    assert judge(place, *rows, transport="tcp").reason == "20.0 % is lost, at most 15 % may be"
    dead = (row(alive=False, loss_ppm=900_000), row("tcp"))
    other = {"transport": "tcp", "adapter": "blue"}
    assert judge(place, *dead, **other).state == FIT, "a protocol that is filtered is no loss"


def test_what_is_required_holds_before_anything_was_measured() -> None:
    place = placement()
    register(place, adapter="blue", choice="require")
    verdict = place.verdict(T, ready(), [])
    assert (verdict.alive, verdict.size, verdict.degraded) == (True, 0, False)
    assert fitness(verdict).state == BARRED
    assert judge(place, adapter="blue").state == FIT


def test_a_hole_below_the_needed_size_hurts_and_packets_stay_below_it() -> None:
    place = placement()
    register(place, 20, size=1200)
    register(place, 21, size=500)
    verdict = place.verdict(T, ready(), [row(holes=(1000,))])
    assert fitness(verdict, 20).state == UNFIT
    assert fitness(verdict, 21).state == FIT
    assert verdict.size == 999


def test_a_size_above_the_adapters_mtu_is_not_carried_whole() -> None:
    place = placement()
    register(place, size=4000)
    assert "are not carried whole" in judge(place, row()).reason
    assert judge(place, row(), row("tcp"), transport="tcp").state == FIT, "a stream cuts it"


@pytest.mark.parametrize(
    ("needs", "values", "reason"),
    [
        ({"pattern": "55"}, {"bad_patterns": ("55",)}, "packets with the pattern 55 do not pass"),
        ({"pattern": "55"}, {"bad_patterns": ("aa",)}, ""),
        ({"loss_ppm_max": 10_000}, {"loss_ppm": 20_000}, "2.0 % is lost, at most 1 % may be"),
        ({"loss_ppm_max": 10_000}, {"loss_ppm": 10_000}, ""),
        ({"latency_us": 1000}, {"rtt_us": 2001}, "it takes longer than 1000 us"),
        ({"latency_us": 1000}, {"rtt_us": 2000}, ""),
        ({"protocol": "tcp"}, {}, "not by tcp"),
        ({"protocol": "udp"}, {}, ""),
        ({}, {"loss_ppm": 200_000}, "20.0 % is lost, at most 15 % may be"),
        ({"loss_ppm_max": 1_000_000}, {"loss_ppm": 900_000}, ""),
        ({}, {"alive": False}, "nothing arrives"),
    ],
)
def test_each_requirement_has_its_reason(
    needs: dict[str, Any], values: dict[str, Any], reason: str
) -> None:
    place = placement()
    register(place, **needs)
    found = judge(place, row(**values))
    assert (found.state, found.reason) == (UNFIT if reason else FIT, reason)


def test_a_path_without_multicast_does_not_suit_needs_for_multicast() -> None:
    place = placement()
    register(place, protocol="multicast")
    assert judge(place, row(), row("multicast", alive=True)).state == FIT
    filtered = judge(place, row(), row("multicast", alive=False))
    assert filtered.reason == "multicast does not pass"


@pytest.mark.parametrize(("sealed", "state"), [(True, FIT), (False, UNFIT)])
def test_a_pattern_that_does_not_pass_hurts_unknown_payload_only_where_it_is_seen_on_the_cable(
    sealed: bool, state: int
) -> None:
    place = placement(sealed)
    verdict = place.verdict(T, ready(), [row(bad_patterns=("55",))])
    assert fitness(verdict, DATA).state == state
    assert verdict.degraded, "that the path is not sound is said in any case"


def test_a_choice_that_is_preferred_decides_between_paths_that_suit_and_no_more() -> None:
    place = placement()
    register(place, adapter="red")
    assert judge(place, row()).rank == 0
    assert judge(place, row(adapter="blue"), adapter="blue") == Fitness(PORT, FIT, "", 1)


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"adapter": "blue"}, "not by adapter blue"),
        ({"subnet": "blue-net"}, "not by subnet blue-net"),
        ({"node": "n3"}, "not by node n3"),
    ],
)
def test_what_is_not_as_required_is_barred(needs: dict[str, str], reason: str) -> None:
    place = placement()
    register(place, choice="require", **needs)
    assert judge(place, row()) == Fitness(PORT, BARRED, reason)


def test_a_required_choice_that_is_met_is_fit() -> None:
    place = placement()
    register(place, choice="require", adapter="red", subnet="red-net", node="n2")
    assert judge(place, row()).state == FIT


def test_needs_hold_for_one_peer_by_id_or_by_name_or_for_all() -> None:
    place = placement()
    register(place, 20, PEER, size=1200)
    register(place, 21, "n2", size=1300)
    register(place, 22, None, size=1400)
    assert place.wanted_values(PEER)[0] == (1200, 1300, 1400)
    assert place.wanted_values(OTHER)[0] == (1400,)


def test_several_owners_of_one_traffic_all_get_what_they_need() -> None:
    place = placement()
    assert place.set(SetNeeds("a", PORT, Needs(size=500)))
    assert place.set(SetNeeds("b", PORT, Needs(size=1200)))
    assert judge(place, row(size=1000)).state == UNFIT
    assert place.set(SetNeeds("b", PORT, None))
    assert judge(place, row(size=1000), flow=2, adapter="blue").state == FIT


def test_a_need_adds_its_values_to_what_is_probed_until_it_is_taken_back() -> None:
    """H11: a requirement adds its values to what is probed."""
    place = placement()
    assert place.wanted_values(PEER) == ((), (), ())
    register(place, 20, size=1234, pattern="c3", protocol="multicast")
    register(place, 21, size=700)
    assert place.wanted_values(PEER) == ((700, 1234), ("c3",), ("multicast",))
    place.set(SetNeeds("test", 20, None))
    assert place.wanted_values(PEER) == ((700,), (), ())


def test_the_number_of_needs_is_bounded() -> None:
    place = placement()
    accepted = [
        place.set(SetNeeds("test", port, Needs())) for port in range(16, 16 + NEEDS_MAX + 10)
    ]
    assert accepted.count(True) < NEEDS_MAX
    assert not accepted[-1]
    assert place.set(SetNeeds("test", 16, Needs(size=4))), "known ones may still change"


# -- what was -----------------------------------------------------------------------------------------------------


class Remembered:
    """A history with one error."""

    def __init__(self, error_class: str, at: Nanos) -> None:
        self.error = (error_class, at)

    def last_error_ns(
        self, path: tuple[bytes, str, bytes, str], error_class: str, now_ns: Nanos = 0
    ) -> Nanos | None:
        assert path == (ME, "red", PEER, "red")
        assert now_ns >= self.error[1]
        return self.error[1] if error_class == self.error[0] else None


@pytest.mark.parametrize(("clean", "hurts"), [("size", True), ("any", True), ("loss", False)])
def test_a_path_that_had_the_error_within_the_time_does_not_suit(clean: str, hurts: bool) -> None:
    """H11: 'no size error in the past 30 days'. History is told by the wall clock."""
    place = placement()
    place.wall_offset_ns = 1_700_000_000 * SECOND
    place.history = Remembered("size", place.wall_offset_ns + T - 3 * DAY)
    register(place, clean=clean, clean_ns=30 * DAY)
    found = judge(place, row())
    assert found.state == (UNFIT if hurts else FIT)
    if hurts:
        assert found.reason.endswith("error within 30 d")
        later = T + 27 * DAY
        assert place.due(later - 1) == []
        assert place.due(later) == [FlowId(1)]
        assert judge(place, row(), now=later).state == FIT


# -- coming back --------------------------------------------------------------------------------------------------


def flap(place: Placement, now: Nanos, sound_ns: Nanos) -> tuple[Fitness, Nanos]:
    """The path fails, and is sound again; what it is worth after that time."""
    assert judge(place, row(size=1000), now=now).state == UNFIT
    held = judge(place, row(), now=now + SECOND)
    assert held.state == HELD
    assert held.reason.startswith("it failed before; used again after")
    now += SECOND + sound_ns
    return judge(place, row(), now=now), now


def test_a_path_is_used_again_after_it_was_sound_for_the_time_of_its_policy() -> None:
    place = placement()
    register(place, size=1200, move_back_ns=5 * SECOND)
    found, now = flap(place, T, 5 * SECOND - 1)
    assert found.state == HELD
    assert place.due(now) == []
    assert place.due(now + 1) == [FlowId(1)], "and somebody looks then"
    assert judge(place, row(), now=now + 1).state == FIT


def test_each_relapse_doubles_the_time_and_a_long_peace_is_forgiven() -> None:
    """H11: without flapping."""
    place = placement()
    register(place, size=1200, move_back_ns=5 * SECOND)
    now = T
    for wait in (5, 10, 20, 40):
        found, now = flap(place, now, wait * SECOND - 1)
        assert found.state == HELD
        now += 1
        assert judge(place, row(), now=now).state == FIT
    now += 700 * SECOND
    found, now = flap(place, now, 5 * SECOND)
    assert found.state == FIT


def test_at_once_is_at_once_the_first_time_only() -> None:
    place = placement()
    register(place, size=1200, move_back_ns=0)
    assert judge(place, row(size=1000)).state == UNFIT
    assert judge(place, row(), now=T + 1).state == FIT
    assert judge(place, row(size=1000), now=T + 2).state == UNFIT
    assert judge(place, row(), now=T + 3).state == HELD


def test_never_is_never_until_an_operator_vouches_for_the_path() -> None:
    place = placement()
    register(place, size=1200, move_back_ns=NEVER)
    assert judge(place, row(size=1000)).state == UNFIT
    found = judge(place, row(), now=T + 300 * DAY)
    assert (found.state, found.reason) == (HELD, "it failed before, and is not used again")
    place.reset(PEER, "red", "red")
    assert judge(place, row(), now=T + 300 * DAY).state == FIT


def test_trust_is_of_a_path_not_of_a_connection() -> None:
    place = placement()
    register(place, size=1200, move_back_ns=5 * SECOND)
    judge(place, row(size=1000), flow=1)
    assert judge(place, row(), flow=2, now=T + 1).state == HELD
    assert judge(place, row(), flow=3, use="alt", now=T + 1).state == FIT, "other ports are apart"


def test_what_failed_must_be_clearly_better_before_it_counts_as_sound() -> None:
    place = placement()
    register(place, loss_ppm_max=100_000, latency_us=1000, move_back_ns=SECOND)
    assert judge(place, row(loss_ppm=110_000)).state == UNFIT
    assert judge(place, row(loss_ppm=90_000), now=T + 1).state == UNFIT
    assert judge(place, row(loss_ppm=50_000), now=T + 2).state == HELD
    assert judge(place, row(rtt_us=2100), now=T + 3).state == UNFIT
    assert judge(place, row(rtt_us=1900), now=T + 4).state == UNFIT
    assert judge(place, row(rtt_us=1500), now=T + 5).state == HELD


def test_the_same_rows_give_the_same_verdict() -> None:
    """A verdict that differs is sent to the link: text must not change with time alone."""
    place = placement()
    register(place, size=1200, move_back_ns=5 * SECOND)
    judge(place, row(size=1000))
    one = place.verdict(T + SECOND, ready(), [row()])
    assert place.verdict(T + 2 * SECOND, ready(), [row()]) == one


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=50, max_size=200))
def test_however_a_path_flaps_its_traffic_comes_back_to_it_only_a_few_times(
    times: list[tuple[int, int]],
) -> None:
    """The number of returns grows with the logarithm of the time, not with the number of faults."""
    place = placement()
    register(place, size=1200, move_back_ns=2 * SECOND)
    now, returns = T, 0
    state = FIT
    for bad, good in times:
        state = judge(place, row(size=1000), now=now).state
        assert state == UNFIT
        now += bad * SECOND
        for _ in range(good):
            now += SECOND
            before, state = state, judge(place, row(), now=now).state
            returns += state == FIT and before != FIT
    assert returns <= 5, "2, 4, 8, 16, 32 seconds; nothing here is sound for 64"


def test_application_datagrams_without_a_need_are_judged_as_a_kind() -> None:
    traffics = [fit.traffic for fit in placement().verdict(T, ready(), [row()]).fitness]
    assert traffics == [0, 1, 2, DATAGRAMS]
