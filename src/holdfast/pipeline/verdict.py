"""The node's own judgement of a path, for the pipeline. This module is the only place that asks for it.

The pipeline has no definition of a soft error: it hands attribute vectors to the function that nodes use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from holdfast.health.classify import (
    CLASSES,
    CONGESTED,
    DATA,
    DEAD,
    DELAY,
    FLAPPING,
    LOSS,
    MULTICAST,
    PROTOCOL,
    SIZE,
)
from holdfast.health.verdict import LOSSY_PPM, find_errors
from holdfast.health.verdict import Vector as PathVector

__all__ = [
    "CLASSES",
    "CONGESTED",
    "DATA",
    "DEAD",
    "DELAY",
    "FLAPPING",
    "LOSS",
    "LOSSY_PPM",
    "MULTICAST",
    "PROTOCOL",
    "SIZE",
    "Trouble",
    "Vector",
    "judge",
]


class Vector(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a listener says of one kind of packets on a path, as far as a verdict depends on it."""

    alive: bool
    size: int = 0
    size_max: int = 0
    loss_ppm: int = 0
    bad_patterns: str = ""
    """With commas, as in the fact."""
    holes: str = ""
    flows: int = 0
    flows_bad: int = 0
    delay_us: int = 0
    rate_limit_kbps: int = 0
    data_lost: bool = False
    outage_ms: int = 0
    outage_every_ms: int = 0


class Trouble(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One error of a path: its class, the kind of packets that shows it (empty: all), and the evidence."""

    error_class: str
    kind: str
    value: int
    values: tuple[str, ...] = ()


def judge(vectors: Mapping[str, Vector]) -> tuple[Trouble, ...]:
    """Everything that is wrong with a path, gravest first; `vectors` by kind of packets."""
    return _judge(tuple(sorted(vectors.items())))


@lru_cache(maxsize=65_536)
def _judge(vectors: tuple[tuple[str, Vector], ...]) -> tuple[Trouble, ...]:
    found = find_errors([_vector(kind, vector) for kind, vector in vectors])
    return tuple(
        Trouble(error.error_class, error.kind, error.value, error.values) for error in found
    )


def _vector(kind: str, vector: Vector) -> PathVector:
    return PathVector(
        kind=kind,
        alive=vector.alive,
        size=vector.size,
        size_max=vector.size_max,
        loss_ppm=vector.loss_ppm,
        bad_patterns=tuple(vector.bad_patterns.split(",")) if vector.bad_patterns else (),
        holes=tuple(int(size) for size in vector.holes.split(",") if size.isdecimal()),
        flows=vector.flows,
        flows_bad=vector.flows_bad,
        delay_us=vector.delay_us,
        rate_limit_kbps=vector.rate_limit_kbps,
        data_lost=vector.data_lost,
        outage_ms=vector.outage_ms,
        outage_every_ms=vector.outage_every_ms,
    )
