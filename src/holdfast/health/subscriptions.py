"""Clients that want to know: each gets a snapshot first, then every change once, in order.

A client says how many changes it has taken; at most `WINDOW` are on their way to it. One that falls behind is told
so and gets a fresh snapshot once it has caught up: it never misses anything without knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holdfast.health.history import PathChange
from holdfast.health.table import state_of
from holdfast.machine import Outbox
from holdfast.types import Nanos
from holdfast.wire.frames import PathRow

WINDOW: Final = 1_000
CLIENTS_MAX: Final = 256

SubnetOf = Callable[[bytes, str], str]

ATTRIBUTES: Final = ("alive", "size", "holes", "patterns", "flows", "loss", "rtt", "jitter", "rate")


class Filter(msgspec.Struct, frozen=True, gc=False):
    """What a client wants to hear of; empty fields let everything pass."""

    members: tuple[bytes, ...] = ()
    """Paths from or to any of these."""
    subnets: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """udp, tcp, frag, multicast"""
    attributes: tuple[str, ...] = ()
    """Only when one of these changes, of `ATTRIBUTES`."""
    size_min: int = 0
    """Only paths that pass packets of this size."""
    size_below: int = 0
    """Only paths that do not pass packets of this size."""
    loss_ppm_min: int = 0
    """Only paths that lose at least so many of a million packets."""


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """A client wants what passes the filter; one that is known already gets a new snapshot by a new filter."""

    client: int
    filter: Filter = Filter()
    history: int = 0
    """How many past changes of this node's own paths the snapshot has with it."""


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    client: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The client has taken so many changes off its queue."""

    client: int
    count: int


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """Everything that passes the filter now."""

    at_ns: Nanos
    rows: tuple[PathRow, ...]
    lagged: bool = False
    """The client was too slow: changes were left out, and this stands for them."""
    history: tuple[PathChange, ...] = ()


class Change(msgspec.Struct, frozen=True, gc=False):
    """A row is new (`before` is None), different, or does not pass the filter any more (`after` is None)."""

    at_ns: Nanos
    before: PathRow | None
    after: PathRow | None


class HealthNews(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: something for a client."""

    client: int
    news: Snapshot | Change


class _Client:
    __slots__ = ("filter", "history", "lags", "on_the_way")

    def __init__(self, asked: Subscribe) -> None:
        self.filter = asked.filter
        self.history = asked.history
        self.on_the_way = 0
        self.lags = False


class Subscriptions:
    """The clients of one node."""

    def __init__(self, subnet_of: SubnetOf) -> None:
        self._subnet_of = subnet_of
        self._clients: dict[int, _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def watchers(self) -> dict[str, int]:
        """How many clients watch each subnet; under the empty name those who watch all."""
        found: dict[str, int] = {}
        for client in self._clients.values():
            for subnet in client.filter.subnets or ("",):
                found[subnet] = found.get(subnet, 0) + 1
        return found

    def lagging(self) -> int:
        """How many clients are behind and wait for a snapshot."""
        return sum(client.lags for client in self._clients.values())

    def subscribe(
        self,
        now: Nanos,
        asked: Subscribe,
        rows: Iterable[PathRow],
        history: Callable[[int], list[PathChange]],
        out: Outbox,
    ) -> bool:
        """Take a client in; False when there are too many."""
        if asked.client not in self._clients and len(self._clients) >= CLIENTS_MAX:
            return False
        client = self._clients[asked.client] = _Client(asked)
        self._snapshot(now, asked.client, client, rows, tuple(history(client.history)), out)
        return True

    def unsubscribe(self, client: int) -> None:
        self._clients.pop(client, None)

    def taken(self, now: Nanos, item: Taken, rows: Iterable[PathRow], out: Outbox) -> None:
        client = self._clients.get(item.client)
        if client is None:
            return
        client.on_the_way = max(0, client.on_the_way - item.count)
        if client.lags and client.on_the_way == 0:
            client.lags = False
            self._snapshot(now, item.client, client, rows, (), out, lagged=True)

    def _snapshot(
        self,
        now: Nanos,
        number: int,
        client: _Client,
        rows: Iterable[PathRow],
        history: tuple[PathChange, ...],
        out: Outbox,
        lagged: bool = False,
    ) -> None:
        passing = tuple(row for row in rows if self.passes(client.filter, row))
        client.on_the_way += 1
        out.effect(HealthNews(number, Snapshot(now, passing, lagged, history)), True)

    def changed(
        self, now: Nanos, before: PathRow | None, after: PathRow | None, out: Outbox
    ) -> None:
        """A row of the table has changed: everybody whom it concerns hears of it."""
        for number, client in self._clients.items():
            old = before if before is not None and self.passes(client.filter, before) else None
            new = after if after is not None and self.passes(client.filter, after) else None
            if old is None and new is None:
                continue
            wanted = client.filter.attributes
            if wanted and old is not None and new is not None and not _differs(old, new, wanted):
                continue
            if client.lags or client.on_the_way >= WINDOW:
                client.lags = True
                continue
            client.on_the_way += 1
            out.effect(HealthNews(number, Change(now, old, new)), True)

    def passes(self, wanted: Filter, row: PathRow) -> bool:
        """Whether a row is what a client wants to hear of."""
        if wanted.kinds and row.transport not in wanted.kinds:
            return False
        if (
            wanted.members
            and row.sender not in wanted.members
            and row.listener not in wanted.members
        ):
            return False
        if wanted.subnets:
            subnet = self._subnet_of(row.listener, row.listener_adapter)
            if subnet not in wanted.subnets:
                return False
        carries = row.size if row.alive else 0
        if wanted.size_min and carries < wanted.size_min:
            return False
        if wanted.size_below and carries >= wanted.size_below:
            return False
        return row.loss_ppm >= wanted.loss_ppm_min


def _differs(before: PathRow, after: PathRow, wanted: tuple[str, ...]) -> bool:
    if state_of(before) == state_of(after) and not {"loss", "rtt", "jitter", "rate"} & set(wanted):
        return False
    return any(_VALUES[name](before) != _VALUES[name](after) for name in wanted)


_VALUES: Final[dict[str, Callable[[PathRow], object]]] = {
    "alive": lambda row: row.alive,
    "size": lambda row: (row.size, row.size_max),
    "holes": lambda row: row.holes,
    "patterns": lambda row: (row.patterns, row.bad_patterns),
    "flows": lambda row: (row.flows, row.flows_bad),
    "loss": lambda row: row.loss_ppm,
    "rtt": lambda row: row.rtt_us,
    "jitter": lambda row: row.jitter_us,
    "rate": lambda row: row.rate_kbps,
}
