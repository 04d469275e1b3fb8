"""Subscribers: each gets a snapshot first, then every change once, in order.

A client reports how many changes it has processed; at most `WINDOW` are in flight. One that falls behind gets a new
snapshot once it has caught up, so it never misses anything without notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from holdfast.health.frames import PathRow
from holdfast.health.table.path_table import state_of
from holdfast.health.table.values import (
    Filter,
    HealthNews,
    PathChange,
    RowChange,
    Subscribe,
    TableSnapshot,
    Taken,
)
from holdfast.machine import Outbox
from holdfast.types import Nanos

WINDOW: Final = 1_000
CLIENTS_MAX: Final = 256

SubnetOf = Callable[[bytes, str], str]

ATTRIBUTES: Final = ("alive", "size", "holes", "patterns", "flows", "loss", "rtt", "jitter", "rate")


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
        """Number of clients per subnet; under the empty name those of all subnets."""
        found: dict[str, int] = {}
        for client in self._clients.values():
            for subnet in client.filter.subnets or ("",):
                found[subnet] = found.get(subnet, 0) + 1
        return found

    def lagging(self) -> int:
        """Number of clients that are behind and wait for a snapshot."""
        return sum(client.lags for client in self._clients.values())

    def subscribe(
        self,
        now: Nanos,
        asked: Subscribe,
        rows: Iterable[PathRow],
        history: Callable[[int], list[PathChange]],
        out: Outbox,
    ) -> bool:
        """Add a client; False if there are too many."""
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
        out.effect(HealthNews(number, TableSnapshot(now, passing, lagged, history)), True)

    def changed(
        self, now: Nanos, before: PathRow | None, after: PathRow | None, out: Outbox
    ) -> None:
        """A row of the table has changed: notify the clients whose filter matches."""
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
            out.effect(HealthNews(number, RowChange(now, old, new)), True)

    def passes(self, wanted: Filter, row: PathRow) -> bool:
        """Whether a row matches the filter of a client."""
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
