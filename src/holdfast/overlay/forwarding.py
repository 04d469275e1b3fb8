"""Forwarding: where a message goes from here (seed: 'Forwarding a Message', 'Sending to Remote Nodes')."""

from __future__ import annotations

from typing import Final

from holdfast.overlay.frames import (
    GONE,
    RECOVER,
    REFUSED,
    Message,
)
from holdfast.overlay.ids import node_of
from holdfast.overlay.message_table import MessageTable
from holdfast.overlay.records import Record
from holdfast.overlay.recovery import UNKNOWN
from holdfast.overlay.roles import LocalRole
from holdfast.overlay.seen import shortened
from holdfast.overlay.trees import RoleState
from holdfast.types import MILLISECOND, NodeId

FORWARD_TRIES: Final = 3
HOPS_MAX: Final = 60


class Forwarding(MessageTable):
    def _forward(self, record: Record) -> None:
        message = record.message
        local = self._local.get(message.tree, message.role)
        if message.instance or message.direct:
            self._forward_named(record, local)
            return
        state = self._cache.role(message.tree, message.role)
        if message.one and self._forward_one(record, local, state):
            return
        # rule: O-7b
        if record.recovered < FORWARD_TRIES and self._recoveries.needed(message, local, state):
            self._recover(record)
            return
        record.forwarded = record.sending = True
        links = self._links(record, state)
        if local is not None:
            self._deliver(record, local, not links)
        if message.one:
            self._send_one(record, state, links)
        elif message.hops < HOPS_MAX:
            for link in links:
                late = state is not None and link in state.draining
                self._copy(record, link, self._ids_over(state, link), late)
        if local is None and not record.trace.sent:
            self._dead_end(record, state)
        record.sending = False
        if not record.pending:
            self._check(record)

    def _forward_one(
        self, record: Record, local: LocalRole | None, state: RoleState | None
    ) -> bool:
        """To the local instance, or over any route. False when there is neither: routes must be recovered first."""
        if local is not None:
            record.forwarded = record.good = True
            endpoint = state is None or not state.routes or not self._links(record, state)
            self.deliveries.deliver(record, local, endpoint)
            if not record.tokens:
                self._check(record)
            return True
        links = self._links(record, state)
        if not links:
            return False
        record.forwarded = True
        self._send_one(record, state, links)
        if not record.pending:
            self._check(record)
        return True

    def _recover(self, record: Record) -> None:
        message = record.message
        key = (message.tree, message.role)
        if self._waiting.get(key, 0) >= self._hub.config.waiting_max:
            self._hub.count("waiting_full")
            record.fail((), REFUSED, "too many messages wait for the recovery of this role")
            self._check(record)
            return
        self._waiting[key] = self._waiting.get(key, 0) + 1
        record.waiting = "recovery"
        record.recovered += 1

        def done(outcome: str) -> None:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
            record.waiting = ""
            if record.done:
                return
            if outcome == UNKNOWN:
                record.unknown = True
                record.recovered = FORWARD_TRIES
            self._forward(record)

        self._recoveries.recover(*key, message.realm_only, message.one, done)

    def _links(self, record: Record, state: RoleState | None) -> list[NodeId]:
        if state is None or not state.routes:
            return []
        hub, realm_only = self._hub, record.message.realm_only
        incoming, sent, neighbours = record.incoming, record.trace.sent, hub.neighbours
        links = state.links_known
        if links is None:
            links = state.links()
        if state.draining and not record.message.one:
            links = self._with_draining(state, links)
        usable: list[NodeId] = []
        for link in links:
            if link == incoming or link in sent:
                continue
            neighbour = neighbours.get(link)
            if neighbour is None or not (neighbour.echoed and neighbour.epoch):
                continue
            # rule: O-built-4a
            if not realm_only or neighbour.realm == hub.realm:
                usable.append(link)
        return usable

    def _with_draining(self, state: RoleState, links: list[NodeId]) -> list[NodeId]:
        """A route that moved: for a while messages take the old way as well, until the instances there have linked."""
        now = self._hub.now
        for link in [link for link, until in state.draining.items() if until <= now]:
            del state.draining[link]
        return [*links, *(link for link in state.draining if link not in links)]

    def _ids_over(self, state: RoleState | None, link: NodeId) -> tuple[bytes, ...]:
        """Instances that are expected behind a link: those on nodes that are alive, as far as we know."""
        if state is None:
            return ()
        alive = self._builder.alive
        return tuple([instance for instance in state.ids_over(link) if alive(instance)])

    def _copy(
        self,
        record: Record,
        link: NodeId,
        ids: tuple[bytes, ...],
        late: bool,
        prefer: bytes = b"",
    ) -> None:
        """Send the message over a link, and note that the link owes a last reply."""
        message = record.message
        ttl_ms = shortened(record.deadline - self._hub.now) // MILLISECOND
        onward = Message(
            message.request,
            message.attempt,
            message.tree,
            message.role,
            message.protocol,
            message.data,
            ttl_ms if ttl_ms > 0 else 1,
            message.hops + 1,
            message.instance,
            prefer,
            message.one,
            message.aggregate,
            message.one_way,
            message.realm_only,
            late or message.late,
            message.direct,
            message.taker,
            message.trace,
            record.trace.entry,
        )
        record.trace.sent[link] = late
        if not self._flow.send(link, onward):
            if message.one_way:
                self._hub.event(
                    "dropped", tree=message.tree, role=message.role, detail="queue full"
                )
            record.fail(ids, REFUSED, "queue full")
            return
        if not message.one_way:
            # rule: O-17a
            if ids:
                record.expect(ids)
            record.pending[link] = ids

    # -- one instance --------------------------------------------------------------------------------------------------

    def _send_one(self, record: Record, state: RoleState | None, links: list[NodeId]) -> None:
        """The nearest instance in the own realm, then any other; ties by instance id. One candidate at a time."""
        if state is None or not links or record.message.hops >= HOPS_MAX:
            return
        hub, prefer = self._hub, record.message.prefer
        best = next(iter(state.routes.values()))
        if len(state.routes) > 1:
            allowed = dict.fromkeys(links, True)
            best = min(
                [route for route in state.routes.values() if route.link in allowed],
                key=lambda r: (
                    r.instance != prefer,
                    r.dummy,
                    not hub.inside(r.link),
                    hub.neighbours[r.link].hop_ns * max(r.hops, 1),
                    r.hops,
                    r.instance,
                ),
            )
        self._copy(record, best.link, (), False, b"" if best.dummy else best.instance)

    def _forward_named(self, record: Record, local: LocalRole | None) -> None:
        """Only for one instance: deliver it, follow its route, or look for it at its node."""
        message = record.message
        if local is not None and (not message.instance or local.instance == message.instance):
            record.forwarded = True
            state = self._cache.role(message.tree, message.role)
            self._deliver(record, local, not self._links(record, state))
            self._check(record)
            return
        state = self._cache.role(message.tree, message.role)
        route = state.routes.get(message.instance) if state is not None else None
        usable = (
            route is not None
            and route.link != record.incoming
            and self._hub.is_open(route.link)
            and (not message.realm_only or self._hub.inside(route.link))
            and message.hops < HOPS_MAX
        )
        if message.direct or node_of(message.instance) == self._hub.me:
            record.conclude(message.instance or self._own_id(record), GONE)
            record.not_found = True
        elif usable and route is not None:
            record.forwarded = True
            self._copy(record, route.link, (message.instance,), False)
        elif record.recovered < 1:
            self._find_named(record)
            return
        else:
            record.conclude(message.instance, GONE)
            record.not_found = True
        self._check(record)

    def _find_named(self, record: Record) -> None:
        message = record.message
        record.recovered += 1
        frame = self._waves.wave(
            RECOVER, message.tree, message.role, realm_only=message.realm_only, any_one=True
        )
        sends = self._waves.directed(frame, node_of(message.instance))
        record.waiting = "recovery"

        def done(_result: object) -> None:
            record.waiting = ""
            if not record.done:
                self._forward_named(record, self._local.get(message.tree, message.role))

        self._waves.begin(frame, sends, done)

    # -- where the way ends --------------------------------------------------------------------------------------------

    def _dead_end(self, record: Record, state: RoleState | None) -> None:
        """No instance here and none to send to: the role moved, the route that led here is stale, or there is none."""
        message, incoming = record.message, record.incoming
        record.recovered = FORWARD_TRIES
        if (
            incoming is not None
            and state is not None
            and state.repointed.get(incoming, 0) > self._hub.now
        ):
            record.moved = True
            return
        if incoming is not None and state is not None and state.routes:
            record.stale = True
            self._hub.count("stale_routes")
        else:
            record.not_found = True
        if incoming is not None and not message.one:
            # rule: O-stale-4a
            self.cycles.stale(incoming, message)

    def _deliver(self, record: Record, local: LocalRole, endpoint: bool) -> None:
        record.good = True
        self.deliveries.deliver(record, local, endpoint)

    def _route_added(self, tree: bytes, role: str, link: NodeId) -> None:
        """A route found while replies are pending gets the message too (seed: 'New Routes Built Behind Path')."""
        records = self._by_role.get((tree, role))
        if not records:
            return
        state = self._cache.role(tree, role)
        for record in list(records.values()):
            message = record.message
            if (
                record.forwarded
                and not message.one
                and not message.instance
                and not message.direct
                and link != record.incoming
                and link not in record.trace.sent
                and (not message.realm_only or self._hub.inside(link))
                and message.hops < HOPS_MAX
            ):
                # rule: O-message-2a
                self._copy(record, link, self._ids_over(state, link), True)

    def _own_id(self, record: Record) -> bytes:
        local = self._local.get(record.message.tree, record.message.role)
        return local.instance if local is not None else self._hub.me + bytes(16)

    def _ids_ahead(self, record: Record) -> list[bytes]:
        """The instances that a message which ends here was still to reach: our own, and those on other links than the
        one that it came over."""
        message = record.message
        if message.instance or message.one:
            named = message.instance or message.prefer
            return [named] if named else []
        local = self._local.get(message.tree, message.role)
        state = self._cache.role(message.tree, message.role)
        ids = [local.instance] if local is not None else []
        if state is not None:
            for link in state.links(record.incoming):
                ids += state.ids_over(link)
        return ids
