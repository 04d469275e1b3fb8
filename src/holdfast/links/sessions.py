"""By what packets find their link: one table of flows and sessions for the door and all links of a node.

It outlives the machines that use it: a unit that is rebuilt must not forget whose a flow is.
"""

from __future__ import annotations

from random import Random

from holdfast.types import FlowId


class Sessions:
    """Session numbers in use, and the epoch that each peer was last shown."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._units: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._epochs: dict[bytes, int] = {}
        self.owners: dict[FlowId, str] = {}
        """The unit that each flow belongs to."""

    def open(self, unit: str) -> int:
        """A number that is not in use, and not easy to guess from an earlier one. The unit's last one is void."""
        self._units.pop(self._numbers.get(unit, 0), None)
        while True:
            number = self._rng.randrange(1, 1 << 32)
            if number not in self._units:
                self._units[number] = unit
                self._numbers[unit] = number
                return number

    def close(self, unit: str) -> None:
        """The unit is gone, and so is its session."""
        self._units.pop(self._numbers.pop(unit, 0), None)

    def unit(self, number: int) -> str | None:
        return self._units.get(number)

    def next_epoch(self, peer: bytes) -> int:
        """Grows also when the link's unit is rebuilt, or the peer would take the new one for the old."""
        epoch = self._epochs.get(peer, 0) + 1
        self._epochs[peer] = epoch
        return epoch
