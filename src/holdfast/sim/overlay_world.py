"""A virtual network of overlay machines with slow and failing links and crashing nodes, determined by one seed.

Each channel keeps its order; with `skew` one may overtake the other. A link that is cut loses frames in flight; each
end notices after its own delay. Every node runs a small application: it records each message and answers with its name,
unless a test sets another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

from holdfast.links.ports import (
    LinkImpossible,
    NeedLink,
    NeighboursChanged,
    PeerDown,
    PeerUp,
    Received,
    ReleaseLink,
    SendChannel,
)
from holdfast.machine import Outbox
from holdfast.overlay import OverlayConfig, OverlayMachine, tree_id
from holdfast.overlay.frames import Bulk, OverlayFrame
from holdfast.overlay.ids import digest
from holdfast.overlay.mesh import links_made_by
from holdfast.overlay.ports import (
    AnswerMessage,
    Delivered,
    Ended,
    OpenPort,
    Published,
    PublishRole,
    Replied,
    SendToRole,
)
from holdfast.types import DATA, MILLISECOND, NEVER, SECOND, SYNC, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import MemberInfo

decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(OverlayFrame)
PORT = 7
FAST = OverlayConfig(refresh_ns=20 * SECOND, mesh_all_up_to=0)


@lru_cache(maxsize=4096)
def node_id(name: str) -> NodeId:
    return NodeId(digest(b"node", name.encode()))


class Kept(bytes):
    """A frame that is passed on without encoding, which would take most of the time of a large run."""

    frame: Any


def keep(frame: Any) -> bytes:
    kept = Kept()
    kept.frame = frame
    return kept


class Host:
    """One node: its machine, the messages that its application received, and the events of the overlay."""

    def __init__(self, world: World, name: str, realm: str, config: OverlayConfig) -> None:
        self.world = world
        self.name = name
        self.id = node_id(name)
        self.realm = realm
        self.config = msgspec.structs.replace(config, realm=realm)
        self.incarnation = 0
        self.epoch = 0
        self.alive = False
        self.machine: OverlayMachine
        self.wakes: set[Nanos] = set()
        """When this unit will be woken."""
        self.delivered: list[Delivered] = []
        self.effects: list[Any] = []
        self.facts: list[Any] = []
        self.answers: Callable[[Delivered], AnswerMessage | None] | None = None
        """The application's answer to a message; None: it answers with the node's name."""
        self.life = 0
        self.joins = False
        """Whether it joins the others: it does not publish until it is connected to one."""
        self.stalled_until: Nanos = 0

    def boot(self) -> None:
        self.incarnation += 1
        self.life += 1
        self.alive = True
        self.rebuild()

    def rebuild(self) -> None:
        """A new unit in the same incarnation of the node, as after an exception."""
        self.epoch += 1
        self.wakes = set()
        rng = Random(f"{self.world.seed}/{self.name}/{self.incarnation}/{self.epoch}")
        self.machine = OverlayMachine(
            self.id,
            self.incarnation,
            self.epoch,
            self.config,
            rng,
            self.world.encode,
            self.world.now,
        )
        self.machine.readiness.joins = lambda: self.joins
        self.world.post(self, [OpenPort(PORT)])

    @property
    def ends(self) -> list[Ended]:
        return [e for e in self.effects if isinstance(e, Ended)]

    def end_of(self, op: int) -> Ended | None:
        found = [e for e in self.ends if e.op == op]
        assert len(found) <= 1, f"{self.name}: request {op} ended {len(found)} times"
        return found[0] if found else None

    def replies(self, op: int) -> list[bytes]:
        """Every reply to a request, in the order of arrival; the last one may arrive with the end."""
        end = self.end_of(op)
        last = [data for _, data in end.replies] if end is not None else []
        return [e.data for e in self.effects if isinstance(e, Replied) and e.op == op] + last

    def got(self, data: bytes) -> int:
        """How many times the application of this node received a message."""
        return sum(d.data == data for d in self.delivered)

    def told(self, kind: type) -> list[Any]:
        return [e for e in self.effects if isinstance(e, kind)]


class Session:
    def __init__(self, number: int, delay: Nanos) -> None:
        self.number = number
        self.delay = delay
        self.alive = True
        self.last: dict[tuple[NodeId, int], Nanos] = {}
        """When the last frames of a sender arrive, by channel."""


class World:
    def __init__(self, seed: int = 1, config: OverlayConfig = FAST, codec: bool = True) -> None:
        """Without `codec` frames are not encoded and decoded."""
        self.seed = seed
        self.encode: Callable[[Any], bytes] = encode if codec else keep
        self.rng = Random(f"overlay {seed}")
        self.config = config
        self.now: Nanos = SECOND
        self.hosts: dict[str, Host] = {}
        self.by_id: dict[NodeId, Host] = {}
        self.sessions: dict[tuple[NodeId, NodeId], Session] = {}
        self.delay: tuple[Nanos, Nanos] = (MILLISECOND // 2, 3 * MILLISECOND)
        self.outside_delay: tuple[Nanos, Nanos] = (10 * MILLISECOND, 30 * MILLISECOND)
        self.skew: Nanos = 0
        """How much later frames on the channel for synchronisation may come than those for data, which then overtake
        them: each channel has an order of its own, and lost frames are repeated."""
        self.detect: Nanos = 50 * MILLISECOND
        self.frames = 0
        self.by_type: dict[str, int] = {}
        self.blocked: dict[tuple[NodeId, NodeId], str] = {}
        """Pairs without a common subnet."""
        self.watch: Callable[[Host, Host, Any], None] | None = None
        """Called with every frame that is delivered."""
        self.filter: Callable[[Host, Host, Any], list[Any]] | None = None
        """A hostile link: called with each frame, returns the frame to deliver instead."""
        self._events: list[tuple[Nanos, int, Callable[[], None]]] = []
        self._ticket = 0
        self._op = 0

    # -- building ------------------------------------------------------------------------------------------------

    def add(self, name: str, realm: str = "default", **changes: Any) -> Host:
        config = msgspec.structs.replace(self.config, **changes)
        host = Host(self, name, realm, config)
        self.hosts[name] = host
        self.by_id[host.id] = host
        host.boot()
        return host

    def mesh(self, k: int | None = None) -> None:
        """Link the existing nodes according to the mesh."""
        members: dict[bytes, str] = {h.id: h.realm for h in self.hosts.values() if h.alive}
        config = self.config if k is None else msgspec.structs.replace(self.config, successors=k)
        for host in self.hosts.values():
            if not host.alive:
                continue
            for peer in links_made_by(host.id, members, config):
                self.link(host.name, self.by_id[NodeId(peer)].name)
            for node, realm in members.items():
                host.machine.mesh.joined(node, realm)

    def line(self, *names: str) -> None:
        for a, b in pairwise(names):
            self.link(a, b)

    def _pair(self, a: str, b: str) -> tuple[NodeId, NodeId]:
        first, second = node_id(a), node_id(b)
        return (first, second) if first < second else (second, first)

    def linked(self, a: str, b: str) -> bool:
        session = self.sessions.get(self._pair(a, b))
        return session is not None and session.alive

    def link(self, a: str, b: str, delay: Nanos | None = None) -> None:
        pair = self._pair(a, b)
        if a == b or self.linked(a, b) or pair in self.blocked:
            return
        first, second = self.hosts[a], self.hosts[b]
        if not (first.alive and second.alive):
            return
        low, high = self.delay if first.realm == second.realm else self.outside_delay
        old = self.sessions.get(pair)
        session = Session((old.number if old else 0) + 1, delay or self.rng.randrange(low, high))
        self.sessions[pair] = session
        settle = self.detect + MILLISECOND if old else MILLISECOND
        for host, peer in ((first, second), (second, first)):
            self._later(settle, self._up(host, peer, session))

    def _up(self, host: Host, peer: Host, session: Session) -> Callable[[], None]:
        def up() -> None:
            if self._stalled(host, up):
                return
            if session.alive and host.alive and peer.alive:
                member = MemberInfo(peer.id, peer.name, peer.incarnation, ())
                self.post(host, [PeerUp(peer.id, member)])

        return up

    # -- faults --------------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str) -> None:
        session = self.sessions.get(self._pair(a, b))
        if session is None or not session.alive:
            return
        session.alive = False
        for host, peer in ((self.hosts[a], self.hosts[b]), (self.hosts[b], self.hosts[a])):
            life = host.life

            def down(host: Host = host, peer: Host = peer, life: int = life) -> None:
                if host.alive and host.life == life:
                    self.post(host, [PeerDown(peer.id, "cut")])

            self._later(self.rng.randrange(1, self.detect), down)

    def stall(self, name: str, duration: Nanos) -> None:
        """The node does nothing for some time: its inputs and timers wait."""
        host = self.hosts[name]
        host.stalled_until = max(host.stalled_until, self.now + duration)

    def _stalled(self, host: Host, call: Callable[[], None]) -> bool:
        if host.stalled_until <= self.now:
            return False
        self._later(host.stalled_until - self.now, call)
        return True

    def links_of(self, name: str) -> list[str]:
        me = node_id(name)
        pairs = [pair for pair, session in self.sessions.items() if session.alive and me in pair]
        return [self.by_id[b if a == me else a].name for a, b in pairs]

    def kill(self, name: str) -> None:
        host = self.hosts[name]
        host.alive = False
        for peer in self.links_of(name):
            self.cut(name, peer)

    def restart(self, name: str) -> None:
        self.hosts[name].boot()

    def rebuild(self, name: str) -> None:
        """The overlay unit fails and is rebuilt; its links survive and are announced again."""
        host = self.hosts[name]
        host.rebuild()
        for peer in self.links_of(name):
            other = self.hosts[peer]
            self.post(host, [PeerUp(other.id, MemberInfo(other.id, peer, other.incarnation, ()))])

    def partition(self, *sides: Iterable[str]) -> list[tuple[str, str]]:
        """Cut all links between the sides; returns them."""
        side_of = {name: k for k, side in enumerate(sides) for name in side}
        cut = []
        for (a, b), session in list(self.sessions.items()):
            first, second = self.by_id[a].name, self.by_id[b].name
            if session.alive and side_of[first] != side_of[second]:
                self.cut(first, second)
                cut.append((first, second))
        return cut

    # -- running -------------------------------------------------------------------------------------------------

    def _later(self, delay: Nanos, call: Callable[[], None]) -> None:
        self._ticket += 1
        heappush(self._events, (self.now + delay, self._ticket, call))

    def at(self, delay: Nanos, call: Callable[[], None]) -> None:
        """Do something at a later time of the run."""
        self._later(delay, call)

    def post(self, host: Host, inputs: list[Any]) -> None:
        """Give a node inputs now."""
        if not host.alive:
            return
        out = Outbox()
        host.machine.up(self.now, inputs, out)
        self._take(host, out)

    def _wake(self, host: Host, life: int, machine: OverlayMachine) -> None:
        if not host.alive or host.life != life or host.machine is not machine:
            return
        host.wakes.discard(self.now)
        if self._stalled(host, lambda: self._wake(host, life, machine)):
            return
        if machine.deadline > self.now:
            return
        out = Outbox()
        machine.wake(self.now, out)
        self._take(host, out)

    def _take(self, host: Host, out: Outbox) -> None:
        for unit, item, _ in out.downs:
            assert isinstance(item, SendChannel)
            self._transmit(host, NodeId(bytes.fromhex(unit.removeprefix("link/"))), item)
        for unit, item in out.ups:
            assert unit == "directory"
            self._directory(host, item)
        host.facts += out.facts
        answers: list[Any] = []
        for item, _ in out.effects:
            host.effects.append(item)
            if isinstance(item, Delivered):
                host.delivered.append(item)
                answer = self._application(host, item)
                if answer is not None:
                    answers.append(answer)
        machine = host.machine
        if machine.deadline < NEVER:
            at = max(machine.deadline, self.now + 1)
            if at not in host.wakes:
                host.wakes.add(at)
                life = host.life
                self._later(at - self.now, lambda: self._wake(host, life, machine))
        if answers:
            self._later(MILLISECOND // 4, lambda: self.post(host, answers))

    def _application(self, host: Host, item: Delivered) -> AnswerMessage | None:
        if host.answers is not None:
            return host.answers(item)
        return None if item.one_way else AnswerMessage(item.token, host.name.encode())

    def _directory(self, host: Host, item: Any) -> None:
        peer = self.by_id.get(getattr(item, "peer", NodeId(b"")))
        if isinstance(item, NeedLink) and peer is not None:
            blocked = self.blocked.get(self._pair(host.name, peer.name))
            if blocked:
                self._later(1, lambda: self.post(host, [LinkImpossible(peer.id, blocked)]))
            else:
                self.link(host.name, peer.name)
        elif isinstance(item, NeighboursChanged):
            return
        elif isinstance(item, ReleaseLink) and peer is not None:
            self.cut(host.name, peer.name)

    def _transmit(self, host: Host, peer: NodeId, item: SendChannel) -> None:
        other = self.by_id.get(peer)
        if other is None:
            return
        session = self.sessions.get(self._pair(host.name, other.name))
        if session is None or not session.alive:
            return
        frames = [m.frame if type(m) is Kept else decoder.decode(m) for m in item.messages]
        jitter = self.rng.randrange(max(session.delay // 4, 1))
        if self.skew and item.channel == SYNC:
            jitter += self.rng.randrange(self.skew)
        lane = (host.id, item.channel if self.skew else DATA)
        at = max(self.now + session.delay + jitter, session.last.get(lane, 0) + 1)
        session.last[lane] = at
        life = other.life

        def arrive() -> None:
            if not session.alive or not other.alive or other.life != life:
                return
            if self._stalled(other, arrive):
                return
            arrived = frames
            if self.filter is not None:
                unpacked = [one for frame in frames for one in _unpacked(frame)]
                arrived = [kept for frame in unpacked for kept in self.filter(host, other, frame)]
            for frame in arrived:
                self.frames += 1
                name = type(frame).__name__
                self.by_type[name] = self.by_type.get(name, 0) + 1
                if self.watch is not None:
                    for one in _unpacked(frame):
                        self.watch(host, other, one)
            self.post(other, [Received(host.id, arrived, self.now)])

        self._later(at - self.now, arrive)

    def run(self, duration: Nanos) -> None:
        until = self.now + duration
        events = self._events
        while events and events[0][0] <= until:
            at, _, call = heappop(events)
            self.now = max(self.now, at)
            call()
        self.now = until

    # -- applications --------------------------------------------------------------------------------------------

    def op(self) -> int:
        self._op += 1
        return self._op

    def publish(self, name: str, role: str = "role", tree: str = "tree", **options: Any) -> int:
        op = self.op()
        self.post(self.hosts[name], [PublishRole(op, tree_id(tree), role, **options)])
        return op

    def published(self, name: str, op: int) -> Published | None:
        found = [e for e in self.hosts[name].told(Published) if e.op == op]
        return found[0] if found else None

    def send(
        self, name: str, data: bytes, role: str = "role", tree: str = "tree", **options: Any
    ) -> int:
        op = self.op()
        options.setdefault("protocol", PORT)
        self.post(self.hosts[name], [SendToRole(op, tree_id(tree), role, data, **options)])
        return op

    def send_raw(self, name: str, tree: bytes, data: bytes, role: str = "*", **options: Any) -> int:
        """Send on a direct tree, which has only an id."""
        op = self.op()
        options.setdefault("protocol", PORT)
        self.post(self.hosts[name], [SendToRole(op, tree, role, data, **options)])
        return op

    def request(self, name: str, data: bytes, run_ns: Nanos = 8 * SECOND, **options: Any) -> Ended:
        """Send, run the world, and return the outcome."""
        op = self.send(name, data, **options)
        self.run(run_ns)
        end = self.hosts[name].end_of(op)
        assert end is not None, f"{name}: request {op} did not end"
        return end

    def holders(self, role: str = "role", tree: str = "tree") -> list[str]:
        alive = [host for host in self.hosts.values() if host.alive]
        return [h.name for h in alive if h.machine.local.get(tree_id(tree), role) is not None]

    def receivers(self, data: bytes) -> dict[str, int]:
        """The nodes that received a message, and how many times."""
        return {h.name: h.got(data) for h in self.hosts.values() if h.got(data)}


def _unpacked(frame: Any) -> list[Any]:
    return list(frame.waves) if isinstance(frame, Bulk) else [frame]
