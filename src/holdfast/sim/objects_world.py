"""A small world for objects: virtual time, broken sessions, crashes, and disks that lag, fill up, corrupt data or are
lost.

It runs the production machine in the production turn, so outputs of a node wait for its writes. One seed determines
everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

import msgspec

from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import NeedLink, PeerDown, PeerUp, Received, SendChannel, link_unit
from holdfast.machine import Erase, Machine, Outbox, Put, Turns
from holdfast.objects import ports
from holdfast.objects.config import ObjectsConfig
from holdfast.objects.frames import OBJECT_FRAMES
from holdfast.objects.machine import LAYER, ObjectMachine
from holdfast.objects.ports import DISK_JOBS, DISK_TABLE, TABLE, UNIT
from holdfast.objects.values import CHUNK
from holdfast.sim.objects_disk import ContentDisk
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND, Nanos
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import MemberInfo

FAST: Final = ObjectsConfig(
    replace_after_ns=4 * SECOND,
    call_ns=500 * MILLISECOND,
    write_ns=3 * SECOND,
    chunk_ns=2 * SECOND,
    scan_ns=200 * MILLISECOND,
    settle_ns=1 * SECOND,
    keep_old_ns=2 * SECOND,
    stage_ns=20 * SECOND,
    backoff_ns=5 * MILLISECOND,
)
Handler = Callable[[tuple[bytes | None, ...]], bytes | None]


def node_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


class _Wire(msgspec.Struct, frozen=True):
    peer: bytes
    messages: list[bytes]


class _Link(Machine):
    layer = "link"

    def __init__(self, peer: bytes) -> None:
        self.peer = peer

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            assert isinstance(item, SendChannel)
            out.effect(_Wire(self.peer, item.messages))


class _Directory(Machine):
    layer = "directory"

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            out.effect(item)


class Call:
    """An operation of an application, and its outcome."""

    def __init__(self, request: Any, data: bytes = b"") -> None:
        self.request = request
        self.data = data
        """The content that it writes."""
        self.value: Any = None
        self.done = False
        self.read = bytearray()
        self.write = b""
        self.changes: list[ports.Change] = []
        self.progress: list[ports.Progress] = []
        self.chunks: list[int] = []
        """Chunks of the source, in the order of the requests."""

    @property
    def refused(self) -> str:
        return self.value.code if isinstance(self.value, ports.Refused) else ""

    @property
    def text(self) -> str:
        return self.value.text if isinstance(self.value, ports.Refused) else ""

    @property
    def ok(self) -> bool:
        return self.done and not self.refused


class ObjectHost:
    """One node: its store and its content disk survive crashes."""

    def __init__(self, world: ObjectWorld, name: str, realm: str, config: ObjectsConfig) -> None:
        self.world = world
        self.name = name
        self.id = node_id(name)
        self.realm = realm
        self.config = config
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.disk = ContentDisk()
        self.alive = False
        self.life = 0
        self.calls: dict[int, Call] = {}
        self.published: dict[bytes, None] = {}
        self.handler: Handler | None = None
        self.failures: list[Any] = []
        self.facts: list[Any] = []
        self.turns: Turns
        self._wake_at = NEVER
        self._writing: list[tuple[int, list[Any]]] = []
        self._committed_by: Nanos = 0
        self._disk_free: Nanos = 0

    @property
    def machine(self) -> ObjectMachine:
        machine = self.turns.machine(UNIT)
        assert isinstance(machine, ObjectMachine)
        return machine

    def boot(self) -> None:
        self.life += 1
        self.alive = True
        self.published.clear()
        self._wake_at = NEVER
        self._writing = []
        self.turns = Turns(lambda _: self._build(), ("link", "directory", LAYER))
        self.turns.add(DIRECTORY, _Directory())
        for other in self.world.hosts.values():
            if other is not self:
                self.turns.add(link_unit(other.id), _Link(other.id))
        self.turns.add(UNIT, self._build())
        self.give(ports.DiskReady(self.disk.marker))

    def _build(self) -> ObjectMachine:
        rng = Random(f"{self.world.seed}/{self.name}/{self.life}")
        return ObjectMachine(
            self.id, self.name, self.config, rng, rng.randbytes,
            sorted(self.tables.get(TABLE, {}).items()),
            sorted(self.tables.get(DISK_TABLE, {}).items()),
            self.realm, self.world.now,
        )  # fmt: skip

    # -- turns ---------------------------------------------------------------------------------------------------

    def give(self, *items: Any) -> None:
        if self.alive:
            self._turn([(UNIT, item) for item in items])

    def _turn(self, inputs: list[tuple[str, Any]]) -> None:
        more = True
        while more and self.alive:
            result = self.turns.run(self.world.now, inputs)
            inputs = []
            if result.writes:
                self._commit_later(result.number, list(result.writes))
            self.failures += result.failures
            self.facts += result.facts
            for effect in result.effects:
                self._effect(effect)
            more = result.more
        if self.alive:
            self._wake()

    def _commit_later(self, turn: int, writes: list[Any]) -> None:
        life, world = self.life, self.world
        self._writing.append((turn, writes))

        def commit() -> None:
            if self.life == life and self.alive and self._writing:
                number, due = self._writing.pop(0)
                self._commit(due)
                if self.turns.written(number):
                    self._turn([])

        self._committed_by = max(self._committed_by, world.now + world.lag(world.commit_ns))
        world.at(self._committed_by, commit)

    def _commit(self, writes: Iterable[Any]) -> None:
        for write in writes:
            table = self.tables.setdefault(write.table, {})
            if isinstance(write, Put):
                table[write.key] = write.value
            elif isinstance(write, Erase):
                for key in [key for key in table if write.first <= key < write.stop]:
                    del table[key]

    def _wake(self) -> None:
        at = self.turns.next_deadline()
        if at >= NEVER or self._wake_at <= at:
            return
        self._wake_at = at
        life = self.life

        def wake() -> None:
            if self.alive and self.life == life and self._wake_at == at:
                self._wake_at = NEVER
                self._turn([])

        self.world.at(max(at, self.world.now), wake)

    def crash(self) -> None:
        """Kill the process: some of the unreported writes are on the disk, in order."""
        if not self.alive:
            return
        self.alive = False
        for _, writes in self._writing[: self.world.rng.randrange(len(self._writing) + 1)]:
            self._commit(writes)
        self._writing = []
        self.disk.crash()
        for call in self.calls.values():
            if not call.done:
                call.done, call.value = True, ports.Refused("in doubt", "the node crashed")
        self.calls.clear()

    # -- effects -------------------------------------------------------------------------------------------------

    def _effect(self, effect: Any) -> None:
        world = self.world
        if isinstance(effect, _Wire):
            world.transmit(self, effect.peer, effect.messages)
        elif isinstance(effect, DISK_JOBS):
            self._disk_job(effect)
        elif isinstance(effect, ports.StampDisk):
            self.disk.empty()
            self.disk.marker = effect.disk
        elif isinstance(effect, ports.Publish):
            if effect.on:
                self.published[effect.object] = None
            else:
                self.published.pop(effect.object, None)
        elif isinstance(effect, ports.Locate):
            nodes = [h.id for h in world.hosts.values() if h.alive and effect.object in h.published]
            reachable = tuple(n for n in nodes if n == self.id or world.connected(self.id, n))
            self._answer(ports.Located(effect.token, reachable))
        elif isinstance(effect, ports.ResolveConflict):
            self._answer(self._resolved(effect))
        elif isinstance(effect, NeedLink):
            world.connect(self, effect.peer)
        else:
            self._application(effect)

    def _resolved(self, effect: ports.ResolveConflict) -> ports.Resolved:
        if self.handler is None:
            return ports.Resolved(effect.token, reason="no handler")
        try:
            data = self.handler(effect.versions)
        except ValueError as error:
            return ports.Resolved(effect.token, reason=str(error))
        return ports.Resolved(effect.token, data, data is None)

    def _disk_job(self, job: Any) -> None:
        done = self.disk.run(job)
        if job.token:
            # One thread does the work of a disk, in order.
            world = self.world
            self._disk_free = max(self._disk_free, world.now) + world.lag(world.disk_ns)
            self._answer(done, self._disk_free - world.now)

    def _answer(self, item: Any, delay: Nanos = 0) -> None:
        life = self.life

        def answer() -> None:
            if self.alive and self.life == life:
                self.give(item)

        self.world.at(self.world.now + delay + 1, answer)

    def _application(self, effect: Any) -> None:
        call = self.calls.get(getattr(effect, "op", 0))
        if call is None:
            return
        if isinstance(effect, ports.ReadSource):
            call.chunks.append(effect.index)
            data = call.data[effect.index * CHUNK :][:CHUNK]
            self._answer(ports.SourceChunk(effect.token, data))
        elif isinstance(effect, ports.Deliver):
            assert effect.index * CHUNK == len(call.read), "chunks of a read come in order"
            call.read += effect.data
            self._answer(ports.Taken(effect.op, effect.index + 1))
        elif isinstance(effect, ports.Begun):
            call.write = effect.write
        elif isinstance(effect, ports.Progress):
            call.progress.append(effect)
        elif isinstance(effect, ports.Change):
            call.changes.append(effect)
        elif isinstance(effect, ports.Finished):
            call.value, call.done = effect.value, True
            del self.calls[effect.op]


class ObjectWorld:
    def __init__(
        self, seed: int = 1, names: Iterable[str] = ("a", "b", "c", "d", "e"), config: ObjectsConfig = FAST,
        realms: dict[str, str] | None = None, root: tuple[str, ...] = ("a", "b", "c"),
    ) -> None:  # fmt: skip
        self.seed = seed
        self.rng = Random(f"objects/{seed}")
        self.now: Nanos = 0
        self.delay_ns = 300 * MICROSECOND
        self.commit_ns = 500 * MICROSECOND
        self.disk_ns = 200 * MICROSECOND
        self.frames: dict[str, int] = {}
        self.filter: Callable[[ObjectHost, ObjectHost, Any], Any] | None = None
        """May modify a frame in flight, or return None to drop it."""
        self._events: list[tuple[Nanos, int, Callable[[], None]]] = []
        self._ticket = 0
        self._op = 0
        self._sessions: dict[tuple[bytes, bytes], int] = {}
        self._last: dict[tuple[bytes, bytes], Nanos] = {}
        self._number = 0
        self.cuts: dict[tuple[bytes, bytes], None] = {}
        self.slow: dict[tuple[str, str], Nanos] = {}
        """Additional delay of frames from one node to another."""
        self.hosts: dict[str, ObjectHost] = {}
        known = msgspec.structs.replace(config, root=root)
        for name in names:
            self.hosts[name] = ObjectHost(self, name, (realms or {}).get(name, ""), known)
        self.by_id = {host.id: host for host in self.hosts.values()}
        for host in self.hosts.values():
            host.boot()
        for host in self.hosts.values():
            self._link_all(host)

    # -- time ----------------------------------------------------------------------------------------------------

    def at(self, when: Nanos, call: Callable[[], None]) -> None:
        self._ticket += 1
        heapq.heappush(self._events, (max(when, self.now), self._ticket, call))

    def lag(self, typical: Nanos) -> Nanos:
        return typical // 2 + self.rng.randrange(typical)

    def run(self, duration: Nanos) -> None:
        end = self.now + duration
        while self._events and self._events[0][0] <= end:
            self._next()
        self.now = end

    def _next(self) -> None:
        self.now, _, call = heapq.heappop(self._events)
        call()

    def wait(self, *calls: Call, limit: Nanos = 60 * SECOND) -> None:
        """Run until these operations have ended."""
        end = self.now + limit
        while not all(call.done for call in calls):
            assert self._events, "no event is left, but an operation still waits"
            assert self._events[0][0] <= end, f"an operation took more than {limit / SECOND} s"
            self._next()

    def until(self, condition: Callable[[], bool], limit: Nanos = 60 * SECOND) -> bool:
        end = self.now + limit
        while not condition():
            if not self._events or self._events[0][0] > end:
                return False
            self._next()
        return True

    # -- the network ---------------------------------------------------------------------------------------------

    @staticmethod
    def _pair(a: bytes, b: bytes) -> tuple[bytes, bytes]:
        return (a, b) if a < b else (b, a)

    def connected(self, a: bytes, b: bytes) -> bool:
        return self._pair(a, b) in self._sessions

    def _link_all(self, host: ObjectHost) -> None:
        for other in self.hosts.values():
            if other is not host:
                self.connect(host, other.id)

    def connect(self, host: ObjectHost, peer: bytes) -> None:
        other = self.by_id.get(peer)
        pair = self._pair(host.id, peer)
        if other is None or pair in self._sessions or pair in self.cuts:
            return
        if not (host.alive and other.alive):
            return
        self._number += 1
        self._sessions[pair] = self._number
        for one, two in ((host, other), (other, host)):
            one.give(PeerUp(two.id, MemberInfo(two.id, two.name, two.life, ())))  # type: ignore[arg-type]  # bytes as ids

    def cut(self, a: str, b: str) -> None:
        """No session between two nodes until `heal`."""
        self.cuts[self._pair(node_id(a), node_id(b))] = None
        self._end_session(self.hosts[a], self.hosts[b])

    def partition(self, *sides: Iterable[str]) -> None:
        groups = [list(side) for side in sides]
        for number, side in enumerate(groups):
            for other in groups[number + 1 :]:
                for a in side:
                    for b in other:
                        self.cut(a, b)

    def heal(self) -> None:
        self.cuts.clear()
        for host in self.hosts.values():
            if host.alive:
                self._link_all(host)

    def _end_session(self, a: ObjectHost, b: ObjectHost) -> None:
        if self._sessions.pop(self._pair(a.id, b.id), None) is None:
            return
        for one, two in ((a, b), (b, a)):
            one.give(PeerDown(two.id, "cut"))  # type: ignore[arg-type]  # bytes as ids

    def transmit(self, host: ObjectHost, peer: bytes, messages: list[bytes]) -> None:
        other = self.by_id[peer]
        pair = self._pair(host.id, peer)
        session = self._sessions.get(pair)
        if session is None:
            return
        way = (host.id, peer)
        delay = self.lag(self.delay_ns) + self.slow.get((host.name, other.name), 0)
        when = max(self._last.get(way, 0) + 1, self.now + delay)
        self._last[way] = when

        def arrive() -> None:
            if self._sessions.get(pair) != session or not other.alive:
                return
            arrived = []
            for message in messages:
                frame: Any = decode_frame(message)
                assert isinstance(frame, OBJECT_FRAMES), frame
                name = type(frame).__name__
                self.frames[name] = self.frames.get(name, 0) + 1
                if self.filter is not None:
                    frame = self.filter(host, other, frame)
                if frame is not None:
                    arrived.append(frame)
            if arrived:
                other.give(Received(host.id, arrived, self.now))  # type: ignore[arg-type]  # bytes as ids

        self.at(when, arrive)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        host = self.hosts[name]
        host.crash()
        for other in self.hosts.values():
            if other is not host:
                self._end_session(host, other)

    def restart(self, name: str) -> None:
        host = self.hosts[name]
        if not host.alive:
            host.boot()
            self._link_all(host)

    def empty_disk(self, name: str) -> None:
        """Restart the node with an empty content disk."""
        self.kill(name)
        self.hosts[name].disk.empty()
        self.restart(name)

    # -- applications --------------------------------------------------------------------------------------------

    def start(self, name: str, make: Callable[..., Any], data: bytes = b"", **fields: Any) -> Call:
        self._op += 1
        host = self.hosts[name]
        call = Call(make(op=self._op, **fields), data)
        host.calls[self._op] = call
        host.give(call.request)
        return call

    def cancel(self, name: str, call: Call) -> None:
        host = self.hosts[name]
        host.calls.pop(call.request.op, None)
        host.give(ports.Cancel(call.request.op))

    def do(self, name: str, make: Callable[..., Any], data: bytes = b"", **fields: Any) -> Call:
        call = self.start(name, make, data, **fields)
        self.wait(call)
        return call

    def create(self, name: str, path: str, data: bytes = b"", **fields: Any) -> Call:
        return self.do(name, ports.Create, data, path=path, size=len(data), **fields)

    def mkdir(self, name: str, path: str) -> Call:
        return self.do(name, ports.Create, path=path, kind=1)

    def write(self, name: str, path: str, data: bytes, **fields: Any) -> Call:
        return self.do(name, ports.Write, data, path=path, size=len(data), **fields)

    def read(self, name: str, path: str, **fields: Any) -> Call:
        return self.do(name, ports.Read, path=path, **fields)

    def stat(self, name: str, path: str) -> ports.Description:
        call = self.do(name, ports.Stat, path=path)
        assert isinstance(call.value, ports.Description), call.text
        return call.value

    def names(self, name: str, path: str = "/") -> list[str]:
        call = self.do(name, ports.ListNames, path=path)
        assert isinstance(call.value, ports.Names), call.text
        return [row[0] for row in call.value.names]

    def holders(self, object_id: bytes) -> list[str]:
        """Running nodes whose replica of an object is intact."""
        return [
            host.name
            for host in self.hosts.values()
            if host.alive and host.machine.inspect(object_id).sound
        ]
