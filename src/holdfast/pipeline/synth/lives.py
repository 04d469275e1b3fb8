"""When nodes run: each life of a node is one incarnation, with a clock of its own."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.pipeline.synth.chance import generator
from holdfast.pipeline.synth.options import DAY_S, HOUR_S, SynthOptions

_DOWN_S: Final = (30.0, 240.0)
_SKEW_S: Final = 0.05
_SKEWED_SHARE: Final = 0.05
_SKEWED_S: Final = 20.0
_AGE_S_MAX: Final = 30 * DAY_S
_STRETCH_S: Final = 6 * HOUR_S


class Life(msgspec.Struct, frozen=True):
    """One life of a node. Times are seconds after the start of the domain."""

    node: int
    number: int
    begin: float
    end: float
    skew_s: float
    """How far the node's wall clock is ahead."""
    boot_ns: int
    """What the node's own clock shows at `begin`."""
    crashes: bool
    """Whether it ends without a word."""

    @property
    def incarnation(self) -> int:
        return self.number + 1

    def now_ns(self, at_s: float) -> int:
        return self.boot_ns + round((at_s - self.begin) * 1e9)


def lives_of(node: int, options: SynthOptions) -> list[Life]:
    """All lives of a node, in order; together they last as long as the domain, but for the restarts."""
    rng = generator(options.seed, "lives", node)
    skewed = rng.random() < _SKEWED_SHARE * options.noise
    skew_s = options.noise * float(rng.normal(0, _SKEWED_S if skewed else _SKEW_S))
    found: list[Life] = []
    begin = 0.0
    rate = options.restarts_per_day
    while True:
        runs_s = float(rng.exponential(DAY_S / rate)) if rate > 0 else options.seconds
        # A life too short to be heard of would only be noise.
        end = min(begin + max(runs_s, 600.0), options.seconds)
        boot_ns = int(rng.integers(0, _AGE_S_MAX * 10**9))
        found.append(Life(node, len(found), begin, end, skew_s, boot_ns, bool(rng.random() < 0.5)))
        begin = end + float(rng.uniform(*_DOWN_S))
        if begin >= options.seconds:
            return found


def stretches_of(life: Life, options: SynthOptions) -> list[tuple[float, float]]:
    """A life in stretches that fit into memory, each of whole segments."""
    segment_s = options.segment_minutes * 60
    step = segment_s * max(1, int(_STRETCH_S // segment_s))
    found = []
    begin = life.begin
    while begin < life.end:
        found.append((begin, min(begin + step, life.end)))
        begin += step
    return found
