"""What crosses the border of the dialog unit: requests of applications, outcomes, facts from beside, effects.

Every request has a token that its one `Answer` repeats. Answers and events are ordinary effects, never `immediate`:
they leave the unit when everything that it wrote is durable. So an answered `Send` is in the store, and a message
that is handed over for good was removed before.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.dialog.config import Settings
from holdfast.machine import Put
from holdfast.types import NEVER, Nanos

UNIT: Final = "dialogs/"


def dialog_unit(store: str) -> str:
    """The unit that owns all dialogs of a store."""
    return UNIT + store


# -- requests of the application ---------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all requests."""

    token: int


class Open(Request, frozen=True, kw_only=True):
    """Create a dialog with the service that `uri` names. Answered with `Opened` once it is recorded."""

    uri: str
    settings: Settings
    key: bytes = b""


class Listen(Request, frozen=True, kw_only=True):
    """Take dialogs for a service. `automatic` accepts each; otherwise an event `requested` asks the application."""

    service: str
    settings: Settings
    automatic: bool = True


class Unlisten(Request, frozen=True, kw_only=True):
    service: str


class Accept(Request, frozen=True, kw_only=True):
    dialog: bytes
    settings: Settings


class Reject(Request, frozen=True, kw_only=True):
    dialog: bytes
    reason: str = ""


class Send(Request, frozen=True, kw_only=True):
    """Capture messages, all or none. Waits for room until `deadline`; `NEVER` is not a deadline, 0 does not wait."""

    dialog: bytes
    bodies: list[bytes]
    tx: bytes = b""
    deadline: Nanos = 0
    ttl_ns: Nanos = -1
    """Time to live; -1: that of the dialog's settings, 0: none."""
    after_wall: int = 0
    """Not transmitted before this wall time."""


class Take(Request, frozen=True, kw_only=True):
    """Receive up to `count` messages; waits for the first one until `deadline`."""

    dialog: bytes
    """Empty: of any dialog, by priority."""
    count: int = 1
    bytes_max: int = 1 << 20
    tx: bytes = b""
    deadline: Nanos = NEVER
    discard: bool = False
    """Delete: the messages are removed and not handed over."""


class HandedOver(msgspec.Struct, frozen=True):
    """The application has the messages of an untransacted `Take` of a dialog without at-most-once."""

    dialog: bytes
    lease: bytes
    taken: bool = True
    """False: the application does not want them any more; they are available again."""


class Cancel(msgspec.Struct, frozen=True):
    """No task waits for this request any more. If it has taken effect, that stays."""

    request: int
    dialog: bytes = b""
    receives_only: bool = False
    """A send is left alone."""


class Complete(Request, frozen=True, kw_only=True):
    """This end has sent all it will. Answered when recorded; the event `completed` comes when both ends have all."""

    dialog: bytes


class Terminate(Request, frozen=True, kw_only=True):
    dialog: bytes
    reason: str = ""


class Deactivate(Request, frozen=True, kw_only=True):
    dialog: bytes


class Reactivate(Request, frozen=True, kw_only=True):
    dialog: bytes


class ExtendMessages(Request, frozen=True, kw_only=True):
    """Give the unacknowledged messages of a dialog a new time to live from now."""

    dialog: bytes
    ttl_ns: Nanos


class ExtendSession(Request, frozen=True, kw_only=True):
    """Propose a new time to live of the session to the partner. Answered with what both agreed on."""

    dialog: bytes
    ttl_ns: Nanos
    deadline: Nanos = NEVER


class Prepare(Request, frozen=True, kw_only=True):
    """The application wants to commit. Answered with `Prepared`: the rows to insert, and the fence."""

    tx: bytes
    keep: bool = False
    """The outcome stays in the store until `Forget`: its application may ask after a restart of the node."""


class Forget(msgspec.Struct, frozen=True):
    """The application knows the outcome of a transaction that was kept."""

    tx: bytes


class Outcome(msgspec.Struct, frozen=True):
    """How a transaction ended, for certain."""

    tx: bytes
    committed: bool
    counts: bool = True
    """An abort by the application counts against its messages; one of the infrastructure does not."""


class Repair(Request, frozen=True, kw_only=True):
    """A repair handler or an operator says what to do about a fault."""

    dialog: bytes
    action: str
    """`resume` (the cause is gone), `reroute` (pair again, if no partner was confirmed), `terminate`."""
    reason: str = ""


class Settle(Request, frozen=True, kw_only=True):
    """What to do with a poison message: `retry` or `discard`."""

    dialog: bytes
    number: int
    action: str


class MoveOut(Request, frozen=True, kw_only=True):
    """Hand this end over to another node and store. Answered with `Exported` once `moved` is recorded; asked
    again with the same target, it gives the same state, also after a restart."""

    dialog: bytes
    node: bytes
    store: bytes


class MoveDone(Request, frozen=True, kw_only=True):
    """The target has taken an end over: the source need not keep its state any more."""

    dialog: bytes


class MoveIn(Request, frozen=True, kw_only=True):
    """Take over an end that `MoveOut` exported."""

    state: bytes


class Rows(msgspec.Struct, frozen=True):
    """The answer to `ReadRows`."""

    token: int
    tables: dict[str, list[tuple[bytes, bytes]]]


class Resolved(msgspec.Struct, frozen=True):
    """The resolver's answer: nodes with an instance of the service, best first."""

    dialog: bytes
    attempt: int
    nodes: list[bytes]
    error: str = ""
    """Why there is none."""


class WallClock(msgspec.Struct, frozen=True):
    """Wall time minus the machine's time, whenever that has changed."""

    offset: int


class OpenStore(msgspec.Struct, frozen=True):
    """A store that was taken over, and what it has."""

    name: str
    store: bytes
    epoch: int
    tables: dict[str, list[tuple[bytes, bytes]]]
    budget_bytes: int


# -- values in answers -------------------------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True):
    dialog: bytes


class Sent(msgspec.Struct, frozen=True):
    """The messages are captured. In a transaction `first` is -1: they are numbered after the commit."""

    first: int
    count: int


class Message(msgspec.Struct, frozen=True, gc=False):
    number: int
    body: memoryview
    attempt: int = 1


class Taken(msgspec.Struct, frozen=True):
    dialog: bytes
    messages: list[Message]
    lease: bytes = b""
    """Answer with `HandedOver` when the application has them."""


class Prepared(msgspec.Struct, frozen=True):
    """Insert these rows, each new, in one transaction with the application's own; the last one is the id."""

    inserts: list[Put]
    epoch: int


class Agreed(msgspec.Struct, frozen=True):
    ttl_ns: Nanos


class Exported(msgspec.Struct, frozen=True):
    state: bytes


class Refused(msgspec.Struct, frozen=True):
    """The request had no effect. `code` is one of a few words, `text` is for people."""

    code: str
    text: str


# -- effects -----------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    token: int
    value: Any


class Event(msgspec.Struct, frozen=True):
    """Something the application or an operator should know. `kind` is one of `EVENTS`."""

    dialog: bytes
    kind: str
    detail: str = ""
    number: int = 0
    count: int = 0
    code: str = ""
    uri: str = ""
    unit: str = ""
    """The unit of the dialog's store."""
    accepted: bool = False
    """This end was opened by the partner."""


EVENTS: Final = (
    "requested", "opened", "available", "faulted", "repaired", "expired", "dropped", "poison", "completed",
    "terminated", "rejected", "moved", "deactivated",
)  # fmt: skip


class Resolve(msgspec.Struct, frozen=True):
    """Find the instances of a service; answered with `Resolved`."""

    unit: str
    dialog: bytes
    attempt: int
    uri: str
    key: bytes


class ReadRows(msgspec.Struct, frozen=True):
    """Read rows `[first, stop)` of tables as they are after every write so far; answered with `Rows`."""

    unit: str
    token: int
    wanted: list[tuple[str, bytes, bytes]]


class Loopback(msgspec.Struct, frozen=True):
    """Frames for a dialog unit of this same node: each is handed to the unit of the store that it names."""

    node: bytes
    frames: list[Any]


class UnitLost(msgspec.Struct, frozen=True):
    """The unit of a store failed, or its store did: the store must be opened and read again."""

    unit: str
    reason: str
    wait_ns: Nanos = 0
    """Before it is opened again. 0: as soon as possible; `NEVER`: it stays closed until the node is restarted."""


class RepairWanted(msgspec.Struct, frozen=True):
    """A dialog is faulted: call the repair handlers for this code."""

    unit: str
    dialog: bytes
    code: str
    detail: str
    uri: str
