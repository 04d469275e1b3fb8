"""The unit `dialogs/<store>`: all dialogs of one store, one commit per turn for all of them.

The unit that writes also acknowledges: every frame, answer and event leaves through the ordinary outbox, which holds
it until everything that the unit has written is durable. Nothing is `immediate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from holdfast.dialog import (
    arrivals,
    collecting,
    delivery,
    inactive,
    lifecycle,
    loading,
    pairing,
    sending,
    timers,
    transfer,
)
from holdfast.dialog.core import Core, Parked
from holdfast.dialog.facts import DialogFact, DialogRangeFact
from holdfast.dialog.faults import back_in_service, put_in_fault
from holdfast.dialog.ids import StoreId, dialog_name
from holdfast.dialog.inspection import Inspection
from holdfast.dialog.place import Parcel, Place
from holdfast.dialog.ports import (
    Answer,
    Event,
    Loopback,
    Prepared,
    Refused,
    Request,
    Resolved,
    Rows,
    Sent,
    Take,
    UnitLost,
    WallClock,
)
from holdfast.dialog.records import (
    ATTEMPT,
    DIALOG,
    KEPT,
    POSITION,
    TX,
    EndingRow,
    after,
    encode,
)
from holdfast.dialog.requests import any_dialog, messages, transactions
from holdfast.dialog.requests.table import HANDLERS, NAMES_A_DIALOG
from holdfast.dialog.session import Dialog, Passed, Stage, Surroundings, inspected
from holdfast.dialog.states import COMPLETED, CONFIRMING, FAULTED, INVITING, OPEN
from holdfast.dialog.transactions import KEPT_NS, OUTCOMES_NS
from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import (
    LinkImpossible,
    LinkQueue,
    NeedLink,
    PeerDown,
    PeerRefused,
    PeerUp,
    Received,
    ReleaseLink,
    SendChannel,
    link_unit,
)
from holdfast.machine import Erase, Machine, Outbox, Put, StoreFailed
from holdfast.types import DATA, NEVER, Nanos, NodeId
from holdfast.wire.codec import encode as encode_frame

TURN_BYTES: Final = 4 << 20
"""Payload that one turn transmits at most; more waits for the next."""
BUDGET_BYTES: Final = 1 << 40


class DialogManager(Machine):
    """The machine. `tables` is what the store has (`records.LOADED`)."""

    layer: ClassVar[str] = "dialog"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown, PeerRefused, LinkQueue)

    def __init__(
        self,
        unit: str,
        node: NodeId,
        store: StoreId,
        owner_epoch: int,
        tables: loading.Tables,
        entropy: Callable[[int], bytes],
        wall_offset: int,
        budget_bytes: int = BUDGET_BYTES,
        abandoned_ns: Nanos = 0,
    ) -> None:
        env = Surroundings(node, store, owner_epoch, unit, entropy, wall_offset)
        env.abandoned_ns = abandoned_ns
        self.core = Core(env, budget_bytes)
        # rule: D-3a
        self.store = unit
        """Each store has its own writer, commit mark and failure."""
        self._failed = ""
        self.deadline: Nanos = 0
        """The first wake-up takes up what was under way and writes what loading has folded."""
        self._started = False
        self._facts: list[DialogRangeFact] = []
        self._messages: dict[str, int] = {}
        self._more = False
        """The turn had no room for everything that may be transmitted."""
        loading.load(self.core, tables)

    # -- the contract --------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        core = self.core
        for item in inputs:
            if type(item) is StoreFailed and not self._failed:
                # Memory is ahead of the store: this unit ends, and a new one is made from what the store has.
                self._failed = item.reason
                out.effect(UnitLost(core.env.unit, item.reason))
        if self._failed:
            self._refuse_all(inputs, out)
            return
        for item in inputs:
            if type(item) is Received:
                peer = item.peer
                for frame in item.frames:
                    arrivals.on_frame(core, now, peer, frame)
            else:
                self._take(now, item)
        self._finish(now, out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        core = self.core
        if self._failed:
            self.deadline = NEVER
            return
        if not self._started:
            self._started = True
            for tx, wall in core.kept.items():
                if core.env.wall(now) - wall > KEPT_NS:
                    core.writes.append(Erase(KEPT, tx, after(tx)))
            core.kept.clear()
            if core.outcomes:
                core.deadlines.set("outcomes", now + OUTCOMES_NS)
            if core.env.abandoned_ns:
                core.deadlines.set("abandoned", now + collecting.every(core.env))
            for d in list(core.dialogs.values()):
                core.run(d, now, loading.start, now)
        for name in core.deadlines.due(now):
            if name == "requests":
                arrivals.expire_requests(core, now)
                continue
            if name == "abandoned":
                self._collect(now)
                continue
            if name == "outcomes":
                core.writes += [Erase(TX, tx, after(tx)) for tx in core.outcomes]
                core.outcomes = []
                continue
            if name == "inactive":
                inactive.review(core)
                continue
            if name.startswith("any"):
                continue
            due = core.dialogs.get(bytes.fromhex(name))
            if due is not None:
                self._wake(due, now)
        self._finish(now, out)

    def _collect(self, now: Nanos) -> None:
        """Collect dialogs that both partner and application have left."""
        core = self.core
        core.deadlines.set("abandoned", now + collecting.every(core.env))
        for d in list(core.dialogs.values()):
            core.run(d, now, collecting.collect, now)
        inactive.scan(core, now)

    def _wake(self, d: Dialog, now: Nanos) -> None:
        if d.idle_at <= now and d.idle and d.state == OPEN:
            loading.deactivate(self.core, d, now)
            self.core.effects.append(Event(d.id, "deactivated", uri=d.uri, unit=self.core.env.unit))
            return
        self.core.run(d, now, timers.wake, now)

    # -- inputs --------------------------------------------------------------------------------------------------

    def _take(self, now: Nanos, item: Any) -> None:
        core = self.core
        kind = type(item)
        handler = HANDLERS.get(kind)
        if handler is not None:
            any_dialog = kind is Take and not item.dialog
            if kind in NAMES_A_DIALOG and not any_dialog and item.dialog not in core.dialogs:
                self._elsewhere(now, item)
            else:
                self._carry_out(now, item)
        elif kind is PeerUp:
            self._peer_up(now, item.peer)
        elif kind is PeerDown:
            self._peer_down(now, item.peer)
        elif kind is LinkQueue:
            self._link_queue(item)
        elif kind is PeerRefused:
            self._peer_refused(now, item)
        elif kind is LinkImpossible:
            core.env.count("unreachable")
        elif kind is Rows:
            self._rows(now, item)
        elif kind is Resolved:
            d = core.dialogs.get(item.dialog)
            if d is not None:
                core.run(d, now, pairing.on_resolved, now, item)
        elif kind is WallClock:
            core.env.wall_offset = item.offset
            core.touched.update(core.dialogs)
        else:
            core.env.count("unexpected")

    def _carry_out(self, now: Nanos, item: Any) -> None:
        """Hand a request to its function. If its dialog raises, the request is refused."""
        core = self.core
        core.token = getattr(item, "token", 0)
        HANDLERS[type(item)](core, now, item)
        core.token = 0

    def _refuse_all(self, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            token = getattr(item, "token", None)
            if token is not None and isinstance(item, Request):
                text = f"the dialog store failed ({self._failed}); the request may have taken effect or not"
                out.effect(Answer(token, Refused("store", text)))

    def _elsewhere(self, now: Nanos, item: Request) -> None:
        """The dialog is not in memory: it ended, or it must be read first."""
        core = self.core
        dialog: bytes = item.dialog  # type: ignore[attr-defined]  # every request in NAMES_A_DIALOG has one
        if core.endings.of(dialog) is not None:
            core.refuse_unknown(item.token, dialog)
        elif not core.park(dialog, "request", item):
            core.refuse(item.token, "busy", "too many dialogs are being read; nothing took effect")

    def _rows(self, now: Nanos, rows: Rows) -> None:
        core = self.core
        if rows.token in core.reviews:
            inactive.arrived(core, now, rows)
            return
        parked: Parked | None = loading.arrived(core, now, rows)
        if parked is None:
            return
        here = parked.dialog in core.dialogs
        for entry in parked.inputs:
            if entry[0] == "outcome":
                transactions.outcome(core, now, entry[1])
            elif entry[0] == "request":
                if here:
                    self._carry_out(now, entry[1])
                else:
                    core.refuse_unknown(entry[1].token, parked.dialog)
            elif here:
                arrivals.on_frame(core, now, entry[1], entry[2])
            else:
                arrivals.nowhere(core, now, entry[1], entry[2])

    def _peer_up(self, now: Nanos, node: bytes) -> None:
        core = self.core
        peer = core.peer(node)
        peer.up, peer.asked = True, False
        for dialog in list(peer.dialogs):
            d = core.dialogs[dialog]
            d.connected = True
            if d.state == FAULTED and d.fault == "credentials" and d.confirmed:
                # rule: D-life-5a
                core.run(d, now, back_in_service, now)
            if transfer.can_resume(d):
                core.run(d, now, transfer.begin_resume, now)
            elif d.state == CONFIRMING or (d.state == FAULTED and d.partner is not None):
                core.run(d, now, pairing.confirm)
        for d in list(core.dialogs.values()):
            if d.state == INVITING and node in d.invited:
                core.run(d, now, pairing.repeat_invites, now)

    def _peer_down(self, now: Nanos, node: bytes) -> None:
        core = self.core
        peer = core.peer(node)
        peer.up = peer.asked = False
        core.env.queued.pop(node, None)
        for dialog in peer.dialogs:
            d = core.dialogs[dialog]
            d.connected = d.resumed = False
            d.since = 0
            d.out.requeue()
            core.touched[dialog] = d

    def _link_queue(self, item: LinkQueue) -> None:
        """Nothing is transmitted again while its earlier copy may wait in the queue of the link."""
        queued = self.core.env.queued
        waiting = queued.setdefault(item.peer, {})
        if item.waiting:
            waiting[item.adapter] = item.waiting
        else:
            waiting.pop(item.adapter, None)
        if not waiting:
            del queued[item.peer]

    def _peer_refused(self, now: Nanos, item: PeerRefused) -> None:
        """No link can be made with these credentials: what needs one is faulted, until they are renewed."""
        core = self.core
        for dialog in list(core.peer(item.peer).dialogs):
            d = core.dialogs[dialog]
            if d.state == OPEN:
                # rule: D-life-5b
                core.run(d, now, put_in_fault, now, "credentials", item.reason)

    # -- the end of the turn -------------------------------------------------------------------------------------

    def _finish(self, now: Nanos, out: Outbox) -> None:
        core = self.core
        for d in list(core.touched.values()):
            core.run(d, now, self._settle, now)
        if core.any_takers:
            any_dialog.serve_any(core, now)
        payload = self._transmit(now)
        self._copy_forward()
        frames: dict[bytes, list[Any]] = {}
        for d in list(core.touched.values()):
            self._merge(d, now, frames)
        core.touched.clear()
        for node, frame in core.posts:
            frames.setdefault(node, []).append(frame)
        core.posts.clear()
        for node, batch in payload.items():
            frames.setdefault(node, []).extend(batch)
        self._emit(now, frames, out)
        self.deadline = core.deadlines.next() if self._started else 0
        if self._started and (self.deadline <= now or self._more):
            self.deadline = now + 1

    def _settle(self, d: Dialog, now: Nanos) -> None:
        """Everything that follows from what the dialog was given in this turn."""
        core = self.core
        for request, bodies in sending.serve_waiting(d, now):
            messages.stage(core, now, d, request, bodies)
        delivery.serve_takers(d)
        if delivery.available(d):
            core.delivering.add(d.id, d.settings.priority)
            if not core.any_takers:
                delivery.tell(d)
        # Before anything is transmitted: an acknowledgement of this turn makes room in it.
        core.account(d, now)
        transfer.flush(d)
        lifecycle.advance(d, now)
        lifecycle.drained(d)
        idle = d.idle and d.state == OPEN and d.settings.idle_ns and not d.expires
        if not idle:
            d.idle_at = NEVER
        elif d.idle_at == NEVER:
            d.idle_at = now + d.settings.idle_ns
        if transfer.transmit_at(d, now) <= now:
            core.transmitting.add(d.id, d.settings.priority)

    def _transmit(self, now: Nanos) -> dict[bytes, list[Any]]:
        """Transmit by priority, as far as the windows of the peers go."""
        core = self.core
        room = TURN_BYTES
        full: list[Dialog] = []
        payload: dict[bytes, list[Any]] = {}
        while room > 0 and (key := core.transmitting.next()) is not None:
            d = core.dialogs.get(key)
            if d is None or d.partner is None or transfer.transmit_at(d, now) > now:
                continue
            peer = core.peer(d.partner.node)
            # rule: D-20c
            if d.out.acknowledges and peer.in_flight >= peer.window:
                peer.limited = True
                full.append(d)
                continue
            stage = d.stage.frames
            before = len(stage)
            size = core.run(d, now, transfer.transmit, now)
            if size is None:
                continue
            # Payload of all dialogs goes in the order of the scheduler, behind what is not payload.
            payload.setdefault(d.partner.node, []).extend(stage[before:])
            del stage[before:]
            room -= size
            core.account(d, now)
            core.transmitting.served(key, size, d.settings.priority)
            if transfer.transmit_at(d, now) <= now:
                core.transmitting.add(key, d.settings.priority)
        self._more = room <= 0
        for d in full:
            core.transmitting.add(d.id, d.settings.priority)
        return payload

    def _copy_forward(self) -> None:
        core = self.core
        found = core.blocks.straggler()
        if found is None:
            return
        block, dialogs = found
        for dialog in dialogs:
            if dialog not in core.dialogs:
                return  # It is being read from just these blocks.
        for dialog in dialogs:
            d = core.dialogs[dialog]
            core.touched.setdefault(dialog, d)
            for run in d.out.runs():
                if run.place.block == block:
                    core.blocks.free(block, dialog, run.count)
                    run.place = Place()
                    core.blocks.add_run(dialog, run)
            pieces = [*d.inc.ready, *d.inc.early.values()]
            for leased in d.inc.leases.values():
                pieces += leased
            for piece in pieces:
                if piece.place.block == block:
                    core.blocks.free(block, dialog, len(piece.messages))
                    piece.place = Place()
                    parcel = Parcel(piece.first, piece.messages, piece.place)
                    core.blocks.add_parcel(dialog, parcel)

    # -- merging -------------------------------------------------------------------------------------------------

    def _merge(self, d: Dialog, now: Nanos, frames: dict[bytes, list[Any]]) -> None:
        """Move what a dialog asked for into the turn."""
        core = self.core
        stage = d.stage
        if stage.parcels or stage.runs or stage.freed:
            collecting.active(d, now)
        d.stage = Stage()
        core.effects += stage.effects
        core.posts += stage.posts
        if stage.passed:
            self._facts += [_range_fact(now, d, passed) for passed in stage.passed]
            for event, first, stop, _, _ in stage.passed:
                self._messages[event] = self._messages.get(event, 0) + stop - first
        if stage.frames and d.partner is not None:
            frames.setdefault(d.partner.node, []).extend(stage.frames)
        for run in stage.runs:
            core.blocks.add_run(d.id, run)
        for parcel in stage.parcels:
            core.blocks.add_parcel(d.id, parcel)
        for place, count in stage.freed:
            core.blocks.free(place.block, d.id, count)
        core.account(d, now)
        if stage.ended is not None:
            self._end(d, now, *stage.ended)
            return
        if stage.row:
            core.writes.append(Put(DIALOG, d.id, encode(d.row())))
        if stage.position:
            core.writes.append(Put(POSITION, d.id, encode(d.position())))
        if stage.attempt:
            row = d.attempts.row()
            if row is None:
                core.writes.append(Erase(ATTEMPT, d.id, after(d.id)))
            else:
                core.writes.append(Put(ATTEMPT, d.id, encode(row)))
        core.deadlines.set(d.id.hex(), timers.next_deadline(d, now))
        self._want_link(d)

    def _want_link(self, d: Dialog) -> None:
        """Ask for a link when there is something to say to the partner."""
        partner = d.partner
        if partner is None or d.connected or not (d.out.queue or d.state == CONFIRMING):
            return
        self.core.wanted[partner.node] = None

    def _end(self, d: Dialog, now: Nanos, how: str, reason: str) -> None:
        """The dialog is over: only its id and its final ranges remain."""
        core = self.core
        key = d.id
        # rule: D-17b
        row = EndingRow(how, d.ranges(), reason, core.env.wall(now))
        core.writes += core.endings.add(key, row)
        core.writes += [Erase(table, key, after(key)) for table in (DIALOG, POSITION, ATTEMPT)]
        core.blocks.forget(key)
        core.forget(d)
        core.env.count("completed" if d.state == COMPLETED else "ended")

    def _emit(self, now: Nanos, frames: dict[bytes, list[Any]], out: Outbox) -> None:
        core = self.core
        out.writes += core.blocks.writes()
        if core.writes:
            out.writes += core.writes
            core.writes = []
        if self._facts or core.facts:
            for fact in (*self._facts, *core.facts):
                out.fact(fact)
            self._facts, core.facts = [], []
        for node, batch in frames.items():
            if node == core.env.node:
                out.effect(Loopback(node, batch))
            elif core.peer(node).up:
                # rule: D-1a
                out.down(
                    link_unit(node), SendChannel(DATA, [encode_frame(frame) for frame in batch])
                )
            else:
                # What was to be said is said again when the link is there: by resuming, or by repetition.
                core.wanted[node] = None
        for node in core.wanted:
            peer = core.peer(node)
            if not peer.up and not peer.asked:
                peer.asked = True
                peer.leased = True
                out.up(DIRECTORY, NeedLink(NodeId(node), core.env.unit))
        core.wanted.clear()
        for node in core.unused:
            peer = core.peer(node)
            if peer.leased and not peer.dialogs:
                peer.leased = peer.asked = False
                out.up(DIRECTORY, ReleaseLink(NodeId(node), core.env.unit))
        core.unused.clear()
        for effect in core.effects:
            # An answer that promises nothing of the store does not wait for it: with SQLite, a transaction that waits
            # for one may hold the very file that the writer waits for.
            # rule: D-1c
            out.effect(effect, immediate=type(effect) is Answer and _promises_nothing(effect.value))
            if type(effect) is Event and effect.kind != "available":
                out.fact(_fact(now, effect))
        core.effects = []

    # -- for people and tests ------------------------------------------------------------------------------------

    def inspect(self, dialog: bytes) -> Inspection | None:
        d = self.core.dialogs.get(dialog)
        return inspected(d) if d is not None else None

    def list(self, limit: int = 0) -> list[Inspection]:
        """All ends in memory, or `limit` of them: those in trouble first."""
        dialogs = [*self.core.dialogs.values()]
        if limit and len(dialogs) > limit:
            troubled = [d for d in dialogs if d.fault or d.attempts.aside]
            dialogs = (troubled + [d for d in dialogs if not (d.fault or d.attempts.aside)])[:limit]
        return [inspected(d) for d in dialogs]

    def accepted(self) -> Iterator[tuple[bytes, str]]:
        """Open dialogs that partners opened: id and URI."""
        for d in self.core.dialogs.values():
            if not d.creator and d.state == OPEN:
                yield d.id, d.uri

    def find(self, wanted: str) -> Sequence[bytes]:
        """The ids of active dialogs that begin with these hexadecimal digits, or have this short name."""
        return [
            dialog
            for dialog in self.core.dialogs
            if dialog.hex().startswith(wanted) or dialog_name(dialog) == wanted
        ]

    def poison(self, dialog: bytes, number: int) -> bytes | None:
        """The body of a poison message."""
        d = self.core.dialogs.get(dialog)
        return delivery.poison_message(d, number) if d is not None else None

    def status(self) -> dict[str, Any]:
        core = self.core
        states: dict[str, int] = {}
        for d in core.dialogs.values():
            states[d.state] = states.get(d.state, 0) + 1
        return {
            "dialogs": len(core.dialogs),
            "states": states,
            "blocks": len(core.blocks),
            "transactions": len(core.transactions),
            "ended": len(core.endings),
            "parked": len(core.parked),
            "reserved_bytes": core.budget.used,
            "messages": dict(self._messages),
            "counts": dict(core.env.counts),
        }


def _promises_nothing(value: Any) -> bool:
    """A refusal, the rows of a transaction (its messages were durable when they were handed out), a tentative send."""
    return isinstance(value, (Refused, Prepared)) or (isinstance(value, Sent) and value.first < 0)


def _fact(now: Nanos, event: Event) -> DialogFact:
    return DialogFact(
        now, event.kind, event.dialog.hex(), event.uri, event.code, event.detail, event.number, event.count
    )  # fmt: skip


def _range_fact(now: Nanos, d: Dialog, passed: Passed) -> DialogRangeFact:
    event, first, stop, digest, transaction = passed
    own = event == "captured"
    sender = "creator" if own == d.creator else "acceptor"
    return DialogRangeFact(
        now, event, d.id.hex(), sender, d.terms.assurances, first, stop - 1, digest, d.epoch,
        transaction.hex(),
    )  # fmt: skip
