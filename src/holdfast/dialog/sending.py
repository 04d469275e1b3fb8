"""Sending: quota, waiting for room, capture."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.dialog.ports import Send, Sent
from holdfast.dialog.quota import WAITING_MAX
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import COMPLETED, MOVED, TERMINATED
from holdfast.types import Nanos
from holdfast.wire.blocks import Buffer


def send(d: Dialog, now: Nanos, request: Send) -> list[bytes] | None:
    """Capture messages or let the request wait. Gives the bodies when a transaction is to stage them."""
    problem = refusal(d, request)
    if problem is not None:
        d.refuse(request.token, *problem)
        return None
    size = sum(map(len, request.bodies))
    # rule: D-buffer-1a
    if d.quota.waiting or not _fits(d, request, size):
        if request.deadline <= now:
            d.refuse(request.token, "send-timeout", _full(d, request))
        elif len(d.quota.waiting) >= WAITING_MAX:
            d.refuse(
                request.token,
                "busy",
                f"{WAITING_MAX} sends wait for room already; nothing was sent",
            )
        else:
            d.quota.waiting.append(request)
        return None
    return _capture(d, now, request, size)


def refusal(d: Dialog, request: Send) -> tuple[str, str] | None:
    """Why these messages can never be sent on this dialog."""
    # rule: D-11c
    if d.state in (TERMINATED, COMPLETED, MOVED):
        return "ended", f"the dialog is {d.state}; nothing was sent"
    if d.total_out >= 0:
        return "ended", "this end has completed its sending; nothing was sent"
    if d.settings.simplex == "receive":
        return "misuse", "this end only receives (simplex); nothing was sent"
    largest = max(map(len, request.bodies), default=0)
    if not request.bodies:
        return "misuse", "no message was given"
    if largest > d.terms.message_bytes_max:
        return "too-large", (
            f"a message of {largest} bytes is above the dialog's limit of {d.terms.message_bytes_max}; nothing was sent"
        )
    size = sum(map(len, request.bodies))
    if not d.quota.ever_fits(len(request.bodies), size, request.tx):
        beside = (
            " beside what the transaction already sends" if request.tx in d.quota.reserved else ""
        )
        return "quota", (
            f"{len(request.bodies)} messages of {size} bytes never fit the quota of {d.quota.messages_max} messages "
            f"and {d.quota.bytes_max} bytes{beside}; nothing was sent"
        )
    return None


def _fits(d: Dialog, request: Send, size: int) -> bool:
    return d.quota.fits(len(request.bodies), size, d.out.buffered, d.out.buffered_bytes)


def _full(d: Dialog, request: Send) -> str:
    state = "stayed full until the time-out" if request.deadline else "is full"
    return (
        f"the send buffer {state} ({d.out.buffered} of {d.quota.messages_max} messages, {d.out.buffered_bytes} of "
        f"{d.quota.bytes_max} bytes); nothing was sent; try again when the partner has taken some"
    )


def _capture(d: Dialog, now: Nanos, request: Send, size: int) -> list[bytes] | None:
    if request.tx:
        d.quota.reserve(request.tx, len(request.bodies), size)
        d.answer(request.token, Sent(-1, len(request.bodies)))
        return request.bodies
    first = d.out.next
    capture(d, request.bodies, due_of(d, now, request.ttl_ns), request.after_wall)
    d.answer(request.token, Sent(first, len(request.bodies)))
    return None


def capture(
    d: Dialog, bodies: Sequence[Buffer], due: int, after: int, transaction: bytes = b""
) -> None:
    """Number messages and have them stored with this turn."""
    d.passes("captured", d.out.next, bodies, transaction)
    d.stage.runs += d.out.capture(bodies, due, after)
    d.stage.position = True


def due_of(d: Dialog, now: Nanos, ttl_ns: Nanos) -> int:
    """The wall time by which a message sent now must be acknowledged; 0: never."""
    ttl = d.settings.message_ttl_ns if ttl_ns < 0 else ttl_ns
    return d.env.wall(now) + ttl if ttl else 0


def serve_waiting(d: Dialog, now: Nanos) -> list[tuple[Send, list[bytes]]]:
    """Room has become free: capture what waited, in order. Gives what transactions are to stage."""
    waiting = d.quota.waiting
    staged: list[tuple[Send, list[bytes]]] = []
    while waiting:
        request = waiting[0]
        problem = refusal(d, request)
        size = sum(map(len, request.bodies))
        if problem is None and not _fits(d, request, size):
            break
        if problem is not None:
            waiting.popleft()
            d.refuse(request.token, *problem)
            continue
        bodies = _capture(d, now, request, size)
        waiting.popleft()
        if bodies is not None:
            staged.append((request, bodies))
    return staged


def time_out(d: Dialog, now: Nanos) -> None:
    for request in d.quota.expired(now):
        d.refuse(request.token, "send-timeout", _full(d, request))
