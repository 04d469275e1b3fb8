"""Values of the log that are stored or sent: structs, apart from the code that uses them."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.loss.criteria import Criterion, is_sound_criterion
from holdfast.group.services.values import ServiceState


class StoredVote(msgspec.Struct, frozen=True, array_like=True):
    group_epoch: int = 0
    term: int = 0
    voted: bytes = b""


class Durable(msgspec.Struct, frozen=True, gc=False):
    """To the replica itself: everything that it wrote up to here is on disk."""

    index: int
    term: int
    cuts: int


REQUESTS_KEPT: Final = 8192
"""The number of request ids that are kept; an older request that is sent again is a new message."""


DESTINATIONS_MAX: Final = 1024
"""The number of destinations whose progress is recorded individually."""


Id = tuple[int, int]
"""(position, k): identifies an output of a group."""


NOTHING: Final[Id] = (0, -1)
"""Before the first possible output."""


class ReplicatedMetadataState(msgspec.Struct, frozen=True, array_like=True):
    """Its form in a snapshot."""

    criteria: tuple[tuple[int, Criterion, int], ...] = ()
    requests: tuple[tuple[bytes, int], ...] = ()
    watermarks: tuple[tuple[str, int, int], ...] = ()
    floor: Id = NOTHING
    services: ServiceState = ServiceState()

    def is_sound(self) -> bool:
        return (
            all(is_sound_criterion(criterion) for _, criterion, _ in self.criteria)
            and len(self.requests) <= REQUESTS_KEPT
            and len(self.watermarks) <= DESTINATIONS_MAX
            and self.services.is_sound()
        )
