"""A small deterministic world for groups: nodes with a source and a replica each, fake links, virtual time.

Links are units of layer 1, as in a real node, but the network below them is this file: each message is delayed, and,
where a test asks for it, lost, doubled or overtaken, all by one seed. Channels keep their order unless `reorder` is
set. A session ends when a node is killed or two nodes are cut apart; what is on the way then is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
from tests.support.virtual_network import VirtualNetwork

from holdfast.errors import ConfigError
from holdfast.group import (
    GroupConfig,
    ReplicaMachine,
    SourceMachine,
    replica_unit,
    source_unit,
    units_for,
)
from holdfast.group.config import OUTPUT_RECEIVER, log_unit, services_unit
from holdfast.group.log.journal import journal_tables
from holdfast.group.loss.actions import Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.membership.seating import PathRows
from holdfast.group.outputs.output_receiver import OutputReceiverMachine
from holdfast.group.ports import (
    AppFailed,
    Applied,
    Apply,
    AskLoss,
    Context,
    Decision,
    LossAnswered,
    Multicast,
    Output,
    OutputsReady,
    OutputsSent,
    Restored,
    RestoreState,
    SendOutputs,
    SnapshotTaken,
    SourceRoom,
    StopOutputs,
    TakeSnapshot,
    Tell,
)
from holdfast.group.services.client import ServiceClient
from holdfast.group.services.ports import ServiceNotice
from holdfast.group.streams.message_log import MessageLog, log_tables
from holdfast.group.streams.values import Note
from holdfast.group.subsystem import GROUP_SUBSYSTEM
from holdfast.links.ports import PeerDown, PeerUp, Received, SendChannel, SendDatagrams, link_unit
from holdfast.machine import Machine, Outbox, ReadTable, TableRead, Turns
from holdfast.stores.memory import MemoryStore, Tables
from holdfast.telemetry.facts import DeliveryFact, GroupFact, OrderFact
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, NodeId
from holdfast.wire.codec import Rejected, decode_frame
from holdfast.wire.frames import MemberInfo

GROUP = "book"
FAST: dict[str, Any] = {"window_bytes": 64_000, "payload_bytes": 1000}
"""Small buffers: full soon."""
RINGS_NS, RINGS_MAX = 100 * MICROSECOND, 1000
"""No node has so many deadlines in so short a time."""
DATAGRAM = -1
"""The lane of datagrams: `World.datagram_loss` is for these only."""


@cache
def node_id(name: str) -> NodeId:
    return NodeId(blake2b(name.encode(), digest_size=16).digest())


class Wire(msgspec.Struct, frozen=True, gc=False):
    """Effect of a fake link: messages for the peer on a channel."""

    peer: NodeId
    channel: int
    messages: list[bytes]


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """Input of a fake link."""

    messages: list[bytes]


class FakeLink(Machine):
    """Carries frames between the units of a node and the world's network."""

    layer = "links"

    def __init__(self, peer: NodeId) -> None:
        self._peer = peer

    def up(self, now: int, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, Arrival):
                for message in item.messages:
                    frame = decode_frame(message)
                    assert not isinstance(frame, Rejected), frame
                    for unit in units_for(frame):
                        out.up(unit, Received(self._peer, [frame], now))
            else:
                out.up(source_unit(GROUP), item)
                out.up(replica_unit(GROUP), item)
                out.up(services_unit(GROUP), item)

    def down(self, now: int, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, SendDatagrams):
                out.effect(Wire(self._peer, DATAGRAM, item.frames))
                continue
            assert isinstance(item, SendChannel)
            out.effect(Wire(self._peer, item.channel, item.messages))


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    position: int
    stream: str
    number: int
    message: bytes


class App:
    """Remembers everything, and its snapshot is all of it: whoever was restored can be compared from position 1 on."""

    def __init__(self) -> None:
        self.got: list[Delivered] = []

    def apply(self, effect: Apply) -> None:
        batch = effect.batch
        stream = f"{batch.stream.source.hex()}/{batch.stream.incarnation}/{batch.stream.stream}"
        for k, message in enumerate(batch.messages):
            self.got.append(Delivered(batch.position + k, stream, batch.first + k, bytes(message)))

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.got)

    def restore(self, data: bytes) -> None:
        self.got = msgspec.msgpack.decode(data, type=list[Delivered])


class Host:
    """One node, in one life."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        self.name = name
        self.id = node_id(name)
        self.incarnation = incarnation
        self.member = MemberInfo(self.id, name, incarnation, ())
        self.app = App()
        self.frozen = False
        self.no_state = False
        """Its application cannot say its state."""
        """The application answers nothing while this is set."""
        self.slowness = 1
        """So many times longer than others the application takes for each thing that it is given."""
        self.fails_at = 0
        """The application raises when it is given this position."""
        self.on_loss: Callable[[LossInfo], Action | None] = lambda _: None
        """What the application answers when it is asked."""
        self.asked: list[LossInfo] = []
        self.told: list[Decision] = []
        self.says: Callable[[bytes], list[tuple[str, bytes]]] = lambda _: []
        """What the application says to whom about a message."""
        self.takes_outputs = self.listens = True
        self.fails_to_restore = 0
        """Whether a foreign destination takes what it is sent."""
        self.outputs: list[Output] = []
        self.stops = 0
        """How often it was told that what it sends is not its business any more."""
        """What arrived here, as a node."""
        self.sent: list[Output] = []
        """What was sent to foreign destinations from here."""
        self.unanswered: list[Any] = []
        self.unwritten: list[tuple[int, list[Any]]] = []
        """Turns whose writes are not on disk yet."""
        self.room: list[int] = []
        self.settled = 0
        """Of the messages that were sent here, up to which it is known to be decided what becomes of them."""
        self.turns = Turns(lambda _unit: None, ("links", *GROUP_SUBSYSTEM.layers))
        config = world.config
        if name in world.joiners:
            config = msgspec.structs.replace(config, learners=(*config.learners, name))
        seed = f"{world.seed}/{name}/{incarnation}"
        self.source = SourceMachine(
            config=config, node=self.id, name=name, incarnation=incarnation, rng=Random(seed + "s")
        )
        self.turns.add(source_unit(GROUP), self.source)
        self.services = ServiceClient(
            config=config, node=self.id, name=name, incarnation=incarnation, rng=Random(seed + "l")
        )
        self.notices: list[ServiceNotice] = []
        """What became of requests for locks and barriers."""
        self.turns.add(services_unit(GROUP), self.services)
        self.turns.add(
            OUTPUT_RECEIVER,
            OutputReceiverMachine(self.id, MemoryStore(world.disks[name]).load("outputs")),
        )
        self.replica: ReplicaMachine | None = None
        if name in config.replicas:
            stored = {
                table: MemoryStore(world.disks[name]).load(table)
                for table in journal_tables(config)
            }
            self.replica = ReplicaMachine(
                config=config, node=self.id, name=name, incarnation=incarnation, rng=Random(seed + "r"),
                stored=stored, paths=world.paths,
            )  # fmt: skip
            self.turns.add(replica_unit(GROUP), self.replica)
            if config.message_log_bytes:
                disk = MemoryStore(world.disks[name])
                rows = {table: disk.load(table) for table in log_tables(GROUP)}
                self.turns.add(log_unit(GROUP), MessageLog(config, self.id, rows))
        for other in world.names:
            if other != name:
                peer = node_id(other)
                self.turns.add(link_unit(peer), FakeLink(peer))

    @property
    def status(self) -> dict[str, Any]:
        assert self.replica is not None
        return self.replica.status()

    @property
    def members(self) -> int:
        """How many members the committed view of this replica has. `status` has it too, and costs more."""
        assert self.replica is not None
        view = self.replica.inspect().log.committed_view
        return 0 if view is None else len(view.members)

    @property
    def held(self) -> int:
        """Bytes of all streams that this replica holds."""
        assert self.replica is not None
        return sum(stream.bytes for stream in self.replica.inspect().streams.streams.values())

    @property
    def messages(self) -> list[bytes]:
        return [item.message for item in self.app.got]


class World(VirtualNetwork):
    """Nodes, and the network between them."""

    def __init__(
        self,
        seed: int = 1,
        voters: int = 3,
        learners: int = 0,
        sources: int = 0,
        *,
        joiners: int = 0,
        loss: float = 0.0,
        double: float = 0.0,
        datagram_loss: float = 0.0,
        reorder: bool = False,
        delay_us: tuple[int, int] = (50, 400),
        **settings: Any,
    ) -> None:
        """Voters are n1, n2, ..., learners l1, ..., nodes that only send s1, ..., replicas that only their own
        configuration names j1, ...; n1 leads at first."""
        super().__init__(
            Random(f"world/{seed}"), SECOND, loss=loss, double=double, delay_us=delay_us, reorder=reorder
        )  # fmt: skip
        self.seed = seed
        self.datagram_loss = datagram_loss
        self.app_delay_us = (10, 200)
        self.snapshot_ns = 0
        self.restore_ns = 0
        """How long applications need to give their state, and to take one, besides."""
        names = [f"n{k + 1}" for k in range(voters)], [f"l{k + 1}" for k in range(learners)]
        self.config = GroupConfig(
            name=GROUP, voters=tuple(names[0]), learners=tuple(names[1]), **settings
        )
        self.joiners = [f"j{k + 1}" for k in range(joiners)]
        self.names = [*names[0], *names[1], *self.joiners, *(f"s{k + 1}" for k in range(sources))]
        self._by_id = {node_id(name): name for name in self.names}
        self.hosts: dict[str, Host] = {}
        self.past: list[Host] = []
        """Hosts that were killed: what they delivered still counts."""
        self.disks = {name: Tables() for name in self.names}
        self.paths: PathRows = tuple
        """What health knows of all paths, for replicas that start later."""
        self.disk_us = (100, 800)
        self.facts: list[tuple[str, Any]] = []
        self.failures: list[Any] = []
        self.turns_run = 0
        self.frames_sent = 0
        self._lives: dict[str, int] = {}
        self._alarm: dict[str, int] = {}
        self._rings: dict[str, tuple[int, int]] = {}
        self._paused: dict[str, list[tuple[Host, str, Any]]] = {}
        self._trace = blake2b(digest_size=16)
        self.drop: Callable[[str, str, Any], bool] | None = None
        self.watch: Callable[[str, Any], None] = lambda _name, _effect: None
        """Sees every effect before it is performed, with the name of its host."""
        """A test may lose frames of its choice: (from, to, frame)."""

    # -- time ----------------------------------------------------------------------------------------------------

    def run(self, duration_ns: int) -> None:
        self.pass_time(duration_ns)

    def run_until(self, reached: Callable[[], bool], limit_ns: int) -> None:
        self.pass_until(reached, limit_ns, self.describe)

    def describe(self) -> str:
        return "\n".join(
            f"{name}: {host.status}" for name, host in self.hosts.items() if host.replica
        )

    def digest(self) -> str:
        return self._trace.hexdigest()

    # -- nodes ---------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names or self.names:
            assert name not in self.hosts
            self._lives[name] = self._lives.get(name, 0) + 1
            host = self.hosts[name] = Host(self, name, self._lives[name])
            self._turn(host, [])
            for other in list(self.hosts.values()):
                if other is not host and not self.is_cut(name, other.name):
                    self._join(host, other)

    def kill(self, name: str, left: bool = False) -> None:
        """`left`: it has said goodbye."""
        host = self.hosts.pop(name)
        # Of what was not reported as written some may be there, in order.
        self._save(host, self.rng.randint(0, len(host.unwritten)))
        self.past.append(host)
        for other in list(self.hosts.values()):
            if not self.is_cut(name, other.name):
                self.end_session(name, other.name)
                self._later(other, link_unit(host.id), PeerDown(host.id, "killed", left))

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def cut(self, a: str, b: str) -> None:
        if not self.set_cut(a, b):
            return
        self.end_session(a, b)
        for one, other in ((a, b), (b, a)):
            if one in self.hosts and other in self.hosts:
                peer = node_id(other)
                self._later(self.hosts[one], link_unit(peer), PeerDown(peer, "cut"))

    def heal(self, a: str, b: str) -> None:
        if not self.set_cut(a, b, False):
            return
        if a in self.hosts and b in self.hosts:
            self._join(self.hosts[a], self.hosts[b])

    def isolate(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def heal_all(self) -> None:
        for a, b in self.cut_pairs:
            self.heal(a, b)

    def _join(self, a: Host, b: Host) -> None:
        self.end_session(a.name, b.name)
        for one, other in ((a, b), (b, a)):
            self._later(one, link_unit(other.id), PeerUp(other.id, other.member))

    def _later(self, host: Host, unit: str, item: Any, delay_ns: int = 1000) -> None:
        self.at(self.now + delay_ns, lambda: self._feed(host, unit, item))

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, name: str, messages: Iterable[bytes], **note: Any) -> None:
        """Messages of one node; all have the same note."""
        batch = list(messages)
        notes = tuple((place, Note(**note)) for place in range(len(batch))) if note else ()
        self._feed(self.hosts[name], source_unit(GROUP), Multicast(batch, notes))

    def inject(self, name: str, item: Any) -> None:
        """Give a replica any input."""
        self._feed(self.hosts[name], replica_unit(GROUP), item)

    def ask(self, name: str, item: Any) -> None:
        """A request for a lock or a barrier."""
        self._feed(self.hosts[name], services_unit(GROUP), item)

    # -- turns ---------------------------------------------------------------------------------------------------

    def pause(self, name: str) -> None:
        """Stop a process as SIGSTOP does: what arrives waits."""
        self._paused[name] = []

    def resume(self, name: str) -> None:
        waiting = self._paused.pop(name)
        if name in self.hosts:
            self._turn(self.hosts[name], [(unit, item) for host, unit, item in waiting])

    @property
    def paused(self) -> list[str]:
        return list(self._paused)

    def forget_paused(self, name: str) -> None:
        """It is killed as it stands still: what waits for it is lost."""
        del self._paused[name]

    def _feed(self, host: Host, unit: str, item: Any) -> None:
        if host.name in self._paused:
            self._paused[host.name].append((host, unit, item))
        elif self.hosts.get(host.name) is host:
            self._turn(host, [(unit, item)])

    def _turn(self, host: Host, inputs: list[tuple[str, Any]]) -> None:
        more = True
        while more:
            self.turns_run += 1
            result = host.turns.run(self.now, inputs)
            inputs = []
            more = result.more
            self.failures.extend(result.failures)
            for failure in result.failures:
                raise AssertionError(
                    f"{host.name}: {failure.unit} failed on {failure.inputs}"
                ) from failure.error
            self.facts.extend((host.name, fact) for fact in result.facts)
            if result.writes:
                host.unwritten.append((result.number, result.writes))
                if len(host.unwritten) == 1:
                    self._sync(host)
            for effect in result.effects:
                self._effect(host, effect)
        self._set_alarm(host)

    def _sync(self, host: Host) -> None:
        delay_ns = self.rng.randint(*self.disk_us) * MICROSECOND
        self.at(self.now + delay_ns, lambda: self._synced(host, len(host.unwritten)))

    def _synced(self, host: Host, count: int) -> None:
        if self.hosts.get(host.name) is not host:
            return
        if host.name in self._paused:
            self.at(self.now + MILLISECOND, lambda: self._synced(host, count))
            return
        turn = self._save(host, count)
        if host.unwritten:
            self._sync(host)
        if host.turns.written(turn):
            self._turn(host, [])

    def _save(self, host: Host, count: int) -> int:
        """Write the turns that have waited longest; the number of the last one."""
        done = host.unwritten[:count]
        del host.unwritten[:count]
        for _, writes in done:
            MemoryStore(self.disks[host.name]).commit(writes)
        return done[-1][0] if done else 0

    def _set_alarm(self, host: Host) -> None:
        deadline = host.turns.next_deadline()
        if deadline < 1 << 62 and deadline != self._alarm.get(host.name):
            self._alarm[host.name] = deadline
            self.at(max(deadline, self.now), lambda: self._ring(host, deadline))

    def _ring(self, host: Host, deadline: int) -> None:
        if self.hosts.get(host.name) is not host or host.name in self._paused:
            return
        self._watch_rings(host)
        if self._alarm.get(host.name) == deadline:
            del self._alarm[host.name]
        if host.turns.next_deadline() <= self.now:
            self._turn(host, [])

    def _watch_rings(self, host: Host) -> None:
        """A deadline that comes again and again at once is a process that burns its core."""
        at, rings = self._rings.get(host.name, (0, 0))
        same = self.now - at < RINGS_NS
        self._rings[host.name] = (at, rings + 1) if same else (self.now, 1)
        assert not same or rings < RINGS_MAX, f"{host.name} wakes up for nothing, again and again"

    def _effect(self, host: Host, effect: Any) -> None:
        self._trace.update(f"{self.now} {host.name} {type(effect).__name__} ".encode())
        if isinstance(effect, Wire):
            self.frames_sent += len(effect.messages)
            for message in effect.messages:
                self._trace.update(message)
            self._transmit(host, effect)
        elif isinstance(effect, SourceRoom):
            host.room.append(effect.held)
            host.settled = effect.settled
        elif isinstance(effect, ReadTable):
            rows = MemoryStore(self.disks[host.name]).load(effect.table)
            self._later(host, effect.unit, TableRead(effect.table, rows))
        elif isinstance(effect, OutputsReady):
            if host.listens:
                host.outputs.extend(effect.outputs)
                self._later(host, OUTPUT_RECEIVER, effect.taken())
        elif isinstance(effect, SendOutputs):
            if host.takes_outputs:
                host.sent.extend(effect.outputs)
                last = effect.outputs[-1]
                answer = OutputsSent(effect.destination, last.position, last.k)
                self._later(host, effect.unit, answer)
        elif isinstance(effect, StopOutputs):
            host.stops += 1
        elif isinstance(effect, ServiceNotice):
            host.notices.append(effect)
        else:
            self._trace.update(str(getattr(effect, "index", 0)).encode())
            host.unanswered.append(effect)
            if len(host.unanswered) == 1:
                self._schedule_app(host)

    # -- the application -----------------------------------------------------------------------------------------

    def _schedule_app(self, host: Host) -> None:
        delay_ns = self.rng.randint(*self.app_delay_us) * MICROSECOND * host.slowness
        if isinstance(host.unanswered[0], TakeSnapshot):
            delay_ns += self.snapshot_ns
        elif isinstance(host.unanswered[0], RestoreState):
            delay_ns += self.restore_ns
        self.at(self.now + delay_ns, lambda: self._work(host))

    def _work(self, host: Host) -> None:
        if self.hosts.get(host.name) is not host or not host.unanswered:
            return
        if host.frozen or host.name in self._paused:
            self.at(self.now + MILLISECOND, lambda: self._work(host))
            return
        effect = host.unanswered.pop(0)
        self.watch(host.name, effect)
        answer = self._perform(host, effect)
        if host.unanswered:
            self._schedule_app(host)
        self._turn(host, [(effect.unit, answer)] if answer is not None else [])

    def _perform(self, host: Host, effect: Any) -> Any:
        if isinstance(effect, Apply):
            if host.fails_at and effect.batch.position <= host.fails_at:
                last = effect.batch.position + len(effect.batch.messages) - 1
                if host.fails_at <= last:
                    return AppFailed(effect.index, "deliberate")
            host.app.apply(effect)
            context = Context(GROUP, effect.log_ns, effect.batch.position, [])
            for message in effect.batch.messages:
                for destination, payload in host.says(bytes(message)):
                    context.output(destination, payload)
            return Applied(effect.index, effect.size, tuple(context.outputs or ()))
        if isinstance(effect, TakeSnapshot):
            if host.no_state:
                return SnapshotTaken(effect.request, effect.index, b"", "deliberate")
            return SnapshotTaken(effect.request, effect.index, host.app.snapshot())
        if isinstance(effect, AskLoss):
            host.asked.append(effect.info)
            try:
                return LossAnswered(effect.question, host.on_loss(effect.info))
            except ConfigError as error:  # As workers do with all that an application raises.
                return LossAnswered(effect.question, None, f"{type(error).__name__}: {error}")
        if isinstance(effect, Tell):
            host.told.append(effect.decision)
            return None
        assert isinstance(effect, RestoreState)
        if host.fails_to_restore:
            host.fails_to_restore -= 1
            return AppFailed(effect.index, "deliberate")
        host.app.restore(effect.data)
        return Restored(effect.index)

    # -- the network ---------------------------------------------------------------------------------------------

    def _transmit(self, host: Host, wire: Wire) -> None:
        target = self._by_id.get(wire.peer, "")
        if target not in self.hosts or self.is_cut(host.name, target):
            return
        loss = self.datagram_loss if wire.channel == DATAGRAM else None
        for message in wire.messages:
            if self.drop is not None and self.drop(host.name, target, decode_frame(message)):
                continue
            self.transmit(
                host.name, target, wire.channel, self._arrival(host.name, target, message), loss
            )

    def _arrival(self, sender: str, target: str, message: bytes) -> Callable[[], None]:
        receiver = self.hosts[target]
        return lambda: self._feed(receiver, link_unit(node_id(sender)), Arrival([message]))

    # -- what must hold ------------------------------------------------------------------------------------------

    def events(self, kind: str) -> list[tuple[str, GroupFact]]:
        return [
            (name, fact)
            for name, fact in self.facts
            if isinstance(fact, GroupFact) and fact.event == kind
        ]

    def check(self) -> None:
        """Invariants 1 and 2 of the design, over all lives of all replicas, and that facts tell the same."""
        longest: list[Delivered] = []
        for host in [*self.hosts.values(), *self.past]:
            got = host.app.got
            assert [item.position for item in got] == list(range(1, len(got) + 1)), (
                f"{host.name} has a hole"
            )
            common = min(len(got), len(longest))
            assert got[:common] == longest[:common], f"{host.name} delivered something else"
            if len(got) > len(longest):
                longest = got
        skipped = self.skipped()
        following: dict[str, int] = {}
        for item in longest:
            expected = following.get(item.stream, 1)
            while (item.stream, expected) in skipped and expected < item.number:
                expected += 1
            assert item.number == expected, f"{item} out of the order of its stream"
            assert (item.stream, item.number) not in skipped, f"{item} was skipped"
            following[item.stream] = item.number + 1
        self._check_facts()

    def _check_facts(self) -> None:
        digests: dict[int, tuple[str, DeliveryFact]] = {}
        for name, fact in self.facts:
            if isinstance(fact, DeliveryFact):
                first = digests.setdefault(fact.position, (name, fact))[1]
                same = (fact.stream, fact.first, fact.last, fact.digest, fact.index)
                assert same == (first.stream, first.first, first.last, first.digest, first.index)

    def skipped(self) -> set[tuple[str, int]]:
        """Numbers that some replica was told that nobody delivers."""
        found: set[tuple[str, int]] = set()
        for host in [*self.hosts.values(), *self.past]:
            for told in host.told:
                if told.kind == "skip" and told.stream is not None:
                    of = told.stream
                    label = f"{of.source.hex()}/{of.incarnation}/{of.stream}"
                    found.update((label, number) for number in range(told.first, told.last + 1))
        return found

    def orders(self) -> list[OrderFact]:
        return [fact for _, fact in self.facts if isinstance(fact, OrderFact)]


def settle(world: World, expected: int, limit_ns: int = 20_000 * MILLISECOND) -> None:
    """Run until every running replica has delivered `expected` messages, then check what must hold."""

    def reached() -> bool:
        return all(len(host.app.got) >= expected for host in world.hosts.values() if host.replica)

    world.run_until(reached, limit_ns)
    world.run(50 * MILLISECOND)
    world.check()


def leader(world: World) -> str:
    """Who leads with the others behind it; empty when nobody does. A leader that was cut off may not know it yet."""
    leaders = [
        (host.replica.inspect().leadership.term, name)
        for name, host in world.hosts.items()
        if host.replica and host.replica.state == "leading"
    ]
    return max(leaders)[1] if leaders else ""


def leading(world: World) -> bool:
    return bool(leader(world))


def ready(world: World, limit_ns: int = 10_000 * MILLISECOND) -> None:
    """Run until the leader leads and every running replica has a whole memory."""

    def reached() -> bool:
        memories = {name: host.replica.memory for name, host in world.hosts.items() if host.replica}
        return leading(world) and all(
            memory == "whole" or (memory == "blank" and name in world.joiners)
            for name, memory in memories.items()
        )

    world.run_until(reached, limit_ns)
