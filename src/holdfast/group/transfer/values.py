"""Values of snapshot transfers: structs, apart from the code that uses them."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.transfer.checkpoint import Checkpoint

CHUNK: Final = 48_000


DIGEST: Final = 16
"""Bytes of the digest of a part."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The head of a snapshot, before the parts of the state."""

    checkpoint: Checkpoint
    """Without the application's state."""
    size: int
    digests: bytes
    """Of each part of the state, one after the other."""

    def is_sound(self, parts: int) -> bool:
        return (
            not self.checkpoint.state
            and self.checkpoint.is_sound()
            and parts == -(-self.size // CHUNK)
            and len(self.digests) == parts * DIGEST
        )

    def digest(self, part: int) -> bytes:
        return self.digests[part * DIGEST : (part + 1) * DIGEST]
