"""CPU time of this process, of the Java that it has started and of Spark's Python workers.

On a machine with other work the time of the clock says little; what a run computes stays the same.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int | None = None) -> float:
    """CPU seconds of a process (this one) and all below it, also of those that have ended and were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            # A process may end while its files are read.
            with contextlib.suppress(OSError):
                # The name is in brackets and may hold spaces.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    top = os.getpid() if root is None else root
    return sum(ticks[pid] for pid in ticks if _is_below(pid, top, parents)) / _TICKS_PER_S


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid and pid != top:
        pid = parents.get(pid, 0)
    return pid == top
