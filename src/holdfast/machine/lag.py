"""How late a node runs: measured by its driver, heard by machines that judge others by time."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.types import MILLISECOND, Nanos

LAG_NS_MIN: Final = 5 * MILLISECOND
"""A node that is late by less is not reported to be."""


class Lagged(msgspec.Struct, frozen=True, gc=False):
    """Input: a turn ran so much later than it was due, or took so long. What this node sent or read then was delayed by
    the node and not by a path. A machine that `hears` it gets it before all other inputs of a turn."""

    lag_ns: Nanos
