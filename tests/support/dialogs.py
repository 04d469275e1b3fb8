"""A small world for dialog units: virtual time, a faulty network, disks that lag and lose writes, crashes.

Each unit has its own store and commit mark. One seed determines everything. The test plays the applications: `call`
passes a request to a unit and returns a `Call` that is filled in when the answer arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
from tests.support.virtual_network import VirtualTime

from holdfast.dialog.config import Assurances, Settings, assurances_of, merged
from holdfast.dialog.frames import DialogFrame, Invite
from holdfast.dialog.ids import NodeId, StoreId
from holdfast.dialog.manager import DialogManager
from holdfast.dialog.ports import (
    Accept,
    Answer,
    Complete,
    Event,
    HandedOver,
    Listen,
    Loopback,
    Open,
    Outcome,
    Prepare,
    Prepared,
    ReadRows,
    Refused,
    RepairWanted,
    Resolve,
    Resolved,
    Rows,
    Send,
    Take,
    Taken,
    dialog_unit,
)
from holdfast.dialog.records import LOADED
from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import (
    NeedLink,
    PeerDown,
    PeerUp,
    Received,
    ReleaseLink,
    SendChannel,
    link_unit,
)
from holdfast.machine import Erase, Machine, Outbox, Put, Turns, Write
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND
from holdfast.wire.frames import MemberInfo

WALL = 1_700_000_000 * SECOND
_decoder = msgspec.msgpack.Decoder(DialogFrame)
MEMBER = MemberInfo(bytes(16), "", 0, ())
Tables = dict[str, dict[bytes, bytes]]


class Wire(msgspec.Struct, frozen=True):
    peer: bytes
    messages: list[bytes]


class FakeLink(Machine):
    layer = "link"

    def __init__(self, peer: bytes) -> None:
        self.peer = peer

    def down(self, now: int, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            assert isinstance(item, SendChannel)
            out.effect(Wire(self.peer, item.messages))


class FakeDirectory(Machine):
    layer = "directory"

    def up(self, now: int, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            out.effect(item)


class Call:
    """A request and its answer."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.done = False
        self.value: Any = None

    @property
    def refused(self) -> str:
        """The code of a refusal; empty if there was none."""
        return self.value.code if isinstance(self.value, Refused) else ""


class Trouble(msgspec.Struct):
    """The faults of the network and the disks."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    delay_ns: int = 500 * MICROSECOND
    jitter_ns: int = 200 * MICROSECOND
    commit_ns: int = 300 * MICROSECOND
    commit_jitter_ns: int = 300 * MICROSECOND


class Unit:
    """One dialog unit with its store, on a host."""

    def __init__(self, world: World, host: Host, name: str, durable: bool) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.durable = durable
        self.tables: Tables = {}
        self.store = StoreId(world.random.randbytes(8))
        self.epoch = 0
        self.events: list[Event] = []
        self.repairs: list[RepairWanted] = []
        self.calls: dict[int, Call] = {}
        self.backups: list[Tables] = []
        self.services: dict[str, tuple[Settings, bool]] = {}
        self.frames: list[tuple[bytes, Any]] = []
        """Frames that left the unit."""
        self.facts: list[Any] = []
        self.budget = 1 << 40
        self.start()

    # -- running -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self.durable:
            self.tables = {}
            self.store = StoreId(self.world.random.randbytes(8))
        self.epoch += 1
        self.life = object()
        self.pending: list[tuple[int, int, list[Write]]] = []
        unit = dialog_unit(self.name)
        self.unit = unit
        self.turns = Turns(
            lambda name: self.build() if name == unit else None, ("link", "directory", "dialog")
        )
        self.turns.add(unit, self.build())
        self.turns.add(DIRECTORY, FakeDirectory())
        for other in self.world.hosts.values():
            if other is not self.host:
                self.turns.add(link_unit(other.node), FakeLink(other.node))
        self.up = True
        self.wake_at = NEVER
        for service, (settings, automatic) in self.services.items():
            self.call(Listen(token=0, service=service, settings=settings, automatic=automatic))
        for peer in self.host.linked:
            self.give(PeerUp(NodeId(peer), MEMBER))
        self.turn([])

    def build(self) -> DialogManager:
        tables = {table: sorted(self.tables.get(table, {}).items()) for table in LOADED}
        random = self.world.random
        self.manager = DialogManager(
            dialog_unit(self.name), self.host.node, self.store, self.epoch, tables, random.randbytes,
            self.world.wall_offset, self.budget, self.world.abandoned_ns,
        )  # fmt: skip
        return self.manager

    def crash(self) -> None:
        """Kill the process. Some of the first pending commits may be durable."""
        self.up = False
        kept = self.world.random.randint(0, len(self.pending))
        for _, _, writes in self.pending[:kept]:
            apply(self.tables, writes)
        self.pending.clear()
        for call in self.calls.values():
            call.value, call.done = Refused("crash", ""), True
        self.calls.clear()
        self.life = object()

    def call(self, request: Any) -> Call:
        call = Call(request)
        if not self.up:
            call.value, call.done = Refused("crash", ""), True
            return call
        token = getattr(request, "token", None)
        if token == 0:
            token = self.world.token()
            request = msgspec.structs.replace(request, token=token)
        if token is not None:
            self.calls[token] = call
        self.give(request)
        return call

    def give(self, item: Any) -> None:
        life = self.life
        self.world.at(0, lambda: self.turn([item]) if self.life is life else None)

    def turn(self, items: list[Any]) -> None:
        if not self.up:
            return
        world = self.world
        result = self.turns.run(world.now, [(self.unit, item) for item in items])
        for failure in result.failures:
            raise failure.error
        self.facts += result.facts
        life = self.life
        writes = result.store_writes.get(self.unit, [])
        if writes:
            due = world.now + world.trouble.commit_ns
            due += world.random.randrange(world.trouble.commit_jitter_ns + 1)
            if self.pending:
                due = max(due, self.pending[-1][0])
            self.pending.append((due, result.number, writes))
            world.at(due - world.now, lambda: self.commit() if self.life is life else None)
        for effect in result.effects:
            self.effect(effect)
        if result.more:
            world.at(0, lambda: self.turn([]) if self.life is life else None)
        deadline = self.turns.next_deadline()
        if deadline < NEVER and deadline != self.wake_at:
            self.wake_at = deadline
            world.at(
                max(0, deadline - world.now),
                lambda: self._wake(deadline) if self.life is life else None,
            )

    def _wake(self, deadline: int) -> None:
        if self.wake_at == deadline:
            self.wake_at = NEVER
            self.turn([])

    def commit(self) -> None:
        """The oldest commit is durable."""
        if not self.pending or self.pending[0][0] > self.world.now:
            return
        _, number, writes = self.pending.pop(0)
        apply(self.tables, writes)
        if self.turns.written(number, self.unit):
            self.turn([])

    def effect(self, effect: Any) -> None:
        world = self.world
        if isinstance(effect, Wire):
            for message in effect.messages:
                frame = _decoder.decode(message)
                self.frames.append((effect.peer, frame))
                world.carry(self, effect.peer, frame)
        elif isinstance(effect, Loopback):
            for frame in effect.frames:
                self.frames.append((effect.node, frame))
                world.carry(self, effect.node, frame)
        elif isinstance(effect, Answer):
            call = self.calls.pop(effect.token, None)
            if call is not None:
                call.value, call.done = effect.value, True
                if (
                    isinstance(effect.value, Taken)
                    and effect.value.lease
                    and not world.hold_handover
                ):
                    self.give(HandedOver(effect.value.dialog, effect.value.lease))
        elif isinstance(effect, Event):
            self.events.append(effect)
            world.on_event(self, effect)
        elif isinstance(effect, Resolve):
            self.give(world.resolve(effect))
        elif isinstance(effect, ReadRows):
            self.read(effect)
        elif isinstance(effect, RepairWanted):
            self.repairs.append(effect)
        elif isinstance(effect, NeedLink):
            world.wanted_links.append((self.host.node, effect.peer))
        elif isinstance(effect, ReleaseLink):
            world.released_links.append((self.host.node, effect.peer))
        else:
            raise AssertionError(effect)

    def read(self, effect: ReadRows) -> None:
        """Read after every write so far, as the writer does."""
        life = self.life
        due = max([self.world.now, *(due for due, _, _ in self.pending)])

        def answer() -> None:
            if self.life is not life:
                return
            tables = {
                table: [
                    (k, v)
                    for k, v in sorted(self.tables.get(table, {}).items())
                    if first <= k < stop
                ]
                for table, first, stop in effect.wanted
            }
            self.turn([Rows(effect.token, tables)])

        self.world.at(due - self.world.now, answer)

    # -- an application's transaction ----------------------------------------------------------------------------

    def commit_transaction(self, prepared: Prepared) -> bool:
        """Commit the rows of a transaction, as a store does: all of them, only if none exists yet, under the fence; or
        none."""
        if prepared.epoch != self.epoch:
            return False
        if any(row.key in self.tables.get(row.table, {}) for row in prepared.inserts):
            return False
        apply(self.tables, prepared.inserts)
        return True

    def kinds(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


class Host:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.node = NodeId(name.encode().ljust(16, b"-"))
        self.units: dict[str, Unit] = {}
        self.linked: dict[bytes, None] = {}


class World:
    def __init__(
        self, seed: int = 1, trouble: Trouble | None = None, abandoned_ns: int = 0
    ) -> None:
        self.seed = seed
        self.abandoned_ns = abandoned_ns
        self.random = Random(seed)
        self.trouble = trouble or Trouble()
        self.wall_offset = WALL
        self.hosts: dict[str, Host] = {}
        self.by_node: dict[bytes, Host] = {}
        self.sessions: dict[tuple[bytes, bytes], int] = {}
        self.routes: dict[str, list[bytes]] = {}
        self.route_errors: dict[str, str] = {}
        self.wanted_links: list[tuple[bytes, bytes]] = []
        self.released_links: list[tuple[bytes, bytes]] = []
        self.filter: Callable[[Unit, bytes, Any], bool] = lambda *_: True
        """Whether a frame passes."""
        self.on_event: Callable[[Unit, Event], None] = lambda *_: None
        self.hold_handover = False
        self._time = VirtualTime(SECOND)
        self._token = 0
        self.last_arrival: dict[tuple[bytes, bytes], int] = {}

    @property
    def now(self) -> int:
        return self._time.now

    def token(self) -> int:
        self._token += 1
        return self._token

    def at(self, delay: int, act: Callable[[], None]) -> None:
        self._time.at(self.now + delay, act)

    def run(self, duration: int = 10 * SECOND, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; stops early if `until` holds. True if it does."""
        end = self.now + duration
        steps = 0
        while self._time.next_ns <= end:
            if until is not None and until():
                return True
            self._time.step()
            steps += 1
            assert steps < 2_000_000, f"seed {self.seed}: the world does not become idle"
        if until is not None and until():
            return True
        self._time.now = end
        return until is None

    def finish(self, *calls: Call, duration: int = 60 * SECOND) -> list[Any]:
        """Run until the calls are answered; returns the answers."""
        ok = self.run(duration, lambda: all(call.done for call in calls))
        assert ok, f"seed {self.seed}: no answer to {[c.request for c in calls if not c.done]}"
        return [call.value for call in calls]

    # -- hosts and links -----------------------------------------------------------------------------------------

    def add(self, name: str, stores: Sequence[str] = ("default",), durable: bool = True) -> Host:
        host = self.hosts[name] = Host(self, name)
        self.by_node[host.node] = host
        for other in self.hosts.values():
            for unit in other.units.values():
                unit.turns.add(link_unit(host.node), FakeLink(host.node))
        for store in stores:
            host.units[store] = Unit(self, host, store, durable)
        return host

    def connect(self, a: Host, b: Host) -> None:
        """Begin a link session."""
        self.disconnect(a, b)
        pair = tuple(sorted((bytes(a.node), bytes(b.node))))
        self.sessions[pair[0], pair[1]] = self.sessions.get((pair[0], pair[1]), 0) + 1
        for host, peer in ((a, b), (b, a)):
            host.linked[peer.node] = None
            for unit in host.units.values():
                unit.give(PeerUp(peer.node, MEMBER))

    def disconnect(self, a: Host, b: Host) -> None:
        """End the link session: frames in flight are lost."""
        if b.node not in a.linked:
            return
        pair = tuple(sorted((bytes(a.node), bytes(b.node))))
        self.sessions[pair[0], pair[1]] += 1
        for host, peer in ((a, b), (b, a)):
            host.linked.pop(peer.node, None)
            for unit in host.units.values():
                unit.give(PeerDown(peer.node, "test"))

    def crash(self, host: Host, down_ns: int = 50 * MILLISECOND) -> None:
        """Kill the process of a host; it restarts after a while and its links are re-established."""
        peers = [self.by_node[node] for node in host.linked]
        for unit in host.units.values():
            unit.crash()
        for peer in peers:
            self.disconnect(host, peer)

        def back() -> None:
            for unit in host.units.values():
                unit.start()
            for peer in peers:
                self.connect(host, peer)

        self.at(down_ns, back)

    def carry(self, sender: Unit, node: bytes, frame: Any) -> None:
        """Deliver a frame to another host, or drop it."""
        if not self.filter(sender, node, frame):
            return
        trouble, random = self.trouble, self.random
        pair = tuple(sorted((bytes(sender.host.node), bytes(node))))
        session = self.sessions.get((pair[0], pair[1]), 0)
        copies = 1 + (random.random() < trouble.duplication)
        if random.random() < trouble.loss:
            copies -= 1
        for _ in range(copies):
            delay = trouble.delay_ns + random.randrange(trouble.jitter_ns + 1)
            key = (bytes(sender.host.node), bytes(node))
            if random.random() < trouble.reordering:
                delay += random.randrange(20 * trouble.delay_ns)
            else:
                delay = max(delay, self.last_arrival.get(key, 0) - self.now)
                self.last_arrival[key] = self.now + delay
            self.at(delay, lambda: self.deliver(sender.host.node, node, session, frame))

    def deliver(self, sender: bytes, node: bytes, session: int, frame: Any) -> None:
        pair = tuple(sorted((bytes(sender), bytes(node))))
        if self.sessions.get((pair[0], pair[1]), 0) != session:
            return
        host = self.by_node[node]
        unit = self.unit_for(host, frame)
        if unit is not None:
            unit.turn([Received(NodeId(sender), [frame], self.now)])

    def unit_for(self, host: Host, frame: Any) -> Unit | None:
        """The unit that receives a frame: by store, or by service for an invitation."""
        units = list(host.units.values())
        if isinstance(frame, Invite):
            for unit in units:
                if frame.uri.partition("?")[0] in unit.services:
                    return unit
            return units[0]
        for unit in units:
            if unit.store == frame.to:
                return unit
        return units[0]

    def resolve(self, effect: Resolve) -> Resolved:
        service = effect.uri.partition("?")[0]
        nodes = self.routes.get(service, [])
        return Resolved(effect.dialog, effect.attempt, nodes, self.route_errors.get(service, ""))


def apply(tables: Tables, writes: Sequence[Write]) -> None:
    for write in writes:
        table = tables.setdefault(write.table, {})
        if isinstance(write, Put):
            table[write.key] = write.value
        else:
            assert isinstance(write, Erase)
            for key in [key for key in table if write.first <= key < write.stop]:
                del table[key]


# -- common steps ------------------------------------------------------------------------------------------------


SERVICE = "service:orders"


def settings(code: int = 7, **values: Any) -> Settings:
    wanted: Assurances = assurances_of(code)
    direct = {
        "at_least_once": wanted.at_least_once,
        "at_most_once": wanted.at_most_once,
        "in_order": wanted.in_order,
        **values,
    }
    return merged(direct)


class Pair:
    """Two hosts with one dialog between them."""

    def __init__(
        self,
        world: World,
        code: int = 7,
        near: dict[str, Any] | None = None,
        far: dict[str, Any] | None = None,
        durable: bool = True,
        wait: bool = True,
    ) -> None:
        self.world = world
        self.a = world.add("a", durable=durable)
        self.b = world.add("b", durable=durable)
        self.near = self.a.units["default"]
        self.far = self.b.units["default"]
        world.routes[SERVICE] = [self.b.node]
        serve(self.far, settings(code, **(far or {})))
        world.connect(self.a, self.b)
        opened = self.near.call(Open(token=0, uri=SERVICE, settings=settings(code, **(near or {}))))
        self.dialog: bytes = world.finish(opened)[0].dialog
        if wait:
            assert world.run(60 * SECOND, self.opened), "paired"

    def opened(self) -> bool:
        here, there = self.near.manager.inspect(self.dialog), self.far.manager.inspect(self.dialog)
        return bool(here and there and here.state == there.state == "open")

    def send(self, *bodies: bytes, unit: Unit | None = None, **more: Any) -> Call:
        unit = unit or self.near
        deadline = more.pop("deadline", self.world.now + 30 * SECOND)
        return unit.call(
            Send(token=0, dialog=self.dialog, bodies=list(bodies), deadline=deadline, **more)
        )

    def take(self, count: int = 1, unit: Unit | None = None, **more: Any) -> Call:
        unit = unit or self.far
        return unit.call(Take(token=0, dialog=self.dialog, count=count, **more))

    def drain(self, unit: Unit | None = None, count: int = 1000) -> list[bytes]:
        """Receive everything that is available now."""
        call = self.take(count, unit, deadline=0)
        return bodies(self.world.finish(call)[0])

    def complete(self) -> tuple[Call, Call]:
        return (
            self.near.call(Complete(token=0, dialog=self.dialog)),
            self.far.call(Complete(token=0, dialog=self.dialog)),
        )

    def here(self) -> Any:
        return self.near.manager.inspect(self.dialog)

    def there(self) -> Any:
        return self.far.manager.inspect(self.dialog)


def frames(unit: Unit, kind: type[Any]) -> list[Any]:
    """The frames of one kind that a unit has sent."""
    return [frame for _, frame in unit.frames if type(frame) is kind]


def block(world: World, *kinds: type[Any]) -> None:
    """From now on, the network loses frames of these kinds."""
    world.filter = lambda _unit, _node, frame: type(frame) not in kinds


def unblock(world: World) -> None:
    """The network loses nothing any more."""
    world.filter = lambda *_: True


def bodies(taken: Any) -> list[bytes]:
    assert isinstance(taken, Taken), taken
    return [bytes(message.body) for message in taken.messages]


def serve(unit: Unit, chosen: Settings, service: str = SERVICE, automatic: bool = True) -> None:
    unit.services[service] = (chosen, automatic)
    unit.call(Listen(token=0, service=service, settings=chosen, automatic=automatic))


def accept(unit: Unit, dialog: bytes, chosen: Settings) -> Call:
    return unit.call(Accept(token=0, dialog=dialog, settings=chosen))


def transact(unit: Unit, tx: bytes, commit: bool = True, counts: bool = True) -> bool:
    """Commit or abort a transaction, as the runtime does; returns whether it committed."""
    world = unit.world
    done = False
    if commit:
        answer = world.finish(unit.call(Prepare(token=0, tx=tx)))[0]
        done = isinstance(answer, Prepared) and unit.commit_transaction(answer)
    unit.give(Outcome(tx, done, counts))
    world.run(5 * MILLISECOND)
    return done


def damage_arrivals(unit: Unit, dialog: bytes) -> None:
    """The end raises at the next arrival: the set of the numbers that it has received is damaged."""
    received = unit.manager.core.dialogs[dialog].inc.received
    received.starts[:] = received.stops[:] = ["damaged"]  # type: ignore[list-item]
