"""Frames of objects, tags 160 to 191.

Every request has a `call` that its reply repeats; 0 asks for no reply. A reply with a `reason` is a refusal.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.objects.values import Ballot, Content, Sibling, Value
from holdfast.wire.codec import learn
from holdfast.wire.frames.base import Frame

SUMMARY_MAX: Final = 512
"""Objects in one `Summary`."""


class Offer(Frame, frozen=True, array_like=True, tag=160):
    """What the sender can hold. Sent at every session, and when it changes."""

    disk: bytes
    """Empty: it holds no replicas."""
    realm: str
    free_bytes: int
    objects: int
    draining: bool = False
    repairing: bool = False
    """It copies content: the rate of repairs in the domain is shared with it."""


class Look(Frame, frozen=True, gc=False, array_like=True, tag=161):
    """Ask for the register of an object."""

    call: int
    object: bytes


class RegisterState(Frame, frozen=True, array_like=True, tag=162):
    """A register, as one replica has it."""

    call: int
    reason: str = ""
    """Empty, or `unknown`; `blank`: content was staged, and no version is accepted."""
    decided: Value | None = None
    ballot: Ballot = Ballot()
    accepted: Value | None = None
    """Of the next version."""
    sound: bool = False
    """The content of the decided version is here, and no damage is known."""
    siblings: tuple[Sibling, ...] = ()
    disk: bytes = b""


class Prepare(Frame, frozen=True, array_like=True, tag=163):
    call: int
    object: bytes
    version: int
    ballot: Ballot
    waits: bool = False
    """It is for a change that keeps the content: it does not conflict with writes, and must not wait for their end."""


class Promise(Frame, frozen=True, array_like=True, tag=164):
    call: int
    reason: str = ""
    """Empty, or `unknown`, `other disk`, `ballot`, `decided`, `behind`."""
    ballot: Ballot = Ballot()
    """The highest promise of the replica."""
    accepted_at: Ballot = Ballot()
    accepted: Value | None = None
    decided: Value | None = None


class Accept(Frame, frozen=True, array_like=True, tag=165):
    call: int
    ballot: Ballot
    value: Value
    data: memoryview = memoryview(b"")
    """The content of the value, if it is small and the write brings it here instead of in a stage."""


class Accepted(Frame, frozen=True, array_like=True, tag=166):
    call: int
    reason: str = ""
    """Empty, or `unknown`, `other disk`, `ballot`, `decided`, `behind`, `content`, `token`, `full`."""
    ballot: Ballot = Ballot()
    decided: Value | None = None


class Decide(Frame, frozen=True, array_like=True, tag=167):
    """This version is decided."""

    call: int
    value: Value


class Done(Frame, frozen=True, gc=False, array_like=True, tag=168):
    """The reply to requests that only succeed or fail."""

    call: int
    reason: str = ""
    detail: str = ""


class StageOpen(Frame, frozen=True, array_like=True, tag=169):
    """Reserve space for the content of a write, or resume one."""

    call: int
    object: bytes
    write: bytes
    size: int
    """-1: not known."""


class StageState(Frame, frozen=True, gc=False, array_like=True, tag=170):
    call: int
    reason: str = ""
    detail: str = ""
    have: int = 0
    """Chunks that are already here, from the first on."""
    digest: bytes = b""
    """Of the content that a patch made; of the chunk list so far, when a stage is resumed."""
    size: int = 0


class StageChunk(Frame, frozen=True, gc=False, array_like=True, tag=171):
    call: int
    write: bytes
    index: int
    check: bytes
    data: memoryview


class StageClose(Frame, frozen=True, array_like=True, tag=172):
    """All chunks were sent: verify, make durable, and keep under this digest."""

    call: int
    object: bytes
    write: bytes
    content: Content


class StagePatch(Frame, frozen=True, array_like=True, tag=173):
    """Make new content from the content with digest `base`: these bytes at these offsets, then this size."""

    call: int
    object: bytes
    write: bytes
    base: Content
    edits: tuple[tuple[int, bytes], ...]
    size: int


class StageDrop(Frame, frozen=True, gc=False, array_like=True, tag=174):
    """The write will not take place."""

    call: int
    write: bytes


class Fetch(Frame, frozen=True, array_like=True, tag=175):
    """Ask for one chunk."""

    call: int
    object: bytes
    content: Content
    index: int


class Piece(Frame, frozen=True, gc=False, array_like=True, tag=176):
    call: int
    reason: str = ""
    data: memoryview = memoryview(b"")


class FetchList(Frame, frozen=True, array_like=True, tag=177):
    """Ask for the chunk list of a content, from a byte offset on."""

    call: int
    object: bytes
    content: Content
    offset: int


class Summary(Frame, frozen=True, array_like=True, tag=178):
    """Decided versions of replicas that both ends should have."""

    objects: tuple[tuple[bytes, int], ...]


class Damaged(Frame, frozen=True, array_like=True, tag=179):
    """A reader got wrong bytes from this replica."""

    object: bytes
    content: Content
    index: int


class Purge(Frame, frozen=True, gc=False, array_like=True, tag=180):
    """Every recorded replica has the tombstone: it can be forgotten."""

    call: int
    object: bytes
    version: int


class Merge(Frame, frozen=True, array_like=True, tag=181):
    """Versions of a loose object."""

    call: int
    object: bytes
    siblings: tuple[Sibling, ...]


class Merged(Frame, frozen=True, array_like=True, tag=182):
    call: int
    reason: str = ""
    siblings: tuple[Sibling, ...] = ()


class Watch(Frame, frozen=True, gc=False, array_like=True, tag=183):
    """Report each newer version of an object."""

    call: int
    object: bytes
    on: bool = True


class Changed(Frame, frozen=True, gc=False, array_like=True, tag=184):
    object: bytes
    version: int
    deleted: bool = False


class Inventory(Frame, frozen=True, gc=False, array_like=True, tag=185):
    """Ask for the replicas that a node has, by object id, from `after` on."""

    call: int
    after: bytes


class Held(Frame, frozen=True, array_like=True, tag=186):
    call: int
    reason: str = ""
    objects: tuple[Value, ...] = ()
    more: bool = False


class SetDraining(Frame, frozen=True, gc=False, array_like=True, tag=187):
    """Take no new replicas, or take them again."""

    call: int
    draining: bool
    by_policy: bool = False
    """Not by an operator: the policy neither changes nor ends what an operator has begun."""


class Inspect(Frame, frozen=True, array_like=True, tag=188):
    """Verify the bytes of a replica now."""

    call: int
    object: bytes


class Pull(Frame, frozen=True, array_like=True, tag=189):
    """Copy content from other replicas. Answered when it is verified and durable."""

    call: int
    object: bytes
    content: Content
    sources: tuple[bytes, ...]


class Administer(Frame, frozen=True, gc=False, array_like=True, tag=190):
    """Ask the administration of a node for something. `verb` and `body` are its own: see `holdfast.runtime.admin`."""

    call: int
    verb: str
    body: bytes = b""


class Administered(Frame, frozen=True, gc=False, array_like=True, tag=191):
    call: int
    reason: str = ""
    body: bytes = b""


class StageFind(Frame, frozen=True, gc=False, array_like=True, tag=198):
    """Ask whether content of a write that was interrupted is here. The reply is its state, or `no stage`."""

    call: int
    write: bytes


REQUESTS: Final = (
    Look, Prepare, Accept, Decide, StageFind, StageOpen, StageChunk, StageClose, StagePatch, StageDrop, Fetch,
    FetchList, Purge, Merge, Watch, Inventory, SetDraining, Inspect, Pull, Administer,
)  # fmt: skip
REPLIES: Final = (
    RegisterState,
    Promise,
    Accepted,
    Done,
    StageState,
    Piece,
    Merged,
    Held,
    Administered,
)
NOTICES: Final = (Offer, Summary, Damaged, Changed)
OBJECT_FRAMES: Final[tuple[Any, ...]] = (*REQUESTS, *REPLIES, *NOTICES)

learn(OBJECT_FRAMES)
