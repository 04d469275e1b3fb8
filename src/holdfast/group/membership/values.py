"""Values of membership changes: structs, apart from the code that uses them."""

from __future__ import annotations

import msgspec

from holdfast.group.peer import Peer


class ChangeRequest(msgspec.Struct, frozen=True):
    """A requested change for one replica: admission (of this life), addition or removal."""

    peer: Peer | None = None
    add: bool = False
    voter: bool = True
