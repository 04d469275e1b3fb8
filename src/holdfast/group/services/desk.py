"""The leader's side of the group services: requests become entries, and committed entries become answers.

An entry acts when it is committed, in `fast` groups too. A request that is repeated is answered from the tables. A
lease runs by log time. It frees a lock; what protects against a holder that was cut off is the token. The leader
expires a lease by an entry, after the renewals that have arrived, and only if it was in contact with a majority after
the lease had run out: otherwise another replica may lead and have renewed it. A new leader waits for a full lease, and
one that was delayed itself until it has heard what waited.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.group.config import services_unit
from holdfast.group.consensus.replication import Replication
from holdfast.group.core import Core
from holdfast.group.facts import LeaseFact
from holdfast.group.log.entries import decode_data, encode_data
from holdfast.group.log.order import Order
from holdfast.group.log.replicated_log import Kind
from holdfast.group.peers import post
from holdfast.group.services.frames import OPS_MAX, ServiceAnswer, ServiceReply, ServiceRequest
from holdfast.group.services.lock_facts import lock_facts, touched
from holdfast.group.services.tables import ServiceTables
from holdfast.group.services.values import (
    Event,
    LifeState,
    Op,
    Outcome,
    Pending,
    Served,
    ServiceOp,
    is_sound_op,
)
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId

FROM_NODES: Final = (Op.ACQUIRE, Op.RELEASE, Op.RENEW, Op.ARRIVE)
Life = tuple[bytes, int]


class ServiceDesk:
    """Services, while this replica leads."""

    def __init__(self, core: Core, order: Order, replication: Replication) -> None:
        self._core = core
        self._log = core.log
        self._order = order
        self._replication = replication
        self._committed = ServiceTables()
        """The result of committed entries."""
        self._indexes: deque[int] = deque()
        """Entries of services that are not committed yet."""
        self._full_ns: Nanos = 0
        """Log time from which all leases run at the earliest."""
        self._due_ns: Nanos = NEVER
        """Log time before which no lease runs out."""
        self._grace_ns: Nanos = 0
        """Log time before which nothing expires: renewals may wait to be processed."""
        self._peers_seen = -1
        self._answers: dict[Life, list[ServiceAnswer]] = {}
        self.grants = 0
        self.expired = 0

    @property
    def tables(self) -> ServiceTables:
        """The result of committed entries."""
        return self._committed

    def begin(self, now: Nanos) -> None:
        log = self._log
        self._committed = log.cursor_at(log.commit).metadata.services.copy()
        first = log.commit + 1
        entries = log.entries(first, log.last - log.commit)
        self._indexes = deque(entry.index for entry in entries if entry.kind == Kind.SERVICE)
        self._answers = {}
        self._peers_seen = -1
        # rule: S-12c
        self._full_ns = self._due_ns = self._order.log_ns(now)
        self._grace_ns = 0

    def was_late(self, now: Nanos) -> None:
        """This process did not run in time: renewals may wait. Nothing expires for a moment, but at most half of the
        time."""
        log_ns, election_ns = self._order.log_ns(now), self._core.config.election_ns
        if log_ns >= self._grace_ns + election_ns:
            self._grace_ns = log_ns + election_ns

    # -- requests ------------------------------------------------------------------------------------------------

    def take(self, node: NodeId, frame: ServiceRequest, now: Nanos, out: Outbox) -> None:
        """Operations of a node. What is not in the log becomes an entry; what is committed is answered at once."""
        for op in frame.ops[:OPS_MAX]:
            if not is_sound_op(op) or op.op not in FROM_NODES or frame.heard < 0:
                self._core.ignore("service")
                continue
            tail = self._log.tail.metadata.services
            # rule: S-13a
            is_new = op.op == Op.RENEW or tail.outcome(node, frame.incarnation, op) is None
            why = self._why_not(op) if is_new else ""
            if why:
                self._answer(Event(node, frame.incarnation, op.number, Outcome.REFUSED, why=why))
            elif is_new:
                self._append(Served(node, frame.incarnation, frame.heard, op), now, out)
            else:
                known = self._committed.outcome(node, frame.incarnation, op)
                if known is not None:
                    self._answer(known)
                self._renew_if_old(node, frame, op, now, out)

    def _renew_if_old(
        self, node: NodeId, frame: ServiceRequest, op: ServiceOp, now: Nanos, out: Outbox
    ) -> None:
        """A node that repeats a request has not heard that it is pending, so it does not renew it."""
        life = self._log.tail.metadata.services.lives.get(node)
        if life is None or life.incarnation != frame.incarnation or not op.lease_ns:
            return
        is_pending = any(number == op.number for number, _ in life.requests)
        if is_pending and self._order.log_ns(now) - life.renewed_ns > op.lease_ns // 4:
            renew = ServiceOp(Op.RENEW, 0)
            self._append(Served(node, frame.incarnation, frame.heard, renew), now, out)

    def _why_not(self, op: ServiceOp) -> str:
        """Why an arrival is refused at once. Nodes that are away count: they may come back."""
        if op.op != Op.ARRIVE or op.phase > 1:
            return ""
        core = self._core
        nodes = len(dict.fromkeys((*core.config.replicas, core.name, *core.peers.names.values())))
        if op.parties > nodes:
            return f"barrier {op.name} has {op.parties} parties, but {nodes} nodes are known"
        return ""

    def _append(self, served: Served, now: Nanos, out: Outbox) -> bool:
        """An operation that finds the log full is dropped, and False returned: the node repeats it."""
        if len(self._log) >= self._core.config.log_entries:
            self._core.ignore("log full")
            return False
        self._order.append(Kind.SERVICE, None, 0, 0, encode_data(served), now, out)
        self._indexes.append(self._log.last)
        if self._waits(served):
            self._replication.let_wait(now)
        if served.op.lease_ns:
            self._due_ns = min(self._due_ns, self._log.tail.log_ns + served.op.lease_ns)
        return True

    def _waits(self, served: Served) -> bool:
        """Whether a request waits for others, so that its commit changes nothing: a place in the queue of a lock, or an
        arrival at a barrier that is not full. The entry that ends the wait carries it along."""
        if served.op.op not in (Op.ACQUIRE, Op.ARRIVE):
            return False
        tables = self._log.tail.metadata.services
        event = tables.outcome(served.node, served.incarnation, served.op)
        return event is not None and event.outcome in (Outcome.QUEUED, Outcome.WAITING)

    # -- leases --------------------------------------------------------------------------------------------------

    def settle(self, now: Nanos, out: Outbox) -> None:
        """End the lives that are over, and expire leases."""
        if self._core.peers.changed != self._peers_seen:
            self._peers_seen = self._core.peers.changed
            self._end_lives(now, out)
        if self._order.log_ns(now) >= self._due_ns:
            self._expire(now, out)

    def _end_lives(self, now: Nanos, out: Outbox) -> None:
        """A node that restarted holds nothing. Its new incarnation says so by itself only when it asks for more."""
        peers, core = self._core.peers, self._core
        for life in list(self._log.tail.metadata.services.lives.values()):
            peer = peers.at(NodeId(life.node))
            incarnation = peer.incarnation if peer is not None else life.incarnation
            if life.node == core.node:
                incarnation = core.incarnation
            # rule: S-13d
            if life.requests and incarnation > life.incarnation:
                renew = ServiceOp(Op.RENEW, 0)
                if not self._append(Served(life.node, incarnation, 0, renew), now, out):
                    self._peers_seen = -1  # again in the next turn

    def _expire(self, now: Nanos, out: Outbox) -> None:
        """Expire what has run out, and find out when the next lease does."""
        log_ns = self._order.log_ns(now)
        # rule: S-12d
        if log_ns < self._grace_ns:
            self._due_ns = self._grace_ns
            return
        contact_ns = log_ns - self._replication.contact_ns(now)
        self._due_ns = NEVER
        for life in list(self._log.tail.metadata.services.lives.values()):
            for number, pending in life.requests:
                due_ns = self._lease_end(life, pending)
                expire = Served(life.node, life.incarnation, 0, ServiceOp(Op.EXPIRE, number))
                # rule: S-12b
                if due_ns <= contact_ns and self._append(expire, now, out):
                    self.expired += 1
                    self._record(life, pending, now, out)
                else:
                    again_ns = log_ns + self._core.config.append_period_ns
                    self._due_ns = min(self._due_ns, due_ns if due_ns > log_ns else again_ns)

    def _record(self, life: LifeState, pending: Pending, now: Nanos, out: Outbox) -> None:
        group, lease_ms = self._core.config.name, pending.lease_ns // MILLISECOND
        holder = life.node.hex()
        out.fact(LeaseFact(now, group, pending.name, holder, lease_ms, pending.is_lock))

    def _lease_end(self, life: LifeState, pending: Pending) -> Nanos:
        return max(life.renewed_ns, pending.since_ns, self._full_ns) + pending.lease_ns

    def deadline(self) -> Nanos:
        return NEVER if self._due_ns == NEVER else self._due_ns - self._order.ahead_ns

    # -- answers -------------------------------------------------------------------------------------------------

    def committed(self, now: Nanos, out: Outbox) -> None:
        """Entries were committed: they take effect, and the nodes that asked get an answer."""
        log = self._log
        # rule: S-13b
        while self._indexes and self._indexes[0] <= log.commit:
            entry = log.entry(self._indexes.popleft())
            served = decode_data(entry)
            before = touched(self._committed, served)
            for event in self._committed.apply(entry.index, entry.log_ns, served):
                self.grants += event.outcome == Outcome.HELD and event.value == entry.index
                self._answer(event)
            if before:
                at, group = (entry.term, entry.index), self._core.config.name
                locks, epoch = self._committed.locks, self._core.group_epoch
                for fact in lock_facts(now, group, epoch, at, served.op.op, before, locks):
                    out.fact(fact)
        if self._answers:
            self._send(now, out)

    def _answer(self, event: Event) -> None:
        answer = ServiceAnswer(event.number, event.outcome, event.value, event.phase, event.why)
        self._answers.setdefault((event.node, event.incarnation), []).append(answer)

    def _send(self, now: Nanos, out: Outbox) -> None:
        answers, self._answers = self._answers, {}
        group, epoch = self._core.config.name, self._core.group_epoch
        for (node, incarnation), rows in answers.items():
            reply = ServiceReply(group, incarnation, epoch, tuple(rows))
            reply_to(self._core, NodeId(node), reply, now, out)


def reply_to(core: Core, node: NodeId, reply: ServiceReply, now: Nanos, out: Outbox) -> None:
    """Answer a node; it may be this one."""
    if node == core.node:
        out.up(services_unit(core.config.name), Received(node, [reply], now))
    elif core.peers.at(node) is not None:
        post(out, [node], reply)
