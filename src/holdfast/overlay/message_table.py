"""The messages that a node has under way, with a bound, and what the parts of the router share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.overlay.builder import Builder
from holdfast.overlay.cycles import Cycles
from holdfast.overlay.delivery import Deliveries
from holdfast.overlay.flow import Flow
from holdfast.overlay.frames import (
    Message,
    Part,
)
from holdfast.overlay.hub import Hub
from holdfast.overlay.listeners import Listeners
from holdfast.overlay.ports import Ended
from holdfast.overlay.records import Record, Trace, record_key
from holdfast.overlay.recovery import Recoveries
from holdfast.overlay.roles import LocalRoles
from holdfast.overlay.seen import MARGIN_NS, Seen, lifetime_at_sender
from holdfast.overlay.trees import TreeCache
from holdfast.overlay.waves import Waves
from holdfast.types import MILLISECOND, SECOND, Nanos, NodeId

ONE_WAY_NS: Final = 3 * SECOND
"""How long a one-way message is kept for routes that are found behind it."""
SLOT_NS: Final = 4 * MILLISECOND


class MessageTable:
    def __init__(
        self,
        hub: Hub,
        waves: Waves,
        cache: TreeCache,
        local: LocalRoles,
        builder: Builder,
        recoveries: Recoveries,
        listeners: Listeners,
        flow: Flow,
    ) -> None:
        self._hub = hub
        self._waves = waves
        self._cache = cache
        self._local = local
        self._builder = builder
        self._recoveries = recoveries
        self._listeners = listeners
        self._flow = flow
        self._records: dict[bytes, Record] = {}
        self._by_role: dict[tuple[bytes, str], dict[bytes, Record]] = {}
        self._ops: dict[int, Record] = {}
        self._expiring: dict[int, list[bytes]] = {}
        """Keys of records by the slot of time in which they expire."""
        self._waiting: dict[tuple[bytes, str], int] = {}
        self.seen: Seen[Trace] = Seen(hub.config.seen_max)
        self.cycles = Cycles(hub, cache, builder, self.seen)
        self.deliveries = Deliveries(hub, listeners, self._part, self._check)
        self.on_part: Callable[[Record, Part, NodeId | None], Part | None] = (
            lambda _record, part, _link: part
        )
        """To the grants: a part passes; None holds it back."""
        self.on_orphan: Callable[[Part], None] = lambda *_: None
        """To the grants: a part whose request is over."""
        self.hooks: dict[int, tuple[Callable[[Part], None], Callable[[Ended], None]]] = {}
        """Requests of the overlay itself, by op: they get replies and the end instead of the application."""
        builder.route_added = self._route_added

    def _open(
        self,
        key: bytes,
        message: Message,
        incoming: NodeId | None,
        lifetime: Nanos,
        op: int = 0,
    ) -> Record | None:
        """A record for a message that was not seen before; None when it cannot be remembered."""
        hub, records = self._hub, self._records
        if key in records:
            return None
        now, whole, entry = hub.now, lifetime, message.entry
        if incoming is not None:
            if hub.neighbours[incoming].realm != hub.realm:
                entry = hub.me
            # rule: O-18d
            whole = lifetime_at_sender(lifetime, message.hops)
        longest = hub.config.lifetime_ns_max
        remembered = now + min(whole, longest) + MARGIN_NS
        trace = Trace(incoming, entry, message.late)
        if not self.seen.put(key, trace, now, remembered):
            hub.count("seen_full")
            return None
        until = now + lifetime
        record = records[key] = Record(key, message, trace, until, op)
        record.remembered = remembered
        name = (message.tree, message.role)
        of_role = self._by_role.get(name)
        if of_role is None:
            of_role = self._by_role[name] = {}
        of_role[key] = record
        if op:
            self._ops[op] = record
        slot = (min(until, now + ONE_WAY_NS) if message.one_way else until) // SLOT_NS + 1
        keys = self._expiring.get(slot)
        if keys is None:
            self._expire_later(slot, key)
        else:
            keys.append(key)
        if incoming is not None:
            hub.neighbours[incoming].pending += 1
        return record

    def _expire_later(self, slot: int, key: bytes) -> None:
        """Records that expire at about the same time share a timer; most of them end long before."""
        self._expiring[slot] = [key]
        self._hub.after(slot * SLOT_NS - self._hub.now, lambda: self._expire_slot(slot))

    def _expire_slot(self, slot: int) -> None:
        for key in self._expiring.pop(slot):
            record = self._records.get(key)
            if record is not None:
                self._expire(record)

    def _close(self, record: Record) -> None:
        assert not record.done
        record.done = True
        del self._records[record.key]
        key = (record.message.tree, record.message.role)
        of_role = self._by_role[key]
        del of_role[record.key]
        if not of_role:
            del self._by_role[key]
        if record.op:
            self._ops.pop(record.op, None)
        if record.incoming is not None and not record.orphan:
            neighbour = self._hub.neighbours.get(record.incoming)
            if neighbour is not None:
                neighbour.pending -= 1

    def _end(self, op: int, ended: Ended) -> None:
        hook = self.hooks.pop(op, None)
        if hook is not None:
            hook[1](ended)
        else:
            self._hub.effect(ended)

    # -- for others ----------------------------------------------------------------------------------------------------

    def records(self) -> int:
        return len(self._records)

    def record(self, request: bytes, attempt: int) -> Record | None:
        return self._records.get(record_key(request, attempt))

    def under_way(self, tree: bytes, role: str) -> list[bytes]:
        """The keys of this node's own requests to a role."""
        records = self._by_role.get((tree, role), {})
        return [key for key, record in records.items() if record.incoming is None]

    def is_under_way(self, key: bytes) -> bool:
        return key in self._records

    def sweep(self) -> None:
        self.seen.sweep(self._hub.now)
        self.deliveries.cache.sweep(self._hub.now)

    # -- what the router adds ------------------------------------------------------------------------------------

    def _part(self, record: Record, part: Part, link: NodeId | None) -> None:
        raise NotImplementedError

    def _check(self, record: Record) -> None:
        raise NotImplementedError

    def _route_added(self, tree: bytes, role: str, link: NodeId) -> None:
        raise NotImplementedError

    def _expire(self, record: Record) -> None:
        raise NotImplementedError
