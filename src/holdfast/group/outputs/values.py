"""Values of outputs: structs, apart from the code that uses them."""

from __future__ import annotations

import msgspec


class Watermark(msgspec.Struct, frozen=True, array_like=True):
    """The last output that was accepted from a group, and the group epoch."""

    group_epoch: int
    position: int
    k: int
    over: tuple[int, ...] = ()
    """Earlier group epochs: a replica that still leads one of them is ignored."""
