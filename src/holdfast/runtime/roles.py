"""`node.roles`: publish roles, send to them, answer, find, connect.

async def work(message):
    return b"done: " + message.data

await node.roles.serve("worker", work)                # on some nodes
outcome = await node.roles.request_all("worker", b"x")  # on any node
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from holdfast.errors import HoldfastError, MisuseError, RepliesMissing, RoleError, RoleHeld
from holdfast.overlay.ids import node_of
from holdfast.overlay.ports import (
    OVERLAY,
    CancelSend,
    ClosePort,
    Connected,
    ConnectTo,
    Disconnect,
    FindInstances,
    FoundInstances,
    Location,
    OpenPort,
    OverlayEvent,
    Published,
    PublishMany,
    PublishRole,
    SearchResult,
    SearchRole,
    SendToRole,
    SetJoinable,
    TreeNodes,
    Unpublished,
    UnpublishMany,
    UnpublishRole,
    WalkTree,
)
from holdfast.runtime.roles_edge import (
    DEFAULT_TREE,
    EVENTS_KEPT,
    NEIGHBOURHOOD,
    PROTOCOL,
    Handler,
    RolesEdge,
    as_role,
    as_tree,
)
from holdfast.runtime.roles_handles import (
    DirectTree,
    Instance,
    Outcome,
    PassingMessage,
    Request,
    RoleMessage,
    RoleReply,
    checked,
)
from holdfast.runtime.tracing import CLIENT, PRODUCER
from holdfast.subsystem import Control
from holdfast.types import SECOND

__all__ = ["DEFAULT_TREE", "NEIGHBOURHOOD", "PROTOCOL", "Roles", "as_tree"]


class Roles(RolesEdge):
    name: ClassVar[str] = "roles"

    def control(self) -> Mapping[str, Control]:
        from holdfast.runtime.roles_control import RolesControl

        return RolesControl(self).handlers()

    def _instance(self, tree: bytes, role: str, instance: bytes) -> Instance:
        return Instance(self, tree, role, instance)

    # -- roles ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        role: str,
        tree: str | bytes = DEFAULT_TREE,
        *,
        exclusive: bool = False,
        claim: bool = False,
        realm_only: bool = False,
        hops: int = -1,
    ) -> Instance:
        """Add an instance of a role on this node, and wait until every other node can reach it.

        `exclusive` takes the role from whichever node has it; `claim` takes it only if none does. An exclusive role
        is not a lock: during a partition each side has a holder. Raises `RoleHeld`.
        """
        tree_bytes = as_tree(tree)
        made = PublishRole(
            self._op(), tree_bytes, as_role(role), exclusive, claim, realm_only, hops
        )
        done: Published = await self._ask(made.op, made)
        if not done.ok:
            raise RoleHeld(f"role {role!r} was not published: {done.reason}")
        return self._held(made, done)

    def _held(self, made: PublishRole, done: Published) -> Instance:
        instance = self._instances.setdefault(
            done.instance, Instance(self, made.tree, made.role, done.instance)
        )
        exclusive = made.exclusive or made.claim
        instance.made = msgspec.structs.replace(made, exclusive=exclusive)
        return instance

    async def publish_many(
        self, roles: Sequence[str], tree: str | bytes = DEFAULT_TREE, *, exclusive: bool = False
    ) -> tuple[Instance, ...]:
        """Publish several roles of a tree at once; what goes to the same node travels in one frame. Raises `RoleHeld`
        when some could not be published, and names them: the others are."""
        tree_bytes = as_tree(tree)
        names = [as_role(role) for role in roles]
        made = tuple(PublishRole(self._op(), tree_bytes, role, exclusive) for role in names)
        answers = await self._ask_many([one.op for one in made], PublishMany(made))
        held = [
            f"{one.role!r} ({a.reason})" for one, a in zip(made, answers, strict=True) if not a.ok
        ]
        for one, answer in zip(made, answers, strict=True):
            if answer.ok:
                self._held(one, answer)
        if held:
            raise RoleHeld(f"not published: {', '.join(held)}; the other roles are")
        return tuple(self._instances[answer.instance] for answer in answers)

    async def unpublish_many(self, instances: Sequence[Instance]) -> None:
        made = tuple(UnpublishRole(self._op(), one.tree, one.role) for one in instances)
        for instance in instances:
            self._instances.pop(instance.id, None)
            instance.end("unpublished")
        await self._ask_many([one.op for one in made], UnpublishMany(made))

    def set_joinable(self, instance: Instance, joinable: bool) -> None:
        if self._port is not None:
            self._port.answer(OVERLAY, SetJoinable(instance.tree, instance.role, joinable))

    async def unpublish(self, instance: Instance) -> None:
        op = self._op()
        self._instances.pop(instance.id, None)
        instance.end("unpublished")
        await self._ask(op, UnpublishRole(op, instance.tree, instance.role))

    async def remove(
        self, role: str, instance: bytes, epoch: int, tree: str | bytes = DEFAULT_TREE
    ) -> None:
        """Clean up after an exclusive holder whose node is gone. Removes nothing that is newer than (epoch,
        instance)."""
        op = self._op()
        done: Unpublished = await self._ask(
            op, UnpublishRole(op, as_tree(tree), as_role(role), instance, epoch)
        )
        if not done.ok:
            raise RoleError(f"role {role!r}: {done.reason}; some nodes may still have a route")

    async def serve(
        self, role: str, handler: Handler, tree: str | bytes = DEFAULT_TREE, **options: Any
    ) -> Instance:
        """Publish a role and answer its messages with what `handler(message)` returns, at once or as a coroutine. A
        handler that returns None answers by itself, with `message.reply`."""
        self.handle(role, handler, tree)
        return await self.publish(role, tree, **options)

    def handle(self, role: str, handler: Handler, tree: str | bytes = DEFAULT_TREE) -> None:
        """Answer messages for a role that this node publishes later, or that is moved to it."""
        self._served[as_tree(tree), role] = handler
        self._open(PROTOCOL)

    def grant(self, message: RoleMessage, data: bytes = b"", role: str = "") -> None:
        """Answer a message, and give its sender an instance of the role as well."""
        message.grant(data, False, role)

    def move(self, message: RoleMessage, data: bytes = b"", role: str = "") -> None:
        """Answer a message, and move the role to its sender."""
        message.move(data, role)

    # -- sending -------------------------------------------------------------------------------------------------

    def request(
        self,
        role: str,
        data: bytes,
        tree: str | bytes = DEFAULT_TREE,
        *,
        one: bool = False,
        aggregate: bool = False,
        instance: bytes = b"",
        realm_only: bool = False,
        protocol: int = 0,
        lifetime_s: float = 0.0,
        request_id: bytes = b"",
        attempt: int = 0,
    ) -> Request:
        """Ask all instances of a role, or one, and get replies as they come. Needs no time-out: it ends when every copy
        has ended, or with a null that names what failed."""
        tree_bytes, body, lifetime_ns = as_tree(tree), bytes(data), int(lifetime_s * SECOND)
        as_role(role)
        span, trace = self._begin_span("role.request", CLIENT, role)
        item = SendToRole(
            self._op(),
            tree_bytes,
            role,
            body,
            protocol or PROTOCOL,
            one,
            aggregate,
            False,
            realm_only,
            instance,
            lifetime_ns,
            request_id,
            attempt,
            trace,
        )
        return self._request(item, span)

    async def request_all(self, role: str, data: bytes, **options: Any) -> Outcome:
        """One aggregated reply of all instances, with what did not answer. Never raises for missing replies: look at
        `Outcome.complete`. Raises `RoleNotFound` when no instance exists."""
        request = self.request(role, data, aggregate=True, **options)
        outcome = await request.wait()
        if outcome.kind == "not_found":
            checked(role, outcome)
        return outcome

    async def request_one(self, role: str, data: bytes, **options: Any) -> RoleReply:
        """The reply of one instance, the nearest. Raises `RoleNotFound` or `RepliesMissing`."""
        request = self.request(role, data, one=True, **options)
        outcome = checked(role, await request.wait())
        if not outcome.replies:
            why = outcome.failed[0][1] if outcome.failed else "no reply"
            raise RoleError(f"role {role!r}: the instance did not answer: {why}")
        return outcome.replies[0]

    async def send(
        self,
        role: str,
        data: bytes,
        tree: str | bytes = DEFAULT_TREE,
        *,
        realm_only: bool = False,
        protocol: int = 0,
    ) -> None:
        """One way, to all instances. Returns when the message is on its way; raises `RoleNotFound`."""
        tree_bytes, body = as_tree(tree), bytes(data)
        as_role(role)
        span, trace = self._begin_span("role.send", PRODUCER, role)
        item = SendToRole(
            self._op(),
            tree_bytes,
            role,
            body,
            protocol or PROTOCOL,
            False,
            False,
            True,
            realm_only,
            trace=trace,
        )
        checked(role, await self._request(item, span).wait())

    def _request(self, item: SendToRole, span: Any) -> Request:
        request = Request(self, item.op, item.role, span)
        try:
            self._submit(item)
        except HoldfastError as error:
            request.halt(error)
            raise
        self._requests[item.op] = request
        return request

    def _begin_span(self, name: str, kind: str, role: str) -> tuple[Any, str]:
        """A span and its context for the receivers; None and nothing if the application does not trace."""
        if self.tracing is None:
            return None, ""
        span = self.tracing.begin(name, kind, role=role)
        return span, self.tracing.context_of(span)

    def cancel(self, op: int) -> None:
        if self._port is not None:
            self._port.answer(OVERLAY, CancelSend(op))

    # -- listening -----------------------------------------------------------------------------------------------

    def listen(
        self, handler: Handler, protocol: int = PROTOCOL, trees: tuple[str | bytes, ...] = ()
    ) -> None:
        """Call `handler(message)` for messages with this protocol id, and for those without one on these trees."""
        self._listeners[protocol] = handler
        self._open(protocol, trees)

    def snoop(
        self,
        handler: Callable[[PassingMessage], object],
        protocol: int = PROTOCOL,
        trees: tuple[str | bytes, ...] = (),
    ) -> None:
        """See messages and replies that pass this node. Each waits for `resume`, `change`, `suspend` or `consume`."""
        self._snoopers[protocol] = handler
        known = self._ports.get(protocol)
        bound = known.trees if known is not None else ()
        watched = tuple(as_tree(tree) for tree in trees)
        self._use(OpenPort(protocol, bound, True, watched))

    def close_port(self, protocol: int) -> None:
        self._listeners.pop(protocol, None)
        self._snoopers.pop(protocol, None)
        self._ports.pop(protocol, None)
        if self._port is not None:
            self._port.answer(OVERLAY, ClosePort(protocol))

    def _open(self, protocol: int, trees: tuple[str | bytes, ...] = ()) -> None:
        known = self._ports.get(protocol)
        bound = tuple(as_tree(tree) for tree in trees) or (known.trees if known else ())
        snoop = known is not None and known.snoop
        self._use(OpenPort(protocol, bound, snoop, known.snoop_trees if known else ()))

    def _use(self, port: OpenPort) -> None:
        if not 0 < port.protocol < 1 << 30:
            raise MisuseError("a protocol id is a number from 1 to 2^30 - 1; nothing was opened")
        self._ports[port.protocol] = port
        if self._port is not None:
            self._port.answer(OVERLAY, port)

    # -- search, direct connections ------------------------------------------------------------------------------

    async def search(self, role: str, tree: str | bytes = DEFAULT_TREE) -> str | None:
        """The name of the node where the first instance of a role is registered."""
        op = self._op()
        result: SearchResult = await self._ask(op, SearchRole(op, as_tree(tree), as_role(role)))
        if not result.ok:
            raise RoleError(f"the search for role {role!r} was not answered; ask again")
        entry = result.entry
        return self.name_of(node_of(entry.instance)) if entry is not None else None

    async def find(
        self, role: str, tree: str | bytes = DEFAULT_TREE, realm_only: bool = False
    ) -> tuple[Location, ...]:
        """Where all instances are. The result can be handed to another node. Empty when no instance exists; raises
        `RepliesMissing` when none was found and parts of the network did not answer."""
        found = await self.locate(role, tree, realm_only)
        if not found.locations and not found.complete:
            raise RepliesMissing(f"role {role!r}: no instance was found: {found.reason}; ask again")
        return found.locations

    async def locate(
        self, role: str, tree: str | bytes = DEFAULT_TREE, realm_only: bool = False
    ) -> FoundInstances:
        """As `find`, with `complete`: false when instances may be missing, and `reason` says why."""
        op = self._op()
        found: FoundInstances = await self._ask(
            op, FindInstances(op, as_tree(tree), as_role(role), realm_only)
        )
        return found

    async def connect(
        self, locations: tuple[Location, ...], neighbourhood: int = NEIGHBOURHOOD
    ) -> DirectTree:
        """One-hop links to these instances, on one tree or several; use it like any tree."""
        op = self._op()
        done: Connected = await self._ask(op, ConnectTo(op, tuple(locations), neighbourhood))
        if not done.tree:
            raise RoleError("no direct tree was made: too many exist")
        multi = tuple((self.name_of(node_of(i)), why) for i, why in done.multi_hop)
        return DirectTree(self, done.tree, tuple(locations), multi)

    def disconnect(self, tree: bytes) -> None:
        if self._port is not None:
            self._port.answer(OVERLAY, Disconnect(tree))

    async def tree_nodes(self, tree: str | bytes = DEFAULT_TREE) -> dict[str, list[str]]:
        """All nodes of a tree that answered, each with its neighbours on it."""
        nodes, _ = await self.walk_tree(tree)
        return nodes

    async def walk_tree(
        self, tree: str | bytes = DEFAULT_TREE
    ) -> tuple[dict[str, list[str]], bool]:
        """As `tree_nodes`, and whether every node of the tree answered."""
        op = self._op()
        done: TreeNodes = await self._ask(op, WalkTree(op, as_tree(tree)))
        nodes = {self.name_of(n): [self.name_of(p) for p in peers] for n, peers in done.nodes}
        return nodes, done.complete

    def events(self) -> asyncio.Queue[OverlayEvent]:
        """What happens from now on: `tree_built`, `partition`, `unpartition`, `role_not_found`, `swept`, `dropped`. The
        oldest events are dropped when they are not taken."""
        queue: asyncio.Queue[OverlayEvent] = asyncio.Queue(EVENTS_KEPT)
        self._watchers.append(queue)
        return queue
