"""The contents of log entries in `data`: one struct per kind. Decoding is total.

An entry of a range (`ORDER`, `SKIP`) has its stream and numbers in its own fields; all others have everything in here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.group.frames import Entry, StreamId
from holdfast.group.loss.criteria import Criterion
from holdfast.group.services.values import Served

NAMES_MAX: Final = 512
"""The maximum number of replicas, and of removed names, in a view."""
VOTERS_MAX: Final = 9
EVERYBODY: Final = ""
"""In place of a destination: all destinations have the outputs up to this one. No real name is this short."""

# -- members of the group (VIEW) ---------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One replica, in one life. Another life of the same name does not have what this one acknowledged."""

    name: str
    node: bytes
    life: int
    """In `memory` groups the admitted incarnation: a later one has lost its state. In `durable` groups always 0: the
    node id is in the same store as its acknowledgements."""
    voter: bool
    promote: bool = False
    """A learner that becomes a voter when it has caught up."""
    suspended: bool = False
    """Too far behind, or its application failed: nothing is kept for it. It still has what it acknowledged, so it still
    votes."""
    may_lead: bool = True
    pin: int = 0
    """For a suspended member that installs a snapshot: entries after this index are kept for it. 0: none are."""


class View(msgspec.Struct, frozen=True, array_like=True):
    """The members of the group."""

    number: int
    members: tuple[Member, ...]
    removed: tuple[str, ...] = ()
    """Names that are admitted again only after they are added."""
    group_epoch: int = 0
    """The epoch from which it continues. If an operator restarts a group, the previous view has no say."""

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
        """The next view, in which `changed` replaces the member with its name, or is new."""
        members = [changed if member.name == changed.name else member for member in self.members]
        if self.named(changed.name) is None:
            members.append(changed)
        removed = tuple(name for name in self.removed if name != changed.name)
        return View(self.number + 1, tuple(members), removed, self.group_epoch)

    def without(self, name: str) -> View:
        """The next view, in which the last member takes the place of the one that leaves: all others keep their places
        on the cube and in the relay tree."""
        members = list(self.members)
        place = [member.name for member in members].index(name)
        # rule: S-7c
        members[place] = members[-1]
        members.pop()
        removed = tuple(other for other in self.removed if other != name)
        return View(
            self.number + 1, tuple(members), (*removed, name)[-NAMES_MAX:], self.group_epoch
        )

    def is_sound(self) -> bool:
        names = [member.name for member in self.members]
        # rule: 8b
        return (
            1 <= len(self.voters) <= VOTERS_MAX
            and len(names) <= NAMES_MAX
            and len(self.removed) <= NAMES_MAX
            and len(dict.fromkeys(names)) == len(names)
            and all(len(member.node) == 16 for member in self.members)
        )


# -- messages that are lost, dropped or ignored ------------------------------------------------------------------


class Data(msgspec.Struct, frozen=True, array_like=True):
    """Base class of the contents of these entries."""


class Ordered(Data, frozen=True, array_like=True):
    """ORDER, if messages of the range have request ids, (number, id), or a zone. Most orders carry nothing."""

    requests: tuple[tuple[int, bytes], ...] = ()
    zone: str = ""
    """The zone whose replicas deliver the range; empty: all of them."""


class Skipped(Data, frozen=True, array_like=True):
    """SKIP: this range of a stream is not delivered."""

    why: str
    """`dropped`: lost and skipped. `ignored`: by a criterion. `repeat`: a request that was delivered before."""
    criterion: int = 0
    decision: int = 0
    """The index of the entry that records the decision; 0 if there was none."""


class Opened(Data, frozen=True, array_like=True):
    """OPEN: a stream starts, for this group with number `first`."""

    stream: StreamId
    first: int


class Closed(Data, frozen=True, array_like=True):
    """CLOSE: its source has restarted; nothing of the stream after `last` is ever delivered."""

    stream: StreamId
    last: int


class Ignoring(Data, frozen=True, array_like=True):
    """IGNORE: a criterion starts. The index of the entry is its id."""

    criterion: Criterion


class Resumed(Data, frozen=True, array_like=True):
    """RESUME: a criterion ends: `expired`, `used up`, `resync`, `replaced` or `operator`."""

    criterion: int
    why: str


class Decided(Data, frozen=True, array_like=True):
    """DECISION: the answer to a loss question. It is a record; its effects are separate entries."""

    stream: StreamId
    lost: tuple[tuple[int, int], ...]
    """Ranges, both ends included."""
    attempt: int
    leader: str
    by: str
    """`application`, or `rule 3` of the configuration."""
    action: str


class Marked(Data, frozen=True, array_like=True):
    """OUTPUTS: a destination has every output up to this one, or `EVERYBODY` has."""

    destination: str
    position: int
    k: int


# -- encoding and decoding ---------------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
_KINDS: Final[dict[int, type[Data | Served]]] = {
    1: Ordered,
    3: Skipped,
    5: Opened,
    6: Closed,
    7: Ignoring,
    8: Resumed,
    9: Marked,
    10: Decided,
    11: Served,
}
_decoders: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(struct) for kind, struct in _KINDS.items()
}


_view: Final = msgspec.msgpack.Decoder(View)


def encode_data(data: Data | View | Served) -> bytes:
    return _encode(data)


def decode_data(entry: Entry) -> Any:
    """The contents of an entry; None if they are not those of its kind."""
    decoder = _decoders.get(entry.kind)
    if decoder is None:
        return None
    try:
        return decoder.decode(entry.data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def decode_view(data: bytes) -> View | None:
    """The view, or None if it is invalid."""
    try:
        view = _view.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return view if view.is_sound() else None
