"""How late a node runs: measured by its driver, and reported to machines that judge other nodes by timing."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.types import MILLISECOND, Nanos

LAG_NS_MIN: Final = 5 * MILLISECOND
"""Smaller delays are not reported."""


class Lagged(msgspec.Struct, frozen=True, gc=False):
    """Input: a turn ran this much later than it was due, or took this long. The node itself, not a path, delayed what
    it sent and read at that time. A machine that `hears` it receives it before all other inputs of a turn."""

    lag_ns: Nanos
