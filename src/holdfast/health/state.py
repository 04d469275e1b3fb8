"""What is said of one kind on a path, from what was heard on its flows and stated of its lanes."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.health.attributes import KIND_OF
from holdfast.health.lane import Lane, Values
from holdfast.health.liveness import Liveness
from holdfast.types import FlowId

UNKNOWN: Final = Values(0, 0)
BORROWED: Final = ("frag", "multicast")
"""Kinds without basics of their own: they are as alive as their path, at most."""


class State(msgspec.Struct, frozen=True, gc=False):
    """What is said of one kind on the path; the fields are those of a table row."""

    alive: bool
    size: int
    size_max: int
    loss_ppm: int = 0
    rtt_us: int = 0
    patterns: tuple[str, ...] = ()
    bad_patterns: tuple[str, ...] = ()
    holes: tuple[int, ...] = ()
    jitter_us: int = 0
    rate_kbps: int = 0
    flows: int = 0
    flows_bad: int = 0


class Heard:
    """One flow with basics."""

    __slots__ = ("lane", "live")

    def __init__(self, lane: str, live: Liveness) -> None:
        self.lane = lane
        self.live = live


def state_of(
    kind: str,
    flows: dict[FlowId, Heard],
    lane: Lane | None,
    stated: dict[str, Values],
    rate_kbps: int,
    mute: bool,
) -> State:
    """The union over the flows of a kind. `mute`: a flow from another port could not even be agreed on."""
    own = _own(kind, flows)
    values = [stated[name] for name in stated if KIND_OF[name] == kind]
    best = max(values, key=lambda item: item.size, default=UNKNOWN)
    live = live_of(kind, flows)
    alive = live is not None and live.alive
    if kind in BORROWED:
        alive = alive and best.alive and best.size > 0
    bad = 0
    if alive and kind == "udp":
        bad = sum(_is_bad(heard, stated.get(heard.lane), best) for heard in own) + mute
    main = stated.get(kind, best)
    return State(
        alive=alive,
        size=best.size if best.alive or kind not in BORROWED else 0,
        size_max=max((item.size_max for item in values), default=0),
        loss_ppm=live.loss.ppm if live is not None else 0,
        rtt_us=live.trip.rtt_us if live is not None else 0,
        patterns=tuple(bit.name for bit in lane.bits if bit.sent) if lane is not None else (),
        bad_patterns=main.bad_patterns,
        holes=best.holes,
        jitter_us=live.trip.jitter_us if live is not None else 0,
        rate_kbps=rate_kbps if kind == "udp" else 0,
        flows=len(own) + mute if kind == "udp" else 0,
        flows_bad=bad,
    )


def live_of(kind: str, flows: dict[FlowId, Heard]) -> Liveness | None:
    """The basics that speak for a kind."""
    return _first_alive(flows) if kind in BORROWED else _speaks(_own(kind, flows))


def _own(kind: str, flows: dict[FlowId, Heard]) -> list[Heard]:
    return [heard for heard in flows.values() if KIND_OF[heard.lane] == kind]


def _first_alive(flows: dict[FlowId, Heard]) -> Liveness | None:
    """The datagrams of the path if they live, or else what does."""
    ranked = sorted(flows.values(), key=lambda heard: (not heard.live.alive, heard.lane != "udp"))
    return ranked[0].live if ranked else None


def _speaks(own: list[Heard]) -> Liveness | None:
    """The flow that speaks for its kind: one that lives, and was heard when others had broken their promise; for one
    that sends rarely may be silent as well, and not be missed yet."""
    fell = max((heard.live.fell_at for heard in own if not heard.live.alive), default=-1)
    for heard in own:
        if heard.live.alive and heard.live.heard_at > fell:
            return heard.live
    return next((heard.live for heard in own if not heard.live.alive), None)


def _is_bad(heard: Heard, values: Values | None, best: Values) -> bool:
    """Whether one flow does not carry what another of its path does."""
    if not heard.live.alive:
        return True
    return values is not None and (values.size < best.size or len(values.holes) > len(best.holes))
