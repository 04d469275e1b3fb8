"""The unit `overlay`: hands frames and requests to its parts, and does the periodic work."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Final

import msgspec

from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import LinkImpossible, NeighboursChanged, PeerDown, PeerUp, Received
from holdfast.machine import Outbox
from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.cycles import Cycles
from holdfast.overlay.frames import (
    EDGES,
    UNBUILD,
    AskTrees,
    Break,
    Bulk,
    Cancel,
    Colour,
    Credit,
    Edge,
    HopPing,
    MapDigest,
    MapUpdate,
    Message,
    OverlayHello,
    Reply,
    Reverse,
    Trees,
    Unpartition,
    Wave,
    WaveAnswer,
)
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import numbered
from holdfast.overlay.parts import Parts
from holdfast.overlay.ports import (
    AnswerMany,
    AnswerMessage,
    CancelSend,
    ClosePort,
    ConnectTo,
    Disconnect,
    FindInstances,
    OpenPort,
    PublishMany,
    PublishRole,
    SearchResult,
    SearchRole,
    SendMany,
    SendToRole,
    SetJoinable,
    SnoopVerdict,
    TreeNodes,
    UnpublishMany,
    UnpublishRole,
    WalkTree,
)
from holdfast.overlay.walk import TreeWalk
from holdfast.overlay.waves import WaveState
from holdfast.types import SECOND, Nanos, NodeId
from holdfast.wire.frames import Frame

SWEEP_NS: Final = 5 * SECOND
PING_NS: Final = 10 * SECOND


class OverlayMachine(Parts):
    """Unit `overlay`."""

    layer: ClassVar[str] = "overlay"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(
        self,
        me: NodeId,
        incarnation: int,
        epoch: int,
        config: OverlayConfig,
        rng: Random,
        encode: Callable[[Frame], bytes],
        now: Nanos,
    ) -> None:
        """`epoch` differs between two units of one life of the node; 1 to 2^23."""
        super().__init__(Hub(me, incarnation, epoch, config, rng), now)
        self._encode = encode
        self.router.cycles.unbuild = self._unbuild_at
        self.search.orders[UNBUILD] = self._on_unbuild
        self.search.orders[EDGES] = self._on_edges
        self.replan: Callable[[], None] = lambda: None
        """To the directory's mesh: ask `planned` again."""
        self._sweeps = 0
        self._map_seen = 0
        self._map_due = False
        self._handlers = self._frame_table()
        self._requests = self._request_table()
        self._start()
        self.deadline = self.hub.deadline()

    def _start(self) -> None:
        hub = self.hub
        hub.after(hub.jitter(SWEEP_NS), self._sweep)
        hub.after(hub.jitter(hub.config.refresh_ns), self._refresh)
        hub.after(hub.jitter(PING_NS), self._ping)

    def _frame_table(self) -> dict[type, Callable[[NodeId, Any], None]]:
        cycles: Cycles = self.router.cycles
        return {
            MapUpdate: self.topology.received,
            MapDigest: self.topology.compared,
            Colour: self.partition.received_colour,
            Unpartition: self.partition.received_event,
            Wave: self.waves.received,
            WaveAnswer: self.waves.answered,
            Bulk: self._bulk,
            Edge: self.builder.edges.received,
            Message: self.router.received,
            Reply: self.router.replied,
            Cancel: self.router.cancelled,
            Break: cycles.broken,
            Reverse: cycles.reversed,
            AskTrees: self.joining.asked,
            Trees: self.joining.received,
            Credit: self.flow.credited,
            HopPing: self._pinged,
        }

    def _request_table(self) -> dict[type, Callable[[Any], None]]:
        return {
            Received: self._received,
            PeerUp: lambda item: self.sessions.up(item.peer),
            PeerDown: lambda item: self.sessions.down(item.peer),
            PublishRole: self.registrar.publish,
            PublishMany: self._publish_many,
            UnpublishRole: self.registrar.unpublish,
            UnpublishMany: self._unpublish_many,
            SendToRole: self._send,
            SendMany: self._send_many,
            CancelSend: lambda item: self.router.cancel(item.op),
            AnswerMessage: self._answer,
            AnswerMany: self._answer_many,
            OpenPort: self.listeners.open,
            ClosePort: self.listeners.close,
            SnoopVerdict: self.listeners.verdict,
            FindInstances: self.direct.find,
            ConnectTo: self.direct.connect,
            Disconnect: self.direct.disconnect,
            SetJoinable: self._set_joinable,
            SearchRole: self._search,
            WalkTree: self._walk,
            LinkImpossible: lambda item: self.direct.impossible(item.peer, item.reason),
        }

    # -- machine -------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self.hub.now = now
        requests = self._requests
        for item in inputs:
            handler = requests.get(type(item))
            if handler is not None:
                handler(item)
        self._after(out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        self.hub.now = now
        self.hub.run_timers()
        self._after(out)

    def _after(self, out: Outbox) -> None:
        if self.topology.changes != self._map_seen:
            self._map_seen = self.topology.changes
            if not self._map_due:
                self._map_due = True
                self.hub.after(self.hub.config.settle_ns // 2, self._map_changed)
        self.readiness.check()
        self.hub.flush(out, self._encode)
        self.deadline = self.hub.deadline()

    def _map_changed(self) -> None:
        self._map_due = False
        self.registrar.map_changed()
        self._replan()

    def _replan(self) -> None:
        """In a large domain: other links may be wanted now."""
        if self.mesh.sparse:
            self.replan()
            self.hub.down(DIRECTORY, NeighboursChanged())

    # -- frames --------------------------------------------------------------------------------------------------

    def _received(self, item: Received) -> None:
        neighbour = self.hub.neighbours.get(item.peer)
        if neighbour is None:
            self.hub.count("frames_without_session")
            return
        peer, handlers, neighbours = item.peer, self._handlers, self.hub.neighbours
        for frame in item.frames:
            handler = handlers.get(type(frame))
            if handler is None:
                if isinstance(frame, OverlayHello):
                    self.sessions.hello(peer, frame)
                continue
            neighbour = neighbours[peer]  # a hello, or a handler, may have replaced it
            if neighbour.echoed and neighbour.epoch:
                handler(peer, frame)
            else:
                self.hub.count("frames_before_hello")

    def _bulk(self, peer: NodeId, frame: Bulk) -> None:
        for wave in frame.waves[:1024]:
            self.waves.received(peer, wave)

    # -- requests ------------------------------------------------------------------------------------------------

    def _publish_many(self, many: PublishMany) -> None:
        for one in many.roles:
            self.registrar.publish(one)

    def _unpublish_many(self, many: UnpublishMany) -> None:
        for one in many.roles:
            self.registrar.unpublish(one)

    def _send_many(self, many: SendMany) -> None:
        if self.direct.in_use:
            for request in many.requests:
                self._send(request)
        else:
            send = self.router.send
            for request in many.requests:
                send(request)

    def _send(self, request: SendToRole) -> None:
        if self.direct.is_direct(request.tree):
            self.direct.send(request)
        else:
            self.router.send(request)

    def _answer_many(self, many: AnswerMany) -> None:
        for answer in many.answers:
            self._answer(answer)

    def _answer(self, answer: AnswerMessage) -> None:
        problem = self.router.deliveries.answer(answer)
        if not problem:
            return
        self.hub.event("answer_refused", detail=problem)
        if answer.grant:
            # The reply itself is good: its sender must not wait for a role that it cannot get.
            self.router.deliveries.answer(
                msgspec.structs.replace(answer, grant=False, give_up=False)
            )

    def _set_joinable(self, item: SetJoinable) -> None:
        role = self.local.get(item.tree, item.role)
        if role is not None:
            role.joinable = item.joinable

    def _search(self, request: SearchRole) -> None:
        self.search.get(
            request.tree,
            request.role,
            False,
            lambda answer: self.hub.effect(SearchResult(request.op, answer.entry, answer.ok)),
        )

    # -- suspicious breaks ---------------------------------------------------------------------------------------

    def _unbuild_at(self, node: bytes, tree: bytes, role: str, other: bytes) -> None:
        if node == self.hub.me:
            self.builder.unbuild(tree, role, other)
            return
        self.search.order(UNBUILD, node, tree, role, None, lambda _: None, other + bytes(16))

    def _on_unbuild(self, at: WaveState) -> None:
        self.builder.unbuild(at.frame.tree, at.frame.role, at.frame.instance[:16])
        at.result.accepted = True

    # -- the whole tree ------------------------------------------------------------------------------------------

    def _on_edges(self, at: WaveState) -> None:
        peers = self.inspect.neighbours(at.frame.tree)
        at.result.met = {numbered(peer, 0, 0): True for peer in peers}
        at.result.accepted = bool(peers) or self.inspect.contains_tree(at.frame.tree)

    def _walk(self, request: WalkTree) -> None:
        """Ask node after node for its neighbours on the tree, beginning here."""
        walk = TreeWalk(self.hub, self.waves, self.topology, request.tree)
        walk.start(
            self.inspect.neighbours(request.tree),
            lambda nodes, complete: self.hub.effect(TreeNodes(request.op, nodes, complete)),
        )

    # -- periodic work -------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self.router.sweep()
        self.router.deliveries.sweep()
        self.waves.sweep()
        self._sweeps += 1
        self._replan()
        if self._sweeps % 6 == 0:
            self.builder.sweep()
        self.hub.after(SWEEP_NS, self._sweep)

    def _refresh(self) -> None:
        self.registrar.refresh()
        self.hub.after(self.hub.config.refresh_ns, self._refresh)

    def _ping(self) -> None:
        for peer in self.hub.open_peers:
            self.hub.send(peer, HopPing(self.hub.now))
        self.hub.after(PING_NS, self._ping)

    def _pinged(self, peer: NodeId, frame: HopPing) -> None:
        if not frame.echo:
            self.hub.send(peer, HopPing(frame.sent_ns, True))
        elif 0 < frame.sent_ns <= self.hub.now:
            neighbour = self.hub.neighbours[peer]
            took = self.hub.now - frame.sent_ns
            neighbour.hop_ns = self.times.pinged(neighbour.hop_ns, took)

    # -- for the directory ---------------------------------------------------------------------------------------

    def planned(self, members: list[NodeId]) -> dict[bytes, bool]:
        """The members that there should be links to: by the mesh, and where trees or messages use one (rule 19)."""
        topology, known = self.topology, self.topology.size() > 1
        gone = [n for n in members if known and topology.knows(n) and not topology.reaches(n)]
        self.mesh.follow(members, topology.realm_of, gone)
        wanted = dict(self.mesh.wanted())
        # rule: O-19a
        wanted.update({peer: True for peer in self.hub.open_peers if self.inspect.uses(peer)})
        return wanted

    def status(self) -> dict[str, Any]:
        return self.inspect.status()
