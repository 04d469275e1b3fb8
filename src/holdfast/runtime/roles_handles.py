"""What applications hold: requests, messages, instances, direct trees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import HoldfastError, NodeStopped, RepliesMissing, RoleNotFound
from holdfast.overlay.ids import node_of
from holdfast.overlay.ports import (
    CHANGE,
    CONSUME,
    CONTINUE,
    SUSPEND,
    AnswerMessage,
    Delivered,
    Ended,
    Location,
    PublishRole,
    Replied,
    Snooped,
    SnoopVerdict,
)
from holdfast.runtime.tracing import set_attributes

if TYPE_CHECKING:
    from holdfast.runtime.roles import Roles
    from holdfast.runtime.roles_edge import RolesEdge


class RoleReply(msgspec.Struct, frozen=True):
    """One reply of one instance."""

    data: bytes
    instance: bytes
    node: str
    """The name of the node that the instance is on."""
    granted: str = ""
    """The role that this reply granted to this node."""


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended. Instances are named by their nodes."""

    kind: str
    """`done`, `null` (something failed), `not_found`, `cancelled` or `refused`."""
    replies: tuple[RoleReply, ...]
    expected: tuple[str, ...]
    answered: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    """Node and reason: `link_failed`, `no_listener`, `handler_failed`, `expired`, `refused`, `consumed`, `swept`,
    `gone`, `cancelled`."""
    unknown: tuple[str, ...]
    """Expected, but nothing was heard of them."""
    incomplete: bool
    """Instances that no node could name may be missing."""
    reason: str
    request_id: bytes

    @property
    def complete(self) -> bool:
        """Every instance that exists has answered."""
        named = not self.failed and not self.unknown
        return self.kind == "done" and named and not self.incomplete


class Request:
    """A request under way. Iterate over it with `async for` to get replies as they come; then `outcome` says how it
    ended. Leaving an `async with` block early, or cancelling the task that waits, cancels it; `break` does not."""

    def __init__(self, roles: Roles, op: int, role: str, span: Any = None) -> None:
        """`span` ends with the request, if the application traces."""
        self._roles = roles
        self.op = op
        self.role = role
        self._span = span
        self._taken = 0
        """Replies that the iteration has given out."""
        self._all: list[RoleReply] = []
        self._waiters: list[asyncio.Future[None]] = []
        """Wait for the next reply, or the end."""
        self._end_waiters: list[asyncio.Future[None]] = []
        self._error: HoldfastError | None = None
        self._outcome: Outcome | None = None

    # -- the edge's side -----------------------------------------------------------------------------------------

    def give(self, effect: Replied) -> None:
        self._all.append(self._roles.reply_of(effect.instance, effect.data, effect.granted))
        self._changed()

    def end(self, ended: Ended) -> None:
        name = self._roles.name_of
        everything = self._all
        for instance, data in ended.replies:
            everything.append(self._roles.reply_of(instance, data))
        if len(ended.expected) == 1 == len(everything) and (
            everything[0].instance == ended.expected[0]
        ):
            expected: tuple[str, ...] = (everything[0].node,)
        else:
            expected = tuple([name(node_of(i)) for i in ended.expected])
        answered = expected
        if ended.answered is not ended.expected:
            answered = tuple([name(node_of(i)) for i in ended.answered])
        self._outcome = Outcome(
            ended.kind,
            tuple(self._all),
            expected,
            answered,
            tuple([(name(node_of(i)), why) for i, why in ended.failed]) if ended.failed else (),
            tuple([name(node_of(i)) for i in ended.unknown]) if ended.unknown else (),
            ended.incomplete,
            ended.reason,
            ended.request,
        )
        if self._span is not None:
            self._end_span(self._outcome)
        self._ended()

    def halt(self, error: HoldfastError) -> None:
        self._error = error
        if self._span is not None:
            self._end_span(error)
        self._ended()

    def _end_span(self, end: Outcome | HoldfastError) -> None:
        tracing, span, self._span = self._roles.tracing, self._span, None
        assert tracing is not None, "only an edge that traces makes spans"
        if isinstance(end, HoldfastError):
            tracing.fail(span, end)
        else:
            set_attributes(span, outcome=end.kind, replies=len(end.replies))
            if end.kind not in ("done", "cancelled"):
                tracing.fail(span, f"{end.kind}: {end.reason}")
        span.end()

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _ended(self) -> None:
        for waiter in self._end_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._end_waiters.clear()
        if self._waiters:
            self._changed()

    async def _change(self) -> None:
        """Wait for a reply or the end; a task that is cancelled meanwhile cancels the request."""
        waiter = self._roles.future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self.cancel()
            raise

    # -- for applications ----------------------------------------------------------------------------------------

    @property
    def outcome(self) -> Outcome | None:
        """None while replies may still come."""
        return self._outcome

    def __aiter__(self) -> Request:
        return self

    async def __anext__(self) -> RoleReply:
        while self._taken == len(self._all):
            if self._outcome is not None:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._change()
        self._taken += 1
        return self._all[self._taken - 1]

    async def wait(self) -> Outcome:
        """Wait for the end, whatever it is."""
        if self._outcome is None and self._error is None:
            waiter = self._roles.future()
            self._end_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._outcome is None:
            assert self._error is not None, "waiters are told of an end only"
            raise self._error
        return self._outcome

    def cancel(self) -> None:
        """No more replies are wanted: the nodes that have the message are told."""
        if self._outcome is None and self._error is None:
            self._roles.cancel(self.op)

    async def __aenter__(self) -> Request:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


def checked(role: str, outcome: Outcome) -> Outcome:
    """Raise what an application must know; return the outcome otherwise."""
    if outcome.kind == "not_found":
        if outcome.incomplete:
            raise RepliesMissing(
                f"role {role!r}: no instance was reached, and parts of the network did not answer"
            )
        raise RoleNotFound(f"no node has role {role!r}; nothing was delivered")
    if outcome.kind != "done":
        lost = ", ".join(f"{node} ({why})" for node, why in outcome.failed) or "unknown instances"
        raise RepliesMissing(
            f"role {role!r}: {outcome.kind}, replies missing from {lost}: {outcome.reason}; "
            f"{len(outcome.replies)} replies came. Send again with request_id={outcome.request_id.hex()}"
        )
    return outcome


class RoleMessage:
    """A message for an instance on this node."""

    def __init__(self, roles: RolesEdge, effect: Delivered) -> None:
        self._roles = roles
        self._token = effect.token
        self.tree = effect.tree
        self.role = effect.role
        self.instance = effect.instance
        self.protocol = effect.protocol
        self.data = effect.data
        self.request_id = effect.request
        self.attempt = effect.attempt
        self.one_way = effect.one_way
        self.endpoint = effect.endpoint
        """No more instances are reached from here."""
        self.withdrawn = ""
        """Why no answer is expected any more."""
        self._answered = False
        self.span: Any = None
        """The span of the handler, if the application traces."""

    def reply(self, data: bytes, last: bool = True) -> None:
        """Answer. A message may have several replies; `last` says that no more follow."""
        self._answer(AnswerMessage(self._token, bytes(data), last))

    def fail(self) -> None:
        """There is no reply: the outcome names this instance with `handler_failed`. A handler that raises does this."""
        self._answer(AnswerMessage(self._token, b"", failed=True))

    def grant(self, data: bytes = b"", give_up: bool = False, role: str = "") -> None:
        """Answer, and give the role (or another of this node's roles on the tree) to the sender of the message; with
        `give_up` this node loses it, and keeps it until the sender has confirmed."""
        self._answer(AnswerMessage(self._token, bytes(data), True, True, give_up, role))

    def move(self, data: bytes = b"", role: str = "") -> None:
        """Answer, and move the role to the sender: this node holds messages for it until the sender has confirmed. If
        the sender cannot take it, the role stays here and the event `answer_refused` says why."""
        self.grant(data, True, role)

    def _answer(self, answer: AnswerMessage) -> None:
        if self.one_way or self._answered:
            return
        self._answered = answer.last
        self._roles.answer(answer)


class PassingMessage:
    """A message or reply that passes a snooper. It waits until one of these is called."""

    def __init__(self, roles: RolesEdge, effect: Snooped) -> None:
        self._roles = roles
        self._token = effect.token
        self.tree = effect.tree
        self.role = effect.role
        self.protocol = effect.protocol
        self.data = effect.data
        self.is_reply = effect.reply
        self.request_id = effect.request
        self.endpoint = effect.endpoint
        self.has_role = effect.has_role

    def resume(self) -> None:
        """Let it go on as it is."""
        self._roles.answer(SnoopVerdict(self._token, CONTINUE))

    def change(self, data: bytes) -> None:
        self._roles.answer(SnoopVerdict(self._token, CHANGE, bytes(data)))

    def suspend(self) -> None:
        """Keep it for later; it is swept, and its sender told, if that takes too long."""
        self._roles.answer(SnoopVerdict(self._token, SUSPEND))

    def consume(self) -> None:
        """It goes no further; its sender is notified."""
        self._roles.answer(SnoopVerdict(self._token, CONSUME))


class Instance:
    """An instance of a role on this node."""

    def __init__(self, roles: Roles, tree: bytes, role: str, instance: bytes) -> None:
        self._roles = roles
        self.tree = tree
        self.role = role
        self.id = instance
        self.lost = asyncio.Event()
        """Set when this node does not hold the role any more; `reason` says why."""
        self.reason = ""
        self.made: PublishRole | None = None
        """How it was published; None for an instance that a reply granted."""

    def end(self, reason: str) -> None:
        self.reason = reason
        self.lost.set()

    def set_joinable(self, joinable: bool) -> None:
        """Whether `find` names this instance, so that others connect to it directly. It is reached over its tree in any
        case."""
        if not self.lost.is_set():
            self._roles.set_joinable(self, joinable)

    async def unpublish(self) -> None:
        """Remove it. Does nothing when it is lost already."""
        if not self.lost.is_set():
            await self._roles.unpublish(self)


class DirectTree:
    """One-hop connections to instances, as `find` found them: a snapshot."""

    def __init__(
        self,
        roles: Roles,
        tree: bytes,
        locations: tuple[Location, ...],
        multi_hop: tuple[tuple[str, str], ...],
    ) -> None:
        self._roles = roles
        self.tree = tree
        self.locations = locations
        self.multi_hop = multi_hop
        """Nodes without a direct link, and why; they are reached over their tree."""

    async def request_all(self, data: bytes, protocol: int = 0, role: str = "*") -> Outcome:
        return await self._roles.request_all(role, data, tree=self.tree, protocol=protocol)

    async def send(self, data: bytes, protocol: int = 0, role: str = "*") -> None:
        await self._roles.send(role, data, tree=self.tree, protocol=protocol)

    def close(self) -> None:
        self._roles.disconnect(self.tree)


def stopped() -> NodeStopped:
    return NodeStopped("the node is not running; nothing was sent")
