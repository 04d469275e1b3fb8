"""Receiving: what the application gets, when it leaves the store, and poison messages.

| how it is taken                    | when it leaves the store |
| ---------------------------------- | ------------------------ |
| in a transaction                   | with its commit |
| without, at-most-once              | before it is handed over: a crash in between loses it, never doubles it |
| without, no at-most-once           | after it was handed over: a crash in between delivers it again |
"""

from __future__ import annotations

from holdfast.dialog.incoming import Piece
from holdfast.dialog.ports import Message, Take, Taken
from holdfast.dialog.session import TAKERS_MAX, Dialog
from holdfast.dialog.states import COMPLETED, MOVED, OPEN, TERMINATED
from holdfast.types import NEVER, Nanos

LEASE = b"handover"


def take(d: Dialog, now: Nanos, request: Take) -> bool:
    """Answer a request to receive now, or let it wait. True when messages were leased to its transaction."""
    if request.count < 1:
        d.refuse(request.token, "misuse", "count must be at least 1; nothing was taken")
        return False
    if d.settings.simplex == "send":
        d.refuse(request.token, "misuse", "this end only sends (simplex); nothing was taken")
        return False
    if not d.takers and available(d, request.tx):
        return hand_out(d, request)
    if not _more_may_come(d):
        d.refuse(request.token, "ended", f"the dialog is {d.state}; no more messages come")
    elif request.deadline <= now:
        d.answer(request.token, Taken(d.id, []))
    elif len(d.takers) >= TAKERS_MAX:
        d.refuse(request.token, "busy", f"{TAKERS_MAX} receives wait already; nothing was taken")
    else:
        d.takers.append(request)
    return False


def _more_may_come(d: Dialog) -> bool:
    if d.state in (TERMINATED, COMPLETED, MOVED):
        return bool(d.inc.ready or d.inc.leases)
    if d.total_in < 0:
        return True
    # The partner has said how many messages there are in all.
    return not d.inc.empty or (d.rules.acknowledges and d.inc.received_count < d.total_in)


def available(d: Dialog, tx: bytes = b"") -> bool:
    """Whether a message can be handed out now, to this transaction."""
    if not d.inc.ready or d.state not in (OPEN, TERMINATED):
        return False
    if not d.rules.in_order:
        return True
    # One transaction at a time, or an abort would re-order; and a poison message stops what is behind it.
    # rule: D-14a
    return not d.attempts.aside and all(lease == tx for lease in d.inc.leases)


def hand_out(d: Dialog, request: Take) -> bool:
    """Answer with messages, of which there are some."""
    inc = d.inc
    # rule: D-14d
    count = 1 if d.attempts.alone(inc.ready[0].first) else request.count
    # rule: D-buffer-3a
    if request.discard:
        pieces = inc.take(count, request.bytes_max, request.tx)
        messages: list[Message] = []
        if not request.tx:
            d.free_pieces(pieces)
            _passed(d, "deleted", pieces)
        count = sum(len(piece.messages) for piece in pieces)
        d.answer(request.token, Taken(d.id, [Message(p.first, memoryview(b"")) for p in pieces]))
        return bool(request.tx)
    lease = request.tx
    # rule: D-15a
    if not lease and not d.rules.removes_first:
        lease = LEASE + request.token.to_bytes(8, "big")
    pieces = inc.take(count, request.bytes_max, lease)
    # rule: D-14f
    if lease and d.attempts.begin(pieces):
        # Before it is handed over: the answer leaves when the row is durable.
        d.stage.attempt = True
    if not lease:
        d.free_pieces(pieces)
        _passed(d, "taken", pieces)
    messages = [
        Message(number, body, max(1, d.attempts.attempt(number)))
        for piece in pieces
        for number, body in enumerate(piece.messages, piece.first)
    ]
    d.answer(request.token, Taken(d.id, messages, b"" if request.tx else lease))
    d.told = False
    return bool(request.tx)


def serve_takers(d: Dialog) -> list[Take]:
    """Something has become available: answer what waited, in order. Gives those that lease for a transaction."""
    leased: list[Take] = []
    while d.takers and available(d, d.takers[0].tx):
        request = d.takers[0]
        if hand_out(d, request):
            leased.append(request)
        d.takers.popleft()
    if d.takers and not _more_may_come(d):
        for request in d.takers:
            d.refuse(request.token, "ended", f"the dialog is {d.state}; no more messages come")
        d.takers.clear()
    return leased


def time_out(d: Dialog, now: Nanos) -> None:
    late = [request for request in d.takers if request.deadline <= now]
    for request in late:
        d.takers.remove(request)
        d.answer(request.token, Taken(d.id, []))


def next_deadline(d: Dialog) -> Nanos:
    return min((request.deadline for request in d.takers), default=NEVER)


def tell(d: Dialog) -> None:
    """Tell the application once that there is something to take, until it comes."""
    if not d.told and not d.takers and available(d):
        # rule: D-life-3a
        d.told = True
        d.event("available", count=d.inc.ready_count)


# -- outcomes ----------------------------------------------------------------------------------------------------


def committed(
    d: Dialog, lease: bytes, ranges: list[tuple[int, int]], transaction: bytes = b""
) -> None:
    """Take leased messages for good. The ranges identify them if this end was reloaded since."""
    pieces = d.inc.leases.pop(lease, None)
    if pieces is None:
        pieces = d.inc.remove(ranges)
        d.stage.position = True
    else:
        d.inc.settle(pieces)
    _passed(d, "taken", pieces, transaction)
    d.free_pieces(pieces)
    # rule: D-14i
    if d.attempts.succeeded(pieces):
        d.stage.attempt = True


def _passed(d: Dialog, event: str, pieces: list[Piece], transaction: bytes = b"") -> None:
    for piece in pieces:
        d.passes(event, piece.first, piece.messages, transaction)


def aborted(d: Dialog, lease: bytes, counts: bool) -> None:
    """Make leased messages available again, except those that are poison now."""
    pieces = d.inc.leases.pop(lease, [])
    if not pieces:
        return
    d.stage.attempt = True
    poison = d.attempts.failed(pieces, counts)
    if poison:
        report_poison(d, poison)
    d.inc.put_back(pieces)
    # rule: D-14c
    if not d.rules.in_order:
        set_aside(d)


def report_poison(d: Dialog, numbers: list[int]) -> None:
    for number in numbers:
        d.env.count("poison")
        stopped = "the dialog waits for retry or discard" if d.rules.in_order else "it is set aside"
        d.event(
            "poison", f"message {number} was aborted {d.attempts.limit} times; {stopped}", number
        )


def set_aside(d: Dialog) -> None:
    """Without in-order delivery, poison messages leave the queue and the others flow."""
    aside = d.attempts.aside
    if not aside:
        return
    kept: list[Piece] = []
    held: list[Piece] = []
    for piece in d.inc.ready:
        if any(number in aside for number in range(piece.first, piece.stop)):
            for number, message in enumerate(piece.messages, piece.first):
                part = Piece(number, [message], piece.place)
                (held if number in aside else kept).append(part)
        else:
            kept.append(piece)
    d.inc.ready.clear()
    d.inc.ready.extend(kept)
    d.inc.ready_count = sum(len(piece.messages) for piece in kept)
    for piece in held:
        d.inc.leases[poison_lease(piece.first)] = [piece]


def poison_lease(number: int) -> bytes:
    return b"poison" + number.to_bytes(8, "big")


def settle_poison(d: Dialog, number: int, action: str) -> str:
    """Retry or discard a poison message. Gives why not, or nothing."""
    if number not in d.attempts.aside:
        return f"message {number} is not set aside as poison"
    lease = poison_lease(number)
    if action == "retry":
        d.attempts.retry(number)
        # rule: D-14b
        d.inc.give_back(lease)
    elif action == "discard":
        d.attempts.forget(number)
        pieces = d.inc.leases.pop(lease, None)
        if pieces is None:
            # In order, the poison message is the next one.
            pieces = d.inc.take(1, 1 << 62, lease)
            assert pieces[0].first == number, "a poison message stops the dialog in its place"
            d.inc.leases.pop(lease)
        d.inc.settle(pieces)
        d.free_pieces(pieces)
    else:
        return f"unknown action {action!r}; use 'retry' or 'discard'"
    d.stage.attempt = True
    d.told = False
    return ""


def poison_message(d: Dialog, number: int) -> bytes | None:
    """The body of a poison message, for people."""
    pieces = d.inc.leases.get(poison_lease(number)) or list(d.inc.ready)[:1]
    for piece in pieces:
        if piece.first <= number < piece.stop:
            return bytes(piece.messages[number - piece.first])
    return None
