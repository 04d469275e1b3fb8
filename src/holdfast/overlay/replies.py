"""Replies: adding up what the copies of a message say, and passing one `last` on (seed: 'Replying To a Message')."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.overlay.checks import sound_reply
from holdfast.overlay.forwarding import FORWARD_TRIES, Forwarding
from holdfast.overlay.frames import (
    ANSWERED,
    DATA_REPLY,
    END,
    GONE,
    HIDDEN,
    MOVED,
    NOT_FOUND,
    NULL,
    OUTCOMES,
    REFUSED,
    SWEPT,
    Part,
    Reply,
)
from holdfast.overlay.ids import node_of
from holdfast.overlay.ports import CONSUME, Ended, Replied, Snooped
from holdfast.overlay.records import Record, record_key
from holdfast.types import MILLISECOND, NodeId

HIDDEN_ATTEMPT: Final = 1 << 24
"""Attempts of the router itself are counted above those of the application."""
HELD_MAX: Final = 1024
"""Replies to one request that wait behind the one that a snooper is shown."""
PART_BYTES: Final = 100
"""What a part takes besides its data."""
_NOTHING: Final[dict[NodeId, tuple[bytes, ...]]] = {}
_KINDS: Final = {END: "done", NULL: "null", NOT_FOUND: "not_found", HIDDEN: "not_found"}


class Replies(Forwarding):
    def replied(self, peer: NodeId, reply: Reply) -> None:
        if not sound_reply(reply):
            self._hub.count("bad_reply")
            return
        record = self._records.get(record_key(reply.request, reply.attempt))
        pending = record.pending if record is not None else _NOTHING
        if record is None or peer not in pending:
            self._hub.count("reply_without_request")
            for part in reply.parts:
                self.on_orphan(part)
            return
        record.closing = reply.last and len(pending) == 1 and not record.tokens
        for part in reply.parts:
            self._part(record, part, peer)
        record.closing = False
        if not reply.last:
            return
        ids = pending.pop(peer)
        record.merge(reply)
        if reply.kind not in (END, NULL):
            self._led_nowhere(record, reply, peer, ids)
        self._check(record)

    def _led_nowhere(
        self, record: Record, reply: Reply, peer: NodeId, ids: tuple[bytes, ...]
    ) -> None:
        """A copy reached no instance: the route was stale, the role moved, or there is none behind the link."""
        if reply.kind == HIDDEN and reply.reason == "stale":
            record.stale = True
            for instance in ids:
                if instance not in record.outcomes:
                    record.conclude(instance, GONE)
        if reply.kind == MOVED:
            self._moved(record, peer)
        if reply.kind in (NOT_FOUND, HIDDEN) and record.message.one and not record.pending:
            # rule: O-message-1a
            self._next_candidate(record)

    def _part(self, record: Record, part: Part, link: NodeId | None) -> None:
        """A reply, of a local listener (`link` is None) or from a copy, goes on towards the sender."""
        if part.grant:
            passed = self.on_part(record, part, link)
            if passed is None:
                return
            part = passed
        elif record.closing and not record.op and not self._listeners.snoops:
            record.parts.append(part)  # travels with our own `last`
            return
        if self._listeners.snoops and self._snooper(record) is not None:
            if len(record.held) >= HELD_MAX:
                self._too_many(record, part)
                return
            record.held.append(part)
            if len(record.held) == 1:
                self._show_reply(record)
            return
        self._pass_part(record, part)

    # -- replies at a snooper ------------------------------------------------------------------------------------------

    def _snooper(self, record: Record) -> int | None:
        return self._listeners.snooper(record.message.tree, record.message.protocol)

    def _show_reply(self, record: Record) -> None:
        """Show the first reply that is held; the others wait behind it, so that replies keep their order."""
        while record.held:
            port = self._snooper(record)
            if port is not None and self._show(record, port, record.held[0]):
                return
            # The port was closed, or too many messages are held: it passes unseen.
            self._pass_part(record, record.held.pop(0))
        self._check(record)

    def _show(self, record: Record, port: int, part: Part) -> bool:
        def decide(action: int, data: bytes) -> None:
            del record.held[0]
            if not record.done and action != CONSUME:
                self._pass_part(record, msgspec.structs.replace(part, data=data))
            # rule: O-2c
            self._show_reply(record)

        def swept() -> None:
            del record.held[0]
            if not record.done:
                record.fail((part.instance,), SWEPT, "swept: a snooper did not resume a reply")
            self._show_reply(record)

        message = record.message
        snooped = Snooped(
            self._hub.next_number(),
            port,
            message.tree,
            message.role,
            message.protocol,
            part.data,
            True,
            message.request,
            record.incoming is None,
            node_of(part.instance) == self._hub.me,
        )
        return self._listeners.show(snooped, decide, swept)

    def _pass_part(self, record: Record, part: Part) -> None:
        message = record.message
        hook = self.hooks.get(record.op) if record.op else None
        if hook is not None:
            hook[0](part)
            if message.aggregate:
                self._add_up(record, part)
        elif message.aggregate:
            self._add_up(record, part)
        elif record.closing and not (record.op and part.grant):
            # The last reply travels with the end, and reaches the application with it.
            record.parts.append(part)
        elif record.incoming is None:
            self._hub.effect(Replied(record.op, part.instance, part.data, part.grant))
        elif not record.orphan and self._hub.is_open(record.incoming):
            self._hub.send(
                record.incoming, Reply(message.request, message.attempt, DATA_REPLY, False, (part,))
            )

    def _add_up(self, record: Record, part: Part) -> None:
        """Into the aggregated reply, which has a bound: a listener may reply as often as it likes."""
        record.part_bytes += len(part.data) + PART_BYTES
        if record.part_bytes > self._hub.config.aggregate_bytes_max:
            self._too_many(record, part)
        else:
            record.parts.append(part)

    def _too_many(self, record: Record, part: Part) -> None:
        self._hub.count("replies_full")
        record.fail((part.instance,), REFUSED, "too many replies to one request")

    def _next_candidate(self, record: Record) -> None:
        """One instance: the next candidate gets the message, until one is reached."""
        state = self._cache.role(record.message.tree, record.message.role)
        links = self._links(record, state)
        if links:
            record.not_found = False
            self._send_one(record, state, links)

    def _moved(self, record: Record, peer: NodeId) -> None:
        """The role was re-pointed while the message travelled: it follows (rule 12)."""
        message = record.message
        state = self._cache.role(message.tree, message.role)
        local = self._local.get(message.tree, message.role)
        links = self._links(record, state)
        record.sending = True
        if local is not None and not record.tokens:
            self._deliver(record, local, not links)
        for link in links:
            self._copy(record, link, self._ids_over(state, link), True)
        record.sending = False
        tree = self._cache.get(message.tree)
        if not links and local is None and record.incoming is None and tree is not None:
            # The role never came here: the grant was returned. The neighbour must forget that it points to us.
            self._builder.edges.force(tree, peer)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _check(self, record: Record) -> None:
        """End the record when nothing is owed any more."""
        if record.done or record.pending or record.tokens or record.waiting or record.held:
            return
        # rule: O-18c
        if record.sending:
            return
        if not record.forwarded and not self._ended_early(record):
            return
        if record.message.one_way:
            # It stays for routes that are found behind it, until it expires.
            op, record.op = record.op, 0
            if op:
                self._ops.pop(op, None)
                self._tell_sender(record, op)
            return
        retry = record.stale and not record.good and not record.null
        if retry and record.recovered < FORWARD_TRIES:
            record.stale = False
            record.recovered += 1
            self._hub.after(1, lambda: self._again(record))
            record.waiting = "recovery"
            return
        self._finish(record)

    def _again(self, record: Record) -> None:
        record.waiting = ""
        if not record.done:
            self._forward(record)

    def _ended_early(self, record: Record) -> bool:
        return record.null or record.good or record.not_found or record.cancelled

    def _finish(self, record: Record) -> None:
        self._close(record)
        message = record.message
        kind = record.kind()
        if kind == END and len(record.outcomes) < len(record.expected):
            for instance in record.silent():
                self._builder.unheard(message.tree, message.role, instance, record.trace.sent)
        if record.incoming is None:
            if record.op and (record.good or not self._attempt_again(record)):
                self._tell_sender(record, record.op)
        elif not message.one_way and not record.orphan and self._hub.is_open(record.incoming):
            if kind == HIDDEN and record.moved:
                kind = MOVED
            elif kind == HIDDEN and record.stale:
                record.reason = "stale"
            # rule: O-16d
            self._hub.send(record.incoming, record.last(kind))

    def _attempt_again(self, record: Record) -> bool:
        """All copies led nowhere, so no instance has seen the message: the next attempt takes the routes that are left,
        or recovers. The sender need not know."""
        message = record.message
        again = message.attempt // HIDDEN_ATTEMPT
        if record.kind() != HIDDEN or record.cancelled or again >= FORWARD_TRIES or message.one_way:
            return False
        self._hub.count("attempts_repeated")
        onward = msgspec.structs.replace(message, attempt=message.attempt + HIDDEN_ATTEMPT)
        left = record.deadline - self._hub.now
        if left <= MILLISECOND:
            return False
        fresh = self._open(
            record_key(onward.request, onward.attempt), onward, None, left, record.op
        )
        if fresh is None:
            return False
        fresh.parts = record.parts
        self._hub.after(1, lambda: None if fresh.done else self._forward(fresh))
        return True

    def _tell_sender(self, record: Record, op: int) -> None:
        kind = _KINDS[record.kind()]
        if record.message.one_way and kind == "not_found" and record.trace.sent:
            kind = "done"
        if record.cancelled:
            kind = "cancelled"
        message = record.message
        if kind == "not_found":
            self._hub.event("role_not_found", tree=message.tree, role=message.role)
        expected = tuple(record.expected)
        answered: tuple[bytes, ...] = expected
        failed: tuple[tuple[bytes, str], ...] = ()
        silent: tuple[bytes, ...] = ()
        if not record.all_answered():
            outcomes = record.outcomes.items()
            answered = tuple([i for i, how in outcomes if how == ANSWERED])
            failed = tuple([(i, OUTCOMES[how]) for i, how in outcomes if how != ANSWERED])
            silent = () if message.one_way else tuple(record.silent())
        self._end(
            op,
            Ended(
                op,
                kind,
                message.request,
                expected,
                answered,
                failed,
                silent,
                record.unknown and not message.one_way,
                tuple([(part.instance, part.data) for part in record.parts]),
                record.reason,
            ),
        )
