"""The result of entries other than ranges: active criteria, delivered requests, arrived outputs, locks and barriers.

It is part of the cursor, so every replica has the same at the same place of the log, and it is included in snapshots.
"""

from __future__ import annotations

from holdfast.group.frames import Entry
from holdfast.group.log.entries import (
    EVERYBODY,
    Ignoring,
    Marked,
    Ordered,
    Resumed,
    Skipped,
    decode_data,
)
from holdfast.group.log.values import (
    DESTINATIONS_MAX,
    NOTHING,
    REQUESTS_KEPT,
    Id,
    ReplicatedMetadataState,
)
from holdfast.group.loss.criteria import Criterion
from holdfast.group.services.tables import ServiceTables
from holdfast.group.services.values import Served

ORDER, SKIP, IGNORE, RESUME, OUTPUTS, SERVICE = 1, 3, 7, 8, 9, 11


class ReplicatedMetadata:
    """Changes only with the entries that it processes."""

    __slots__ = ("criteria", "floor", "requests", "services", "watermarks")

    def __init__(self) -> None:
        self.criteria: dict[int, tuple[Criterion, int]] = {}
        """By id: the criterion, and its remaining count (0: any number)."""
        self.requests: dict[bytes, int] = {}
        """Delivered request ids, oldest first, and the index of their entry."""
        self.watermarks: dict[str, Id] = {}
        """Per destination: the last output that it is known to have, if that is above the floor."""
        self.floor = NOTHING
        """Everything up to here has arrived at all destinations."""
        self.services = ServiceTables()
        """Locks and barriers."""

    def copy(self) -> ReplicatedMetadata:
        other = ReplicatedMetadata()
        other.criteria = dict(self.criteria)
        other.requests = dict(self.requests)
        other.watermarks = dict(self.watermarks)
        other.floor = self.floor
        other.services = self.services.copy()
        return other

    def arrived(self, destination: str) -> Id:
        """The destination has every output up to this one."""
        return max(self.floor, self.watermarks.get(destination, NOTHING))

    def advance(self, entry: Entry) -> None:
        """Process one valid entry."""
        if entry.kind not in (ORDER, SKIP, IGNORE, RESUME, OUTPUTS, SERVICE) or not entry.data:
            return
        data = decode_data(entry)
        if isinstance(data, Ordered):
            for _, request in data.requests:
                # rule: 7d
                self.requests[request] = entry.index
            while len(self.requests) > REQUESTS_KEPT:
                del self.requests[next(iter(self.requests))]
        elif isinstance(data, Skipped):
            self._use(data.criterion, entry.last - entry.first + 1)
        elif isinstance(data, Ignoring):
            self.criteria[entry.index] = (data.criterion, data.criterion.count)
        elif isinstance(data, Resumed):
            self.criteria.pop(data.criterion, None)
        elif isinstance(data, Marked):
            self._mark(data)
        elif isinstance(data, Served):
            self.services.apply(entry.index, entry.log_ns, data)

    def _use(self, criterion: int, count: int) -> None:
        held = self.criteria.get(criterion)
        if held is not None and held[1]:
            # A used-up criterion stays, with a negative count, until the leader ends it.
            self.criteria[criterion] = (held[0], held[1] - count or -1)

    def _mark(self, data: Marked) -> None:
        upto = (data.position, data.k)
        if data.destination == EVERYBODY:
            self.floor = max(self.floor, upto)
            self.watermarks = {to: at for to, at in self.watermarks.items() if at > self.floor}
            return
        before = self.watermarks.pop(data.destination, NOTHING)
        self.watermarks[data.destination] = max(before, upto)
        while len(self.watermarks) > DESTINATIONS_MAX:
            del self.watermarks[next(iter(self.watermarks))]

    def state(self) -> ReplicatedMetadataState:
        # rule: 7i
        return ReplicatedMetadataState(
            tuple((id_, criterion, left) for id_, (criterion, left) in self.criteria.items()),
            tuple(self.requests.items()),
            tuple((name, position, k) for name, (position, k) in self.watermarks.items()),
            self.floor,
            self.services.state(),
        )

    @staticmethod
    def of(state: ReplicatedMetadataState) -> ReplicatedMetadata:
        made = ReplicatedMetadata()
        made.criteria = {id_: (criterion, left) for id_, criterion, left in state.criteria}
        made.requests = dict(state.requests)
        made.watermarks = {name: (position, k) for name, position, k in state.watermarks}
        made.floor = state.floor
        # rule: S-13g
        made.services = ServiceTables.of(state.services)
        return made
