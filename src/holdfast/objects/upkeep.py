"""Keeping replicas whole: late and damaged ones are repaired, lost ones are replaced, leftovers are cleaned up.

Nothing is scanned: an object is on the agenda when its record changed, when a node of its replica set came or went,
or when something about it is due. One replica does the work that concerns all of them: the first of the recorded set
that is reachable. Another one that tries the same is stopped by compare-and-set.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from holdfast.objects.changing import change
from holdfast.objects.config import REPAIRS_MAX
from holdfast.objects.contents import Contents
from holdfast.objects.directories import Directories, add_entry, remove_entry
from holdfast.objects.fetching import copy_here
from holdfast.objects.frames import Look, Purge
from holdfast.objects.loose import Loose
from holdfast.objects.moving import Moving
from holdfast.objects.operations import tombstone
from holdfast.objects.pacing import Pace
from holdfast.objects.parts import Parts
from holdfast.objects.ports import DiskDone, Publish
from holdfast.objects.quorum import majority
from holdfast.objects.reading import States, counts, read_register
from holdfast.objects.records import Record
from holdfast.objects.refusal import Refusal
from holdfast.objects.replacing import add_replica, remove_replica
from holdfast.objects.tasks import Procedure, Task, Tasks, gather, wait_for
from holdfast.objects.values import ID, LOOSE, Content, Entry, ReplicaRef, Value, root_id
from holdfast.types import NEVER, SECOND, Nanos

RETRY_NS = 2 * SECOND
RETRY_NS_MAX = 60 * SECOND


class Upkeep:
    def __init__(
        self,
        parts: Parts,
        contents: Contents,
        directories: Directories,
        moving: Moving,
        loose: Loose,
    ) -> None:
        self._parts = parts
        self._contents = contents
        self._directories = directories
        self._moving = moving
        self._loose = loose
        self._agenda: dict[bytes, Nanos] = {}
        self._due: list[tuple[Nanos, bytes]] = []
        """The agenda as a heap; entries that the agenda does not have any more are skipped."""
        self._again: dict[bytes, None] = {}
        """Objects that came up again while they were being looked at."""
        self._scan_at: Nanos = 0
        self._running: dict[bytes, None] = {}
        self._failures: dict[bytes, int] = {}
        self._published: dict[bytes, None] = {}
        self._named: dict[bytes, int] = {}
        """Objects whose entry was checked, and at which edition."""
        self._surplus: dict[bytes, tuple[tuple[ReplicaRef, ...], Nanos]] = {}
        """Objects with more replicas than wanted: the set, and when it was first seen."""
        self._alone_since: dict[bytes, Nanos] = {}
        """Objects of which only this node has a vote, and since when no other node knows them."""
        self.pace = Pace(parts.hub, parts.members)

    # -- the agenda ----------------------------------------------------------------------------------------------

    def due(self, object_id: bytes, at: Nanos) -> None:
        """Look at an object at this time, or earlier if that is planned."""
        planned = self._agenda.get(object_id, NEVER)
        if at < planned:
            self._agenda[object_id] = at
            heappush(self._due, (at, object_id))

    def node_changed(self, node: bytes) -> None:
        """A node came or went: the objects that have a replica there are checked."""
        now = self._parts.hub.now
        for object_id, record in self._parts.registers:
            value = record.decided
            if value is not None and node in value.nodes:
                self.due(object_id, now)

    def run(self) -> None:
        now, registers = self._parts.hub.now, self._parts.registers
        self.pace.run()
        if registers.fresh or now >= self._scan_at:
            self._take_fresh(now)
        while self._due and self._due[0][0] <= now and len(self._running) < REPAIRS_MAX:
            at, object_id = heappop(self._due)
            if self._agenda.get(object_id) != at:
                continue  # it was planned for an earlier time, and has been looked at
            del self._agenda[object_id]
            if object_id in self._running:
                self._again[object_id] = None
            elif registers.get(object_id) is not None:
                self._start(object_id)

    def _take_fresh(self, now: Nanos) -> None:
        """Records that have changed, together: content that they do not use is marked, and they are looked at soon."""
        if now < self._scan_at:
            return
        fresh = list(self._parts.registers.fresh)
        self._parts.registers.fresh.clear()
        for object_id in fresh:
            record = self._parts.registers.get(object_id)
            # A version that was accepted just now is left to the node that proposes it.
            is_open = record is not None and record.accepted is not None
            self.due(object_id, now + self._parts.config.settle_ns if is_open else now)
        self._contents.scan(fresh)
        self._scan_at = now + self._parts.config.scan_ns // 4

    def next_deadline(self) -> Nanos:
        at = self.pace.next_deadline()
        if self._due and len(self._running) < REPAIRS_MAX:
            at = min(at, self._due[0][0])
        if self._parts.registers.fresh or self._contents.waiting:
            at = min(at, self._scan_at)
        return at

    def _start(self, object_id: bytes) -> None:
        self._running[object_id] = None

        def ended(outcome: Any) -> None:
            self._running.pop(object_id, None)
            if self._again.pop(object_id, 0) is None:
                self.due(object_id, self._parts.hub.now + self._parts.config.scan_ns)
            if isinstance(outcome, Refusal):
                failures = self._failures[object_id] = self._failures.get(object_id, 0) + 1
                self._parts.hub.count("upkeep_failed")
                delay = min(RETRY_NS << min(failures, 5), RETRY_NS_MAX)
                self.due(object_id, self._parts.hub.now + delay)
            else:
                self._failures.pop(object_id, None)
                if outcome:
                    self.due(object_id, self._parts.hub.now + outcome)

        self._parts.tasks.start("upkeep", lambda task: self._check(task, object_id), ended)

    # -- one object ----------------------------------------------------------------------------------------------

    def _check(self, task: Task, object_id: bytes) -> Procedure[Nanos]:
        """Do what is to be done for the replica of an object here; returns when to look again, 0 for not at all."""
        parts = self._parts
        record = parts.registers.get(object_id)
        if record is None:
            return 0
        if record.decided is None:
            return (yield from self._undecided(task, object_id, record))
        # rule: R-9b
        if object_id in parts.registers.unconfirmed or record.accepted is not None:
            value, _ = yield from read_register(task, parts, object_id, record.decided.nodes)
            parts.registers.unconfirmed.pop(object_id, None)
        value = parts.registers.decided(object_id) or record.decided
        if not parts.registers.mine(value):
            return self._left(value)
        if value.deleted:
            return (yield from self._bury(task, value))
        trouble: Refusal | None = None
        try:
            yield from self.restore_content(task, value)
        except Refusal as refusal:
            trouble = refusal  # a full disk here must not keep lost replicas from being replaced
        self._publish(value)
        # One replica runs the conflict handler, the same for all.
        # rule: R-11b
        if value.mode == LOOSE and min(value.nodes) == parts.hub.me:
            yield from self._merge(task, value)
        again = self._missing_soonest(value)
        if self._is_responsible(value):
            again = yield from self._as_repairer(task, value)
        if trouble is not None:
            raise trouble
        return again

    def _undecided(self, task: Task, object_id: bytes, record: Record) -> Procedure[Nanos]:
        """A creation, or a change of the set, that this replica has not heard the end of."""
        if record.accepted is None:
            if not record.held:
                self._parts.registers.forget(object_id)
                return 0
            return self._parts.config.keep_old_ns
        try:
            value, _ = yield from read_register(task, self._parts, object_id, record.accepted.nodes)
        except Refusal as refusal:
            if refusal.code != "unknown" or not self._is_abandoned(object_id):
                raise
            self._contents.drop_all(object_id)
            self._parts.registers.forget(object_id)
            return 0
        if (
            not self._parts.registers.mine(value)
            and self._parts.registers.decided(object_id) is None
        ):
            self._contents.drop_all(object_id)
            self._parts.registers.forget(object_id)
            return 0
        return self._parts.config.scan_ns

    def _is_abandoned(self, object_id: bytes) -> bool:
        """Whether an acceptance concerns an object that all other nodes have not known for long: it was never created,
        or is deleted. An operation that is under way would have ended by now."""
        now = self._parts.hub.now
        since = self._alone_since.setdefault(object_id, now)
        if now - since < self._parts.config.stage_ns:
            return False
        del self._alone_since[object_id]
        return True

    def _left(self, value: Value) -> Nanos:
        """This replica was removed by a decision: the content goes, and soon the record, which points to the others.
        That of the root directory stays: the nodes that created it must not create it again."""
        parts = self._parts
        self._unpublish(value.object)
        record = parts.registers.get(value.object)
        if record is None:
            return 0
        if record.accepted is not None or self._contents.is_awaited(value.object):
            return parts.config.scan_ns  # it is about to be a replica again, and has voted for that
        if record.held:
            self._contents.drop_all(value.object)
            parts.registers.dropped(value.object, record.held)
            parts.hub.fact("removed", value.object, value.version)
            return parts.config.keep_old_ns
        if value.object != root_id(parts.config.domain):
            parts.registers.forget(value.object)
        return 0

    def restore_content(self, task: Task, value: Value) -> Procedure[None]:
        """Copy what the decided version has and this disk has not. Only the decided version is a source."""
        wanted = [value.content] if value.content.size else []
        record = self._parts.registers.get(value.object)
        if record is not None:
            wanted += [s.content for s in record.siblings if s.content.size and not s.deleted]
        for content in wanted:
            record = self._parts.registers.get(value.object)
            if record is not None and content.digest not in record.held:
                holders = [node for node in value.nodes if node != self._parts.hub.me]
                yield from self.copy(
                    task, value.object, content, self._parts.members.nearest(holders)
                )
                self._parts.hub.fact("repaired", value.object, value.version, "", content.size)

    def copy(
        self, task: Task, object_id: bytes, content: Content, holders: list[bytes]
    ) -> Procedure[None]:
        """Copy a content to this disk and record it."""
        made = yield from copy_here(task, self._parts, object_id, content, holders, self.pace)
        write, chunks = made[:ID], made[ID:]
        token = task.expect()
        answer = lambda done: _answered(self._parts.tasks, token, done)
        self._contents.keep(write, object_id, content, chunks, answer)
        outcome = yield from wait_for(task, token, self._parts.config.chunk_ns)
        if not isinstance(outcome, DiskDone) or outcome.reason:
            why = outcome.detail if isinstance(outcome, DiskDone) else "no answer"
            raise Refusal("disk", f"the copy could not be kept: {why}")

    def _publish(self, value: Value) -> None:
        if value.object not in self._published:
            self._published[value.object] = None
            self._parts.hub.effect(Publish(value.object, True))

    def _unpublish(self, object_id: bytes) -> None:
        if object_id in self._published:
            del self._published[object_id]
            self._parts.hub.effect(Publish(object_id, False))

    # -- what one replica does for all ---------------------------------------------------------------------------

    def _is_responsible(self, value: Value) -> bool:
        """The first replica of the recorded set that is there, on the disk that is recorded."""
        members = self._parts.members
        there = (r.node for r in value.replicas if members.is_there(r))
        # rule: R-10c
        return next(there, b"") == self._parts.hub.me

    def _as_repairer(self, task: Task, value: Value) -> Procedure[Nanos]:
        if value.left[0]:
            yield from self._moving.finish(task, value)
        elif value.parent:
            yield from self._check_name(task, value)
        value = self._parts.registers.decided(value.object) or value
        if value.deleted or not self._parts.registers.mine(value):
            return self._parts.config.scan_ns
        return (yield from self._check_set(task, value))

    def _check_name(self, task: Task, value: Value) -> Procedure[None]:
        """A new object whose creator died before it had a name gets it, or is deleted when the name is taken."""
        if self._named.get(value.object) == value.edition or value.edition > 1:
            return
        parent, states = yield from read_register(task, self._parts, value.parent)
        entry = None
        if not parent.deleted:
            listing = yield from self._directories.listing(task, parent, states)
            entry = listing.entries.get(value.name)
        if entry is None or entry.object != value.object:
            yield from self._name(task, value, parent)
        self._named[value.object] = value.edition

    def _name(self, task: Task, value: Value, parent: Value) -> Procedure[None]:
        wait = task.now + self._parts.config.settle_ns
        while task.now < wait:
            yield wait  # its creator is about to do this
        if self._parts.known(value.object) != value:
            return  # it was moved or deleted: then it has had its name
        try:
            entry = Entry(value.object, value.nodes, kind=value.kind)
            yield from self._directories.edit(task, parent, add_entry(value.name, entry))
        except Refusal as refusal:
            if refusal.code not in ("exists", "not found"):
                raise
            write = self._parts.hub.new_id()
            yield from change(task, self._parts, value, write, lambda base: tombstone(base, write))

    def _check_set(self, task: Task, value: Value) -> Procedure[Nanos]:
        """Restore the number of replicas; remove surplus ones when enough are verified."""
        parts = self._parts
        lost = [r for r in value.replicas if self._is_lost(r, value)]
        good = len(value.replicas) - len(lost)
        if good < value.wanted:
            changed = yield from self._add_one(task, value, [r.node for r in lost])
            if changed is None:
                return RETRY_NS  # no node is left for it
            return parts.config.scan_ns
        if len(value.replicas) <= value.wanted:
            self._surplus.pop(value.object, None)
            return self._missing_soonest(value)
        if not lost and (wait_ns := self._surplus_waits(value)):
            return wait_ns
        gone = lost[0] if lost else self._worst(value)
        yield from remove_replica(task, parts, value, gone, value.wanted)
        parts.hub.fact("replaced", value.object, value.version, gone.node[:4].hex())
        return parts.config.scan_ns

    def _surplus_waits(self, value: Value) -> Nanos:
        """How long a surplus replica is kept. A move adds the new one first: it is about to remove the old one itself,
        and must not find the new one removed."""
        now = self._parts.hub.now
        seen, since = self._surplus.get(value.object, ((), 0))
        if seen != value.replicas:
            since = now
            self._surplus[value.object] = (value.replicas, now)
        return max(0, since + self._parts.config.call_ns - now)

    def _add_one(self, task: Task, value: Value, lost: list[bytes]) -> Procedure[Value | None]:
        parts = self._parts
        emptied = [node for node in lost if parts.hub.reachable(node) and parts.members.ref(node)]
        taken = [node for node in value.nodes if node not in lost]
        chosen = emptied or parts.members.place(value.object, 1, value.content.size, taken, lost)
        if not chosen:
            return None
        return (yield from add_replica(task, parts, value, chosen[0]))

    def _worst(self, value: Value) -> ReplicaRef:
        """The replica to give up: on a draining or unhealthy node, else the last one."""
        members = self._parts.members

        def rank(replica: ReplicaRef) -> tuple[int, int]:
            offer = members.offers.get(replica.node)
            return int(offer is not None and offer.draining), members.penalties.get(replica.node, 0)

        return max(reversed(value.replicas), key=rank)

    def _is_lost(self, replica: ReplicaRef, value: Value) -> bool:
        """Unreachable for the grace period, or a shorter one when only a bare majority is left; or its disk is new."""
        parts, now = self._parts, self._parts.hub.now
        ref = parts.members.ref(replica.node)
        if ref is not None:
            return replica.disk not in (b"", ref.disk)
        missing = parts.members.missing_for(replica.node, now)
        # rule: R-10a
        return missing >= self._grace(value)

    def _grace(self, value: Value) -> Nanos:
        grace = self._parts.config.replace_after_ns
        reachable = sum(self._parts.hub.reachable(node) for node in value.nodes)
        # rule: R-10b
        return grace // 4 if reachable <= majority(len(value.replicas)) else grace

    def _missing_soonest(self, value: Value) -> Nanos:
        """When the next replica of this object counts as lost; 0: all are there."""
        parts, now = self._parts, self._parts.hub.now
        waits = []
        for node in value.nodes:
            if not parts.hub.reachable(node):
                left = self._grace(value) - parts.members.missing_for(node, now)
                waits.append(left if left > 0 else parts.config.scan_ns)
        short = len(value.replicas) < value.wanted
        return min(waits, default=RETRY_NS if short else 0)

    def _merge(self, task: Task, value: Value) -> Procedure[None]:
        record = self._parts.registers.get(value.object)
        siblings = record.siblings if record is not None else ()
        if self._loose.must_resolve(value, siblings):
            yield from self._loose.resolve(task, value, siblings)
        if len(siblings) == 1 and siblings[0].deleted:
            yield from self._bury_loose(task, value)

    def _bury_loose(self, task: Task, value: Value) -> Procedure[None]:
        """A deletion becomes final when every recorded replica has it: before that, an update may still turn up."""
        states = yield from self._look_all(task, value)
        if len(states) < len(value.nodes):
            return
        siblings = [state.siblings for state in states.values()]
        if all(len(found) == 1 and found[0].deleted for found in siblings):
            write = self._parts.hub.new_id()
            yield from change(task, self._parts, value, write, lambda base: tombstone(base, write))

    # -- tombstones ------------------------------------------------------------------------------------------------

    def _bury(self, task: Task, value: Value) -> Procedure[Nanos]:
        """Keep a tombstone until every recorded replica has it and its name is gone; then all forget it."""
        parts = self._parts
        self._unpublish(value.object)
        record = parts.registers.get(value.object)
        if record is not None and record.held:
            self._contents.drop_all(value.object)
            parts.registers.dropped(value.object, record.held)
        if not self._is_responsible(value):
            return parts.config.replace_after_ns
        if value.parent:
            yield from self._remove_name(task, value)
        states = yield from self._look_all(task, value)
        have = [n for n, s in states.items() if s.decided is not None and s.decided.deleted]
        # rule: R-9a
        if len(have) < len(value.nodes):
            return parts.config.replace_after_ns
        ask = lambda call: Purge(call, value.object, value.version)
        yield from gather(task, dict.fromkeys(value.nodes, ask), parts.config.call_ns)
        return 0

    def _remove_name(self, task: Task, value: Value) -> Procedure[None]:
        for parent_id, name in ((value.parent, value.name), value.left[:2]):
            if not parent_id:
                continue
            try:
                parent, _ = yield from read_register(task, self._parts, parent_id)
            except Refusal as refusal:
                if refusal.code == "unknown":
                    continue  # the directory is gone, and all its names with it
                raise
            if not parent.deleted:
                yield from self._directories.edit(
                    task, parent, remove_entry(name, value.object, value.version)
                )

    def _look_all(self, task: Task, value: Value) -> Procedure[States]:
        ask = lambda call: Look(call, value.object)
        replies = yield from gather(
            task, dict.fromkeys(value.nodes, ask), self._parts.config.call_ns
        )
        return {node: reply for node, reply in replies.items() if counts(reply)}

    def purge(self, object_id: bytes, version: int) -> str:
        value = self._parts.registers.decided(object_id)
        if value is None:
            return ""
        if not value.deleted or value.version != version:
            return "not deleted"
        self._contents.drop_all(object_id)
        self._parts.registers.forget(object_id)
        self._parts.forget(object_id)
        self._agenda.pop(object_id, None)
        self._named.pop(object_id, None)
        self._surplus.pop(object_id, None)
        self._parts.hub.fact("purged", object_id, version)
        return ""

    def status(self) -> dict[str, int]:
        return {
            "repairs": len(self._running),
            "agenda": len(self._agenda),
            "repair_bytes_per_s": self.pace.rate,
        }


def _answered(tasks: Tasks, token: int, done: DiskDone) -> None:
    tasks.answered(token, done)
