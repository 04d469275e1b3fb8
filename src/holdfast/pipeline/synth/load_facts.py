"""Load facts of adapters: a quiet base, and hours of the week in which an adapter is busy."""

from __future__ import annotations

from datetime import date
from typing import Final

import msgspec
import numpy as np

from holdfast.pipeline.synth.chance import generator
from holdfast.pipeline.synth.columns import LOAD, Facts, strings
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.options import DAY_S, HOUR_S
from holdfast.pipeline.synth.topology import Topology

SPEED_BPS: Final = 1_000_000_000
_PACKET: Final = 900
_QUIET: Final = 0.06
_BUSY: Final = 0.75
_WORK_DAYS: Final = range(5)


class BusyTruth(msgspec.Struct, frozen=True):
    """A window in which an adapter really is busy, every week; UTC, Monday is 0."""

    node: str
    adapter: str
    weekday: int
    hour: int
    hours: int


def busy_truth(topology: Topology, node: int) -> list[BusyTruth]:
    """The busy windows of a node: office hours on even adapters, a nightly copy on odd ones of every other node."""
    found = []
    for adapter in range(topology.options.adapters):
        name = topology.adapter(adapter)
        if adapter % 2 == 0:
            found += [BusyTruth(topology.ids[node], name, day, 9, 8) for day in _WORK_DAYS]
        elif node % 2 == 0:
            found += [BusyTruth(topology.ids[node], name, day, 1, 2) for day in range(7)]
    return found


def load_facts(life: Life, begin: float, end: float, topology: Topology) -> Facts:
    """One fact per adapter and interval."""
    options = topology.options
    first = int(np.ceil((begin - life.begin) / options.load_s))
    last = int(np.ceil((end - life.begin) / options.load_s))
    ticks = life.begin + options.load_s * np.arange(max(first, 1), last)
    at_s = np.repeat(ticks, options.adapters)
    adapter = np.tile(np.arange(options.adapters), len(ticks))
    rng = generator(options.seed, "load", life.node, life.number, round(begin))
    share = np.clip(_share(at_s, adapter, life.node, topology), 0, 0.95)
    share = np.clip(share * rng.lognormal(0, 0.15, len(at_s)), 0, 1)
    sent = (share * SPEED_BPS / 8 * options.load_s).astype(np.int64)
    received = (sent * rng.uniform(0.5, 1.0, len(at_s))).astype(np.int64)
    queued = np.where(share > 0.7, sent * 0.0005, 0).astype(np.int64)
    names = [topology.adapter(number) for number in range(options.adapters)]
    subnets = [topology.subnet(number) for number in range(options.adapters)]
    columns = {
        "adapter": strings(names, adapter),
        "subnet": strings(subnets, adapter),
        "interval_ms": np.full(len(at_s), round(options.load_s * 1000), dtype=np.int64),
        "sent_bytes": sent,
        "received_bytes": received,
        "sent_packets": sent // _PACKET,
        "received_packets": received // _PACKET,
        # Columns that the schema of load facts does not have are left out.
        "queued_bytes": queued,
        "queued_bytes_max": queued,
        "drops": np.where(share > 0.9, rng.poisson(3, len(at_s)), 0).astype(np.int64),
        "speed_bps": np.full(len(at_s), SPEED_BPS, dtype=np.int64),
    }
    return Facts(LOAD, at_s, columns)


def _share(
    at_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    adapter: np.ndarray[tuple[int], np.dtype[np.int64]],
    node: int,
    topology: Topology,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The utilisation that is expected at each time."""
    first_day = date.fromisoformat(topology.options.start).weekday()
    weekday = (np.floor(at_s / DAY_S).astype(np.int64) + first_day) % 7
    hour = np.floor(at_s % DAY_S / HOUR_S)
    share = np.full(len(at_s), _QUIET)
    for window in busy_truth(topology, node):
        mine = adapter == int(window.adapter.removeprefix("eth"))
        inside = (weekday == window.weekday) & (hour >= window.hour)
        inside &= hour < window.hour + window.hours
        share = np.where(mine & inside, _BUSY, share)
    return share
