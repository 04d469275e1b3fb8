"""The unit `dialogs`: hands each frame to the unit of the store that it names.

A frame for a store that is not here gets `Unknown`, which frees nothing: a memory store has a new id after each start,
and its dialogs are gone. An invitation goes to the unit that listens to its service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from holdfast.dialog.frames import (
    Decline,
    Done,
    Fin,
    Invite,
    Messages,
    Resume,
    TtlProposal,
    Unknown,
    WindowProbe,
)
from holdfast.dialog.ids import STORE_BYTES, creator_of
from holdfast.dialog.ports import Loopback
from holdfast.dialog.routes import service_of
from holdfast.links.ports import Received, SendChannel, link_unit
from holdfast.machine import Machine, Outbox
from holdfast.types import DATA, Nanos
from holdfast.wire.codec import encode

ROUTER: Final = "dialogs"


class Table:
    """Which unit has which store, and which listens to which service. Kept by the service of the subsystem."""

    def __init__(self) -> None:
        self.units: dict[bytes, str] = {}
        self.services: dict[str, str] = {}
        self.policies: dict[str, tuple[str, ...]] = {}
        """Services that this node refuses as an intermediary, and the names of the nodes it sends them to."""
        self.node_ids: Callable[[tuple[str, ...]], tuple[bytes, ...]] = lambda _: ()
        """The ids of those names that are members now."""
        self.ready = False
        """All stores of the node are open: a store that is not here is gone."""
        self.unclaimed = 0

    def unit_of(self, frame: Any) -> str:
        """Empty when there is none."""
        if type(frame) is Invite:
            service = service_of(frame.uri)
            return "" if service in self.policies else self.services.get(service, "")
        return self.units.get(frame.to, "")


class Router(Machine):
    layer: ClassVar[str] = "dialog_router"

    def __init__(self, table: Table, node: bytes) -> None:
        self._table = table
        self._node = node

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if type(item) is not Received:
                continue
            unit = ""
            batch: list[Any] = []
            for frame in item.frames:
                target = self._table.unit_of(frame)
                if not target:
                    self._refuse(item.peer, frame, out)
                    continue
                if target != unit and batch:
                    out.up(unit, Received(item.peer, batch, item.at, item.flow))
                    batch = []
                unit = target
                batch.append(frame)
            if batch:
                out.up(unit, Received(item.peer, batch, item.at, item.flow))

    def _refuse(self, peer: bytes, frame: Any, out: Outbox) -> None:
        table = self._table
        table.unclaimed += 1
        answer: Any = None
        if type(frame) is Invite:
            others = table.policies.get(service_of(frame.uri))
            if others is not None:
                answer = self._by_policy(frame, others)
            elif table.ready:
                answer = self._decline(frame, "no-service", "nothing listens to it here", ())
        elif table.ready and type(frame) in (Messages, Resume, Fin, Done, WindowProbe, TtlProposal):
            store = (
                frame.store if type(frame) is Resume else creator_of(frame.session)[-STORE_BYTES:]
            )
            answer = Unknown(store, frame.session, frame.to)
        if answer is None:
            return
        if peer == self._node:
            out.effect(Loopback(peer, [answer]))
        else:
            out.down(link_unit(peer), SendChannel(DATA, [encode(answer)]))

    def _by_policy(self, frame: Invite, names: tuple[str, ...]) -> Decline:
        """This node is an intermediary for the service: it names the nodes to ask, or refuses."""
        if not names:
            return self._decline(frame, "policy", "this node refuses the service", ())
        others = self._table.node_ids(names)
        return self._decline(frame, "redirect", f"ask {', '.join(names)}", others)

    @staticmethod
    def _decline(frame: Invite, code: str, reason: str, others: tuple[bytes, ...]) -> Decline:
        return Decline(frame.store, frame.session, b"", frame.attempt, code, reason, others)
