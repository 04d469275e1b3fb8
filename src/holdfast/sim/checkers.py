"""Invariants, watched while a world runs. A check that fails ends the run and prints the command that repeats it."""

from __future__ import annotations

from array import array
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from holdfast.errors import HoldfastError
from holdfast.group.ports import APPLY_MAX, Apply, RestoreState
from holdfast.sim.amounts import time_text
from holdfast.types import Nanos
from holdfast.wire.frames import StreamId

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.host import Host
    from holdfast.sim.world import World


POSITIONS_MAX = 50_000_000
"""The largest hole in the positions that is taken for real."""


class CheckFailed(HoldfastError):
    """An invariant does not hold in a simulated run. The message has the command that repeats it."""

    def __init__(self, invariant: str, detail: str, at: Nanos, replay: str) -> None:
        super().__init__(f"{invariant}: violated at {time_text(at)}: {detail}\nreplay: {replay}")
        self.invariant = invariant
        self.detail = detail
        self.at = at
        self.replay = replay


class Checker:
    """Base of all checks. Override what you need; `world.fail` ends the run.

    `effects` names the types of effects that `effect` is shown, before the host carries them out. An effect that a
    crash cut off is not shown.
    """

    effects: ClassVar[tuple[type, ...]] = ()

    def booted(self, host: Host) -> None:
        """A process starts: nothing of the one before it is left but the disk."""

    def effect(self, host: Host, effect: Any) -> None:
        """An effect of a type in `effects` is about to be carried out."""

    def turn(self, host: Host, result: Result) -> None:
        """A turn ended."""

    def finish(self, world: World) -> None:
        """The run is over."""


class NoFailures(Checker):
    """No unit of any node raises, except those that a test expects to (`replica/*`)."""

    def __init__(self, *expected: str) -> None:
        self._expected = expected

    def turn(self, host: Host, result: Result) -> None:
        for failure in result.failures:
            if not any(fnmatchcase(failure.unit, pattern) for pattern in self._expected):
                host.world.fail(
                    "no unit fails",
                    f"{failure.unit} on {host.name} raised {failure.error!r}",
                    failure.error,
                )


class Bounds(Checker):
    """Queues keep their bounds, also when a node, a disk or an application is slow."""

    def __init__(self, inbox_max: int = 100_000, heap_max: int = 5_000_000) -> None:
        self._inbox_max = inbox_max
        self._heap_max = heap_max

    def turn(self, host: Host, result: Result) -> None:
        world = host.world
        if len(host.inbox) > self._inbox_max:
            self._fail(host, f"{len(host.inbox)} inputs wait (bound {self._inbox_max})")
        if len(world.heap) > self._heap_max:
            self._fail(host, f"{len(world.heap)} events are on their way (bound {self._heap_max})")

    effects = (Apply,)

    def effect(self, host: Host, effect: Apply) -> None:
        worker = host.workers.get(effect.unit)
        if worker is not None and worker.outstanding_bytes > APPLY_MAX:
            waiting = worker.outstanding_bytes
            self._fail(host, f"{effect.unit} gives more to an application that has {waiting} bytes")

    def _fail(self, host: Host, detail: str) -> None:
        host.world.fail("queues are bounded", f"{host.name}: {detail}")


class DeadlinesMove(Checker):
    """After a turn the next deadline lies ahead; one that stays in the past makes a node spin."""

    def __init__(self, turns_max: int = 100) -> None:
        self._turns_max = turns_max
        self._overdue: dict[str, int] = {}

    def turn(self, host: Host, result: Result) -> None:
        assert host.core is not None
        if host.core.next_deadline() > host.now:
            self._overdue[host.name] = 0
            return
        turns = self._overdue[host.name] = self._overdue.get(host.name, 0) + 1
        if turns > self._turns_max:
            late_ns = host.now - host.core.next_deadline()
            text = f"{host.name} woke {turns} times for a deadline that passed {time_text(late_ns)} ago"
            host.world.fail("nodes do not spin", text)


class _Order:
    """What one group delivered, at every position, by whoever came first."""

    def __init__(self) -> None:
        self.what = array("Q")
        """Per position: the stream's number here in the upper 24 bits, the message's number below; 0 unknown."""
        self.digests = array("I")
        self.owners: list[str] = []
        self.streams: dict[StreamId, int] = {}
        self.positions: list[dict[int, int]] = []
        """Per stream: where each message is."""

    def stream(self, stream: StreamId) -> int:
        number = self.streams.get(stream)
        if number is None:
            number = self.streams[stream] = len(self.streams) + 1
            self.positions.append({})
        return number


class _Replica:
    """How far one process has come in one group."""

    def __init__(self) -> None:
        self.next_position: int | None = None
        """None before the first batch and after a restored state: the next batch may be anywhere."""
        self.last: dict[StreamId, int] = {}
        """The last number of each stream; what was delivered is never delivered again."""


class DeliveryOrder(Checker):
    """Invariants 1 and 2: one message at each position, each message once, each stream in its order."""

    effects = (Apply, RestoreState)

    def __init__(self) -> None:
        self._orders: dict[str, _Order] = {}
        self._replicas: dict[tuple[str, int, str], _Replica] = {}
        self.delivered = 0

    def effect(self, host: Host, effect: Apply | RestoreState) -> None:
        replica = self._replicas.setdefault((host.name, host.boots, effect.unit), _Replica())
        if isinstance(effect, RestoreState):
            # The state replaces what this replica had, so what follows it may go back to its position.
            replica.next_position = None
            replica.last.clear()
            return
        batch = effect.batch
        count = len(batch.messages)
        self.delivered += count
        self._check_replica(host, effect, replica)
        replica.next_position = batch.position + count
        replica.last[batch.stream] = batch.first + count - 1
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
        order = self._orders.setdefault(effect.unit, _Order())
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
