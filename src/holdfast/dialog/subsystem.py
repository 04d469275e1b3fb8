"""Dialogs as a subsystem of a node: the router, and one unit for each store that is open.

Stores are opened by the edge, off the event loop; a unit is built when its store is open, and again after it failed:
at once, then after growing waits, a bounded number of times (`reopening`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.dialog.facts import DialogFact, DialogRangeFact, DialogTransactionFact
from holdfast.dialog.frames import DIALOG_FRAMES
from holdfast.dialog.ids import StoreId, dialog_name
from holdfast.dialog.inspection import Inspection
from holdfast.dialog.manager import DialogManager
from holdfast.dialog.ports import UNIT, OpenStore, UnitLost, dialog_unit
from holdfast.dialog.reopening import Reopening, outlook
from holdfast.dialog.router import ROUTER, Router, Table
from holdfast.dialog.section import DIALOGS, check_dialogs
from holdfast.links.ports import Reannounce
from holdfast.links.subsystem import LinkService
from holdfast.machine import Failure, Machine, Result
from holdfast.subsystem import Assembly, Family, Service, Subsystem
from holdfast.subsystem.metrics import Samples, part, rows
from holdfast.types import SECOND, Nanos, short

SHOWN: Final = 200
"""Dialogs of a store that the status shows; those in trouble first."""


class DialogService(Service):
    """Builds the units of open stores."""

    def __init__(self, node: Assembly) -> None:
        self._node = node
        self.table = Table()
        self.table.policies = dict(DIALOGS.of(node.config).redirect)
        self.table.node_ids = self._node_ids
        self._open: dict[str, OpenStore] = {}
        self.counts: dict[str, int] = {}
        self.closed: dict[str, str] = {}
        """Why a store is not open, by name; the edge adds those that it cannot open."""
        self._reopening = Reopening()

    def _node_ids(self, names: tuple[str, ...]) -> tuple[bytes, ...]:
        members = self._node.service(LinkService).directory.members
        known = {member.name: bytes(node) for node, member in members.items()}
        return tuple(known[name] for name in names if name in known)

    def units(self) -> Iterable[str]:
        return (ROUTER,)

    def opened(self, store: OpenStore) -> None:
        """A store is open: its unit begins. Called by the edge."""
        unit = dialog_unit(store.name)
        self._open[unit] = store
        self.table.units[store.store] = unit
        if self._node.turns.machine(unit) is not None:
            self._node.drop(unit)
        self._node.turns.forgive(unit)
        self._node.add(unit)
        self.closed.pop(store.name, None)
        for link in self._node.turns.units():
            if link.startswith("link/"):
                # It was not there when these links came up.
                self._node.turns.post(link, Reannounce(unit))

    def gone(self, lost: UnitLost) -> None:
        """A store failed, or its unit did: the unit ends, until the store is open again."""
        unit = lost.unit
        self.closed[unit.removeprefix(UNIT)] = outlook(lost.reason, lost.wait_ns)
        # The router still knows the store: frames for it are lost, and not answered with `Unknown`.
        self._open.pop(unit, None)
        if self._node.turns.machine(unit) is not None:
            self._node.drop(unit)

    def build(self, unit: str) -> Machine | None:
        if unit == ROUTER:
            return Router(self.table, self._node.me.node)
        store = self._open.pop(unit, None)
        if store is None:
            return None  # What it had in memory may be wrong: it comes back when its store was read again.
        node = self._node
        manager = DialogManager(
            unit, node.me.node, StoreId(store.store), store.epoch, store.tables, node.entropy,
            node.wall_offset_ns, store.budget_bytes,
            int(DIALOGS.of(node.config).abandoned_after_s * SECOND),
        )  # fmt: skip
        self._open[unit] = OpenStore(store.name, store.store, store.epoch, {}, store.budget_bytes)
        return manager

    def unit_failed(self, failure: Failure, result: Result) -> None:
        if failure.unit.startswith(UNIT):
            result.effects.append(self.lost(failure.unit, failure.error, failure.at))

    def lost(self, unit: str, error: BaseException, now: Nanos) -> UnitLost:
        """A unit raised, or could not be made from its store."""
        return UnitLost(unit, repr(error), self._reopening.failed(unit, now))

    def manager(self, name: str) -> DialogManager | None:
        found = self._node.turns.machine(dialog_unit(name))
        return found if isinstance(found, DialogManager) else None

    def managers(self) -> list[tuple[str, DialogManager]]:
        found = []
        for unit in self._node.turns.units():
            machine = self._node.turns.machine(unit)
            if isinstance(machine, DialogManager):
                found.append((unit.removeprefix(UNIT), machine))
        return found

    def status(self, now: Nanos) -> Mapping[str, Any]:
        stores = []
        dialogs = []
        for name, manager in self.managers():
            stores.append({"name": name, **manager.status()})
            dialogs += [described(end) for end in manager.list(SHOWN)]
        stores += [{"name": name, "error": why} for name, why in list(self.closed.items())]
        return {"dialog_stores": stores, "dialogs": dialogs}


def described(end: Inspection) -> dict[str, Any]:
    """One end of a dialog, as the status and the command line show it."""
    code = end.assurances
    return {
        "id": end.dialog.hex(),
        "name": dialog_name(end.dialog),
        "uri": end.uri,
        "state": end.state,
        "store": end.store,
        "partner": short(end.partner.node) if end.partner is not None else "",
        "at_least_once": bool(code & 4),
        "at_most_once": bool(code & 2),
        "in_order": bool(code & 1),
        "sent": end.next,
        "queued": end.queued,
        "in_flight": end.in_flight,
        "acknowledged": end.lowest,
        "resent": end.resent,
        "received": sum(stop - start for start, stop in end.received),
        "taken": sum(stop - start for start, stop in end.taken),
        "available": end.available,
        "held": end.held,
        "leased": end.leased,
        "poison": end.poison,
        "priority": end.priority,
        "epoch": end.epoch,
        "connected": end.connected,
        "fault": end.fault,
        "detail": end.detail,
    }


def dialog_metrics(status: Mapping[str, Any]) -> Iterable[Family]:
    """Metrics from a status."""
    stores = rows(status, "dialog_stores")
    if not stores:
        return
    standing: Samples = [
        ({"store": store.get("name", "")}, 0 if "error" in store else 1) for store in stores
    ]
    text = "1: the dialog store is open; 0: its dialogs halt."
    yield "holdfast_dialog_store_open", "gauge", text, standing
    states: Samples = [
        ({"store": store.get("name", ""), "state": state}, count)
        for store in stores
        for state, count in part(store, "states").items()
    ]
    yield "holdfast_dialogs", "gauge", "Dialogs in memory, by store and state.", states
    for key, text in (
        ("blocks", "Blocks of messages in the store."),
        ("transactions", "Transactions of applications that are open."),
        ("reserved_bytes", "Bytes reserved for buffers."),
    ):
        samples: Samples = [
            ({"store": store.get("name", "")}, store[key]) for store in stores if key in store
        ]
        yield f"holdfast_dialog_{key}", "gauge", text, samples
    messages: Samples = [
        ({"store": store.get("name", ""), "event": event}, count)
        for store in stores
        for event, count in part(store, "messages").items()
    ]
    text = "Messages captured, taken and deleted, by store."
    yield "holdfast_dialog_messages_total", "counter", text, messages
    counts: Samples = [
        ({"store": store.get("name", ""), "event": event}, count)
        for store in stores
        for event, count in part(store, "counts").items()
    ]
    yield "holdfast_dialog_events_total", "counter", "Events of dialogs, by store.", counts


DIALOG_SUBSYSTEM: Final = Subsystem(
    name="dialog",
    service=DialogService,
    layers=("dialog_router", "dialog"),
    sections=(DIALOGS,),
    check=check_dialogs,
    frames=dict.fromkeys(DIALOG_FRAMES, lambda _: (ROUTER,)),
    facts=(DialogFact, DialogRangeFact, DialogTransactionFact),
    metrics=dialog_metrics,
    edge="holdfast.runtime.dialogs.edge:DialogEdge",
    sim_edge="holdfast.sim.dialogs:SimDialogEdge",
)
