"""What entries of the order carry in `data`: one struct per kind. Decoding is total.

An entry of a range (`ORDER`, `SKIP`) names its stream and numbers itself; all others have what they are about in here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.group.criteria import Criterion
from holdfast.wire.frames import Entry, StreamId

NAMES_MAX: Final = 128
"""Replicas, and names of removed ones, that a view has at most."""
VOTERS_MAX: Final = 9
EVERYBODY: Final = ""
"""In place of a destination: whoever was meant by outputs up to this one has them. Nobody else has so short a name."""

# -- who is in the group (VIEW) ----------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One replica, in one life. Another life of the same name has not what this one acknowledged."""

    name: str
    node: bytes
    life: int
    """In `memory` groups the incarnation that was admitted: a later one has forgotten everything. In `durable` groups
    always 0: the node's id lives in the same store as what it acknowledged."""
    voter: bool
    promote: bool = False
    """A learner that becomes a voter when it has caught up."""
    suspended: bool = False
    """Too far behind, or its application failed: nobody keeps anything for it. It still has what it acknowledged, so
    it still votes."""
    may_lead: bool = True


class View(msgspec.Struct, frozen=True, array_like=True):
    """Who is in the group."""

    number: int
    members: tuple[Member, ...]
    removed: tuple[str, ...] = ()
    """Names that are let in again only when somebody adds them."""
    founding: int = 0
    """The history that it goes back to. Where an operator founds a group again nobody of the view before has a say."""

    def named(self, name: str) -> Member | None:
        for member in self.members:
            if member.name == name:
                return member
        return None

    @property
    def voters(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.voter)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def with_member(self, changed: Member) -> View:
        """The next view, in which `changed` takes the place of the member of its name, or is new."""
        members = [changed if member.name == changed.name else member for member in self.members]
        if self.named(changed.name) is None:
            members.append(changed)
        removed = tuple(name for name in self.removed if name != changed.name)
        return View(self.number + 1, tuple(members), removed, self.founding)

    def without(self, name: str) -> View:
        members = tuple(member for member in self.members if member.name != name)
        removed = tuple(other for other in self.removed if other != name)
        return View(self.number + 1, members, (*removed, name)[-NAMES_MAX:], self.founding)

    def is_sound(self) -> bool:
        names = [member.name for member in self.members]
        return (
            1 <= len(self.voters) <= VOTERS_MAX
            and len(names) <= NAMES_MAX
            and len(self.removed) <= NAMES_MAX
            and len(dict.fromkeys(names)) == len(names)
            and all(len(member.node) == 16 for member in self.members)
        )


# -- messages that are lost, dropped or ignored ------------------------------------------------------------------


class Data(msgspec.Struct, frozen=True, array_like=True):
    """Base of what these entries carry."""


class Ordered(Data, frozen=True, array_like=True):
    """ORDER, where messages of the range have request ids: (number, id). Most orders carry nothing."""

    requests: tuple[tuple[int, bytes], ...] = ()


class Skipped(Data, frozen=True, array_like=True):
    """SKIP: nobody delivers this range of a stream."""

    why: str
    """`dropped`: lost, and the group goes on without. `ignored`: by a criterion. `repeat`: a request that was delivered
    before."""
    criterion: int = 0
    decision: int = 0
    """The index of the entry that records the decision; 0 where nobody had to decide."""


class Opened(Data, frozen=True, array_like=True):
    """OPEN: a stream begins, for this group with number `first`."""

    stream: StreamId
    first: int


class Closed(Data, frozen=True, array_like=True):
    """CLOSE: its source has begun a new life; nothing of the stream after `last` is ever delivered."""

    stream: StreamId
    last: int


class Ignoring(Data, frozen=True, array_like=True):
    """IGNORE: a criterion begins to hold. The entry's index is its id."""

    criterion: Criterion


class Resumed(Data, frozen=True, array_like=True):
    """RESUME: a criterion ends: `expired`, `used up`, `resync`, `replaced` or `operator`."""

    criterion: int
    why: str


class Decided(Data, frozen=True, array_like=True):
    """DECISION: what was answered to the question about lost messages. A record: what follows from it stands in
    entries of its own."""

    stream: StreamId
    lost: tuple[tuple[int, int], ...]
    """Ranges, both ends included."""
    attempt: int
    leader: str
    by: str
    """`application`, or `rule 3` of the table."""
    action: str


class Marked(Data, frozen=True, array_like=True):
    """OUTPUTS: a destination has every output up to this one, or `EVERYBODY` has."""

    destination: str
    position: int
    k: int


# -- both ways ---------------------------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
_KINDS: Final[dict[int, type[Data]]] = {
    1: Ordered,
    3: Skipped,
    5: Opened,
    6: Closed,
    7: Ignoring,
    8: Resumed,
    9: Marked,
    10: Decided,
}
_decoders: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(struct) for kind, struct in _KINDS.items()
}


_view: Final = msgspec.msgpack.Decoder(View)


def encode_data(data: Data | View) -> bytes:
    return _encode(data)


def decode_data(entry: Entry) -> Any:
    """What an entry carries; None when it is not what its kind carries."""
    decoder = _decoders.get(entry.kind)
    if decoder is None:
        return None
    try:
        return decoder.decode(entry.data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def decode_view(data: bytes) -> View | None:
    """The view, or None when it is none that makes sense."""
    try:
        view = _view.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return view if view.is_sound() else None
