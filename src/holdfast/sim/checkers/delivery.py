"""Checks deliveries to applications, independent of the protocol: one order for all."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from zlib import crc32

from holdfast.group.frames import StreamId
from holdfast.group.ports import Apply, RestoreState
from holdfast.sim.checkers.base import Checker

if TYPE_CHECKING:
    from holdfast.sim.host import Host

POSITIONS_MAX: Final = 50_000_000
"""The largest plausible gap in the positions."""


class _Order:
    """The deliveries of one group at every position, as first seen."""

    def __init__(self) -> None:
        self.what = array("Q")
        """Per position: the local number of the stream in the upper 24 bits, the message number below; 0 is unknown."""
        self.digests = array("I")
        self.owners: list[str] = []
        self.streams: dict[StreamId, int] = {}
        self.positions: list[dict[int, int]] = []
        """Per stream: the position of each message."""

    def stream(self, stream: StreamId) -> int:
        number = self.streams.get(stream)
        if number is None:
            number = self.streams[stream] = len(self.streams) + 1
            self.positions.append({})
        return number


class _Replica:
    """The progress of one process in one group."""

    def __init__(self) -> None:
        self.next_position: int | None = None
        """None before the first batch and after a restored snapshot: the next batch may be anywhere."""
        self.last: dict[StreamId, int] = {}
        """The last number of each stream; delivered messages are never delivered again."""


class DeliveryOrder(Checker):
    """One message per position, each message once, each stream in order."""

    effects = (Apply, RestoreState)

    def __init__(
        self,
        group_epoch: Callable[[Host, str], int] = lambda _host, _unit: 0,
        loose: tuple[str, ...] = (),
    ) -> None:
        """`history` gives the group epoch of a replica, because another epoch has another order. Replicas of `loose`
        units may differ temporarily (`fast`, `availability`), so each is checked only separately."""
        self._orders: dict[tuple[str, int], _Order] = {}
        self._replicas: dict[tuple[str, int, str], _Replica] = {}
        self._group_epoch = group_epoch
        self._loose = loose
        self.delivered = 0

    def effect(self, host: Host, effect: Apply | RestoreState) -> None:
        key = (host.name, host.boots, effect.unit)
        replica = self._replicas.setdefault(key, _Replica())
        if isinstance(effect, RestoreState):
            # The snapshot replaces the state of this replica, so what follows may go back to its position.
            replica.next_position = None
            replica.last.clear()
            return
        batch = effect.batch
        count = len(batch.messages)
        self.delivered += count
        self._check_replica(host, effect, replica)
        replica.next_position = batch.position + count
        replica.last[batch.stream] = batch.first + count - 1
        if effect.unit not in self._loose:
            self._check_order(host, effect)

    def _check_replica(self, host: Host, effect: Apply, replica: _Replica) -> None:
        batch = effect.batch
        expected = replica.next_position
        if expected is not None and batch.position != expected:
            self._fail(host, effect, f"position {batch.position} follows {expected - 1}")
        last = replica.last.get(batch.stream, 0)
        if batch.first <= last:
            self._fail(host, effect, f"message {batch.first} of a stream comes after {last}")

    def _check_order(self, host: Host, effect: Apply) -> None:
        batch = effect.batch
        life = (effect.unit, self._group_epoch(host, effect.unit))
        order = self._orders.setdefault(life, _Order())
        stream = order.stream(batch.stream)
        places = order.positions[stream - 1]
        end = batch.position + len(batch.messages)
        missing = end - len(order.what)
        if missing > POSITIONS_MAX:
            self._fail(host, effect, f"position {batch.position} is absurd")
        if missing > 0:
            order.what.frombytes(bytes(missing * order.what.itemsize))
            order.digests.frombytes(bytes(missing * order.digests.itemsize))
        for offset, message in enumerate(batch.messages):
            position = batch.position + offset
            number = batch.first + offset
            what = stream << 40 | number
            digest = crc32(message)
            known = order.what[position]
            if not known:
                elsewhere = places.setdefault(number, position)
                if elsewhere != position:
                    text = f"message {number} is at position {elsewhere} and at {position}"
                    self._fail(host, effect, text)
                order.what[position] = what
                order.digests[position] = digest
            elif known != what:
                text = (
                    f"position {position} is message {number} of stream {stream} here, elsewhere "
                    f"message {known & (1 << 40) - 1} of stream {known >> 40}"
                )
                self._fail(host, effect, text)
            elif order.digests[position] != digest:
                self._fail(host, effect, f"message {number} differs at position {position}")

    def _fail(self, host: Host, effect: Apply, detail: str) -> None:
        host.world.fail("replicas deliver one order", f"{effect.unit} on {host.name}: {detail}")
