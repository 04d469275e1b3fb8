"""Values of stress runs: structs, apart from the code that uses them."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.types import NodeId

PATTERNS: Final = ("00", "ff", "55", "aa")


class StressRequest(msgspec.Struct, frozen=True, gc=False):
    """From a client of this node: stress every ordered pair of these nodes."""

    run: int
    nodes: tuple[NodeId, ...]
    rounds: int = 10
    bytes_per_s: int = 1_000_000
    sizes: tuple[int, ...] = ()
    patterns: tuple[str, ...] = PATTERNS
