"""Shared state of the dialog unit: the dialogs of one store, and one turn's outputs.

A dialog that raises loses its own part of the turn and nothing else: its stage is discarded, it is read again from
the store, and its inputs are parked meanwhile. A second time within a minute it is faulted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from holdfast.dialog.blocks import Blocks
from holdfast.dialog.endings import Endings
from holdfast.dialog.facts import DialogTransactionFact
from holdfast.dialog.frames import Invite
from holdfast.dialog.ids import dialog_name
from holdfast.dialog.ports import Answer, Listen, ReadRows, Refused, Take
from holdfast.dialog.priority import Scheduler
from holdfast.dialog.quota import Budget
from holdfast.dialog.session import Dialog, Surroundings
from holdfast.dialog.transactions import Transaction
from holdfast.machine import Deadlines, Write
from holdfast.types import NEVER, SECOND, Nanos
from holdfast.wire.frames.base import Frame

P = ParamSpec("P")
T = TypeVar("T")

FORGIVEN_AFTER: Final = 60 * SECOND
PARKED_MAX: Final = 1024
"""Dialogs that are being read from the store."""
OVER_MAX: Final = 4096
"""Ended transactions that are remembered. A request of one that is still on its way is refused."""
PARKED_INPUTS_MAX: Final = 4096
"""Inputs that wait for one of them. More are refused; partners send again."""
WINDOW_MIN: Final = 256 << 10
WINDOW_MAX: Final = 16 << 20


class Peer:
    """A node that dialogs here have partners on."""

    __slots__ = (
        "acked", "asked", "dialogs", "in_flight", "leased", "limited", "measured_at", "up", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.up = False
        self.asked = False
        """A link was asked for."""
        self.leased = False
        """The directory keeps the link for these dialogs."""
        self.dialogs: dict[bytes, None] = {}
        self.in_flight = 0
        """Bytes transmitted and not acknowledged."""
        self.window = 4 << 20
        """Bytes that may be in flight: about what two round trips carry."""
        self.limited = False
        """Something waited for the window since it was last adapted."""
        self.acked = 0
        self.measured_at: Nanos = 0

    def acknowledged(self, size: int, now: Nanos, round_trip: Nanos) -> None:
        """Bytes have left the network: adapt the window to what one round trip carries. A round trip in which little
        was sent says nothing about that."""
        self.in_flight = max(0, self.in_flight - size)
        self.acked += size
        if now - self.measured_at >= round_trip:
            if self.limited:
                self.window = max(
                    WINDOW_MIN, min(2 * self.acked + WINDOW_MIN, WINDOW_MAX, 2 * self.window)
                )
            self.limited = False
            self.acked = 0
            self.measured_at = now


class Parked:
    """A dialog that is being read: what arrived for it meanwhile."""

    __slots__ = ("after_error", "dialog", "inputs")

    def __init__(self, dialog: bytes, after_error: bool) -> None:
        self.dialog = dialog
        self.after_error = after_error
        self.inputs: list[tuple[Any, ...]] = []


class Core:
    """The state of the unit."""

    def __init__(self, env: Surroundings, budget_bytes: int) -> None:
        self.env = env
        self.dialogs: dict[bytes, Dialog] = {}
        self.peers: dict[bytes, Peer] = {}
        self.listeners: dict[str, Listen] = {}
        self.policies: dict[str, tuple[bytes, ...]] = {}
        self.requested: dict[bytes, tuple[bytes, Invite, Nanos]] = {}
        self.blocks = Blocks()
        self.endings = Endings()
        self.transactions: dict[bytes, Transaction] = {}
        self.over: dict[bytes, None] = {}
        """Transactions that have ended, oldest first."""
        self.outcomes: list[bytes] = []
        """Transactions of an earlier owner whose outcome the store still has."""
        self.prepared = 0
        """The place of the next transaction that is prepared."""
        self.kept: dict[bytes, Nanos] = {}
        """Outcomes that the store kept from an earlier run, with their wall times."""
        self.exported: dict[bytes, bytes] = {}
        """The state of ends that moved, until their targets have it."""
        self.budget = Budget(budget_bytes)
        self.transmitting = Scheduler()
        self.delivering = Scheduler()
        self.any_takers: deque[Take] = deque()
        self.deadlines = Deadlines()
        self.counter = 0
        self.parked: dict[bytes, Parked] = {}
        self.reads: dict[int, Parked] = {}
        self.next_read = 1
        self.quiet: deque[bytes] = deque()
        """Keys of deactivated dialogs that may be abandoned; see `inactive`."""
        self.reviews: dict[int, bytes] = {}
        """Reads that look for them: the key, or nothing for the search itself."""
        self.failed_at: dict[bytes, Nanos] = {}
        self.errors: list[tuple[bytes, BaseException]] = []
        """What dialogs raised, newest last, at most a hundred; for people and tests."""
        # -- of the present turn
        self.token = 0
        """The request that is being carried out; 0: none."""
        self.touched: dict[bytes, Dialog] = {}
        self.effects: list[Any] = []
        self.posts: list[tuple[bytes, Frame]] = []
        self.facts: list[DialogTransactionFact] = []
        self.writes: list[Write] = []
        self.wanted: dict[bytes, None] = {}
        """Nodes that a link is asked for."""
        self.unused: dict[bytes, None] = {}
        """Nodes that no dialog has a partner on any more."""

    # -- running a dialog ----------------------------------------------------------------------------------------

    def run(
        self,
        d: Dialog,
        now: Nanos,
        act: Callable[Concatenate[Dialog, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Let a dialog act. What it raises stays with it."""
        if self.dialogs.get(d.id) is not d:
            return None
        self.touched[d.id] = d
        try:
            return act(d, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 whatever it raised, only this dialog may suffer
            # rule: D-22a
            self.fail(d, now, error)
            return None

    def fail(self, d: Dialog, now: Nanos, error: BaseException) -> None:
        """Discard the dialog's part of the turn, and read it again from the store."""
        self.env.count("dialog_errors")
        self.errors.append((d.id, error))
        del self.errors[:-100]
        # rule: D-22d
        for token in self._unanswered(d):
            self.refuse(
                token, "internal", "the dialog failed and is read again; nothing took effect"
            )
        for tx in self.transactions.values():
            if d.id in tx.dialogs and not tx.prepared:
                # rule: D-22c
                tx.broken = True
        # Its blocks stay: they are what it is read from.
        self.forget(d)
        again = now - self.failed_at.get(d.id, -FORGIVEN_AFTER) < FORGIVEN_AFTER
        self.failed_at[d.id] = now
        self.read(d.id, after_error=again)

    def _unanswered(self, d: Dialog) -> list[int]:
        """Requests that the discarded part of the turn would have answered, or that wait in the dialog."""
        tokens = [request.token for request in (*d.quota.waiting, *d.takers)]
        tokens += [effect.token for effect in d.stage.effects if type(effect) is Answer]
        if d.proposal is not None:
            tokens.append(d.proposal[0])
        if self.token:
            tokens.append(self.token)
        return tokens

    def read(self, dialog: bytes, after_error: bool = False) -> Parked | None:
        """Read a dialog from the store; its inputs are parked. None when too many are being read."""
        if dialog in self.parked:
            return self.parked[dialog]
        if len(self.parked) >= PARKED_MAX:
            self.env.count("parking_full")
            return None
        parked = self.parked[dialog] = Parked(dialog, after_error)
        self.reads[self.read_rows(reading(dialog))] = parked
        return parked

    def read_rows(self, wanted: list[tuple[str, bytes, bytes]]) -> int:
        """Ask for rows of the store; gives the token of the answer."""
        token = self.next_read
        self.next_read += 1
        self.effects.append(ReadRows(self.env.unit, token, wanted))
        return token

    def park(self, dialog: bytes, *entry: Any) -> bool:
        """Keep an input until the dialog is here. False when it cannot be kept."""
        parked = self.parked.get(dialog) or self.read(dialog)
        if parked is None or len(parked.inputs) >= PARKED_INPUTS_MAX:
            self.env.count("parked_inputs_refused")
            return False
        parked.inputs.append(entry)
        return True

    def ended(self, tx: bytes) -> None:
        """A transaction has ended: later requests of it are refused."""
        self.over[tx] = None
        if len(self.over) > OVER_MAX:
            del self.over[next(iter(self.over))]

    def leave_any(self, request: Take) -> None:
        """A receive from any dialog waits no more."""
        self.any_takers.remove(request)
        self.deadlines.set(f"any{request.token}", NEVER)

    # -- the index -----------------------------------------------------------------------------------------------

    def add(self, d: Dialog) -> None:
        self.dialogs[d.id] = d
        self.touched[d.id] = d
        s = d.settings
        self.budget.force(d.id, 2 * s.quota_reserved * s.message_bytes_max)
        self.index(d)

    def index(self, d: Dialog) -> None:
        """Keep the dialog under its partner's node."""
        if d.partner is None or self.dialogs.get(d.id) is not d:
            return
        node = d.partner.node
        peer = self.peer(node)
        if d.indexed != node:
            self._unindex(d)
            d.indexed = node
            peer.dialogs[d.id] = None
        d.connected = peer.up

    def _unindex(self, d: Dialog) -> None:
        old = self.peers.get(d.indexed)
        if old is not None:
            old.dialogs.pop(d.id, None)
            if not old.dialogs:
                self.unused[d.indexed] = None
            old.in_flight = max(0, old.in_flight - d.accounted)
        d.accounted = 0
        d.indexed = b""

    def account(self, d: Dialog, now: Nanos) -> None:
        """Charge the partner's node with what the dialog has in flight."""
        peer = self.peers.get(d.indexed)
        change = d.out.flight_bytes - d.accounted
        if peer is None or not change:
            return
        d.accounted += change
        if change > 0:
            peer.in_flight += change
        else:
            peer.acknowledged(-change, now, d.out.mean_ns)

    def forget(self, d: Dialog) -> None:
        """The dialog is not in memory any more."""
        self.dialogs.pop(d.id, None)
        self.touched.pop(d.id, None)
        self.transmitting.remove(d.id)
        self.delivering.remove(d.id)
        self.deadlines.set(d.id.hex(), 1 << 63)
        self.budget.release(d.id)
        self._unindex(d)

    def peer(self, node: bytes) -> Peer:
        peer = self.peers.get(node)
        if peer is None:
            peer = self.peers[node] = Peer()
            peer.up = node == self.env.node
        return peer

    # -- outputs that belong to no dialog ------------------------------------------------------------------------

    def answer(self, token: int, value: Any) -> None:
        self.effects.append(Answer(token, value))

    def refuse(self, token: int, code: str, text: str) -> None:
        self.effects.append(Answer(token, Refused(code, text)))

    def refuse_unknown(self, token: int, dialog: bytes) -> None:
        ended = self.endings.of(dialog)
        if ended is not None:
            self.refuse(
                token,
                "ended",
                f"dialog {dialog_name(dialog)} has ended ({ended.how}); nothing took effect",
            )
        else:
            self.refuse(token, "unknown", "no such dialog in this store; nothing took effect")


def reading(dialog: bytes) -> list[tuple[str, bytes, bytes]]:
    """What must be read to restore one dialog. Its messages lie in blocks with those of others."""
    after = dialog + b"\x00"
    tables = ("dialog", "position", "attempt", "inactive")
    wanted = [(table, dialog, after) for table in tables]
    wanted += [("block", b"", b"\xff" * 9), ("taken", dialog, dialog + b"\xff" * 9)]
    wanted.append(("staged", b"", b"\xff" * 21))
    return wanted
