"""The links of the packet model, as compiled functions over arrays.

Each direction of a link is a queue without limit: first in, first out, one packet in transmission at a time. A packet
that reaches a link at time t begins transmission at max(t, when the link is free), and arrives at the other end a
transmission time and a delay later. Packets are rows of arrays; a row is reused when its packet has arrived.

Time is divided into slots that are no longer than the shortest transmission. Events in a slot can therefore cause
arrivals in later slots only, so all arrivals of a slot are known when it begins. They are sorted by time and link,
which no two of them share, and handled in that order. The result therefore depends only on the seed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from holdfast.experiments.compiling import compiled
from holdfast.experiments.points import HEADER_BYTES, transmission_ns
from holdfast.experiments.topology import Topology
from holdfast.experiments.traffic import Traffic

SLOT_NS: Final = transmission_ns(HEADER_BYTES)
"""The shortest message is a header alone."""
SLOTS: Final = 1 << 19
"""Slots that are kept at a time: 1.3 s. A packet whose arrival is further ahead stops the run."""
SAMPLE_NS: Final = 50_000
SAMPLES_MAX: Final = 100_000
"""Load is recorded for the first five seconds."""

NOW: Final = 0
FREE: Final = 1
IN_NETWORK: Final = 2
LONGEST: Final = 3
HOPS: Final = 4
SENT: Final = 5
LOST: Final = 6
SAMPLED: Final = 7
TOO_FAR: Final = 8
PENDING: Final = 9
SEED: Final = 10
"""Places in `Wires.numbers`: the current slot, the first unused row, and counts."""

TO: Final = 0
DELAY: Final = 1
LOSSY: Final = 2
FREE_AT: Final = 3
CARRIED: Final = 4
OLDEST: Final = 5
NEWEST: Final = 6
WAITING: Final = 7
"""Columns of `Wires.links`. A link is free at FREE_AT when it has transmitted all that waits. With the seed, the count
CARRIED decides which packets are lost. OLDEST and NEWEST are the ends of the chain of packets that wait."""

TARGET: Final = 0
SOURCE: Final = 1
TAG: Final = 2
TRANSMIT: Final = 3
LINK: Final = 4
ARRIVE: Final = 5
BEGIN: Final = 6
BEHIND: Final = 7
WAITS: Final = 8
IS_LOST: Final = 9
"""Columns of `Wires.packets`. BEHIND is the next packet in the chain of a slot, or of unused rows, and WAITS the next
one that waits for the same link."""


class Wires(NamedTuple):
    """All state of the links and of the packets on them. Few wide arrays compile much faster than many narrow ones."""

    links: Any
    packets: Any
    heads: Any
    """The first packet that arrives in each slot."""
    samples: Any
    numbers: Any


def make_wires(topology: Topology, seed: int, rows: int) -> Wires:
    links = np.zeros((len(topology.to), 8), np.int64)
    links[:, TO] = topology.to
    links[:, DELAY] = topology.delay_ns
    links[:, LOSSY] = topology.lossy
    packets = np.zeros((rows, 10), np.int64)
    packets[:, BEHIND] = np.arange(1, rows + 1)
    packets[-1, BEHIND] = -1
    numbers = np.zeros(11, np.int64)
    numbers[SEED] = seed
    return Wires(
        links, packets, np.full(SLOTS, -1, np.int64), np.zeros(SAMPLES_MAX, np.int64), numbers
    )


def with_more_rows(wires: Wires, rows: int) -> Wires:
    """The same state with room for `rows` packets."""
    before = len(wires.packets)
    packets = np.zeros((rows, 10), np.int64)
    packets[:before] = wires.packets
    packets[before:, BEHIND] = np.arange(before + 1, rows + 1)
    packets[-1, BEHIND] = wires.numbers[FREE]
    wires.numbers[FREE] = before
    return wires._replace(packets=packets)


def traffic_of(wires: Wires) -> Traffic:
    n = wires.numbers.tolist()
    return Traffic(n[SENT], n[HOPS], n[LOST], n[LONGEST], wires.samples[: n[SAMPLED] + 1].tolist())


@compiled
def take_row(w: Any) -> int:
    row = w.numbers[FREE]
    w.numbers[FREE] = w.packets[row, BEHIND]
    w.numbers[PENDING] += 1
    return row  # type: ignore[no-any-return]


@compiled
def give_back(w: Any, row: int) -> None:
    w.packets[row, BEHIND] = w.numbers[FREE]
    w.numbers[FREE] = row
    w.numbers[PENDING] -= 1


@compiled
def _began(w: Any, link: int, now: int) -> None:
    """Remove packets that no longer wait for the link."""
    while w.links[link, WAITING] > 0 and w.packets[w.links[link, OLDEST], BEGIN] <= now:
        w.links[link, OLDEST] = w.packets[w.links[link, OLDEST], WAITS]
        w.links[link, WAITING] -= 1


@compiled
def _is_lost(w: Any, link: int) -> bool:
    if w.links[link, LOSSY] == 0:
        return False
    x = np.uint64(w.numbers[SEED]) + np.uint64(link) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64(w.links[link, CARRIED]) * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bool(np.int64(x >> np.uint64(32)) < w.links[link, LOSSY])


@compiled
def enqueue(w: Any, row: int, link: int, now: int) -> None:
    """The packet reaches the link now."""
    _began(w, link, now)
    begin = max(now, w.links[link, FREE_AT])
    w.links[link, FREE_AT] = begin + w.packets[row, TRANSMIT]
    w.packets[row, BEGIN] = begin
    if begin > now:
        if w.links[link, WAITING] == 0:
            w.links[link, OLDEST] = row
        else:
            w.packets[w.links[link, NEWEST], WAITS] = row
        w.links[link, NEWEST] = row
        w.links[link, WAITING] += 1
        w.numbers[LONGEST] = max(w.numbers[LONGEST], w.links[link, WAITING])
    w.packets[row, IS_LOST] = _is_lost(w, link)
    w.links[link, CARRIED] += 1
    w.packets[row, LINK] = link
    arrive = w.links[link, FREE_AT] + w.links[link, DELAY]
    w.packets[row, ARRIVE] = arrive
    slot = arrive // SLOT_NS
    if slot - w.numbers[NOW] >= SLOTS:
        w.numbers[TOO_FAR] = 1
    w.packets[row, BEHIND] = w.heads[slot % SLOTS]
    w.heads[slot % SLOTS] = row
    w.numbers[HOPS] += 1


@compiled
def sample(w: Any, now: int) -> None:
    """Record the load up to now."""
    until = min(now // SAMPLE_NS, SAMPLES_MAX - 1)
    while w.numbers[SAMPLED] < until:
        w.numbers[SAMPLED] += 1
        w.samples[w.numbers[SAMPLED]] = w.numbers[IN_NETWORK]


@compiled
def next_slot(w: Any, limit: int) -> bool:
    """Go to the first slot, before `limit`, in which a packet arrives."""
    if w.numbers[PENDING] == 0:
        return False
    while w.numbers[NOW] < limit:
        if w.heads[w.numbers[NOW] % SLOTS] >= 0:
            return True
        w.numbers[NOW] += 1
    return False


@compiled
def _sort(rows: Any, keys: Any) -> None:
    """Shell sort: there are nearly always few rows, and it compiles quickly."""
    gap = 1
    while gap < len(keys) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, len(keys)):
            key, row, at = keys[k], rows[k], k
            while at >= gap and keys[at - gap] > key:
                keys[at], rows[at] = keys[at - gap], rows[at - gap]
                at -= gap
            keys[at], rows[at] = key, row
        gap //= 3


@compiled
def arrivals(w: Any) -> Any:
    """The packets that arrive in the current slot, in order. The slot is empty afterwards."""
    at = w.numbers[NOW] % SLOTS
    count = 0
    row = w.heads[at]
    while row >= 0:
        count += 1
        row = w.packets[row, BEHIND]
    rows = np.empty(count, np.int64)
    keys = np.empty(count, np.int64)
    base = w.numbers[NOW] * SLOT_NS
    row = w.heads[at]
    for k in range(count):
        rows[k] = row
        keys[k] = ((w.packets[row, ARRIVE] - base) << 32) | w.packets[row, LINK]
        row = w.packets[row, BEHIND]
    w.heads[at] = -1
    _sort(rows, keys)
    return rows


@compiled
def leave(w: Any, row: int) -> int:
    """The packet has arrived: returns its node, or -1 if the link has lost it."""
    now, link = w.packets[row, ARRIVE], w.packets[row, LINK]
    _began(w, link, now)
    if w.packets[row, IS_LOST]:
        w.numbers[LOST] += 1
        w.numbers[IN_NETWORK] -= 1
        give_back(w, row)
        return -1
    return w.links[link, TO]  # type: ignore[no-any-return]
