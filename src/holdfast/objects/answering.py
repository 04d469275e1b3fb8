"""Answering what other nodes ask and tell. Nothing that a peer sends raises: it is refused and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.objects import frames as f
from holdfast.objects.ports import AdminDone, AdminWork, DiskDone, VerifyContent
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Procedure, Task, pause, work
from holdfast.objects.values import ID, LOOSE, Content
from holdfast.types import SECOND

if TYPE_CHECKING:
    from holdfast.objects.machine import ObjectMachine

INVENTORY_MAX: Final = 256
PULLS_MAX: Final = 8
"""Copies that other nodes asked for; more are refused."""
MERGE_TRIES: Final = 6
MERGE_AGAIN_NS: Final = 1 * SECOND
"""After this time a copy of a loose version is tried again; twice as long every time."""
ADMIN_MAX: Final = 64
"""Requests to the administration of this node at a time; more are refused."""


class Answering:
    def __init__(self, machine: ObjectMachine) -> None:
        self._machine = machine
        self._hub = machine.hub
        self._pulls = 0
        self._administering = 0
        self._handlers: dict[type, Callable[[bytes, Any], None]] = {
            f.Look: self._look,
            f.Prepare: self._prepare,
            f.Accept: self._accept,
            f.Decide: self._decide,
            f.StageFind: machine.contents.find,
            f.StageOpen: machine.contents.open,
            f.StageChunk: machine.contents.chunk,
            f.StageClose: machine.contents.close,
            f.StagePatch: machine.contents.patch,
            f.StageDrop: lambda _, frame: machine.contents.drop(frame),
            f.Fetch: machine.contents.fetch,
            f.FetchList: machine.contents.fetch_list,
            f.Purge: self._purge,
            f.Merge: self._merge,
            f.Watch: self._watch,
            f.Inventory: self._inventory,
            f.SetDraining: self._set_draining,
            f.Inspect: self._inspect,
            f.Pull: self._pull,
            f.Administer: self._administer,
            f.Offer: self._offer,
            f.Summary: self._summary,
            f.Damaged: self._damaged,
            f.Changed: lambda _, frame: machine.watching.changed(frame),
        }

    def handle(self, peer: bytes, frame: Any) -> None:
        handler = self._handlers.get(type(frame))
        object_id = getattr(frame, "object", None)
        if handler is None or (object_id is not None and len(object_id) != ID):
            self._hub.count("frames_refused")
            return
        handler(peer, frame)

    # -- the register ----------------------------------------------------------------------------------------------

    def _look(self, peer: bytes, frame: f.Look) -> None:
        self._hub.send(peer, self._machine.registers.look(frame.call, frame.object))

    def _prepare(self, peer: bytes, frame: f.Prepare) -> None:
        self._hub.send(peer, self._machine.registers.prepare(frame))

    def _accept(self, peer: bytes, frame: f.Accept) -> None:
        self._hub.send(peer, self._machine.contents.accept(frame))

    def _decide(self, peer: bytes, frame: f.Decide) -> None:
        self._machine.parts.learn(frame.value)
        if frame.call:
            self._hub.send(peer, f.Done(frame.call))

    def _purge(self, peer: bytes, frame: f.Purge) -> None:
        reason = self._machine.upkeep.purge(frame.object, frame.version)
        self._hub.send(peer, f.Done(frame.call, reason))

    # -- contact -----------------------------------------------------------------------------------------------------

    def greet(self, peer: bytes) -> None:
        """A session begins: what this node can hold, and the versions of replicas that both should have."""
        machine = self._machine
        self._hub.send(peer, machine.members.offer(len(machine.registers)))
        rows: list[tuple[bytes, int]] = []
        for object_id, record in machine.registers:
            value = record.decided
            if value is None or peer not in value.nodes:
                continue
            rows.append((object_id, value.version))
            if value.mode == LOOSE and record.siblings:
                self._hub.send(peer, f.Merge(0, object_id, record.siblings))
        for at in range(0, len(rows), f.SUMMARY_MAX):
            self._hub.send(peer, f.Summary(tuple(rows[at : at + f.SUMMARY_MAX])))

    def offer_changed(self) -> None:
        machine = self._machine
        offer = machine.members.offer(len(machine.registers))
        machine.members.take(self._hub.me, offer)
        for peer in self._hub.up:
            self._hub.send(peer, offer)

    def _offer(self, peer: bytes, frame: f.Offer) -> None:
        known = self._machine.members.offers.get(peer)
        self._machine.members.take(peer, frame)
        if known is None or known.disk != frame.disk:
            self._machine.upkeep.node_changed(peer)

    def _summary(self, peer: bytes, frame: f.Summary) -> None:
        """A replica that is late asks for the decided version; one that is ahead gives it."""
        if len(frame.objects) > f.SUMMARY_MAX:
            self._hub.count("frames_refused")
            return
        machine = self._machine
        for object_id, version in frame.objects:
            own = machine.registers.decided(object_id)
            if own is not None and own.version > version:
                self._hub.send(peer, f.Decide(0, own))
            elif own is None or own.version < version:
                machine.tasks.start("late", _asking(machine, peer, object_id), lambda _: None)

    def _damaged(self, peer: bytes, frame: f.Damaged) -> None:
        """A reader got wrong bytes: the content is verified, and dropped if the disk is to blame."""
        machine = self._machine
        record = machine.registers.get(frame.object)
        if record is None or frame.content.digest not in record.held:
            return
        if not machine.registers.uses(frame.object, frame.content):
            return
        machine.tasks.start(
            "verify", lambda task: self.verify(task, frame.object, frame.content), lambda _: None
        )

    def verify(self, task: Task, object_id: bytes, content: Content) -> Procedure[str]:
        """Read a content on this disk completely; returns why it is not sound."""

        def make(token: int) -> VerifyContent:
            return VerifyContent(token=token, object=object_id, content=content)

        outcome = self._machine.contents.small.answer(make(0))
        if outcome is None:
            outcome = yield from work(task, make)
        if isinstance(outcome, DiskDone) and outcome.reason:
            self._machine.contents.damaged(object_id, content.digest, outcome.detail)
            return outcome.reason
        return ""

    # -- content ---------------------------------------------------------------------------------------------------

    def _inspect(self, peer: bytes, frame: f.Inspect) -> None:
        value = self._machine.registers.decided(frame.object)
        if value is None:
            self._hub.send(peer, f.Done(frame.call, "unknown"))
            return
        content = value.content

        def procedure(task: Task) -> Procedure[str]:
            record = self._machine.registers.get(frame.object)
            if not content.size or (record is not None and content.digest not in record.held):
                return "" if not content.size else "missing"
            return (yield from self.verify(task, frame.object, content))

        ended = lambda reason: _reply(self._hub, peer, f.Done(frame.call, str(reason or "")))
        self._machine.tasks.start("inspect", procedure, ended)

    def _pull(self, peer: bytes, frame: f.Pull) -> None:
        """Copy content from replicas that have it."""
        machine = self._machine
        record = machine.registers.get(frame.object)
        if record is not None and frame.content.digest in record.held:
            self._hub.send(peer, f.Done(frame.call))
            return
        refused = self._refuses(frame.content)
        if refused:
            self._hub.send(peer, f.Done(frame.call, *refused))
            return
        self._pulls += 1

        def ended(outcome: Any) -> None:
            self._pulls -= 1
            failed = isinstance(outcome, Refusal)
            reply = f.Done(frame.call, outcome.code, outcome.text) if failed else f.Done(frame.call)
            self._hub.send(peer, reply)

        copy = lambda task: machine.upkeep.copy(
            task, frame.object, frame.content, list(frame.sources)
        )
        machine.tasks.start("pull", copy, ended)

    def _refuses(self, content: Content) -> tuple[str, str] | None:
        members = self._machine.members
        if not self._hub.disk or not self._hub.config.store:
            return "no disk", "this node holds no replicas"
        if self._pulls >= PULLS_MAX:
            return "busy", f"{PULLS_MAX} copies are in progress here"
        if content.size > members.free_bytes:
            return "full", f"{members.free_bytes} bytes are free, {content.size} are needed"
        return None

    def _merge(self, peer: bytes, frame: f.Merge) -> None:
        """Versions of a loose object. What is not here yet is copied from the sender first."""
        machine = self._machine
        value = machine.registers.decided(frame.object)
        if value is None or value.mode != LOOSE:
            self._hub.send(peer, f.Merged(frame.call, "unknown"))
            return
        if not machine.loose.absent(frame.object, frame.siblings):
            joined = machine.loose.take(frame.object, frame.siblings)
            if frame.call:
                self._hub.send(peer, f.Merged(frame.call, "", joined))
            return

        def procedure(task: Task) -> Procedure[Any]:
            for attempt in range(MERGE_TRIES):
                try:
                    for content in machine.loose.absent(frame.object, frame.siblings):
                        yield from machine.upkeep.copy(task, frame.object, content, [peer])
                    break
                except Refusal:
                    # On contact nothing else follows: the versions of the peer would stay with it.
                    if frame.call or attempt + 1 == MERGE_TRIES or not self._hub.reachable(peer):
                        raise
                yield from pause(task, MERGE_AGAIN_NS << attempt)
            return machine.loose.take(frame.object, frame.siblings)

        def ended(outcome: Any) -> None:
            if frame.call:
                failed = isinstance(outcome, Refusal)
                reply = (
                    f.Merged(frame.call, "content") if failed else f.Merged(frame.call, "", outcome)
                )
                self._hub.send(peer, reply)

        machine.tasks.start("merge", procedure, ended)

    # -- administration --------------------------------------------------------------------------------------------

    def _watch(self, peer: bytes, frame: f.Watch) -> None:
        self._hub.send(peer, self._machine.watchers.watch(peer, frame))

    def _inventory(self, peer: bytes, frame: f.Inventory) -> None:
        registers = self._machine.registers
        values = [r.decided for key, r in registers if r.decided is not None and key > frame.after]
        mine = sorted((v for v in values if registers.mine(v)), key=lambda value: value.object)
        page = tuple(mine[:INVENTORY_MAX])
        self._hub.send(peer, f.Held(frame.call, "", page, len(mine) > INVENTORY_MAX))

    def _set_draining(self, peer: bytes, frame: f.SetDraining) -> None:
        self._machine.set_draining(frame.draining, frame.by_policy)
        self._hub.send(peer, f.Done(frame.call))

    def _administer(self, peer: bytes, frame: f.Administer) -> None:
        if self._administering >= ADMIN_MAX:
            reason = f"{ADMIN_MAX} requests are in progress there; nothing was done"
            self._hub.send(peer, f.Administered(frame.call, reason))
            return
        self._administering += 1
        self._hub.effect(AdminWork(peer, frame.call, frame.verb, bytes(frame.body)))

    def administered(self, done: AdminDone) -> None:
        self._administering = max(self._administering - 1, 0)
        self._hub.send(done.peer, f.Administered(done.call, done.reason, done.body))


def _reply(hub: Any, peer: bytes, frame: Any) -> None:
    hub.send(peer, frame)


def _asking(
    machine: ObjectMachine, peer: bytes, object_id: bytes
) -> Callable[[Task], Procedure[None]]:
    """Ask a peer for the decided version of an object that this replica is late with."""
    from holdfast.objects.tasks import gather

    def procedure(task: Task) -> Procedure[None]:
        ask = lambda call: f.Look(call, object_id)
        replies = yield from gather(task, {peer: ask}, machine.hub.config.call_ns)
        state = replies[peer]
        if isinstance(state, f.RegisterState) and state.decided is not None:
            machine.parts.learn(state.decided)

    return procedure
