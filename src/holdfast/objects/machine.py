"""The objects unit of a node: replicas, and the operations of applications on objects anywhere.

registers   promises, acceptances and decisions of the replicas here
contents    stages and chunks of the replicas here
tasks       operations and repairs, as procedures
upkeep      what is to be repaired, replaced and cleaned up
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, ClassVar, Final

from holdfast.links.ports import PeerDown, PeerUp, Received
from holdfast.machine import Machine, Outbox, Put, ReadTable, TableRead
from holdfast.objects import frames as f
from holdfast.objects import ports
from holdfast.objects.answering import Answering
from holdfast.objects.checking import is_plausible
from holdfast.objects.config import OPERATIONS_MAX, ObjectsConfig
from holdfast.objects.contents import Contents
from holdfast.objects.directories import Directories
from holdfast.objects.draining import Draining
from holdfast.objects.hub import Hub
from holdfast.objects.loose import Loose
from holdfast.objects.members import Members
from holdfast.objects.moving import Moving
from holdfast.objects.operations import Operations
from holdfast.objects.parts import Parts
from holdfast.objects.ports import DISK_TABLE, TABLE, UNIT, Finished, Refused, Request
from holdfast.objects.refusal import Refusal
from holdfast.objects.registers import Registers
from holdfast.objects.repairing import Repairing
from holdfast.objects.tasks import Task, Tasks
from holdfast.objects.upkeep import Upkeep
from holdfast.objects.values import LOOSE, Value
from holdfast.objects.watching import Watchers, Watching
from holdfast.types import MILLISECOND, NEVER, Nanos

LAYER: Final = "objects"
DISK_KEY: Final = b"id"
DRAINING_KEY: Final = b"draining"
OPERATOR: Final = "operator"
POLICY: Final = "policy"
Rows = Iterable[tuple[bytes, bytes]]


class ObjectMachine(Machine):
    layer: ClassVar[str] = LAYER
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(
        self,
        me: bytes,
        name: str,
        config: ObjectsConfig,
        rng: Random,
        entropy: Callable[[int], bytes],
        rows: Rows | None = (),
        disk_rows: Rows | None = (),
        realm: str = "",
        now: Nanos = 0,
    ) -> None:
        self.hub = hub = Hub(me, config, rng, entropy, now)
        self.registers = Registers(hub)
        self.members = Members(hub, realm)
        self.members.found(me, name)
        self.contents = Contents(hub, self.registers, self.members)
        self.parts = Parts(hub, self.registers, self.members)
        self.tasks = self.parts.tasks = Tasks(hub)
        self.parts.on_decided = self._decided
        self.directories = Directories(self.parts)
        self.loose = Loose(self.parts)
        self.moving = Moving(self.parts, self.directories)
        self.operations = Operations(self.parts, self.directories, self.loose)
        self.upkeep = Upkeep(self.parts, self.contents, self.directories, self.moving, self.loose)
        self.draining = Draining(self.parts, self.directories)
        self.watchers = Watchers(hub)
        self.watching = Watching(self.parts, self.directories)
        self.repairing = Repairing(self.parts, self.directories)
        self.answering = Answering(self)
        self.upkeep.pace.announce = self.answering.offer_changed
        self._rows = list(rows) if rows is not None else None
        self._stored_disk = dict(disk_rows) if disk_rows is not None else None
        """None: the unit was built again, and reads its tables."""
        self._marker = b""
        self._operations: dict[int, Task] = {}
        self._procedures: dict[type, Callable[[Task, Any], Any]] = {
            ports.Create: self.operations.create,
            ports.Write: self.operations.write,
            ports.Patch: self.operations.patch,
            ports.Read: self.operations.read,
            ports.Stat: self.operations.stat,
            ports.ListNames: self.operations.list_names,
            ports.Delete: self.operations.delete,
            ports.Move: self.moving.move,
            ports.Repair: self.repairing.repair,
            ports.Drain: self.draining.drain,
            ports.MoveReplica: self.draining.move_replica,
            ports.AskNode: self.draining.ask_node,
            ports.WatchChanges: self.watching.run,
        }

    # -- turns ---------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self.hub.now, self.hub.out = now, out
        for item in inputs:
            self._take(item)
        self._settle()

    def wake(self, now: Nanos, out: Outbox) -> None:
        self.hub.now, self.hub.out = now, out
        self._settle()

    def _settle(self) -> None:
        """Run everything that can run now, including what this node says to itself."""
        hub = self.hub
        self.upkeep.run()
        while True:
            self.tasks.run()
            while hub.failing:
                self.tasks.failed(hub.failing.popleft())
            while hub.local:
                self._frame(hub.me, hub.local.popleft())
            if not (self.tasks.busy or hub.failing or hub.local):
                break
        at = min(self.tasks.next_deadline(), self.upkeep.next_deadline())
        self.deadline = at if at == NEVER else max(at, hub.now + MILLISECOND)

    def _take(self, item: Any) -> None:
        if isinstance(item, Received):
            for frame in item.frames:
                self._frame(item.peer, frame)
        elif isinstance(item, ports.DiskDone):
            if not self.contents.done(item):
                self.tasks.answered(item.token, item)
        elif isinstance(item, Request):
            self._request(item)
        elif isinstance(item, ports.SourceChunk | ports.Located | ports.Resolved):
            self.tasks.answered(item.token, item)
        elif isinstance(item, ports.Taken):
            task = self._operations.get(item.op)
            if task is not None:
                self.tasks.answered_directly(task, item)
        elif isinstance(item, ports.Cancel):
            task = self._operations.pop(item.op, None)
            if task is not None:
                self.tasks.cancel(task)
        else:
            self._event(item)

    def _event(self, item: Any) -> None:
        if isinstance(item, PeerUp):
            self._peer_up(item)
        elif isinstance(item, PeerDown):
            self._peer_down(item)
        elif isinstance(item, ports.DiskReady):
            self._disk_ready(item)
        elif isinstance(item, TableRead):
            self._table_read(item)
        elif isinstance(item, ports.Conditions):
            self._conditions(item)
        elif isinstance(item, ports.AdminDone):
            self.answering.administered(item)

    # -- peers and the disk ----------------------------------------------------------------------------------------

    def _peer_up(self, item: PeerUp) -> None:
        if item.peer in self.hub.up:
            self.tasks.lost(item.peer)
        self.hub.peer_up(item.peer, item.member.name)
        self.members.found(item.peer, item.member.name)
        if self.hub.disk or not self.hub.config.store:
            self.answering.greet(item.peer)

    def _peer_down(self, item: PeerDown) -> None:
        self.hub.peer_down(item.peer, item.resting)
        if not item.resting:
            self.members.lost(item.peer, self.hub.now)
            self.upkeep.node_changed(item.peer)
        self.tasks.lost(item.peer)
        self.watchers.lost(item.peer)

    def _disk_ready(self, item: ports.DiskReady) -> None:
        self._marker = item.marker
        if self._rows is None:
            self.hub.effect(ReadTable(UNIT, DISK_TABLE))
            self.hub.effect(ReadTable(UNIT, TABLE))
            return
        self._load()

    def _table_read(self, item: TableRead) -> None:
        if item.error:
            self.hub.count("table_unreadable")
        elif item.table == DISK_TABLE:
            self._stored_disk = dict(item.rows)
        elif item.table == TABLE and self._rows is None:
            self._rows = list(item.rows)
            self._load()

    def _load(self) -> None:
        """The disk and the store belong together: if either was emptied, this is a new disk."""
        hub = self.hub
        rows, known = self._rows or [], self._stored_disk or {}
        stored = known.get(DISK_KEY, b"")
        # rule: R-5e
        if stored and stored == self._marker:
            hub.disk = stored
        else:
            hub.disk = hub.entropy(8)
            hub.out.write(Put(DISK_TABLE, DISK_KEY, hub.disk))
            hub.effect(ports.StampDisk(hub.disk))
        self.members.drained_by = known.get(DRAINING_KEY, b"").decode()
        self._rows = []
        self.registers.load(rows)
        for object_id, digest in self.contents.small.load(rows):
            self.registers.dropped(object_id, [digest])
        for object_id, _ in self.registers:
            self.upkeep.due(object_id, hub.now)
        self.members.take(hub.me, self.members.offer(len(self.registers)))
        for peer in hub.up:
            self.answering.greet(peer)

    def _conditions(self, item: ports.Conditions) -> None:
        self.members.free_bytes = item.free_bytes
        self.contents.small.counted = self.contents.small.total
        self.members.penalties = dict(item.penalties)
        if self.hub.disk:
            self.answering.offer_changed()

    def set_draining(self, draining: bool, by_policy: bool) -> None:
        """Mark this node, or end that. What an operator has begun, only an operator ends."""
        if by_policy and self.members.drained_by == OPERATOR:
            return
        mark = (POLICY if by_policy else OPERATOR) if draining else ""
        self.members.drained_by = mark
        self.hub.out.write(Put(DISK_TABLE, DRAINING_KEY, mark.encode()))
        self.answering.offer_changed()

    # -- frames and requests -----------------------------------------------------------------------------------------

    def _frame(self, peer: bytes, frame: Any) -> None:
        if not is_plausible(frame):
            self.hub.count("frames_refused")
            return
        if type(frame) in f.REPLIES:
            if not self.tasks.replied(peer, frame.call, frame):
                self.hub.count("late_replies")
            return
        self.answering.handle(peer, frame)

    def _request(self, request: Request) -> None:
        make = self._procedures.get(type(request))
        if make is None or len(self._operations) >= OPERATIONS_MAX:
            text = f"{OPERATIONS_MAX} operations are in progress on this node; nothing was done"
            self.hub.effect(Finished(request.op, Refused("busy", text)))
            return

        def ended(outcome: Any) -> None:
            self._operations.pop(request.op, None)
            if isinstance(outcome, Refusal):
                self.hub.count(f"refused_{outcome.code.replace(' ', '_')}")
                outcome = Refused(outcome.code, outcome.text)
            self._record(request, outcome, started_ns)
            self.hub.effect(Finished(request.op, outcome))

        name, started_ns = type(request).__name__, self.hub.now
        task = self.tasks.prepare(name, lambda task: make(task, request), ended, request.op)
        self._operations[request.op] = task
        self.tasks.launch(task)

    def _record(self, request: Request, outcome: Any, started_ns: Nanos) -> None:
        """For the audit: what an operation read or wrote. A near read may be old, and promises nothing."""
        if isinstance(outcome, ports.Written):
            own = outcome.is_exact
        elif isinstance(outcome, ports.ReadDone) and isinstance(request, ports.Read):
            if not request.fresh:
                return
            own = False
        else:
            return
        if outcome.value.mode != LOOSE:
            self.hub.done(type(request).__name__.lower(), outcome.value, own, started_ns)

    def _decided(self, value: Value) -> None:
        self.contents.decided(value.object, value.content.digest)
        self.watchers.changed(value)

    # -- for people and tests ----------------------------------------------------------------------------------------

    def inspect(self, object_id: bytes) -> f.RegisterState:
        """The register of an object as this replica has it."""
        return self.registers.look(0, object_id)

    def status(self) -> dict[str, Any]:
        sound = sum(self.registers.sound(record) for _, record in self.registers)
        return {
            "disk": self.hub.disk.hex(),
            "replicas": len(self.registers),
            "sound": sound,
            "draining": self.members.draining,
            "operations": len(self._operations),
            "watchers": len(self.watchers),
            **self.contents.status(),
            **self.upkeep.status(),
            "counts": dict(self.hub.counts),
            "sent": dict(self.hub.sent),
        }
