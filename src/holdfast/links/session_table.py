"""The table of flows and sessions by which packets find their link, shared by all links of a node.

It outlives the machines that use it: a rebuilt unit must not lose the owners of flows.
"""

from __future__ import annotations

from random import Random

from holdfast.types import FlowId


class SessionTable:
    """Session numbers in use, and the epoch last shown to each peer."""

    def __init__(self, rng: Random, owners: dict[FlowId, str] | None = None) -> None:
        self._rng = rng
        self._units: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._epochs: dict[bytes, int] = {}
        self.owners: dict[FlowId, str] = {} if owners is None else owners
        """The unit that owns each flow."""

    def open(self, unit: str) -> int:
        """An unused number that cannot easily be guessed from an earlier one. The previous one of the unit is void."""
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
        """Also increases when the unit of a link is rebuilt; otherwise the peer would take the new one for the old."""
        epoch = self._epochs.get(peer, 0) + 1
        self._epochs[peer] = epoch
        return epoch
