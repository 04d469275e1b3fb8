"""What a listener sees on one path over time: stretches of constant state, made from the faults that hit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.pipeline.synth.chance import generator
from holdfast.pipeline.synth.faults import (
    DEAD,
    FLAPPING,
    LOSS,
    PATTERN,
    PROTOCOL,
    SIZE,
    WARNING_S,
    Fault,
)
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.options import SynthOptions
from holdfast.pipeline.synth.topology import Path, Topology

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SIZE_MAX: Final = 1500
_DELAY_S: Final = (0.3, 1.5)
"""How long a listener needs to notice."""
_BLIPS_PER_DAY: Final = 0.02
"""Brief losses per path that nothing explains."""
_BLIP_S: Final = 20.0
_BLIP_PPM: Final = 60_000
_WARNING_PPM: Final = 15_000
_FLAP_DOWN_S: Final = (4.0, 15.0)
_FLAP_UP_S: Final = (8.0, 30.0)


class Hit(msgspec.Struct, frozen=True):
    """One time at which one fault shows on one path; seconds after the start of the domain."""

    begin: float
    end: float
    error_class: str
    value: int
    pattern: str
    fault: int
    """-1: noise."""


class State(msgspec.Struct, frozen=True):
    """What the listener says from `begin` on."""

    begin: float
    alive: bool = True
    size: int = SIZE_MAX
    loss_ppm: int = 0
    bad_patterns: str = ""


def hits_on(path: Path, faults: list[Fault], topology: Topology) -> list[Hit]:
    """Everything that happens to a path, in order of time. Flapping is one hit; `states_of` takes it apart."""
    options = topology.options
    groups = topology.groups_of(path)
    found = [
        hit
        for fault in faults
        if fault.group in groups and _shows(fault, path, topology)
        for hit in _hits(fault, path, options)
    ]
    rng = generator(options.seed, "blips", path)
    for _ in range(int(rng.poisson(_BLIPS_PER_DAY * options.noise * options.days))):
        begin = float(rng.uniform(0, options.seconds))
        found.append(Hit(begin, begin + _BLIP_S, LOSS, _BLIP_PPM, "", -1))
    return sorted(found, key=lambda hit: (hit.begin, hit.fault))


def _shows(fault: Fault, path: Path, topology: Topology) -> bool:
    if fault.cause == "restart":
        # A node that is down records nothing about the paths that it listens on.
        return fault.group.name == topology.ids[path.sender]
    return fault.transport in ("", path.transport)


def _hits(fault: Fault, path: Path, options: SynthOptions) -> Iterator[Hit]:
    rng = generator(options.seed, "delay", fault.number, path)
    for begin, end in fault.times:
        seen, over = begin + float(rng.uniform(*_DELAY_S)), end + float(rng.uniform(*_DELAY_S))
        yield Hit(seen, over, fault.error_class, fault.value, fault.pattern, fault.number)


def warnings_on(path: Path, faults: list[Fault], topology: Topology) -> list[tuple[float, float]]:
    """The times in which a path loses a little, because a fault is coming."""
    groups = topology.groups_of(path)
    return [
        (begin - WARNING_S, begin)
        for fault in faults
        if fault.warning and fault.group in groups and _shows(fault, path, topology)
        for begin, _ in fault.times
    ]


def states_of(path: Path, hits: list[Hit], life: Life, options: SynthOptions) -> list[State]:
    """The states of a path in one life of its listener; the first one begins with it."""
    spans = [span for hit in hits for span in _spans(hit, options)]
    spans = [hit for hit in spans if hit.end > life.begin and hit.begin < life.end]
    edges = sorted({life.begin, *(max(hit.begin, life.begin) for hit in spans)})
    edges = sorted({*edges, *(hit.end for hit in spans if hit.end < life.end)})
    states: list[State] = []
    for edge in edges:
        state = _state(edge, [hit for hit in spans if hit.begin <= edge < hit.end], path)
        if not states or msgspec.structs.replace(state, begin=states[-1].begin) != states[-1]:
            states.append(state)
    return states


def _spans(hit: Hit, options: SynthOptions) -> Iterator[Hit]:
    if hit.error_class != FLAPPING:
        yield hit
        return
    # Everything that shares the fault goes up and down together, so the path is no part of the seed.
    rng = generator(options.seed, "flaps", hit.fault, round(hit.begin / 60))
    at = hit.begin
    while at < hit.end:
        down = at + float(rng.uniform(*_FLAP_DOWN_S))
        yield msgspec.structs.replace(hit, begin=at, end=min(down, hit.end), error_class=DEAD)
        at = down + float(rng.uniform(*_FLAP_UP_S))


def _state(edge: float, active: list[Hit], path: Path) -> State:
    size = SIZE_MAX if path.transport != "tcp" else 0
    alive, loss_ppm, patterns = True, 0, []
    for hit in active:
        if hit.error_class in (DEAD, PROTOCOL):
            alive = False
        elif hit.error_class == SIZE:
            size = min(size, hit.value)
        elif hit.error_class == LOSS:
            loss_ppm = max(loss_ppm, hit.value)
        elif hit.error_class == PATTERN:
            patterns.append(hit.pattern)
    return State(edge, alive, size, loss_ppm, ",".join(sorted(set(patterns))))


def warning_ppm(at_s: npt.NDArray[np.float64], begin: float, end: float) -> npt.NDArray[np.float64]:
    """The loss that announces a fault: it rises until the fault is there."""
    return _WARNING_PPM * (0.3 + 0.7 * (at_s - begin) / (end - begin))
