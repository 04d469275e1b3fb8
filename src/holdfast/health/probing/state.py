"""The published state of one packet kind on a path, from its flows and lanes."""

from __future__ import annotations

from typing import Final

from holdfast.health.probing.attributes import KIND_OF
from holdfast.health.probing.lane import Lane
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.values import LaneValues, State
from holdfast.types import MILLISECOND, FlowId

UNKNOWN: Final = LaneValues(0, 0)
BORROWED: Final = ("frag", "multicast")
"""Kinds without basics of their own: they are as alive as their path, at most."""


class Heard:
    """One flow with basic heartbeats."""

    __slots__ = ("lane", "live", "slow")

    def __init__(self, lane: str, live: Liveness) -> None:
        self.slow = False
        """Whether it was last said to be slower than usual."""
        self.lane = lane
        self.live = live


def state_of(
    kind: str,
    flows: dict[FlowId, Heard],
    lane: Lane | None,
    stated: dict[str, LaneValues],
    rate_kbps: int,
    mute: bool,
    orphan: bool = False,
    limit_kbps: int = 0,
    data_lost: bool = False,
) -> State:
    """The union over the flows of a kind. `mute`: a flow from another port could not even be agreed on. `orphan`: there
    is no flow with data, but others show that the kind passes."""
    own = _own(kind, flows)
    values = [stated[name] for name in stated if KIND_OF[name] == kind]
    best = max(values, key=lambda item: item.size, default=UNKNOWN)
    live = live_of(kind, flows)
    alive = orphan or (live is not None and live.alive)
    if kind in BORROWED:
        alive = alive and best.alive and best.size > 0
    bad = 0
    if alive and kind == "udp":
        bad = sum(_is_bad(heard, stated.get(heard.lane), best) for heard in own) + mute
    main = stated.get(kind, best)
    datagrams = live if kind == "udp" else None
    return State(
        alive=alive,
        size=best.size if best.alive or kind not in BORROWED else 0,
        size_max=max((item.size_max for item in values), default=0),
        loss_ppm=live.window.stated_ppm if live is not None else 0,
        rtt_us=live.trip.rtt_us if live is not None else 0,
        patterns=tuple(bit.name for bit in lane.bits if bit.sent) if lane is not None else (),
        bad_patterns=main.bad_patterns,
        holes=best.holes,
        jitter_us=live.trip.jitter_us if live is not None else 0,
        rate_kbps=rate_kbps if kind == "udp" else 0,
        flows=len(own) + mute if kind == "udp" else 0,
        flows_bad=bad,
        loss_window_ms=live.window.window_ms if live is not None else 0,
        delay_us=live.trip.delay.delay_us if live is not None and kind == "udp" else 0,
        rate_limit_kbps=limit_kbps if kind == "udp" else 0,
        data_lost=data_lost and alive and kind == "udp",
        outage_ms=datagrams.window.outages.lasting_ns // MILLISECOND if datagrams else 0,
        outage_every_ms=datagrams.window.outages.every_ns // MILLISECOND if datagrams else 0,
    )


def live_of(kind: str, flows: dict[FlowId, Heard]) -> Liveness | None:
    """The heartbeats that represent a kind."""
    return _first_alive(flows) if kind in BORROWED else _speaks(_own(kind, flows))


def _own(kind: str, flows: dict[FlowId, Heard]) -> list[Heard]:
    return [heard for heard in flows.values() if KIND_OF[heard.lane] == kind]


def _first_alive(flows: dict[FlowId, Heard]) -> Liveness | None:
    """The datagrams of the path if they are alive, or else what is."""
    ranked = sorted(flows.values(), key=lambda heard: (not heard.live.alive, heard.lane != "udp"))
    return ranked[0].live if ranked else None


def _speaks(own: list[Heard]) -> Liveness | None:
    """The flow that represents its kind: one that is alive and was heard after others had missed their announced time,
    because one that sends rarely may be dead without being missed yet. One that is new and was not heard yet says
    nothing."""
    fell = max((heard.live.fell_at for heard in own if heard.live.judged_dead), default=-1)
    for heard in own:
        if heard.live.alive and heard.live.heard_at > fell:
            return heard.live
    return next((heard.live for heard in own if not heard.live.alive), None)


def _is_bad(heard: Heard, values: LaneValues | None, best: LaneValues) -> bool:
    """Whether one flow carries less than another of its path."""
    if not heard.live.alive:
        return True
    return values is not None and (values.size < best.size or len(values.holes) > len(best.holes))
