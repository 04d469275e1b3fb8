"""What entries carry besides ranges: one frozen struct per kind, as msgpack in `Entry.data`. Decoding is total."""

from __future__ import annotations

from typing import Any, Final

import msgspec

NAMES_MAX: Final = 128
"""Replicas, and names of removed ones, that a view has at most."""
VOTERS_MAX: Final = 9

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
        return View(self.number + 1, tuple(members), removed)

    def without(self, name: str) -> View:
        members = tuple(member for member in self.members if member.name != name)
        removed = tuple(other for other in self.removed if other != name)
        return View(self.number + 1, members, (*removed, name)[-NAMES_MAX:])

    def is_sound(self) -> bool:
        names = [member.name for member in self.members]
        return (
            1 <= len(self.voters) <= VOTERS_MAX
            and len(names) <= NAMES_MAX
            and len(self.removed) <= NAMES_MAX
            and len(dict.fromkeys(names)) == len(names)
            and all(len(member.node) == 16 for member in self.members)
        )


# -- all kinds ---------------------------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
_view: Final = msgspec.msgpack.Decoder(View)


def encode_data(data: Any) -> bytes:
    return _encode(data)


def decode_view(data: bytes) -> View | None:
    """The view, or None when it is none that makes sense."""
    try:
        view = _view.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return view if view.is_sound() else None
