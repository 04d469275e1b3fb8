"""Frames of dialogs, tags 128 to 159.

`to` is the id of the store that the frame is for: a node may have several, each with a unit of its own. An `Invite`
has none; it finds the unit by the service that its URI names. `epoch` is that of the sender's end, which grows with
every move. Numbers of messages start at 0; ranges are flat lists `[start, stop, start, stop, ...]`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.wire.codec import learn
from holdfast.wire.frames.base import Frame

RANGES_MAX: Final = 4096
"""Numbers in the range list of one frame. A receiver with more holes sends the lowest ones: the others follow."""


class Terms(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Terms that both ends of a dialog agree on."""

    assurances: int
    message_bytes_max: int
    session_ttl_ns: int
    simplex: str = ""
    """As the sender of the frame has it."""


class Messages(Frame, frozen=True, gc=False, array_like=True, tag=128):
    """Messages `first` to `first + count`, as one block. The same bytes are stored and sent."""

    to: bytes
    session: bytes
    epoch: int
    first: int
    count: int
    check: int
    """xxh3 of the body."""
    body: memoryview


class Ack(Frame, frozen=True, gc=False, array_like=True, tag=129):
    """Everything received so far, durable at the receiver, and the window."""

    to: bytes
    session: bytes
    epoch: int
    ranges: list[int]
    limit: int
    """The partner may send numbers below this one."""
    lowest: int = 0
    """The lowest number that the sender of this frame may still send itself."""
    heard: int = 0
    """1: your `Fin` arrived; 2: your `Done` did."""


class WindowProbe(Frame, frozen=True, gc=False, array_like=True, tag=130):
    """Ask for an `Ack`: the window is shut, or no acknowledgement came."""

    to: bytes
    session: bytes
    epoch: int
    next: int
    lowest: int


class Resume(Frame, frozen=True, gc=False, array_like=True, tag=131):
    """Where this end stands. Each end asks at every link session, start and move, and answers when it is asked."""

    to: bytes
    session: bytes
    epoch: int
    store: bytes
    owner_epoch: int
    next: int
    ranges: list[int]
    limit: int
    lowest: int
    ask: int
    """The number of this question, never used before; 0: it asks nothing."""
    echo: int
    """The number of the question that this answers; 0: none."""
    proof: bytes = b""
    """By the secret of `Confirm`: this end is where the dialog moved to."""
    total: int = -1
    """Messages that this end sends altogether, once it has completed; -1 before."""
    fault: str = ""
    """The code of a fault that this end is in."""


class Unknown(Frame, frozen=True, gc=False, array_like=True, tag=132):
    """No such dialog here. Frees nothing: the state may be lost, or elsewhere."""

    to: bytes
    session: bytes
    store: bytes


class Ended(Frame, frozen=True, gc=False, array_like=True, tag=133):
    """The dialog is over here. The ranges are the final ones: what was received, for good."""

    to: bytes
    session: bytes
    how: str
    """`completed`, `terminated` or `forgotten` (it ended, and the details are no longer kept)."""
    ranges: list[int]
    reason: str = ""


class Invite(Frame, frozen=True, gc=False, array_like=True, tag=134):
    """The creator asks an instance of a service for a dialog."""

    session: bytes
    uri: str
    store: bytes
    """The creator's store: where the answer goes."""
    terms: Terms
    attempt: int
    key: bytes = b""
    """For data-dependent routing."""


class Offer(Frame, frozen=True, gc=False, array_like=True, tag=135):
    """An instance accepts, subject to `Confirm`."""

    to: bytes
    session: bytes
    store: bytes
    terms: Terms
    attempt: int


class Decline(Frame, frozen=True, gc=False, array_like=True, tag=136):
    """An instance does not accept. It may name others that would."""

    to: bytes
    session: bytes
    store: bytes
    attempt: int
    code: str
    reason: str = ""
    others: tuple[bytes, ...] = ()


class Confirm(Frame, frozen=True, gc=False, array_like=True, tag=137):
    """The creator has recorded this instance as its partner."""

    to: bytes
    session: bytes
    store: bytes
    secret: bytes
    limit: int


class Confirmed(Frame, frozen=True, gc=False, array_like=True, tag=138):
    """The instance has recorded the creator as its partner: messages may follow."""

    to: bytes
    session: bytes
    store: bytes
    limit: int


class NeverConfirmed(Frame, frozen=True, gc=False, array_like=True, tag=139):
    """The instance has recorded that it will never confirm this dialog: the creator may pair with another."""

    to: bytes
    session: bytes
    store: bytes


class Release(Frame, frozen=True, gc=False, array_like=True, tag=140):
    """The creator does not take up the offer."""

    to: bytes
    session: bytes


class Fin(Frame, frozen=True, gc=False, array_like=True, tag=141):
    """This end has sent all it will: `total` messages. Repeated until `Done`."""

    to: bytes
    session: bytes
    epoch: int
    total: int


class Done(Frame, frozen=True, gc=False, array_like=True, tag=142):
    """This end has everything that the partner sent, its application took all of it, and it has sent all it will."""

    to: bytes
    session: bytes
    epoch: int


class Terminate(Frame, frozen=True, gc=False, array_like=True, tag=143):
    """The dialog is over; best effort. The ranges are what the sender of the frame received, for good."""

    to: bytes
    session: bytes
    epoch: int
    reason: str
    ranges: list[int]


class TtlProposal(Frame, frozen=True, gc=False, array_like=True, tag=144):
    """Extend the session to `ttl_ns` from now. Repeated until answered; `number` grows with each new proposal."""

    to: bytes
    session: bytes
    epoch: int
    number: int
    ttl_ns: int


class TtlAnswer(Frame, frozen=True, gc=False, array_like=True, tag=145):
    to: bytes
    session: bytes
    epoch: int
    number: int
    accepted: bool
    ttl_ns: int
    """What holds now, from the time of this frame."""


class Faulted(Frame, frozen=True, gc=False, array_like=True, tag=146):
    """The partner's end must fault as well."""

    to: bytes
    session: bytes
    epoch: int
    code: str
    detail: str = ""


class Moved(Frame, frozen=True, gc=False, array_like=True, tag=147):
    """This end of the dialog has moved."""

    to: bytes
    session: bytes
    epoch: int
    """Of the end that it moved to."""
    node: bytes
    store: bytes
    proof: bytes


DialogFrame = (
    Messages | Ack | WindowProbe | Resume | Unknown | Ended | Invite | Offer | Decline | Confirm | Confirmed
    | NeverConfirmed | Release | Fin | Done | Terminate | TtlProposal | TtlAnswer | Faulted | Moved
)  # fmt: skip
"""Every frame of this package."""

DIALOG_FRAMES: Final = (
    Messages, Ack, WindowProbe, Resume, Unknown, Ended, Invite, Offer, Decline, Confirm, Confirmed, NeverConfirmed,
    Release, Fin, Done, Terminate, TtlProposal, TtlAnswer, Faulted, Moved,
)  # fmt: skip

learn(DIALOG_FRAMES)
