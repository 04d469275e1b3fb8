"""The router: messages to roles, and replies on the way back (seed: 'Router').

A message is forwarded over the links of all routes to its role, except the one it came over. Each copy ends with
exactly one `last`; the node adds up what its copies say and passes one `last` on. So the sender knows when it has
everything: all replies, or a null that names what failed, or role-not-found. It needs no time-out of its own.
"""

from __future__ import annotations

import msgspec

from holdfast.overlay.checks import sound_message
from holdfast.overlay.frames import (
    CONSUMED,
    EXPIRED,
    HIDDEN,
    LINK_FAILED,
    NULL,
    SWEPT,
    Cancel,
    Message,
    Reply,
)
from holdfast.overlay.ids import TREE_SIZE, is_numbered, is_role
from holdfast.overlay.ports import CONSUME, Ended, SendToRole, Snooped
from holdfast.overlay.records import Record, Trace, record_key
from holdfast.overlay.replies import HIDDEN_ATTEMPT, Replies
from holdfast.types import MILLISECOND, NodeId


class Router(Replies):
    # -- sending -------------------------------------------------------------------------------------------------------

    def problem(self, request: SendToRole) -> str:
        """Why this cannot be sent; empty when it can."""
        config = self._hub.config
        if len(request.tree) != TREE_SIZE:
            return "a tree id has 16 bytes"
        if not is_role(request.role):
            return "a role name has 1 to 255 bytes"
        if len(request.data) > config.data_bytes_max:
            return f"more than {config.data_bytes_max} bytes"
        if request.one_way and (request.one or request.aggregate):
            return "a one-way message has no replies: neither one instance nor one reply can be asked for"
        if request.instance and not is_numbered(request.instance):
            return "an instance id has 32 bytes"
        if request.request and not is_numbered(request.request):
            return "a request id has 32 bytes"
        if not 0 <= request.protocol < 1 << 31 or not 0 <= request.attempt < HIDDEN_ATTEMPT:
            return "protocol id or attempt out of range"
        if len(self._records) >= config.pending_max:
            return "too many requests wait for replies"
        return ""

    def send(self, request: SendToRole, direct_link: NodeId | None = None) -> None:
        problem = self.problem(request)
        if problem:
            self._hub.count("send_refused")
            self._end(request.op, Ended(request.op, "refused", request.request, reason=problem))
            return
        config = self._hub.config
        lifetime = min(request.lifetime_ns or config.lifetime_ns, config.lifetime_ns_max)
        message = Message(
            request.request or self._hub.new_id(),
            request.attempt,
            request.tree,
            request.role,
            request.protocol,
            request.data,
            max(lifetime // MILLISECOND, 1),
            instance=request.instance,
            one=request.one,
            aggregate=request.aggregate and not request.one,
            one_way=request.one_way,
            realm_only=request.realm_only,
            # A re-send needs another id: the one of an earlier attempt may have been buried.
            taker=self._hub.new_id() if request.request and not request.one_way else b"",
            direct=direct_link is not None,
            trace=request.trace,
        )
        key = record_key(message.request, message.attempt)
        record = None
        # An id that was made just now cannot have been seen.
        if not request.request or self.seen.get(key, self._hub.now) is None:
            record = self._open(key, message, None, lifetime, request.op)
        if record is None:
            reason = "an attempt with this number is under way, or too many messages are remembered"
            self._end(request.op, Ended(request.op, "refused", message.request, reason=reason))
            return
        if direct_link is not None:
            record.forwarded = True
            self._copy(record, direct_link, (request.instance,), False)
            self._check(record)
        elif self._listeners.snoops:
            self._enter(record)
        else:
            self._forward(record)

    # -- arrival -------------------------------------------------------------------------------------------------------

    def received(self, peer: NodeId, message: Message) -> None:
        hub = self._hub
        neighbour = hub.neighbours[peer]
        neighbour.owed += 1
        if neighbour.owed * 2 >= hub.config.credit and not self._flow.arrived(neighbour):
            self._refuse(peer, message, "window ignored")
            return
        if not sound_message(message):
            hub.count("bad_message")
            return
        key = record_key(message.request, message.attempt)
        trace = self.seen.get(key, hub.now)
        if trace is not None:
            self._duplicate(peer, message, trace)
            return
        config = hub.config
        if (
            neighbour.pending >= config.pending_per_peer_max
            or len(self._records) >= config.pending_max
        ):
            hub.count("pending_full")
            # rule: O-2f
            self._refuse(peer, message, "too many requests wait for replies")
            return
        lifetime = min(message.ttl_ms * MILLISECOND, config.lifetime_ns_max)
        record = self._open(key, message, peer, lifetime)
        if record is None:
            self._refuse(peer, message, "too many messages are remembered")
        elif self._listeners.snoops:
            self._enter(record)
        else:
            self._forward(record)

    def _refuse(self, peer: NodeId, message: Message, reason: str) -> None:
        if not message.one_way and is_numbered(message.request):
            self._hub.send(
                peer,
                Reply(message.request, message.attempt, NULL, True, unknown=True, reason=reason),
            )
        else:
            self._hub.event("dropped", tree=message.tree, role=message.role, detail=reason)

    def _duplicate(self, peer: NodeId, message: Message, trace: Trace) -> None:
        """The copy ends here, hidden; the cycle is broken."""
        self._hub.count("duplicates")
        if not message.one_way:
            # rule: O-cycle-5a
            self._hub.send(
                peer, Reply(message.request, message.attempt, HIDDEN, True, reason="cycle")
            )
        # rule: O-cycle-3a
        self.cycles.duplicate(peer, message, trace)

    def _enter(self, record: Record) -> None:
        """Snoopers first, on every node of the way, the sender's and the receiver's included."""
        message, listeners = record.message, self._listeners
        port = listeners.snooper(message.tree, message.protocol)
        if port is None:
            self._forward(record)
            return
        has_role = self._local.get(message.tree, message.role) is not None
        state = self._cache.role(message.tree, message.role)
        endpoint = has_role and not (state and state.links(record.incoming))

        def decide(action: int, data: bytes) -> None:
            record.waiting = ""
            if record.done:
                return
            if action == CONSUME:
                record.conclude(self._own_id(record), CONSUMED)
                record.good = True
                # rule: O-2b
                self._check(record)
                return
            record.message = msgspec.structs.replace(record.message, data=data)
            self._forward(record)

        def swept() -> None:
            record.waiting = ""
            if not record.done:
                # rule: O-2d
                record.fail(self._ids_ahead(record), SWEPT, "swept: a snooper did not resume it")
                self._check(record)

        record.waiting = "snoop"
        snooped = Snooped(
            self._hub.next_number(),
            port,
            message.tree,
            message.role,
            message.protocol,
            message.data,
            False,
            message.request,
            endpoint,
            has_role,
        )
        if not self._listeners.show(snooped, decide, swept):
            record.waiting = ""
            self._forward(record)

    # -- links and time ------------------------------------------------------------------------------------------------

    def link_down(self, peer: NodeId) -> None:
        """A null for every copy whose last reply had not come; what came over the link has lost its way back."""
        for record in list(self._records.values()):
            if record.incoming == peer:
                record.orphan = True
            record.trace.sent.pop(peer, None)
            if peer in record.pending:
                ids = record.pending.pop(peer)
                # rule: O-17b
                record.fail(ids, LINK_FAILED, f"link to {peer[:4].hex()} failed")
                self._check(record)

    def _expire(self, record: Record) -> None:
        if record.message.one_way:
            self._finish(record)
            return
        self._hub.count("expired")
        for ids in list(record.pending.values()):
            record.fail(ids, EXPIRED, "expired")
        record.pending.clear()
        # rule: O-2e
        self.deliveries.withdraw(record, "expired", EXPIRED)
        record.fail((), EXPIRED, "expired")
        record.waiting = ""
        self._finish(record)

    # -- cancelling ----------------------------------------------------------------------------------------------------

    def cancel(self, op: int) -> None:
        record = self._ops.get(op)
        if record is not None and not record.done:
            record.cancelled = True
            self._drop(record)

    def cancelled(self, peer: NodeId, frame: Cancel) -> None:
        record = self._records.get(record_key(frame.request, frame.attempt))
        if record is None or record.incoming != peer:
            self._hub.count("cancel_without_request")
            return
        record.cancelled = record.orphan = True
        self._hub.neighbours[peer].pending -= 1
        self._drop(record)

    def _drop(self, record: Record) -> None:
        message = record.message
        for link in record.pending:
            self._hub.send(link, Cancel(message.request, message.attempt))
        record.pending.clear()
        record.waiting = ""
        self.deliveries.withdraw(record, "cancelled", EXPIRED)
        self._finish(record)

    # -- for others ----------------------------------------------------------------------------------------------------

    def check(self, record: Record) -> None:
        self._check(record)

    def release(self, tree: bytes, role: str) -> None:
        """A role that moved has arrived: messages that waited for that go on."""
        for record in list(self._by_role.get((tree, role), {}).values()):
            if record.waiting == "moving":
                record.waiting = ""
                self._forward(record)
