"""Deliveries to the listeners of this node, and their replies."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.overlay.frames import ANSWERED, HANDLER_FAILED, NO_LISTENER, REFUSED, Part
from holdfast.overlay.hub import Hub
from holdfast.overlay.listeners import Listeners
from holdfast.overlay.ports import AnswerMessage, Delivered, Withdrawn
from holdfast.overlay.records import Record
from holdfast.overlay.reply_cache import CachedReply, ReplyCache
from holdfast.overlay.roles import LocalRole
from holdfast.types import NodeId


class Delivery:
    """One message at one listener."""

    __slots__ = ("entry", "instance", "open_ports", "record", "role", "tree")

    def __init__(self, record: Record, local: LocalRole, entry: CachedReply | None) -> None:
        self.record = record
        self.tree = local.tree
        self.role = local.role
        self.instance = local.instance
        self.entry = entry
        self.open_ports = 0


class Deliveries:
    def __init__(
        self,
        hub: Hub,
        listeners: Listeners,
        part: Callable[[Record, Part, NodeId | None], None],
        check: Callable[[Record], None],
    ) -> None:
        self._hub = hub
        self._listeners = listeners
        self._part = part
        self._check = check
        self._open: dict[int, Delivery] = {}
        self.cache = ReplyCache(hub.config.reply_cache_max)
        self.internal: dict[int, Callable[[Record, LocalRole], Part | None]] = {}
        """Protocols that the overlay itself answers; None declines."""
        self.hold: Callable[[Record, LocalRole], bool] = lambda *_: False
        """From the grants: the role is moving, so the message waits."""
        self.grant: Callable[[Delivery, AnswerMessage], Part | str] = lambda d, a: Part(
            d.instance, a.data
        )
        """From the grants: the reply as a part, or why it is refused."""

    def __len__(self) -> int:
        return len(self._open)

    def get(self, token: int) -> Delivery | None:
        return self._open.get(token)

    def deliver(self, record: Record, local: LocalRole, endpoint: bool) -> None:
        if local.moving_to and self.hold(record, local):
            return
        message, instance = record.message, local.instance
        record.expected[instance] = True
        internal = self.internal.get(message.protocol)
        if internal is not None:
            part = internal(record, local)
            record.conclude(instance, ANSWERED)
            if part is not None:
                self._part(record, part, None)
            return
        now = self._hub.now
        if not message.one_way:
            # rule: O-1b
            known = self.cache.get(message.request, instance, now)
            if known is not None:
                self._answer_again(record, instance, known)
                return
        ports = self._listeners.ports_for(message.tree, message.protocol)
        if not ports:
            self._hub.count("no_listener")
            # rule: O-2a
            record.conclude(instance, NO_LISTENER)
            return
        entry = None
        if not message.one_way:
            entry = self.cache.open(message.request, instance, now, record.remembered)
            if entry is None:
                self._hub.count("reply_cache_full")
                record.fail((instance,), REFUSED, "reply cache full")
                return
        self._hand_over(record, local, entry, ports, endpoint)

    def _hand_over(
        self,
        record: Record,
        local: LocalRole,
        entry: CachedReply | None,
        ports: list[int],
        endpoint: bool,
    ) -> None:
        message = record.message
        delivery = Delivery(record, local, entry)
        for port in ports:
            token = self._hub.next_number()
            if not message.one_way:
                delivery.open_ports += 1
                self._open[token] = delivery
                record.tokens[token] = local.instance
            else:
                record.conclude(local.instance, ANSWERED)
            self._hub.effect(
                Delivered(
                    token,
                    port,
                    message.tree,
                    message.role,
                    local.instance,
                    message.protocol,
                    message.data,
                    message.request,
                    message.attempt,
                    message.one_way,
                    endpoint,
                    trace=message.trace,
                )
            )

    def _answer_again(self, record: Record, instance: bytes, known: CachedReply) -> None:
        """A re-send: answered from the cache, or together with the attempt that is running."""
        self._hub.count("answered_from_cache")
        token = self._hub.next_number()
        record.tokens[token] = instance

        def finished(entry: CachedReply) -> None:
            if record.done:
                return
            for part in entry.parts:
                self._part(record, part, None)
            record.tokens.pop(token, None)
            record.conclude(instance, entry.outcome)
            self._check(record)

        if known.finished:
            finished(known)
        else:
            known.waiters += (finished,)

    def answer(self, answer: AnswerMessage) -> str:
        """A listener replies; returns why that is refused, or nothing."""
        delivery = self._open.get(answer.token)
        if delivery is None:
            self._hub.count("answer_without_message")
            return "no message with this token waits for a reply"
        if answer.failed:
            self._close(answer.token, delivery, HANDLER_FAILED)
            return ""
        part: Part | str = Part(delivery.instance, answer.data)
        if answer.grant:
            part = self.grant(delivery, answer)
            if isinstance(part, str):
                return part
        assert isinstance(part, Part)
        record, entry = delivery.record, delivery.entry
        if entry is not None:
            entry.parts += (part,)
        if not record.done:
            record.closing = answer.last and len(record.tokens) == 1 and not record.pending
            self._part(record, part, None)
            record.closing = False
        if answer.last:
            self._close(answer.token, delivery, ANSWERED)
        return ""

    def _close(self, token: int, delivery: Delivery, outcome: int) -> None:
        del self._open[token]
        delivery.open_ports -= 1
        record = delivery.record
        record.tokens.pop(token, None)
        if delivery.open_ports == 0:
            if delivery.entry is not None:
                delivery.entry.finish(outcome)
            if not record.done:
                record.conclude(delivery.instance, outcome)
        if not record.done:
            self._check(record)

    def withdraw(self, record: Record, reason: str, outcome: int) -> None:
        """The message is given up. A listener may still answer: the cache keeps that for a re-send."""
        for token, instance in list(record.tokens.items()):
            record.fail((instance,), outcome, reason)
            delivery = self._open.get(token)
            self._hub.effect(Withdrawn(token, reason))
            if delivery is not None and delivery.entry is None:
                del self._open[token]
        record.tokens.clear()

    def sweep(self) -> None:
        """Deliveries whose request is long over are not waited for any more."""
        now = self._hub.now
        for token, delivery in list(self._open.items()):
            if delivery.record.done and delivery.record.deadline <= now:
                del self._open[token]
