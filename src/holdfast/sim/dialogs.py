"""Dialogs on a simulated host: each store is a separate disk, with the same faults as the node's own.

The edge opens the stores and performs the effects of the units. `holdfast.sim.dialog_load` simulates applications, or a
test watches `Answer` and `Event` with `Host.on`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from holdfast.dialog import ports
from holdfast.dialog.ports import UNIT, OpenStore, dialog_unit
from holdfast.dialog.records import LOADED
from holdfast.dialog.router import ROUTER
from holdfast.dialog.routes import resolve
from holdfast.dialog.section import DIALOGS, DialogsConfig, StoreConfig
from holdfast.dialog.subsystem import DialogService
from holdfast.links.ports import Received
from holdfast.links.subsystem import LinkService
from holdfast.machine import Put
from holdfast.sim.disk import Disk
from holdfast.sim.host import Host
from holdfast.sim.seeds import chance
from holdfast.subsystem import Edge, EffectHandler, Port
from holdfast.types import MILLISECOND, NEVER, NodeId

OWNER: Final = "owner"
"""The table with the epoch of a store's owner."""
READ_NS: Final = MILLISECOND
REOPEN_NS: Final = 100 * MILLISECOND


def _ignore(_: object) -> None:
    """No application of this host asked for it."""


class SimDialogEdge(Edge):
    """Opens the stores of one run of a host."""

    def __init__(self) -> None:
        self._host: Host
        self._config = DialogsConfig()

    def attach(self, port: Port) -> None:
        self._host = cast("Host", port)
        self._config = DIALOGS.of(port.config)
        for store in self._config.store:
            self._open(store)
        self._service.table.ready = True

    @property
    def _service(self) -> DialogService:
        return cast(Any, self._host.core).service(DialogService)  # type: ignore[no-any-return]  # any core

    def effects(self) -> Mapping[type, EffectHandler]:
        effects: dict[type, EffectHandler] = {
            ports.Resolve: self._resolve,
            ports.ReadRows: self._read,
            ports.Loopback: self._loop_back,
            ports.UnitLost: self._lost,
        }
        return effects | dict.fromkeys((ports.Answer, ports.Event, ports.RepairWanted), _ignore)

    def _open(self, store: StoreConfig) -> None:
        """Take over a store: increase its epoch, and read its contents."""
        host = self._host
        unit = dialog_unit(store.name)
        disk = host.disk_of(unit)
        epoch = owner_epoch(disk) + 1
        disk.commit_now([Put(OWNER, b"", epoch.to_bytes(8, "big"))])
        tables = {table: disk.rows(table) for table in LOADED}
        name = chance(host.world.seed, "dialog store", host.name, store.name).randbytes(8)
        self._service.opened(OpenStore(store.name, name, epoch, tables, store.budget_mb << 20))

    def _lost(self, effect: ports.UnitLost) -> None:
        """A unit or its disk failed: read the store again after a while."""
        host = self._host
        name = effect.unit.removeprefix(UNIT)
        self._service.gone(effect)
        if effect.wait_ns >= NEVER:
            return
        store = next(each for each in self._config.store if each.name == name)
        wait = effect.wait_ns or REOPEN_NS
        host.world.at(host.world.now + wait, self._again, (host.boots, store))

    def _again(self, what: tuple[int, StoreConfig]) -> None:
        boots, store = what
        if self._host.boots == boots and self._host.alive:
            self._open(store)
            self._host.give(ROUTER, None)

    def _resolve(self, effect: ports.Resolve) -> None:
        core = cast(Any, self._host.core)
        directory = core.service(LinkService).directory.members
        members = {member.name: bytes(node) for node, member in directory.items()}
        members[core.me.name] = bytes(core.me.node)
        found = resolve(self._config.route, members, effect.uri, effect.key, effect.dialog)
        nodes, error = ([], found) if isinstance(found, str) else (found, "")
        self._host.give(effect.unit, ports.Resolved(effect.dialog, effect.attempt, nodes, error))

    def _read(self, effect: ports.ReadRows) -> None:
        """The contents of the store after all writes so far, after a short delay."""
        host = self._host
        disk = host.disk_of(effect.unit)
        tables = {table: disk.rows(table, first, stop) for table, first, stop in effect.wanted}
        answer = (host.boots, effect.unit, ports.Rows(effect.token, tables))
        host.world.at(host.world.now + READ_NS, self._answer, answer)

    def _answer(self, what: tuple[int, str, ports.Rows]) -> None:
        boots, unit, rows = what
        if self._host.boots == boots:
            self._host.give(unit, rows)

    def _loop_back(self, effect: ports.Loopback) -> None:
        host = self._host
        host.give(ROUTER, Received(NodeId(effect.node), effect.frames, host.now))


def owner_epoch(disk: Disk) -> int:
    """The epoch of the current owner of a store."""
    rows = disk.rows(OWNER)
    return int.from_bytes(rows[0][1], "big") if rows else 0


def commit_transaction(host: Host, store: str, inserts: Sequence[Put], epoch: int) -> bool:
    """Commit the rows of an application's transaction: all of them or none, only if none exists yet, under the
    fence."""
    disk = host.disk_of(dialog_unit(store))
    if disk.full or owner_epoch(disk) != epoch:
        return False
    for row in inserts:
        if any(key == row.key for key, _ in disk.rows(row.table, row.key, row.key + b"\x00")):
            return False
    disk.commit_now(list(inserts))
    return True
