"""The cyclic garbage collector of Python, for processes that run or simulate nodes.

Frames, blocks and queues contain no cycles, but the collector scans all live objects after many allocations. After the
start, existing objects are frozen, and the collector runs a hundred times less often. Memory is not at risk: reference
counts free everything that is not in a cycle, and cycles are still found.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 70_000


def calm_collector() -> None:
    """Call once, when all long-lived objects exist."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
