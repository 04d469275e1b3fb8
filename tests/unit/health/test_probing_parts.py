"""Plans, signatures, budgets: the small parts that decide what is sent, and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.health.config import LAN, WAN, Budget, HealthConfig, Signatures, Tune, tuned
from holdfast.health.frames import Settled
from holdfast.health.probing.attributes import (
    FIRST_PATTERN,
    LANES,
    MIXED,
    NEUTRAL,
    bytes_on_wire,
    fill_of,
    fragments,
    heard_plan,
    make_plan,
)
from holdfast.health.probing.signature import (
    BEGIN,
    DOUBT,
    FOCUSED,
    INITIAL,
    SETTLED,
    SPENT,
    STABLE,
    TRANSITIONS,
    LaneSender,
)
from holdfast.health.probing.throttle import Throttle
from holdfast.health.probing.values import BusyWindow, Interest, QueueDepth
from holdfast.health.subsystem import health_of
from holdfast.node.config import parse_config
from holdfast.types import MILLISECOND, SECOND, FlowId

PLAN = make_plan(LAN, 1500)
STATES = (INITIAL, STABLE, FOCUSED)
EVENTS = (BEGIN, DOUBT, SETTLED, SPENT)


# -- attributes ----------------------------------------------------------------------------------------------------


def test_rungs_stop_at_the_mtu_and_fragments_begin_above_it() -> None:
    """A DF datagram above the MTU fails locally; larger sizes are attributes of their own."""
    lanes = make_plan(LAN, 1500).lanes
    assert lanes["udp"].sizes == (576, 1000, 1280, 1500)
    assert lanes["frag"].sizes == (2000, 4000, 9000)
    assert lanes["multicast"].sizes == (576, 1000, 1280, 1500)
    assert make_plan(LAN, 1400).lanes["udp"].sizes == (576, 1000, 1280, 1400)
    jumbo = make_plan(LAN, 9000).lanes
    assert jumbo["udp"].sizes[-1] == 9000
    assert "frag" not in jumbo


def test_every_combination_has_a_number_of_one_byte_and_none_two() -> None:
    plan = make_plan(LAN, 9000, (7000, 8000), ("cc", "deadbeef"))
    numbers = [(lane.name, index) for lane, index in plan.codes]
    assert len(numbers) == len(set(numbers)) <= 256
    for code, (lane, index) in enumerate(plan.codes):
        assert lane.base + index == code


@settings(max_examples=60, deadline=None)
@given(
    st.integers(576, 65_535),
    st.lists(st.integers(1, 70_000), max_size=20),
    st.lists(
        st.sampled_from(["00", "ff", "cc", "33", "deadbeef", "01", "02", "03", "04"]), max_size=9
    ),
)
def test_a_plan_that_was_told_is_the_same_plan(
    mtu: int, sizes: list[int], patterns: list[str]
) -> None:
    plan = make_plan(LAN, mtu, tuple(sizes), tuple(patterns))
    heard = heard_plan(plan.patterns, plan.spoken())
    assert heard is not None
    assert heard.id == plan.id
    assert heard.codes == plan.codes
    assert len(plan.codes) <= 256


@pytest.mark.parametrize(
    ("patterns", "lanes"),
    [
        (("xy",), (("udp", (576,)),)),
        (("00",) * 9, (("udp", (576,)),)),
        (("00",), (("udp", (576,)), ("udp", (1000,)))),
        (("00",), (("smoke", (576,)),)),
        (("00",), (("udp", (1000, 576)),)),
        (("00",), (("udp", (-5, 576)),)),
        (("00",), (("udp", tuple(range(1, 100))),)),
        (("0" * 4000,), (("udp", (576,)),)),
    ],
)
def test_a_plan_that_cannot_be_is_refused(patterns: tuple[str, ...], lanes: Any) -> None:
    assert heard_plan(patterns, lanes) is None


def test_a_mixed_fill_has_every_pattern_at_every_place_in_turn() -> None:
    for pattern in LAN.patterns:
        octets = bytes.fromhex(pattern)
        places = [
            bytes(fill_of(LAN.patterns, MIXED, turn)[:16]) == octets * 16 for turn in range(4)
        ]
        assert places.count(True) == 1
        assert octets * 32 in bytes(fill_of(LAN.patterns, MIXED))
        assert octets * 2 not in bytes(fill_of(LAN.patterns, NEUTRAL)) * 2
    assert bytes(fill_of(LAN.patterns, FIRST_PATTERN + 2)) == b"\x55"


def test_fragments_are_counted_with_their_heads() -> None:
    assert fragments("udp", 9000) == 1
    assert fragments("frag", 9000, 1500) == 7
    assert bytes_on_wire("frag", 9000, 1500) == 9000 + 6 * 20


# -- signatures ----------------------------------------------------------------------------------------------------


def test_every_state_knows_every_event() -> None:
    assert sorted(TRANSITIONS) == sorted((state, event) for state in STATES for event in EVENTS)
    assert set(TRANSITIONS.values()) == set(STATES)


def lane_sender() -> LaneSender:
    sender = LaneSender(PLAN.lanes["udp"], PLAN.patterns, 0)
    sender.flows[0] = FlowId(1)
    sender.period_ns = 200 * MILLISECOND
    return sender


def settled(
    size: int, done: bool = True, bad: tuple[str, ...] = (), holes: tuple[int, ...] = ()
) -> Settled:
    return Settled("red", "red", "udp", 1, True, size, 1500, holes, bad, done)


def split(sender: LaneSender, indexes: list[int]) -> list[tuple[int, int]]:
    return [(sender.plan.sizes[i // sender.plan.fills], i % sender.plan.fills) for i in indexes]


def test_the_four_signatures_follow_from_what_the_listener_says() -> None:
    """The diagnostic-heartbeating document, 4.2.A.3."""
    sender = lane_sender()
    sender.take(settled(1280, bad=("55",)), 0, SECOND)
    assert sender.state == STABLE
    assert split(sender, sender.active()) == [(1280, MIXED), (576, NEUTRAL), (1000, NEUTRAL)]
    retry = split(sender, sender.retry())
    assert (1500, NEUTRAL) in retry
    assert (1280, FIRST_PATTERN + 2) in retry
    assert (1280, NEUTRAL) in retry, "what the pattern is held against"
    assert "55" not in sender.good_patterns()


def test_all_values_are_sent_until_they_are_acknowledged() -> None:
    sender = lane_sender()
    first = split(sender, sender.choose(0, Signatures()))
    assert [size for size, fill in first if fill == NEUTRAL] == [576, 1000, 1280, 1500]
    assert sorted(fill for size, fill in first if fill >= FIRST_PATTERN) == [2, 3, 4, 5]
    sender.take(settled(1500, done=False), 0, SECOND)
    assert sender.state == INITIAL
    sender.take(settled(1500), 0, SECOND)
    assert sender.state == STABLE


def test_in_time_every_size_is_sent_with_every_pattern() -> None:
    sender = lane_sender()
    sender.take(settled(1500), 0, SECOND)
    seen = set()
    for turn in range(60):
        seen.update(split(sender, sender.choose(turn * SECOND, Signatures())))
    for size in (576, 1000, 1280):
        assert {(size, FIRST_PATTERN + n) for n in range(4)} <= seen


def test_a_focus_ends_by_itself() -> None:
    sender = lane_sender()
    sender.take(settled(1500), 0, SECOND)
    sender.event(DOUBT)
    for _ in range(40):
        assert sender.state == FOCUSED
        sender.sent()
    assert sender.state == STABLE


def test_what_failed_is_tried_again_at_its_own_period() -> None:
    """H3: `diag_retry` has a period of its own."""
    sender = lane_sender()
    sender.take(settled(1280), 0, SECOND)
    retried = [
        now
        for now in range(0, 5 * SECOND, 100 * MILLISECOND)
        if (1500, NEUTRAL) in split(sender, sender.choose(now, Signatures()))
    ]
    assert len(retried) == 4


@pytest.mark.parametrize(
    "tune", [Tune("", "basic_active", -5, -5, -5), Tune("", "diag_retry", 1 << 62, 1 << 40, 1)]
)
def test_tunables_are_kept_within_bounds(tune: Tune) -> None:
    signatures = tuned(Signatures(), tune)
    found = getattr(signatures, tune.signature)
    assert 10 * MILLISECOND <= found.period_ns <= 3600 * SECOND
    assert 1 <= found.grace <= 100
    assert 10 * MILLISECOND <= found.retry_ns <= 3600 * SECOND


def test_a_signature_that_does_not_exist_changes_nothing() -> None:
    assert tuned(Signatures(), Tune("", "smoke", SECOND)) == Signatures()  # type: ignore[arg-type]


# -- the throttle --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 60_000)), max_size=60))
def test_no_path_spends_more_than_its_budget_and_one_burst(steps: list[tuple[int, int]]) -> None:
    throttle = Throttle(Budget())
    buckets, now, spent = throttle.buckets(0, throttle.path_bucket(0), "red"), 0, 0
    for wait, size in steps:
        now += wait * MILLISECOND
        if throttle.take(now, buckets, size):
            spent += size
    assert spent <= 48_000 * now // SECOND + 256_000
    if now >= 20 * SECOND:
        assert spent <= 61_000 * now // SECOND, "the burst is part of the budget"


def test_what_cannot_be_paid_for_can_be_after_the_time_that_it_is_said_to_take() -> None:
    throttle = Throttle(Budget())
    buckets = throttle.buckets(0, throttle.path_bucket(0), "red")
    assert throttle.take(0, buckets, 250_000)
    assert not throttle.take(0, buckets, 30_000)
    wait = throttle.wait_ns(buckets, 30_000)
    assert wait > 0
    assert not throttle.take(wait - 100_000, buckets, 30_000)
    assert throttle.take(wait + 100_000, buckets, 30_000)
    assert throttle.wait_ns(buckets, 10**9) <= 6 * SECOND, "what is more than a bucket holds"


def test_all_paths_of_an_adapter_and_all_adapters_share_what_there_is() -> None:
    throttle = Throttle(Budget(path=10_000, adapter=15_000, domain=20_000, burst_ms=1000))
    paths = [throttle.buckets(0, throttle.path_bucket(0), adapter) for adapter in "aabb"]
    taken = [throttle.take(0, path, 8_000) for path in paths]
    assert taken == [True, False, True, False], (
        "the second finds its adapter empty, the fourth everything"
    )


def test_what_is_due_is_spread_by_shares_and_what_one_does_not_need_is_for_the_others() -> None:
    throttle = Throttle(Budget())
    alone = throttle.spread({"udp": 10_000}, 200 * MILLISECOND, 3_000)
    many = throttle.spread(dict.fromkeys(LANES, 10_000), 200 * MILLISECOND, 3_000)
    cheap = throttle.spread({"udp": 500, "frag": 10_000}, 200 * MILLISECOND, 3_000)
    assert alone["udp"] < many["udp"]
    assert cheap["udp"] == 200 * MILLISECOND
    assert cheap["frag"] < many["frag"]
    cost = sum(10_000 * SECOND // period for period in many.values())
    assert cost + 3_000 <= 64_000 * 55 // 100


def test_demand_speeds_diagnostics_up_and_slows_them_down() -> None:
    """H13: by subscription, by send-queue depth, by busy windows."""
    throttle = Throttle(Budget())
    assert throttle.speed(0, "red", "a") == 1000
    throttle.demand(0, Interest("red", 2))
    assert throttle.speed(0, "red", "a") == 2000
    assert throttle.speed(0, "blue", "a") == 1000
    throttle.demand(0, QueueDepth("a", 1 << 30))
    assert throttle.speed(0, "red", "a") == 500
    throttle.demand(0, BusyWindow("red", 10, 20, 500))
    assert throttle.speed(15, "red", "a") == 250
    assert throttle.speed(20, "red", "a") == 500
    throttle.demand(0, QueueDepth("a", 0))
    throttle.demand(0, Interest("red", 0))
    assert throttle.speed(30, "red", "a") == 1000


def test_demands_are_bounded() -> None:
    throttle = Throttle(Budget())
    for n in range(3000):
        throttle.demand(0, BusyWindow("red", 0, 100, -n))
        throttle.demand(0, Interest(f"s{n}", 1))
    assert len(throttle._windows) == 1000
    assert throttle.speed(0, "red", "a") == 100, "never off"


# -- configuration -------------------------------------------------------------------------------------------------

BASE = """
domain = "lab"
name = "n1"
[security]
mode = "plain"
[[adapter]]
name = "red"
address = "127.0.0.1:7400"
"""


def test_tunables_and_values_come_from_the_configuration() -> None:
    """H3: per subnet and per signature."""
    text = (
        BASE
        + """
[diagnostics]
sizes = [600, 1400]
patterns = ["0f"]
path_bytes = 32000
[[tune]]
signature = "basic_active"
period_ms = 250
[[tune]]
subnet = "red"
signature = "diag_retry"
period_ms = 5000
grace = 2
"""
    )
    health = health_of(parse_config(text))
    assert health.of("blue").basic_active.period_ns == 250 * MILLISECOND
    assert health.of("red").basic_active.period_ns == 250 * MILLISECOND
    assert health.of("red").diag_retry.period_ns == 5 * SECOND
    assert health.of("blue").diag_retry.period_ns == SECOND
    assert make_plan(health, 1500).lanes["udp"].sizes == (600, 1400, 1500)
    assert (health.patterns, health.budget.path) == (("0f",), 32_000)
    assert health_of(parse_config(BASE)) == LAN == HealthConfig()
    assert WAN.basic_ns > LAN.basic_ns


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[diagnostics]\nsizes = [100]", "from 200 to 65535"),
        ('[diagnostics]\npatterns = ["5"]', "'5' is not up to 32 bytes in hexadecimal"),
        ("[diagnostics]\npath_bytes = 10", "basic heartbeats alone need"),
        ("[diagnostics]\nadapter_bytes = 10000", "at least path_bytes"),
        ("[diagnostics]\nfalse_alarms_per_1000_days = 0", "at least 1"),
        ('[[tune]]\nsignature = "basic"', "basic"),
        ('[[tune]]\nsignature = "diag_retry"\nsubnet = "green"', "there are red"),
        ('[[tune]]\nsignature = "diag_retry"\nperiod_ms = 1', "from 10 to 3600000"),
        ('[[tune]]\nsignature = "diag_retry"\nperiod = 100', "period_ms"),
        ('[[tune]]\nsignature = "diag_retry"\ngrace = 1000', "from 1 to 100"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_config(BASE + text)
