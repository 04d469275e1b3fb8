"""Locks, barriers and zones of a group, as applications use them.

async with group.lock("till") as token: ...
await group.barrier("loaded", parties=3)
await group.subgroup("east").send(message)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import (
    BarrierBroken,
    HoldfastError,
    LockLost,
    MisuseError,
    NotAccepted,
    StaleToken,
)
from holdfast.group.config import GroupConfig, services_unit
from holdfast.group.ports import is_text
from holdfast.group.services.ports import AskBarrier, AskLock, GiveUp, ServiceNotice
from holdfast.group.services.values import (
    LEASE_MAX_NS,
    LEASE_MIN_NS,
    NAME_MAX,
    PARTIES_MAX,
    PHASES_MAX,
    Outcome,
)
from holdfast.types import SECOND, Nanos

if TYPE_CHECKING:
    from holdfast.runtime.driver import Driver
    from holdfast.runtime.handles import Group

LEASE_S: Final = 10.0


class ServiceBook:
    """The requests of this node to one group, and who waits for them."""

    def __init__(self, driver: Driver, config: GroupConfig) -> None:
        self._driver = driver
        self.config = config
        self._unit = services_unit(config.name)
        self._number = 0
        self._listeners: dict[int, Callable[[ServiceNotice], None]] = {}
        self._ended: HoldfastError | None = None

    def open(self, listener: Callable[[ServiceNotice], None]) -> int:
        """A number for a request, of which `listener` hears."""
        self.check()
        self._number += 1
        self._listeners[self._number] = listener
        return self._number

    def check(self) -> None:
        """Raise if there can be no request."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        if self.config.mode == "availability":
            raise MisuseError(
                f"group {self.config.name} is in availability mode: both sides of a partition continue, so a lock or "
                'barrier would protect nothing; nothing was requested; use mode = "majority"'
            )

    def close(self, number: int) -> None:
        self._listeners.pop(number, None)

    def ask(self, item: AskLock | AskBarrier | GiveUp) -> None:
        self._driver.answer(self._unit, item)

    def take(self, notice: ServiceNotice) -> None:
        listener = self._listeners.get(notice.number)
        if listener is not None:
            listener(notice)

    def end(self, error: HoldfastError) -> None:
        """The node stops."""
        self._ended = error
        self.fail(str(error))

    def fail(self, why: str) -> None:
        """The unit has failed: it knows of no request any more. Locks are released when their leases run out."""
        listeners, self._listeners = self._listeners, {}
        for number, listener in listeners.items():
            listener(ServiceNotice(self._unit, number, Outcome.EXPIRED, why=why))

    @property
    def now(self) -> Nanos:
        return self._driver.clock()


def _lease_ns(lease: object, what: str) -> Nanos:
    if isinstance(lease, int | float) and LEASE_MIN_NS <= lease * SECOND <= LEASE_MAX_NS:
        return int(lease * SECOND)
    raise MisuseError(
        f"{what}: a lease has {LEASE_MIN_NS / SECOND:g} to {LEASE_MAX_NS // SECOND} seconds, not {lease!r}; "
        "nothing was requested"
    )


def _check_name(name: str, what: str) -> None:
    if not is_text(name) or not 0 < len(name) <= NAME_MAX:
        raise MisuseError(
            f"the name of a {what} is text of 1 to {NAME_MAX} characters, not {name!r}; nothing was requested"
        )


class Lock:
    """One request for a lock of a group; `async with` gives its token. A handle can be used again after its release.

    The token is a number that is higher for every later holder. Pass it along with what you do under the lock, and let
    the receiver refuse a token that is lower than one it has seen (`holdfast.Fence`).
    """

    def __init__(self, book: ServiceBook, name: str, lease: float = LEASE_S) -> None:
        _check_name(name, "lock")
        self._lease_ns = _lease_ns(lease, f"lock {name!r}")
        self._book = book
        book.check()
        self.name = name
        self.token = 0
        """0 while it is not held."""
        self._number = 0
        self._until_ns: Nanos = 0
        self._changed: asyncio.Future[ServiceNotice] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self._why = ""

    @property
    def held(self) -> bool:
        """Whether the lock may be used now, by the clock of this node."""
        return self.token > 0 and not self._lost.is_set() and self._book.now < self._until_ns

    async def wait_lost(self) -> str:
        """Wait until the lock is lost; the reason."""
        await self._lost.wait()
        return self._why

    async def acquire(self) -> int:
        """Wait for the lock; its token. A cancelled call withdraws the request."""
        if self._number:
            raise MisuseError(
                f"lock {self.name!r} is requested by this handle already; nothing was requested"
            )
        while True:
            notice = await self._request()
            if notice.outcome == Outcome.HELD:
                return notice.value
            self._close()
            self._book.check()
            if notice.outcome != Outcome.EXPIRED:
                raise NotAccepted(
                    f"lock {self.name!r} was not granted: {notice.why}; nothing is held"
                )
            # This node was cut off for longer than the lease while it waited: it waits again, behind the others.

    async def _request(self) -> ServiceNotice:
        self._lost.clear()
        self._number = self._book.open(self._take)
        try:
            self._changed = asyncio.get_running_loop().create_future()
            self._book.ask(AskLock(self._number, self.name, self._lease_ns))
            return await self._changed
        except asyncio.CancelledError:
            self._book.ask(GiveUp(self._number))
            self._close()
            raise

    async def release(self, token: int | None = None) -> None:
        """Release the lock; raises `LockLost` if it was lost before."""
        if token is not None and token != self.token:
            raise StaleToken(
                f"lock {self.name!r}: token {token} is not the one of this handle ({self.token}); nothing was released"
            )
        if not self.token:
            raise MisuseError(f"lock {self.name!r} is not held; nothing was released")
        if self._changed is not None and not self._changed.done():
            raise MisuseError(f"lock {self.name!r} is being released by another call already")
        if self._lost.is_set():
            why = self._why
            self._close()
            raise LockLost(
                f"lock {self.name!r} was lost before its release: {why}; another node may have held it since"
            )
        self._changed = asyncio.get_running_loop().create_future()
        self._book.ask(GiveUp(self._number, self.token))
        try:
            notice = await self._changed
        finally:
            self._close()
        if notice.outcome != Outcome.RELEASED:
            raise LockLost(
                f"lock {self.name!r} was lost before its release: {notice.why}; another node may have held it since"
            )

    def _take(self, notice: ServiceNotice) -> None:
        if notice.outcome in (Outcome.HELD, Outcome.RENEWED):
            self._until_ns = notice.until_ns
            self.token = (
                notice.value
            )  # here, because it may be lost before the caller of `acquire` runs again
        elif notice.outcome == Outcome.EXPIRED and self.token:
            self._why = notice.why
            self._lost.set()
        if (
            notice.outcome != Outcome.RENEWED
            and self._changed is not None
            and not self._changed.done()
        ):
            self._changed.set_result(notice)

    def _close(self) -> None:
        self._book.close(self._number)
        self._number = self.token = 0
        self._changed = None

    async def __aenter__(self) -> int:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except LockLost:
            if kind is None:
                raise


class Barrier:
    """One part in a barrier of a group. Await it once for each phase.

    As a context manager it leaves the barrier at the end of the block; that breaks it for the others, unless all phases
    are passed.
    """

    def __init__(
        self, book: ServiceBook, name: str, parties: int, phases: int = 1, lease: float = LEASE_S
    ) -> None:
        _check_name(name, "barrier")
        self._lease_ns = _lease_ns(lease, f"barrier {name!r}")
        for value, limit, what in (
            (parties, PARTIES_MAX, "parties"),
            (phases, PHASES_MAX, "phases"),
        ):
            if type(value) is not int or not 1 <= value <= limit:
                raise MisuseError(
                    f"barrier {name!r} has 1 to {limit} {what}, not {value!r}; nothing was requested"
                )
        book.check()
        self._book = book
        self.name = name
        self.parties = parties
        self.phases = phases
        self.phase = 0
        """The last phase that was passed."""
        self.generation = 0
        self._number = 0
        self._changed: asyncio.Future[ServiceNotice] | None = None

    def __await__(self) -> Generator[Any, None, int]:
        return self.wait().__await__()

    async def wait(self) -> int:
        """Arrive at the next phase, and wait for the others. Returns the generation, the same for all parties. A
        cancelled call withdraws, which breaks the barrier for all."""
        if self._changed is not None:
            raise MisuseError(
                f"barrier {self.name!r} is waited at by this handle already; nothing was requested"
            )
        if self.phase == self.phases:
            self.phase = self._number = 0  # the next generation
        if not self._number:
            self._number = self._book.open(self._take)
        changed = self._changed = asyncio.get_running_loop().create_future()
        self._book.ask(
            AskBarrier(
                self._number, self.name, self.parties, self._lease_ns, self.phases, self.phase + 1
            )
        )
        try:
            notice: ServiceNotice = await changed
        except asyncio.CancelledError:
            self.leave()
            raise
        finally:
            self._changed = None
        return self._passed(notice)

    def _passed(self, notice: ServiceNotice) -> int:
        if notice.outcome == Outcome.PASSED:
            self.phase, self.generation = notice.phase, notice.value
            if self.phase == self.phases:
                self._book.close(self._number)
            return self.generation
        phase = self.phase + 1
        self._book.close(self._number)
        self._book.check()
        self._number = self.phase = 0
        if notice.outcome == Outcome.REFUSED:
            raise NotAccepted(f"barrier {self.name!r}: {notice.why}; this node did not arrive")
        raise BarrierBroken(
            f"barrier {self.name!r} is broken in phase {phase}: {notice.why}; no party passed it"
        )

    def leave(self) -> None:
        """Take no part any more. Before the last phase is passed, that breaks the barrier for all."""
        if self._number and self.phase < self.phases:
            self._book.ask(GiveUp(self._number))
            self._book.close(self._number)
        self._number = self.phase = 0

    def _take(self, notice: ServiceNotice) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(notice)

    async def __aenter__(self) -> Barrier:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


class SubGroup:
    """The replicas of one zone. Its messages have their place in the order of the group; only they deliver them."""

    def __init__(self, group: Group, zone: str, zones: dict[str, tuple[str, ...]]) -> None:
        if zone not in zones:
            known = f"it has {', '.join(zones)}" if zones else "it has none"
            raise MisuseError(
                f"group {group.name} has no zone {zone!r}: {known}; see `zones` of the group"
            )
        self._group = group
        self.zone = zone
        self.replicas = zones[zone]

    def try_send(self, message: bytes, **note: Any) -> bool:
        """As `Group.try_send`."""
        return self._group.try_send(message, zone=self.zone, **note)

    async def send(self, message: bytes, **note: Any) -> None:
        """As `Group.send`."""
        await self._group.send(message, zone=self.zone, **note)

    async def flush(self) -> None:
        """As `Group.flush`, for everything that was sent to the group."""
        await self._group.flush()
