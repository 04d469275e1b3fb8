"""Which risk groups break, when and how. The plan is the truth that results are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.pipeline.synth.chance import generator
from holdfast.pipeline.synth.lives import lives_of
from holdfast.pipeline.synth.options import DAY_S, HOUR_S, SynthOptions
from holdfast.pipeline.synth.topology import Topology
from holdfast.pipeline.transforms.risk_groups import ARROW, RiskGroup

if TYPE_CHECKING:
    import numpy as np

DEAD: Final = "dead"
SIZE: Final = "size"
PROTOCOL: Final = "protocol"
PATTERN: Final = "pattern"
LOSS: Final = "loss"
FLAPPING: Final = "flapping"
CLASSES: Final = (DEAD, SIZE, PROTOCOL, PATTERN, LOSS, FLAPPING)
KINDS: Final = (
    *("adapter_send", "adapter_receive", "adapter", "port", "node", "pair"),
    *("switch", "subnet", "realm", "uplink", "direction"),
)
WARNING_S: Final = 2 * HOUR_S
"""For how long rising loss announces a fault that has a warning."""
NIGHT_H: Final = 2
_LASTS_S: Final = (600.0, 2 * HOUR_S)
_NIGHT_LASTS_S: Final = 1_500.0
_SIZES: Final = (548, 1000, 1280, 1400)
_PATTERNS: Final = ("55", "aa", "ff")


class Fault(msgspec.Struct, frozen=True):
    """One fault, which may come back. Times are seconds after the start of the domain."""

    number: int
    group: RiskGroup
    error_class: str
    transport: str
    """Which transport it shows on; empty: all."""
    value: int
    """The largest size that passes, or the loss in parts per million."""
    pattern: str
    times: tuple[tuple[float, float], ...]
    recurring: bool
    warning: bool
    cause: str = "fault"
    """`restart`: the node was not there."""


def plan_faults(options: SynthOptions, topology: Topology) -> list[Fault]:
    """All faults of the domain, restarts included."""
    rng = generator(options.seed, "faults")
    plan = [
        *_random(rng, options, topology),
        *_together(rng, options, topology),
        *_nightly(rng, options, topology),
        *_restarts(options, topology),
    ]
    return [msgspec.structs.replace(fault, number=number) for number, fault in enumerate(plan)]


def _random(rng: np.random.Generator, options: SynthOptions, topology: Topology) -> Iterator[Fault]:
    for turn in range(round(options.faults_per_day * options.days)):
        lasts = float(rng.uniform(*_LASTS_S))
        begin = float(rng.uniform(0.02, 0.95)) * options.seconds
        yield _fault(rng, topology, [(begin, begin + lasts)], turn, warning=turn % 2 == 0)


def _together(
    rng: np.random.Generator, options: SynthOptions, topology: Topology
) -> Iterator[Fault]:
    """Pairs of faults with a long common time."""
    for turn in range(round(options.pairs_per_day * options.days)):
        begin = float(rng.uniform(0.05, 0.9)) * options.seconds
        for half in range(2):
            kinds = KINDS[:6]  # Narrow ones, or one of them would swallow the other.
            yield _fault(rng, topology, [(begin + 60 * half, begin + 3_600)], turn + half, kinds)


def _nightly(
    rng: np.random.Generator, options: SynthOptions, topology: Topology
) -> Iterator[Fault]:
    nights = options.nightly_days or options.days
    for turn in range(options.nightly):
        hour = NIGHT_H + turn
        times = []
        for day in range(int(nights) + 1):
            begin = day * DAY_S + hour * HOUR_S + float(rng.uniform(60, 600))
            if begin < min(nights, options.days) * DAY_S:
                times.append((begin, begin + _NIGHT_LASTS_S))
        yield _fault(rng, topology, times, turn, ("adapter_send", "adapter"), recurring=True)


def _restarts(options: SynthOptions, topology: Topology) -> Iterator[Fault]:
    """A node that is down is dead for those that listen to it."""
    for node in range(options.nodes):
        lives = lives_of(node, options)
        times = tuple((before.end, after.begin) for before, after in pairwise(lives))
        if times:
            group = RiskGroup("node", topology.ids[node])
            yield Fault(0, group, DEAD, "", 0, "", times, False, False, "restart")


def _fault(
    rng: np.random.Generator,
    topology: Topology,
    times: list[tuple[float, float]],
    turn: int,
    kinds: tuple[str, ...] = KINDS,
    recurring: bool = False,
    warning: bool = False,
) -> Fault:
    options = topology.options
    error_class = CLASSES[(turn + int(rng.integers(0, 2))) % len(CLASSES)]
    transport = "" if error_class in (DEAD, FLAPPING) else options.transports[0]
    value = {
        SIZE: int(rng.choice(_SIZES)),
        LOSS: int(rng.integers(100_000, 400_000)),
    }.get(error_class, 0)
    pattern = str(rng.choice(_PATTERNS)) if error_class == PATTERN else ""
    if error_class == PROTOCOL:
        transport = str(rng.choice(options.transports))
    seconds = options.seconds
    inside = tuple((begin, min(end, seconds)) for begin, end in times if begin < seconds)
    group = _group(rng, topology, kinds)
    return Fault(0, group, error_class, transport, value, pattern, inside, recurring, warning)


def _group(rng: np.random.Generator, topology: Topology, kinds: tuple[str, ...]) -> RiskGroup:
    """A random group of a random kind. Narrow kinds come more often, as they do in life."""
    options = topology.options
    wide = {"switch", "subnet", "realm", "uplink", "direction"}
    useless = wide if options.realms == 1 else set[str]()
    usable = [kind for kind in kinds if kind not in useless or kind == "subnet"]
    weights = [1.0 if kind in wide else 3.0 for kind in usable]
    total = sum(weights)
    kind = str(rng.choice(usable, p=[weight / total for weight in weights]))
    node = int(rng.integers(0, options.nodes))
    adapter = int(rng.integers(0, options.adapters))
    path = topology.paths_to(node)[int(rng.integers(0, len(topology.paths_to(node))))]
    other = _other_realm(rng, topology, node)
    names = {
        "node": topology.ids[node],
        "pair": topology.adapter_name(path.sender, path.sender_adapter)
        + ARROW
        + topology.adapter_name(path.listener, path.listener_adapter),
        "port": topology.port_name(node, adapter),
        "switch": topology.switch(node, adapter),
        "subnet": topology.subnet(adapter),
        "realm": topology.realm(node),
        "uplink": topology.realm(node),
        "direction": topology.realm(node) + ARROW + other,
    }
    return RiskGroup(kind, names.get(kind, topology.adapter_name(node, adapter)))


def _other_realm(rng: np.random.Generator, topology: Topology, node: int) -> str:
    realms = sorted({topology.realm(peer) for peer in range(topology.options.nodes)})
    others = [realm for realm in realms if realm != topology.realm(node)]
    return str(rng.choice(others)) if others else topology.realm(node)
