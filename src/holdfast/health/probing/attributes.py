"""The attributes of diagnostic heartbeats: kind, size, bit pattern, and a small number per combination.

A *lane* is a set of probes that are sent and judged together: `udp` (the flow that carries data), `alt` (the same kind
from another port), `frag`, `tcp`, `multicast`. A *plan* numbers every combination that a sender uses on an adapter. It
is sent to listeners once, reliably; heartbeats then name a combination by one byte. The id of a plan is derived from
its contents, so both ends agree on the numbers or detect that they do not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from zlib import crc32

from holdfast.health.classify import ETHERNET
from holdfast.health.config import PATTERNS_MAX, RUNGS_MAX, HealthConfig
from holdfast.health.probing.values import LanePlan

LANES: Final = ("udp", "alt", "frag", "tcp", "multicast")
KIND_OF: Final = {
    "udp": "udp",
    "alt": "udp",
    "frag": "frag",
    "tcp": "tcp",
    "multicast": "multicast",
}

NEUTRAL: Final = 0
"""A fill in which no pattern lasts longer than a byte: a packet that only tests its size."""
MIXED: Final = 1
"""A fill of segments of all patterns: one packet tests its size and all patterns."""
FIRST_PATTERN: Final = 2
CODES_MAX: Final = 254
MORE_HEARTBEATS: Final = 0xFF
"""In a notice, instead of the code of a combination: heartbeats are missing, send more to settle how many are lost."""
BURST: Final = 0xFE
"""The same: send the next round whole, although the budget of a narrow path does not allow it."""
ANNOUNCED_MAX: Final = 14
"""Maximum number of probes announced by one basic heartbeat, which must stay small."""
MASKS_MAX: Final = 256
SEGMENT: Final = 64
IP_TCP: Final = 40
IP_HEAD: Final = 20
TURN: Final = 200
"""This many round numbers use one order of fills, and the next as many the reverse."""
SIZE_MIN: Final = 200
SIZE_MAX: Final = 65_535
_NEUTRAL_FILL: Final = bytes(range(256))


class Plan:
    """Every combination of an adapter, numbered."""

    __slots__ = ("_masks", "codes", "id", "lanes", "patterns")

    def __init__(
        self, patterns: tuple[str, ...], lanes: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> None:
        self.patterns = patterns
        self.lanes: dict[str, LanePlan] = {}
        self.codes: list[tuple[LanePlan, int]] = []
        for name, sizes in lanes:
            # A separate flow is probed for sizes; patterns are a property of the path.
            fills = FIRST_PATTERN + (0 if name == "alt" else len(patterns))
            lane = LanePlan(name, len(self.codes), sizes, fills)
            if not sizes or len(self.codes) + lane.count > CODES_MAX:
                continue
            self.lanes[name] = lane
            self.codes.extend((lane, index) for index in range(lane.count))
        self._masks: dict[bytes, tuple[tuple[str, int], ...]] = {}
        text = repr((patterns, [(lane.name, lane.sizes) for lane in self.lanes.values()]))
        self.id = 1 + crc32(text.encode()) % 0xFFFF

    def masks(self, codes: bytes) -> tuple[tuple[str, int], ...]:
        """The combinations of these codes, as bits of each lane. The same codes occur repeatedly."""
        found = self._masks.get(codes)
        if found is None:
            by_lane: dict[str, int] = {}
            for code in codes:
                if code < len(self.codes):
                    lane, index = self.codes[code]
                    by_lane[lane.name] = by_lane.get(lane.name, 0) | 1 << index
            found = tuple(by_lane.items())
            if len(codes) <= ANNOUNCED_MAX:
                if len(self._masks) >= MASKS_MAX:
                    self._masks.clear()
                self._masks[codes] = found
        return found

    def spoken(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What a listener needs to build the same plan."""
        return tuple((lane.name, lane.sizes) for lane in self.lanes.values())


def make_plan(
    config: HealthConfig,
    mtu: int,
    extra_sizes: tuple[int, ...] = (),
    extra_patterns: tuple[str, ...] = (),
) -> Plan:
    """What is probed on an adapter: the configuration, and additional needs of clients."""
    wanted = {*config.rungs, *extra_sizes, mtu}
    whole = tuple(sorted(size for size in wanted if SIZE_MIN <= size <= mtu))[-RUNGS_MAX:]
    cut = {*config.frag_rungs, *extra_sizes}
    frag = tuple(sorted(size for size in cut if mtu < size <= SIZE_MAX))[-RUNGS_MAX:]
    extra = (pattern for pattern in extra_patterns if pattern_bytes(pattern) and len(pattern) <= 64)
    patterns = tuple(dict.fromkeys((*config.patterns, *extra)))[:PATTERNS_MAX]
    # Multicast rounds go to all listeners: with every jumbo size a limit would take many seconds to find.
    casts = tuple(size for size in whole if size <= ETHERNET or size == whole[-1])
    sizes = {"udp": whole, "alt": whole, "frag": frag, "tcp": whole, "multicast": casts}
    lanes = tuple((name, sizes[name]) for name in LANES if KIND_OF[name] in config.kinds)
    return Plan(patterns, lanes)


def heard_plan(
    patterns: tuple[str, ...], lanes: tuple[tuple[str, tuple[int, ...]], ...]
) -> Plan | None:
    """The plan announced by a sender; None if it is invalid."""
    if len(patterns) > PATTERNS_MAX or len(lanes) > len(LANES):
        return None
    names = [name for name, _ in lanes]
    if len(set(names)) != len(names) or any(name not in LANES for name in names):
        return None
    if any(len(pattern) > 64 or pattern_bytes(pattern) is None for pattern in patterns):
        return None
    for _, sizes in lanes:
        if len(sizes) > RUNGS_MAX or list(sizes) != sorted(set(sizes)):
            return None
        if sizes and not (sizes[0] > 0 and sizes[-1] <= SIZE_MAX):
            return None
    return Plan(patterns, lanes)


def pattern_bytes(pattern: str) -> bytes | None:
    """The bytes of a pattern; None if it is not hexadecimal."""
    try:
        return bytes.fromhex(pattern) or None
    except ValueError:
        return None


@lru_cache(maxsize=256)
def fill_of(patterns: tuple[str, ...], fill: int, turn: int = 0) -> memoryview:
    """The bytes that are repeated to fill a packet. `turn` rotates the segments of a mixed fill, so that each pattern
    occurs at every place of the packet."""
    if fill == NEUTRAL or not patterns:
        return memoryview(_NEUTRAL_FILL)
    if fill >= FIRST_PATTERN:
        return memoryview(pattern_bytes(patterns[fill - FIRST_PATTERN]) or b"\0")
    order = patterns[turn % len(patterns) :] + patterns[: turn % len(patterns)]
    segments = []
    for pattern in order:
        octets = pattern_bytes(pattern) or b"\0"
        segments.append((octets * (SEGMENT // len(octets) + 1))[: max(SEGMENT, len(octets))])
    return memoryview(b"".join(segments))


def in_order(fills: int, pair: int) -> tuple[int, ...]:
    """The order in which the fills of one size are sent on a stream: those behind a lost one wait for it, so the order
    must be known. Patterns take turns in being last, because one behind another bad one is never judged."""
    patterns = range(FIRST_PATTERN, fills)
    turned = pair // TURN & 1
    return (NEUTRAL, MIXED, *(reversed(patterns) if turned else patterns))


def fragments(lane: str, size: int, mtu: int = 1500) -> int:
    """The number of packets of a probe on the wire: all of them must arrive."""
    if lane != "frag":
        return 1
    return -(-(size - IP_HEAD) // max(mtu - IP_HEAD, 8))


def bytes_on_wire(lane: str, size: int, mtu: int) -> int:
    """The cost of one probe, with a header per fragment."""
    return size + IP_HEAD * (fragments(lane, size, mtu) - 1)
