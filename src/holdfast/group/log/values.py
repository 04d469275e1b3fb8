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
    """To the replica itself, when all that it wrote up to here is on disk."""

    index: int
    term: int
    cuts: int


REQUESTS_KEPT: Final = 8192
"""So many request ids are remembered; an older request that is sent again is a new message."""


DESTINATIONS_MAX: Final = 1024
"""Of so many destinations it is remembered one by one what they have."""


Id = tuple[int, int]
"""(position, k): which output of a group."""


NOTHING: Final[Id] = (0, -1)
"""Before the first output there can be."""


class ReplicatedMetadataState(msgspec.Struct, frozen=True, array_like=True):
    """As it travels with a state."""

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
