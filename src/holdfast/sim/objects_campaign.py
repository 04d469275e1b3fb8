"""Random runs of objects: writers, readers and movers on all nodes, under crashes, partitions and disk corruption.

A majority of the replicas of every object survives: only one node at a time is down, partitioned or has lost its disk.
Under that condition, no acknowledged write may be lost, and the number of replicas is restored.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from holdfast.objects import ports
from holdfast.objects.config import SMALL_MAX
from holdfast.objects.values import CHUNK
from holdfast.sim.checkers.base import CheckFailed
from holdfast.sim.checkers.objects import ObjectHistory
from holdfast.sim.objects_world import FAST, Call, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND

NAMES: Final = ("a", "b", "c", "d", "e")
FAULTS: Final = ("kill", "partition", "rot", "empty", "drain", "isolate")


class Run:
    def __init__(
        self, seed: int, seconds: int = 20, objects: int = 3, faults: tuple[str, ...] = FAULTS
    ) -> None:
        self.seed = seed
        self.replay = f"holdfast sim objects --seed {seed} --seconds {seconds} --objects {objects}"
        self.random = Random(f"objects-campaign/{seed}")
        # Contents of 10 and 1000 bytes: in the store, in the store until there are three large ones, or all in files.
        small, total = self.random.choice(((SMALL_MAX, 16 << 20), (SMALL_MAX, 3000), (0, 0)))
        config = msgspec.structs.replace(FAST, small=small, small_total=total)
        self.world = ObjectWorld(seed, NAMES, config)
        self.histories: dict[str, ObjectHistory] = {}
        self.ids: dict[str, bytes] = {}
        self.places: dict[str, list[str]] = {}
        """Paths at which an object may be: one, or two after a move in doubt."""
        self.outcomes: dict[str, int] = {}
        self.troubles: dict[str, int] = {}
        """The number of injected faults, by kind."""
        self._seconds = seconds
        self._objects = objects
        self._faults = faults
        self._number = 0
        self._pending: list[tuple[str, Call, int, bytes]] = []
        self._moves: list[tuple[str, Call]] = []
        self._trouble = ""
        self._decided: dict[tuple[bytes, int], bytes] = {}
        """The write that made each version which a node has had."""

    def execute(self) -> Run:
        world = self.world
        world.run(SECOND)
        self._prepare()
        end = world.now + self._seconds * SECOND
        next_fault = world.now + SECOND
        while world.now < end:
            for _ in range(self.random.choice((1, 1, 1, 4))):
                self._operate()  # several at once, so that writers meet
            world.run(self.random.randrange(5, 60) * MILLISECOND)
            self._collect()
            if world.now >= next_fault:
                self._fault()
                next_fault = world.now + self.random.randrange(1500, 4000) * MILLISECOND
        self._recover()
        self._finish()
        return self

    def _prepare(self) -> None:
        for name in ("left", "right"):
            made = self.world.mkdir("a", f"/{name}")
            assert made.ok, made.text
        for number in range(self._objects):
            name = f"o{number}"
            data = f"{name} first".encode()
            made = self.world.create("a", f"/left/{name}", data)
            assert made.ok, made.text
            self.histories[name] = ObjectHistory(name, data, self.replay)
            self.ids[name] = made.value.value.object
            self.places[name] = [f"/left/{name}"]

    # -- operations ----------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        alive = [host.name for host in self.world.hosts.values() if host.alive]
        node = self.random.choice(alive)
        name = self.random.choice(list(self.histories))
        draw = self.random.randrange(100)
        if draw < 45:
            self._number += 1
            size = self.random.choice((10, 1000, CHUNK + 1000))
            data = f"{name} write {self._number} by {node}".encode().ljust(size, b".")
            call = self.world.start(
                node, ports.Write, data, path="", object=self.ids[name], size=len(data)
            )
            self._pending.append((name, call, self.world.now, data))
        elif draw < 90:
            call = self.world.start(node, ports.Read, path="", object=self.ids[name])
            self._pending.append((name, call, self.world.now, b""))
        else:
            source = self.places[name][-1]
            target = f"/{self.random.choice(('left', 'right'))}/{name}"
            self._moves.append(
                (name, self.world.start(node, ports.Move, source=source, target=target))
            )

    def _collect(self) -> None:
        """Check operations that have ended since the last call."""
        left = []
        for name, call, begun, data in self._pending:
            if not call.done:
                left.append((name, call, begun, data))
                continue
            self._count(call)
            history = self.histories[name]
            if isinstance(call.value, ports.ReadDone):
                history.read(begun, call.value.value.edition, bytes(call.read))
            elif isinstance(call.value, ports.Written) and call.value.is_exact:
                history.wrote(self.world.now, call.value.value.edition, data)
            history.conflicts += call.refused == "conflict"
        self._pending = left
        for name, call in [pair for pair in self._moves if pair[1].done]:
            self._count(call)
            if call.ok:
                self.places[name] = [call.request.target]
        self._moves = [pair for pair in self._moves if not pair[1].done]
        self._check_values()

    def _check_values(self) -> None:
        """Every version of an object has one value, on all nodes and for all time."""
        for host in self.world.hosts.values():
            if not host.alive:
                continue
            for object_id, record in host.machine.registers:
                value = record.decided
                if value is not None:
                    first = self._decided.setdefault((object_id, value.version), value.write)
                    text = f"object {object_id.hex()[:8]} has two values of version {value.version}"
                    self._check(first == value.write, text)

    def _count(self, call: Call) -> None:
        key = f"{type(call.request).__name__} {call.refused or 'ok'}"
        self.outcomes[key] = self.outcomes.get(key, 0) + 1

    # -- faults --------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        """One fault at a time: the last one ends, and the next begins when all replicas are restored."""
        if self._trouble:
            self._end_trouble()
            return
        if self._faults and self._whole():
            self._trouble = self.random.choice(self._faults)
            self.troubles[self._trouble] = self.troubles.get(self._trouble, 0) + 1
            getattr(self, f"_{self._trouble}")()

    def _whole(self) -> bool:
        return all(len(self.world.holders(oid)) >= 3 for oid in self._everything())

    def _everything(self) -> list[bytes]:
        found: dict[bytes, None] = {}
        for host in self.world.hosts.values():
            if host.alive:
                for object_id, record in host.machine.registers:
                    if record.decided is not None and not record.decided.deleted:
                        found[object_id] = None
        return list(found)

    def _kill(self) -> None:
        self.world.kill(self.random.choice(NAMES))

    def _partition(self) -> None:
        names = list(NAMES)
        self.random.shuffle(names)
        self.world.partition(names[:2], names[2:])

    def _isolate(self) -> None:
        names = list(NAMES)
        self.random.shuffle(names)
        self.world.partition(names[:1], names[1:])

    def _rot(self) -> None:
        host = self.world.hosts[self.random.choice(NAMES)]
        for object_id in self.ids.values():
            host.disk.rot(object_id)

    def _empty(self) -> None:
        self.world.empty_disk(self.random.choice(NAMES))

    def _drain(self) -> None:
        names = list(NAMES)
        self.random.shuffle(names)
        self.drained = names[0]
        self.world.start(names[1], ports.Drain, node=node_id(names[0]))

    def _end_trouble(self) -> None:
        self._trouble = ""
        self.world.heal()
        for host in self.world.hosts.values():
            if not host.alive:
                self.world.restart(host.name)
            elif host.machine.members.draining:
                self.world.start(host.name, ports.Drain, node=host.id, undo=True)

    # -- the end -------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        self._end_trouble()
        self.world.run(5 * SECOND)
        self._collect()
        for name, history in self.histories.items():
            read = self.world.read("a", "", object=self.ids[name])
            self._check(read.ok, f"object {name} cannot be read at the end: {read.text}")
            history.ended(read.value.value.edition, bytes(read.read))

    def _finish(self) -> None:
        world = self.world
        for host in world.hosts.values():
            self._check(not host.failures, f"{host.name}: {[f.error for f in host.failures]}")
        restored = world.until(self._exact, 60 * SECOND)
        counts = {name: world.holders(oid) for name, oid in self.ids.items()}
        self._check(restored, f"the number of replicas is not restored: {counts}")
        tidy = world.until(self._names_agree, 60 * SECOND)
        self._check(tidy, "the names of the directories do not agree with the objects")

    def _exact(self) -> bool:
        return all(len(self.world.holders(oid)) == 3 for oid in self._everything())

    def _names_agree(self) -> bool:
        """Whether each object has exactly one name, that of its register."""
        found: dict[str, list[str]] = {}
        for directory in ("left", "right"):
            for name in self.world.names("a", f"/{directory}"):
                found.setdefault(name, []).append(directory)
        return sorted(found) == sorted(self.ids) and all(
            len(where) == 1 for where in found.values()
        )

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            raise CheckFailed("objects survive", text, self.world.now, self.replay)


def run_campaign(seed: int, **options: Any) -> Run:
    """One run; raises `CheckFailed` with the seed that replays it."""
    return Run(seed, **options).execute()
