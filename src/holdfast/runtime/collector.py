"""Python's cycle collector, for processes that run nodes or simulate them.

Frames, blocks and queues hold no cycles, but the collector looks through all that is alive each time many of them
have been made. After start, what is there stays: it is frozen, and the collector comes a hundred times less often.
Memory is not at risk: reference counts free everything that is not in a cycle at once, and cycles are still found.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 70_000


def calm_collector() -> None:
    """Call once, when everything that lasts has been made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
