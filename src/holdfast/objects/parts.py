"""The parts of the objects unit, as procedures use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.objects.config import ObjectsConfig
from holdfast.objects.hub import Hub
from holdfast.objects.members import Members
from holdfast.objects.registers import Registers
from holdfast.objects.values import Value

if TYPE_CHECKING:
    from holdfast.objects.tasks import Tasks

KNOWN_MAX: Final = 4096
"""Objects whose replica set is remembered; the least recently used one is forgotten."""


class Parts:
    def __init__(self, hub: Hub, registers: Registers, members: Members) -> None:
        self.hub = hub
        self.config: ObjectsConfig = hub.config
        self.registers = registers
        self.members = members
        self.tasks: Tasks
        self._known: dict[bytes, Value] = {}
        self._owned: dict[bytes, Value] = {}
        """Versions whose successor this node may propose at ballot 0, by object. Lost with the process."""
        self.on_decided: Callable[[Value], None] = lambda _: None

    def learn(self, value: Value) -> None:
        """A version is decided: remember where the object is, and record it if a replica is here."""
        known = self._known.pop(value.object, None)
        if known is None or known.version < value.version:
            known = value
        self._known[value.object] = known
        while len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        if self.registers.decide(value):
            self.on_decided(value)

    def own(self, value: Value, proposer: bytes) -> None:
        """A version is decided. If this proposer made it, it may skip the promises for the next one."""
        if value.owner == proposer:
            self._owned[value.object] = value
            while len(self._owned) > KNOWN_MAX:
                del self._owned[next(iter(self._owned))]

    def ballot_of(self, base: Value) -> bytes:
        """The proposer of ballot 0 after this version, or nothing. It is given once: two values must not have it."""
        # rule: R-2c
        owned = self._owned.pop(base.object, None)
        return base.owner if owned is not None and owned == base else b""

    def known(self, object_id: bytes) -> Value | None:
        """The newest value that this node has heard of."""
        local = self.registers.decided(object_id)
        cached = self._known.get(object_id)
        if local is None or (cached is not None and cached.version > local.version):
            return cached
        return local

    def forget(self, object_id: bytes) -> None:
        self._known.pop(object_id, None)
