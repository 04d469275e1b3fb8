"""Values of probing: inputs and results as structs, apart from the code that uses them."""

from __future__ import annotations

import msgspec

from holdfast.types import Nanos


class LanePlan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The combinations of one lane: each size with each fill. `index` counts within the lane."""

    name: str
    base: int
    sizes: tuple[int, ...]
    fills: int
    """Neutral, mixed, then one per pattern."""

    @property
    def count(self) -> int:
        return len(self.sizes) * self.fills

    def index(self, rung: int, fill: int) -> int:
        return rung * self.fills + fill


class LaneValues(msgspec.Struct, frozen=True, gc=False):
    """What passes on a lane."""

    size: int
    size_max: int
    holes: tuple[int, ...] = ()
    bad_patterns: tuple[str, ...] = ()
    alive: bool = True
    """Whether any of it passes."""


class State(msgspec.Struct, frozen=True, gc=False):
    """The published state of one kind on the path; the fields are those of a table row."""

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
    loss_window_ms: int = 0
    delay_us: int = 0
    rate_limit_kbps: int = 0
    data_lost: bool = False
    outage_ms: int = 0
    outage_every_ms: int = 0


class Hush(msgspec.Struct, frozen=True, gc=False):
    """Input: no diagnostics until then, because a stress run uses the same connections."""

    until_ns: Nanos


class Interest(msgspec.Struct, frozen=True, gc=False):
    """Input: clients watch the paths of a subnet (empty: of all), or no longer do."""

    subnet: str
    watchers: int


class QueueDepth(msgspec.Struct, frozen=True, gc=False):
    """Input: bytes waiting to be sent on an adapter."""

    adapter: str
    waiting: int


class BusyWindow(msgspec.Struct, frozen=True, gc=False):
    """Input: in this period, diagnostics of a subnet (empty: of all) run at this share of their rate."""

    subnet: str
    begin_ns: Nanos
    end_ns: Nanos
    permille: int
