"""`node.health`: the health of all paths of the domain, for applications.

Results are frozen structs with names instead of ids. They come from the local copy of the path table, without network
traffic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import count
from time import monotonic_ns, time_ns
from typing import ClassVar, Final, cast

import msgspec

from holdfast.errors import HoldfastError, MisuseError, NodeStopped
from holdfast.group.ports import is_text
from holdfast.health.classify import CLASSES
from holdfast.health.config import SIGNATURES, SignatureName, Tune
from holdfast.health.frames import PathRow
from holdfast.health.ports import HEALTH, PATH_GOSSIP, ResetHistory, WallClock
from holdfast.health.subsystem import ADVICE, HealthService
from holdfast.health.table import queries
from holdfast.health.table.path_gossip import PathGossipMachine, path_of
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.queries import Explanation, Found, Incident, PathState, SubnetValues
from holdfast.health.table.report import raw_report
from holdfast.health.table.subscriptions import ATTRIBUTES, CLIENTS_MAX
from holdfast.health.table.values import (
    Filter,
    HealthNews,
    PathChange,
    RowChange,
    Subscribe,
    TableSnapshot,
    Taken,
    Unsubscribe,
)
from holdfast.links.subsystem import LinkService
from holdfast.runtime.advice import AdviceReader
from holdfast.runtime.driver import Driver
from holdfast.runtime.stress import stress_handlers
from holdfast.subsystem import Control, Edge, EffectHandler, Port
from holdfast.types import MILLISECOND, SECOND, NodeId

KINDS: Final = ("udp", "tcp", "frag", "multicast")
WALL_EVERY_S: Final = 60.0
"""Interval between checks whether the wall clock was set."""
_TAKEN_AT_ONCE: Final = 64


class HistoryEntry(msgspec.Struct, frozen=True):
    """One change of one of this node's own paths."""

    at: datetime
    sender: str
    listener: str
    """`member/adapter`"""
    transport: str
    errors: tuple[str, ...]
    text: str
    by: str = ""
    note: str = ""


class PathSnapshot(msgspec.Struct, frozen=True):
    """All rows that match the filter of a subscriber, as they are now."""

    paths: tuple[PathState, ...]
    lagged: bool = False
    """Changes were skipped because they were not read in time; this snapshot replaces them."""
    history: tuple[HistoryEntry, ...] = ()


class PathChanged(msgspec.Struct, frozen=True):
    """A row is new (`before` is None), different, or no longer matches the filter (`after` is None)."""

    before: PathState | None
    after: PathState | None


class Subscription:
    """Iterate over it with `async for`: a `PathSnapshot` first, then every `PathChanged` once, in order.

    A subscriber that falls too far behind gets another `PathSnapshot`, with `lagged` set, instead of the skipped
    changes. Close it, or use it as an async context manager.
    """

    def __init__(self, health: Health, number: int) -> None:
        self._health = health
        self._number = number
        self._waiting: deque[TableSnapshot | RowChange] = deque()
        self._arrived = asyncio.Event()
        self._taken = 0
        self._ended: HoldfastError | None = None
        self._closed = False

    def give(self, news: TableSnapshot | RowChange) -> None:
        self._waiting.append(news)
        self._arrived.set()

    def end(self, error: HoldfastError) -> None:
        self._ended = error
        self._arrived.set()

    @property
    def waiting(self) -> int:
        """Number of items that were not read yet."""
        return len(self._waiting)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> PathSnapshot | PathChanged:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            if self._ended is not None:
                raise self._ended
            self._arrived.clear()
            await self._arrived.wait()
        news = self._waiting.popleft()
        self._taken += 1
        if self._taken >= _TAKEN_AT_ONCE or not self._waiting:
            self._health.taken(self._number, self._taken)
            self._taken = 0
        return self._health.told(news)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._arrived.set()
            self._health.unsubscribe(self._number)

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Health(Edge):
    """The health API of a node."""

    name: ClassVar[str] = "health"

    def __init__(self) -> None:
        self._service: HealthService | None = None
        self._links: LinkService
        self._driver: Driver | None = None
        self._subscriptions: dict[int, Subscription] = {}
        self._numbers = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._wall_offset_ns = 0
        self._advice: AdviceReader | None = None

    # -- start and stop ------------------------------------------------------------------------------------------

    def effects(self) -> Mapping[type, EffectHandler]:
        return {HealthNews: self._news}

    def control(self) -> Mapping[str, Control]:
        from holdfast.runtime.health_control import HealthControl

        return {"health": HealthControl(self).answer, **stress_handlers(self._drive)}

    def attach(self, port: Port) -> None:
        """The node runs."""
        driver = self._driver = cast("Driver", port)
        self._service = driver.core.service(HealthService)
        self._links = driver.core.service(LinkService)
        self._wall_offset_ns = driver.core.wall_offset_ns
        self._check_clock()
        self._advice = AdviceReader(driver, ADVICE.of(port.config), driver.core.me.node.hex())
        self._advice.start()

    def halt(self, error: HoldfastError) -> None:
        """The node stops, and so does every subscription."""
        self._driver = None
        if self._advice is not None:
            self._advice.stop()
        if self._timer is not None:
            self._timer.cancel()
        for subscription in self._subscriptions.values():
            subscription.end(NodeStopped("the node has stopped; the subscription has ended"))
        self._subscriptions.clear()

    def _check_clock(self) -> None:
        """A clock that was set must not make 'thirty days ago' wrong."""
        if self._driver is None:
            return
        offset = time_ns() - monotonic_ns()
        if abs(offset - self._wall_offset_ns) > SECOND:
            self._wall_offset_ns = offset
            self._driver.offer(PATH_GOSSIP, WallClock(offset))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WALL_EVERY_S, self._check_clock)

    # -- queries -------------------------------------------------------------------------------------------------

    def table(self) -> list[PathState]:
        """Every path and packet kind, sorted."""
        return queries.states(self._path_gossip(), monotonic_ns())

    def incidents(self) -> list[Incident]:
        """Current errors with their likely causes."""
        return queries.incidents(self._path_gossip(), monotonic_ns())

    def find(self, size: int = 0, protocol: str = "", pattern: str = "", subnet: str = "") -> Found:
        """Adapters that can exchange packets of at least `size` bytes, with this protocol and this (hexadecimal)
        pattern, in both directions; in one subnet, or in any."""
        _one_of(protocol, ("", *KINDS), "protocol")
        if not 0 <= size <= 65_535:
            raise MisuseError(f"a packet has 0 to 65535 bytes, not {size}")
        if subnet:
            self._check_subnet(subnet)
        return queries.find(self._path_gossip(), size, protocol, pattern.lower(), subnet)

    def values(self, subnet: str) -> SubnetValues:
        """What passes between the adapters of a subnet."""
        self._check_subnet(subnet)
        return queries.values(self._path_gossip(), subnet)

    def report(self, adapter: str) -> str:
        """The raw report of an adapter (`member/adapter`): what its listeners receive from it."""
        node, name = self._adapter(adapter)
        signatures = self._running().health.signatures(self._links.subnet_of(node, name))
        return raw_report(self._path_gossip(), node, name, signatures)

    def explain(self, sender: str, listener: str) -> list[Explanation]:
        """The paths between two members (or two adapters, as `member/adapter`), in both directions, in words."""
        path_gossip, now = self._path_gossip(), monotonic_ns()
        one, two = self._end(sender), self._end(listener)
        paths = [
            path
            for path in queries.paths_between(path_gossip, one[0], two[0])
            if _is_end(path, one) and _is_end(path, two)
        ]
        if not paths:
            raise MisuseError(
                f"there is no measured path between {sender!r} and {listener!r}: they are not "
                "neighbours, and this node has no link to either of them over it"
            )
        return [queries.explain(path_gossip, path, now) for path in paths]

    def history(
        self,
        sender: str = "",
        listener: str = "",
        error_class: str = "",
        since: timedelta | None = None,
        limit: int = 1000,
    ) -> list[HistoryEntry]:
        """Past changes of the paths from and to this node, oldest first."""
        if error_class:
            _one_of(error_class, tuple(CLASSES), "class of error")
        path_gossip = self._path_gossip()
        wall = monotonic_ns() + path_gossip.wall_offset_ns
        since_ns = wall - int(since.total_seconds() * SECOND) if since is not None else 0
        ends = [(at, self._end(end)) for at, end in ((0, sender), (2, listener)) if end]
        found = [
            change
            for change in path_gossip.history.changes(None, error_class, since_ns)
            if all(_is_at(change.path, at, end) for at, end in ends)
        ]
        return [self._entry(change) for change in found[-limit:]]

    # -- commands ------------------------------------------------------------------------------------------------

    def reset(self, sender: str, listener: str, by: str, note: str = "") -> list[str]:
        """Clear the history of the paths from `sender` to `listener` after a repair. `by` is recorded. Returns the
        paths. Only paths of this node have a history here."""
        if not (is_text(by) and is_text(note) and by.strip()):
            raise MisuseError(
                "give the name of the person who resets the history, as text; nothing was reset"
            )
        one, two = self._end(sender), self._end(listener)
        path_gossip, me = self._path_gossip(), self._drive().core.me.node
        known = dict.fromkeys([*path_gossip.paths(), *path_gossip.history.paths()])
        paths = [
            path
            for path in known
            if me in (path[0], path[2]) and _is_at(path, 0, one) and _is_at(path, 2, two)
        ]
        if not paths:
            raise MisuseError(
                f"this node has no history of a path from {sender!r} to {listener!r}; nothing was "
                "reset. The nodes at the two ends of a path keep its history"
            )
        for path in paths:
            self._drive().offer(PATH_GOSSIP, ResetHistory(path, by, note))
        return [" -> ".join(path_gossip.ends(path)) for path in paths]

    def tune(
        self,
        signature: SignatureName,
        subnet: str = "",
        period_ms: int = 0,
        grace: int = 0,
        retry_ms: int = 0,
    ) -> None:
        """Change the heartbeat settings of a signature at run time; 0 leaves a value as it is, no subnet means all."""
        _one_of(signature, SIGNATURES, "signature")
        if subnet:
            self._check_subnet(subnet)
        _check_counts(period_ms=period_ms, grace=grace, retry_ms=retry_ms)
        if not (period_ms or grace or retry_ms):
            raise MisuseError(
                "give a period, a grace or a retry period above 0; nothing was changed"
            )
        tune = Tune(subnet, signature, period_ms * MILLISECOND, grace, retry_ms * MILLISECOND)
        self._drive().offer(HEALTH, tune)

    # -- subscriptions -------------------------------------------------------------------------------------------

    def subscribe(
        self,
        members: Iterable[str] = (),
        subnets: Iterable[str] = (),
        kinds: Iterable[str] = (),
        attributes: Iterable[str] = (),
        size_min: int = 0,
        size_below: int = 0,
        loss_ppm_min: int = 0,
        history: int = 0,
    ) -> Subscription:
        """Receive every change from now on; without arguments, of everything. Raises `MisuseError` for a filter that
        nothing can match. `history` is the number of past changes of this node's own paths in the snapshot."""
        _check_counts(
            size_min=size_min, size_below=size_below, loss_ppm_min=loss_ppm_min, history=history
        )
        wanted = Filter(
            members=tuple(self._members().member_id(name) for name in members),
            subnets=tuple(self._check_subnet(subnet) for subnet in subnets),
            kinds=tuple(_one_of(kind, KINDS, "kind") for kind in kinds),
            attributes=tuple(_one_of(name, ATTRIBUTES, "attribute") for name in attributes),
            size_min=size_min,
            size_below=size_below,
            loss_ppm_min=loss_ppm_min,
        )
        if len(self._subscriptions) >= CLIENTS_MAX:
            raise MisuseError(f"there are already {CLIENTS_MAX} subscriptions; close one first")
        driver = self._drive()
        number = next(self._numbers)
        subscription = self._subscriptions[number] = Subscription(self, number)
        driver.offer(PATH_GOSSIP, Subscribe(number, wanted, history))
        return subscription

    def unsubscribe(self, number: int) -> None:
        if self._subscriptions.pop(number, None) is not None and self._driver is not None:
            self._driver.offer(PATH_GOSSIP, Unsubscribe(number))

    def taken(self, number: int, taken: int) -> None:
        if self._driver is not None:
            self._driver.offer(PATH_GOSSIP, Taken(number, taken))

    def told(self, news: TableSnapshot | RowChange) -> PathSnapshot | PathChanged:
        """The item with names instead of ids."""
        if isinstance(news, RowChange):
            return PathChanged(self._state(news.before), self._state(news.after))
        states = [state for row in news.rows if (state := self._state(row)) is not None]
        history = tuple(self._entry(change) for change in news.history)
        return PathSnapshot(tuple(states), news.lagged, history)

    def _news(self, effect: HealthNews) -> None:
        subscription = self._subscriptions.get(effect.client)
        if subscription is not None:
            subscription.give(effect.news)

    # -- names ---------------------------------------------------------------------------------------------------

    def _state(self, row: PathRow | None) -> PathState | None:
        if row is None:
            return None
        return queries.state(self._path_gossip(), path_of(row), row, monotonic_ns())

    def _entry(self, change: PathChange) -> HistoryEntry:
        path_gossip = self._path_gossip()
        sender, listener = path_gossip.ends(change.path)
        return HistoryEntry(
            at=datetime.fromtimestamp(change.at_ns / SECOND, UTC),
            sender=sender,
            listener=listener,
            transport=change.kind,
            errors=change.errors,
            text=queries.change_text(path_gossip, change),
            by=change.by,
            note=change.note,
        )

    def _end(self, text: str) -> tuple[NodeId, str]:
        """`member` or `member/adapter`."""
        name, _, adapter = text.partition("/")
        return self._members().member_id(name), adapter

    def _adapter(self, text: str) -> tuple[NodeId, str]:
        node, adapter = self._end(text)
        known = [info.name for info in self._links.member(node).adapters]
        if adapter not in known:
            name = text.partition("/")[0]
            choices = ", ".join(f"{name}/{one}" for one in known)
            raise MisuseError(f"{text!r} is not an adapter; {name} has {choices}")
        return node, adapter

    def _check_subnet(self, subnet: str) -> str:
        known = self._members().subnets()
        return _one_of(subnet, tuple(known), "subnet")

    def _path_gossip(self) -> PathGossipMachine:
        return self._running().path_gossip

    def _running(self) -> HealthService:
        if self._service is None:
            raise NodeStopped("the node is not running; nothing is known")
        return self._service

    def _members(self) -> LinkService:
        self._running()
        return self._links

    def _drive(self) -> Driver:
        self._running()
        if self._driver is None:
            raise NodeStopped("the node has stopped; nothing was done")
        return self._driver


def _is_at(path: PathKey, at: int, end: tuple[NodeId, str]) -> bool:
    """Whether a path begins (0) or ends (2) at a member, or at one adapter of it."""
    node, adapter = end
    return path[at] == node and adapter in ("", path[at + 1])


def _is_end(path: PathKey, end: tuple[NodeId, str]) -> bool:
    return _is_at(path, 0, end) or _is_at(path, 2, end)


def _check_counts(**counts: object) -> None:
    """Validates values for a unit: they may come from a program on the other side of a socket."""
    for name, value in counts.items():
        if type(value) is not int or value < 0:
            raise MisuseError(
                f"{name} must be an integer of 0 or more, not {value!r}; nothing was changed"
            )


def _one_of(value: str, known: tuple[str, ...], what: str) -> str:
    if value not in known:
        near = get_close_matches(value, known, n=1, cutoff=0.5)
        choices = (
            f"did you mean {near[0]!r}?" if near else f"known: {', '.join(filter(None, known))}"
        )
        raise MisuseError(f"{value!r} is not a {what}; {choices}")
    return value
