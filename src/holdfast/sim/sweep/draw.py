"""Random faults, each with its correct diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec

from holdfast.faults.amounts import share_text
from holdfast.health.classify import (
    CONGESTED,
    DATA,
    DEAD,
    DELAY,
    FLAPPING,
    FLOWS,
    LOSS,
    MULTICAST,
    PATTERN,
    PROTOCOL,
    SIZE,
)
from holdfast.health.config import BASIC_SIZE, PATTERNS, RUNGS
from holdfast.health.verdict import LOSSY_PPM

NODES: Final = ("n1", "n2", "n3")
SUBNETS: Final = ("red", "blue")
MTU: Final = 1500
JUMBO: Final = 9000
PAYLOAD: Final = bytes.fromhex("c33c")
"""The bytes that the payload of the measured traffic repeats. They are not among the probed patterns."""

Path = tuple[str, str, str]
"""Sender, listener, subnet: one direction."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, and its correct diagnosis."""

    family: str
    fault: str = ""
    """As in a scenario; empty if a node is killed instead."""
    killed: str = ""
    """A node that is lost: its machine loses power, or only its process ends and its kernel closes the connections."""
    power: bool = True
    """Whether its machine loses power."""
    mtu: int = MTU
    """Of all adapters."""
    hit: tuple[Path, ...] = ()
    """The affected paths."""
    classes: tuple[str, ...] = ()
    """Error classes that must be reported for each affected path; empty: nothing is wrong."""
    allowed: tuple[str, ...] = ()
    """Error classes that may be reported for them in addition."""
    aside: tuple[tuple[Path, str], ...] = ()
    """Error classes that may be reported for other paths."""
    kinds: tuple[str, ...] = ()
    """Packet kinds that may be named; empty: any."""
    one_way: bool | None = None
    """The direction that must be reported; None: it cannot be known, or any is correct."""
    limit: int = 0
    loss_ppm: int = 0
    place: str = ""
    """The cause that explains all affected paths, as named in an incident."""
    on_traffic: bool = False
    """The fault affects the subnet that the datagrams between the first two nodes use."""
    off_traffic: bool = False
    """The fault affects the other subnet, which carries no measured traffic."""
    within_ms: int = 2000
    clean_left: bool = True
    """A path without a fault remains between every two running nodes."""


class _Place(msgspec.Struct, frozen=True):
    where: str
    paths: tuple[Path, ...]
    name: str
    one_way: bool


def draw(rng: Random, family: str = "") -> Case:
    """A random fault, of one family or of any, with adapters of the usual size or of 9000 bytes."""
    case = FAMILIES[family or rng.choice(list(FAMILIES))](rng)
    mtu = rng.choice((MTU, JUMBO))
    if case.family in ("fragments", "rate"):
        # No datagram is measured that jumbo frames would have to fragment. The drawn queues hold no jumbo frame.
        mtu = MTU
    return msgspec.structs.replace(case, mtu=mtu)


def _place(rng: Random, *kinds: str) -> _Place:
    subnet = rng.choice(SUBNETS)
    one, two, three = rng.sample(NODES, 3)
    match rng.choice(kinds or ("path", "pair", "out", "in", "adapter")):
        case "path":
            paths: tuple[Path, ...] = ((one, two, subnet),)
            return _Place(f"{subnet} {one}->{two}", paths, "path", True)
        case "pair":
            paths = ((one, two, subnet), (two, one, subnet))
            return _Place(f"{subnet} {one}<->{two}", paths, "pair", False)
        case "out":
            paths = ((one, two, subnet), (one, three, subnet))
            return _Place(f"{subnet} {one}->*", paths, f"sent by {one}/{subnet}", True)
        case "in":
            paths = ((two, one, subnet), (three, one, subnet))
            return _Place(f"{subnet} *->{one}", paths, f"received by {one}/{subnet}", True)
        case "adapter":
            others = ((one, two), (one, three), (two, one), (three, one))
            paths = tuple((a, b, subnet) for a, b in others)
            return _Place(f"{subnet} {one}<->*", paths, f"adapter {one}/{subnet}", False)
        case _:
            paths = tuple((a, b, subnet) for a in NODES for b in NODES if a != b)
            return _Place(f"{subnet} *<->*", paths, f"subnet {subnet}", False)


def rung_below(size: int) -> int:
    """The largest probed size that passes a limit."""
    return max((rung for rung in RUNGS if rung <= size), default=BASIC_SIZE)


def _named(only: str) -> tuple[str, ...]:
    """The packet kinds that may be named for a fault of one protocol: fragments and multicast are UDP, too."""
    return ("udp", "frag", "multicast") if only == "udp" else (only,) if only else ()


def _size(rng: Random) -> Case:
    place = _place(rng)
    only = rng.choice(("", "", " only udp", " only tcp"))
    size = rng.choice((rng.randint(300, 1480), rng.randint(300, 1480), 1492, 1000, 576))
    limit = rung_below(size)
    return Case(
        family="size",
        fault=f"{place.where} over {size}{only}",
        hit=place.paths,
        classes=(SIZE,),
        kinds=_named(only[6:]),
        one_way=place.one_way,
        limit=limit,
        place=place.name,
    )


def _protocol(rng: Random) -> Case:
    place, kind = _place(rng), rng.choice(("udp", "tcp"))
    # A TCP connection needs both directions: a filter in one stops it in both.
    back = tuple(((b, a, s), PROTOCOL) for a, b, s in place.paths) if kind == "tcp" else ()
    return Case(
        family="protocol",
        fault=f"{place.where} filter {kind}",
        hit=place.paths,
        classes=(PROTOCOL,),
        aside=back,
        kinds=(kind,),
        one_way=place.one_way if kind == "udp" else None,
        place=place.name if kind == "udp" else "",
    )


def _fragments(rng: Random) -> Case:
    place = _place(rng, "path", "pair")
    return Case(
        family="fragments",
        fault=f"{place.where} filter frag",
        hit=place.paths,
        classes=(PROTOCOL,),
        kinds=("frag",),
        one_way=place.one_way,
        place=place.name,
    )


def _multicast(rng: Random) -> Case:
    place = _place(rng, "path", "in", "out", "adapter", "subnet")
    return Case(
        family="multicast",
        fault=f"{place.where} filter multicast",
        hit=place.paths,
        classes=(MULTICAST,),
        kinds=("multicast",),
        one_way=place.one_way,
        place=place.name,
    )


def _pattern(rng: Random) -> Case:
    place, pattern = _place(rng), rng.choice(PATTERNS)
    only = rng.choice(("", " only udp"))
    return Case(
        family="pattern",
        fault=f"{place.where} pattern {pattern * rng.randint(6, 12)}{only}",
        hit=place.paths,
        classes=(PATTERN,),
        kinds=_named(only[6:]),
        one_way=place.one_way,
        place=place.name,
    )


def _data(rng: Random) -> Case:
    """A pattern of the application's own data, which no probe contains. It shows only if there is such data."""
    place = _place(rng, "path")
    return Case(
        family="data",
        fault=f"{place.where} pattern {PAYLOAD.hex() * rng.randint(8, 20)}",
        on_traffic=True,
        hit=place.paths,
        classes=(DATA,),
        one_way=place.one_way,
        place=place.name,
    )


def _flows(rng: Random) -> Case:
    place = _place(rng, "path", "pair")
    share = rng.randint(25, 60)
    what = rng.choice(("blackout only udp", f"over {rng.randint(600, 1400)} only udp"))
    return Case(
        family="flows",
        fault=f"{place.where} {what} share {share}%",
        hit=place.paths,
        # None of the flows may be affected, or all of them, or that of multicast, which is one as well.
        allowed=(FLOWS, SIZE, PROTOCOL, MULTICAST),
        one_way=None,
    )


def _loss(rng: Random) -> Case:
    place, ppm = _place(rng), rng.randint(80_000, 400_000)
    return Case(
        family="loss",
        fault=f"{place.where} loss {share_text(ppm)}",
        hit=place.paths,
        classes=(LOSS,),
        one_way=place.one_way,
        loss_ppm=ppm,
        place=place.name,
        within_ms=max(
            2000, 1_200_000_000 // ppm
        ),  # the lower the loss, the longer it takes to tell it from chance
    )


def _flapping(rng: Random) -> Case:
    """Outages that are long enough for the path to die, or so short that it looks lossy."""
    place = _place(rng)
    on, off = rng.randint(1000, 2000), rng.randint(1000, 2000)
    if rng.random() < 0.5:
        on, off = rng.randint(200, 800), rng.randint(200, 1500)
    return Case(
        family="flapping",
        fault=f"{place.where} blackout flap {on}ms/{off}ms",
        hit=place.paths,
        classes=(FLAPPING,),
        allowed=(DEAD,),
        one_way=place.one_way,
        place=place.name,
        within_ms=4 * (on + off) + 1000,  # it is named after the third outage
    )


def _rate(rng: Random) -> Case:
    place = _place(rng, "path", "pair", "out", "in")
    rate = rng.randint(8_000, 20_000)  # a limit shows only if more is sent
    return Case(
        family="rate",
        fault=f"{place.where} rate {rate} queue {rate // 8}",
        hit=place.paths,
        classes=(CONGESTED,),
        allowed=(DELAY,),  # before the first packet is dropped, the queue only delays them
        off_traffic=True,
        one_way=place.one_way,
        place=place.name,
    )


def _delay(rng: Random) -> Case:
    place = _place(rng)
    return Case(
        family="delay",
        fault=f"{place.where} slow {rng.randint(50, 400)}ms",
        hit=place.paths,
        classes=(DELAY,),
        one_way=place.one_way,
        place=place.name,
    )


def _noise(rng: Random) -> Case:
    """Disturbances that must not be reported as errors."""
    place = _place(rng)
    what = rng.choice(("corrupt 0.5%", "loss 0.5%", "duplicate 5%", "reorder 5% by 3ms"))
    return Case(family="noise", fault=f"{place.where} {what}", hit=place.paths)


def _dead(rng: Random) -> Case:
    place = _place(rng, "path", "pair", "out", "in", "adapter", "subnet")
    return Case(
        family="dead",
        fault=f"{place.where} blackout",
        hit=place.paths,
        classes=(DEAD,),
        one_way=True if place.one_way else None,
        place=place.name,
    )


def _node(rng: Random) -> Case:
    killed = rng.choice(NODES)
    others = [name for name in NODES if name != killed]
    return Case(
        family="node",
        killed=killed,
        power=rng.random() < 0.5,
        hit=tuple((killed, other, subnet) for other in others for subnet in SUBNETS),
        classes=(DEAD,),
        place=f"node {killed}",
    )


FAMILIES: Final[Mapping[str, Callable[[Random], Case]]] = {
    "size": _size,
    "protocol": _protocol,
    "fragments": _fragments,
    "multicast": _multicast,
    "pattern": _pattern,
    "data": _data,
    "flows": _flows,
    "loss": _loss,
    "flapping": _flapping,
    "rate": _rate,
    "delay": _delay,
    "noise": _noise,
    "dead": _dead,
    "node": _node,
}
"""All classes of faults of the sweep."""

assert LOSSY_PPM < 50_000, "all drawn losses are errors"
