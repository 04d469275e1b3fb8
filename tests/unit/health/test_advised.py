"""P9, rule 16: what a node makes of advice. It ranks flows that satisfy now, expires, and is never needed."""

from __future__ import annotations

from typing import Any

from tests.support.advice import S_US, edition

from holdfast.health.config import Budget
from holdfast.health.frames import PathRow
from holdfast.health.placement.advised import NOT_CONFIGURED, REFRESH_NS
from holdfast.health.placement.fitness import Placement
from holdfast.health.ports import AdviceNews
from holdfast.health.probing.throttle import NORMAL, SLOWEST, Throttle
from holdfast.links.ports import AVOIDED, FIT, UNFIT, Fitness, FlowReady
from holdfast.telemetry.advice import Advice, BusyWindow
from holdfast.types import DATA, NEVER, SECOND, FlowId, Nanos, NodeId

ME, PEER = (NodeId(bytes([n]) * 16) for n in (1, 2))
T = 1000 * SECOND
OFFSET = 1_800_000_000 * SECOND
NOW_US = (T + OFFSET) // 1000
RED = (ME.hex(), "red", PEER.hex(), "red")


def news(advice: Advice | None, *damaged: str) -> AdviceNews:
    return AdviceNews(advice, "/srv/advice", damaged, OFFSET)


def judge(place: Placement, now: Nanos = T, adapter: str = "red", **values: Any) -> Fitness:
    known: dict[str, Any] = {
        "alive": True, "size": 1500, "size_max": 1500, "loss_ppm": 0, "rtt_us": 500,
    }  # fmt: skip
    row = PathRow(ME, adapter, PEER, adapter, "udp", 1, 1, **(known | values))
    ready = FlowReady(PEER, FlowId(1), adapter, adapter, adapter, "udp")
    return next(fit for fit in place.verdict(now, ready, [row]).fitness if fit.traffic == DATA)


def test_a_flow_whose_path_is_at_risk_is_avoided_and_others_are_not() -> None:
    place = Placement(ME, sealed=True)
    assert place.advised.take(T, news(edition(NOW_US, RED)))
    assert judge(place) == Fitness(DATA, AVOIDED, "advised to avoid it: fails at night")
    assert judge(place, adapter="blue").state == FIT


def test_advice_about_what_the_peer_sends_concerns_the_peer() -> None:
    place = Placement(ME, sealed=True)
    assert not place.advised.take(T, news(edition(NOW_US, (PEER.hex(), "red", ME.hex(), "red"))))
    assert judge(place).state == FIT


def test_advice_never_makes_a_flow_look_better_than_it_is() -> None:
    place = Placement(ME, sealed=True)
    place.advised.take(T, news(edition(NOW_US, RED)))
    assert judge(place, loss_ppm=300_000).state == UNFIT


def test_advice_expires_by_the_clock_of_the_node_without_a_new_edition() -> None:
    place = Placement(ME, sealed=True)
    advised = place.advised
    advised.take(T, news(edition(NOW_US, RED, valid_s=60)))
    assert advised.deadline == T + REFRESH_NS
    assert not advised.refresh(T + 59 * SECOND)
    assert advised.refresh(T + 61 * SECOND)
    assert judge(place, T + 61 * SECOND).state == FIT
    assert advised.status(T + 61 * SECOND)["problem"] == "it expired 1 s ago"


def test_advice_that_disappears_is_followed_no_more() -> None:
    place = Placement(ME, sealed=True)
    place.advised.take(T, news(edition(NOW_US, RED)))
    assert place.advised.take(T, news(None, "00000007.parquet: not an advice file"))
    assert judge(place).state == FIT
    status = place.advised.status(T)
    assert (status["in_force"], status["damaged"]) == (
        False,
        ["00000007.parquet: not an advice file"],
    )
    assert place.advised.deadline == NEVER


def test_output_that_was_made_again_numbers_its_advice_from_one() -> None:
    place = Placement(ME, sealed=True)
    place.advised.take(T, news(edition(NOW_US, RED, snapshot=90)))
    place.advised.take(T, news(edition(NOW_US + 5 * S_US, snapshot=1)))
    assert judge(place).state == FIT
    assert place.advised.status(T)["snapshot"] == 1


def test_a_node_without_advice_says_so_and_is_not_woken() -> None:
    advised = Placement(ME, sealed=True).advised
    assert advised.status(T)["problem"] == NOT_CONFIGURED
    assert advised.deadline == NEVER


def test_each_change_is_reported_once_however_often_advice_is_renewed() -> None:
    advised = Placement(ME, sealed=True).advised
    said = []
    for minute in range(6):
        avoid = (RED,) if minute in (2, 3) else ()
        advised.take(T, news(edition(NOW_US + minute, *avoid, snapshot=minute)))
        said.append(advised.news())
    assert [bool(text) for text in said] == [True, False, True, False, True, False]
    assert said[2] == (
        f"in force, 1 avoided: red to {PEER.hex()[:8]}/red: advised to avoid it: fails at night"
    )
    advised.refresh(T + 7200 * SECOND)
    assert advised.news() == "not followed, this node works as before: it expired"
    advised.refresh(T + 7300 * SECOND)
    assert advised.news() == ""
    future = edition(NOW_US + 10_000_000 * S_US, snapshot=9)
    advised.take(T, news(future))
    assert advised.news().endswith("it was made in the future: check the clocks")


def test_a_busy_window_slows_diagnostics_of_its_adapter_and_never_stops_them() -> None:
    """P6, H13: labels of predictions come from probes, so a minimum rate is guaranteed."""
    advised = Placement(ME, sealed=True).advised
    windows = (
        BusyWindow(ME.hex(), "red", NOW_US, NOW_US + 60 * S_US, 250_000),
        BusyWindow(ME.hex(), "blue", NOW_US, NOW_US + 60 * S_US, 0),
        BusyWindow(PEER.hex(), "green", NOW_US, NOW_US + 60 * S_US, 0),
    )
    advised.take(T, news(edition(NOW_US, busy=windows)))
    throttle = Throttle(Budget(), advised.permille)
    speeds = {a: throttle.speed(T, a, a) for a in ("red", "blue", "green")}
    assert speeds == {"red": NORMAL // 4, "blue": SLOWEST, "green": NORMAL}
    assert throttle.speed(T + 61 * SECOND, "red", "red") == NORMAL
    assert [one["adapter"] for one in advised.status(T)["busy"]] == ["red", "blue"]
