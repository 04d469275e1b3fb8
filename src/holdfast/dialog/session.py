"""One end of a dialog: its data, how it is stored, and what it asks for in this turn.

A `Dialog` has no behaviour of its own beyond bookkeeping. The rules are functions in modules by topic: `transfer`
(messages, acknowledgements, resuming), `sending`, `delivery`, `pairing`, `lifecycle`, `ttl`, `faults`, `moving`. They
write into the dialog's stage, which the manager merges into the turn when the dialog has returned without raising.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.dialog.assurances import Rules, rules_of
from holdfast.dialog.config import Settings, assurances_of
from holdfast.dialog.facts import MASK, digest_of
from holdfast.dialog.frames import RANGES_MAX, Terms
from holdfast.dialog.ids import StoreId, twin
from holdfast.dialog.incoming import Incoming, Piece
from holdfast.dialog.inspection import Inspection
from holdfast.dialog.outgoing import Outgoing, Run
from holdfast.dialog.place import Parcel, Place
from holdfast.dialog.poison import Attempts
from holdfast.dialog.ports import Answer, Event, Refused, Take
from holdfast.dialog.quota import Quota
from holdfast.dialog.records import DialogRow, PositionRow, flat, pairs
from holdfast.dialog.schedule import Pace
from holdfast.dialog.states import RESOLVING, may_follow
from holdfast.machine import RangeSet
from holdfast.types import NEVER, Nanos, NodeId
from holdfast.wire.blocks import Buffer
from holdfast.wire.frames.base import Frame

TAKERS_MAX: Final = 1024


class Surroundings:
    """State that all dialogs of a store share."""

    __slots__ = (
        "abandoned_ns", "counts", "entropy", "node", "owner_epoch", "queued", "store", "unit", "wall_offset",
    )  # fmt: skip

    def __init__(
        self,
        node: NodeId,
        store: StoreId,
        owner_epoch: int,
        unit: str,
        entropy: Callable[[int], bytes],
        wall_offset: int,
    ) -> None:
        self.node = node
        self.store = store
        self.owner_epoch = owner_epoch
        self.unit = unit
        self.entropy = entropy
        self.wall_offset = wall_offset
        self.counts: dict[str, int] = {}
        self.queued: dict[bytes, dict[str, int]] = {}
        """Bytes that wait in the links to nodes, by adapter; only where there are many."""
        self.abandoned_ns: Nanos = 0
        """A dialog without any activity for this long is collected; 0: never."""

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def wall(self, now: Nanos) -> int:
        return now + self.wall_offset


Passed = tuple[str, int, int, int, bytes]
"""Event, first, stop, digest, and the transaction if there is one."""


class Stage:
    """Outputs of one dialog in one turn."""

    __slots__ = (
        "attempt", "effects", "ended", "frames", "freed", "parcels", "passed", "position", "posts", "row", "runs",
        "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        """For the partner."""
        self.posts: list[tuple[bytes, Frame]] = []
        """For other nodes."""
        self.effects: list[Any] = []
        self.runs: list[Run] = []
        self.parcels: list[Parcel] = []
        """New messages, sent and received, to be stored in the block of this turn."""
        self.passed: list[Passed] = []
        """Messages that were captured, taken or deleted."""
        self.freed: list[tuple[Place, int]] = []
        """Where messages lie that are not needed any more, and how many."""
        self.writes: list[Any] = []
        self.row = self.position = self.attempt = False
        self.ended: tuple[str, str] | None = None
        """How and why the dialog is over: its rows go."""


class Dialog:
    """The data of one end."""

    __slots__ = (
        "accounted",
        "ack_due",
        "advertised",
        "asked",
        "asked_at",
        "attempt",
        "attempts",
        "candidates",
        "confirmed",
        "connected",
        "control_at",
        "control_tries",
        "creator",
        "deadline",
        "declined",
        "detail",
        "done_acked",
        "done_in",
        "done_sent",
        "env",
        "epoch",
        "expires",
        "extension",
        "fault",
        "faulted_at",
        "fin_acked",
        "fin_sent",
        "heard_at",
        "id",
        "idle_at",
        "inc",
        "indexed",
        "invited",
        "key",
        "last_asked",
        "moved_to",
        "notified",
        "out",
        "pace",
        "partner",
        "partner_epoch",
        "partner_owner",
        "poison_told",
        "proposal",
        "question",
        "quota",
        "reroute_at",
        "reroutes",
        "restarted_at",
        "resumed",
        "rules",
        "secret",
        "settings",
        "since",
        "stage",
        "state",
        "takers",
        "terms",
        "told",
        "total_in",
        "total_out",
        "touched",
        "ttl_number",
        "uri",
    )  # fmt: skip

    def __init__(self, env: Surroundings, dialog: bytes, row: DialogRow) -> None:
        self.env = env
        self.id = dialog
        self.stage = Stage()
        self.deadline: Nanos = NEVER
        self._restore_row(row)
        settings = row.settings
        rules = self._rules()
        self.rules = rules
        self.out = Outgoing(rules.acknowledges)
        self.inc = Incoming(
            rules, settings.quota_messages, settings.quota_bytes, settings.message_bytes_max
        )
        self.quota = Quota(settings.quota_messages, settings.quota_bytes)
        self.attempts = Attempts(settings.poison_after)
        self.pace = Pace(settings.rate_per_s)
        self.total_out = self.total_in = -1
        """Messages that an end sends altogether, once it has said so."""
        self.done_in = False
        self.notified = RangeSet()
        """Unacknowledged numbers that have had their notice of expiry."""
        self.extension = (0, 0)
        self._start_volatile()

    def _start_volatile(self) -> None:
        """Set the state that a restart does not keep."""
        self.connected = False
        """There is a link to the partner."""
        self.resumed = False
        """Both ends have compared where they stand in this link session."""
        self.question = 0
        """The number of the last question that this end asked when it resumed, and what it knew then."""
        self.asked: tuple[int, list[int]] = (0, [])
        self.asked_at: Nanos = 0
        self.last_asked = 0
        """The highest question of the partner."""
        self.ack_due = False
        self.advertised = self.inc.limit
        """The window that the partner was last told."""
        self.takers: deque[Take] = deque()
        self.told = False
        """The application knows that there is something to take, and has not come for it yet."""
        self.heard_at: Nanos = 0
        self.since: Nanos = 0
        """Since when this end waits for the partner with a link up."""
        self.reroute_at: Nanos = NEVER
        """When a dialog without a partner looks for one again."""
        self.reroutes = 0
        self.control_at: Nanos = NEVER
        self.control_tries = 0
        self.restarted_at: Nanos = 0
        """When this end was read from the store, until the partner has answered; 0 otherwise."""
        self.fin_sent = self.done_sent = False
        self.fin_acked = self.done_acked = False
        self.accounted = 0
        """Bytes in flight that the node of `indexed` is charged with."""
        self.indexed = b""
        self.proposal: tuple[int, Nanos, int, Nanos] | None = None
        """Token, proposed time, number, deadline of a new time to live."""
        self.candidates: list[bytes] = []
        self.invited: dict[bytes, Nanos] = {}
        self.declined: dict[bytes, str] = {}
        self.poison_told = False
        self.idle_at: Nanos = NEVER

    # -- rows ----------------------------------------------------------------------------------------------------

    def _restore_row(self, row: DialogRow) -> None:
        self.state = row.state
        self.epoch = row.epoch
        self.creator = row.creator
        self.uri = row.uri
        self.key = row.key
        self.partner = row.partner
        self.partner_epoch = row.partner_epoch
        self.partner_owner = row.partner_owner
        self.terms = row.terms
        self.settings = row.settings
        self.secret = row.secret
        self.expires = row.expires
        self.ttl_number = row.ttl_number
        self.fault = row.fault
        self.detail = row.detail
        self.faulted_at = row.faulted_at
        self.attempt = row.attempt
        self.touched = row.touched
        self.moved_to = row.moved_to
        self.confirmed = row.confirmed

    def row(self) -> DialogRow:
        return DialogRow(
            self.state, self.epoch, self.creator, self.uri, self.key, self.partner, self.partner_epoch,
            self.partner_owner, self.terms, self.settings, self.secret, self.expires, self.ttl_number, self.fault,
            self.detail, self.faulted_at, self.attempt, self.touched, self.moved_to, self.confirmed,
        )  # fmt: skip

    def position(self) -> PositionRow:
        out, inc = self.out, self.inc
        acked = flat(out.acked) if out.acknowledges else [0, out.lowest] if out.lowest else []
        return PositionRow(
            out.next, acked, out.limit, flat(inc.received), flat(inc.taken), inc.expected, self.total_out,
            self.total_in, self.done_in, flat(self.notified), self.extension,
        )  # fmt: skip

    def restore_position(self, row: PositionRow) -> None:
        out = self.out
        out.next = row.next
        out.acked = RangeSet(pairs(row.acked))
        out.lowest = out.acked.first_missing(0)
        out.top = out.acked.stops[-1] if out.acked.stops else 0
        # The resume announces the window again; until then nothing is sent.
        self.inc.restore(RangeSet(pairs(row.received)), RangeSet(pairs(row.taken)), row.expected)
        self.total_out, self.total_in, self.done_in = row.total_out, row.total_in, row.done_in
        self.notified = RangeSet(pairs(row.notified))
        self.extension = row.extension

    # -- terms ---------------------------------------------------------------------------------------------------

    def _rules(self) -> Rules:
        return rules_of(assurances_of(self.terms.assurances))

    def agree(self, terms: Terms) -> None:
        """The terms that both ends have agreed on. No message was transmitted before."""
        self.terms = terms
        self.rules = self._rules()
        self.out.acknowledges = self.rules.acknowledges
        self.inc.rules = self.rules
        self.inc.message_bytes_max = terms.message_bytes_max
        self.inc.limit = 0
        self.inc.open_window()
        self.stage.row = True

    # -- helpers -------------------------------------------------------------------------------------------------

    def change(self, state: str, now: Nanos) -> None:
        assert may_follow(self.state, state), f"{self.state} -> {state}"
        self.state = state
        self.touched = self.env.wall(now)
        self.stage.row = True

    def post(self, frame: Frame) -> None:
        """Send a frame to the partner, if there is a link; otherwise resuming makes up for it."""
        if self.connected:
            self.stage.frames.append(frame)

    def event(self, kind: str, detail: str = "", number: int = 0, count: int = 0) -> None:
        self.stage.effects.append(
            Event(
                self.id,
                kind,
                detail,
                number,
                count,
                self.fault,
                self.uri,
                self.env.unit,
                not self.creator,
            )
        )

    def answer(self, token: int, value: Any) -> None:
        self.stage.effects.append(Answer(token, value))

    def refuse(self, token: int, code: str, text: str) -> None:
        self.stage.effects.append(Answer(token, Refused(code, text)))

    def free_runs(self, runs: list[Run]) -> None:
        freed = self.stage.freed
        for run in runs:
            freed.append((run.place, run.count))
        if runs:
            self.stage.position = True

    def passes(
        self, event: str, first: int, bodies: Sequence[Buffer], transaction: bytes = b""
    ) -> None:
        """Note messages for the audit; consecutive ones of a turn and a transaction are one fact."""
        passed = self.stage.passed
        digest = digest_of(first, bodies)
        stop = first + len(bodies)
        last = passed[-1] if passed else None
        if last is not None and (last[0], last[2], last[4]) == (event, first, transaction):
            _, begin, _, before, _ = passed.pop()
            first, digest = begin, (before + digest) & MASK
        passed.append((event, first, stop, digest, transaction))

    def free_pieces(self, pieces: list[Piece]) -> None:
        freed = self.stage.freed
        for piece in pieces:
            freed.append((piece.place, len(piece.messages)))
        if pieces:
            self.stage.position = True

    @property
    def to(self) -> bytes:
        """The partner's store."""
        assert self.partner is not None, "there is a partner once one was recorded"
        return self.partner.store

    @property
    def far(self) -> bytes:
        """The id under which the partner's store keeps its end: another one where both are in one store."""
        env, partner = self.env, self.partner
        if partner is not None and partner.store == env.store and partner.node == env.node:
            return twin(self.id)
        return self.id

    def ranges(self) -> list[int]:
        """Received numbers, as an acknowledgement lists them."""
        if not self.rules.acknowledges:
            return []
        # rule: D-2c
        return flat(self.inc.received)[:RANGES_MAX]

    @property
    def idle(self) -> bool:
        """Nothing is under way: it costs nothing to forget it until it is needed."""
        return (
            self.inc.empty
            and not self.out.buffered
            and not self.takers
            and not self.quota.waiting
            and not self.quota.reserved
            and not self.proposal
            and self.total_out < 0
        )


def inspected(d: Dialog) -> Inspection:
    out, inc = d.out, d.inc
    return Inspection(
        d.id, d.state, d.uri, d.epoch, d.partner, d.terms.assurances, out.next, list(out.acked), out.lowest, out.limit,
        sum(run.count for run in out.queue), sum(run.count for run in out.flight.values()), out.resent,
        list(inc.received), list(inc.taken), inc.limit, inc.ready_count,
        sum(len(piece.messages) for piece in inc.early.values()),
        sum(len(piece.messages) for pieces in inc.leases.values() for piece in pieces),
        list(d.attempts.aside), d.fault, d.detail, d.connected, d.resumed, d.expires, d.settings.priority,
        d.settings.store, len(d.quota.waiting), d.creator,
    )  # fmt: skip


def new_row(
    state: str, creator: bool, uri: str, key: bytes, terms: Terms, settings: Settings, wall: int
) -> DialogRow:
    """The row of a dialog that begins."""
    return DialogRow(
        state, 0, creator, uri, key, None, 0, 0, terms, settings, b"", 0, 0, "", "", 0, 0, wall
    )


START: Final = RESOLVING
