"""Outputs arrive once and in order, and only committed ones are sent.

A node of the domain accepts each output once, and again only if it died before it recorded the delivery. Other
destinations receive each at least once. In the end, all have the outputs of the committed order. In an `availability`
group, sides send different outputs under the same ids, so only the order within a process is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.replicated_log import Kind
from holdfast.group.ports import Apply, Batch, Output, OutputsReady, SendOutputs
from holdfast.sim.checkers.base import Checker
from holdfast.sim.checkers.groups import GroupChecks
from holdfast.sim.checkers.sight import taken_outputs

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

Id = tuple[int, int]
Said = Callable[[str, Batch], list[Output]]
"""The outputs of the application of a group for a batch."""
_Place = tuple[StreamId, int, int, int]


class OutputsOnce(Checker):
    """For the groups whose applications create outputs."""

    effects = (Apply, OutputsReady, SendOutputs)

    def __init__(self, groups: tuple[str, ...], said: Said, checks: GroupChecks) -> None:
        self._groups = groups
        self._said = said
        self._checks = checks
        self._expected: dict[tuple[str, int], dict[tuple[int, _Place], list[Output]]] = {}
        """By (group, epoch), then by entry and what it orders."""
        self._taken: dict[tuple[str, str], tuple[int, Id]] = {}
        """By (group, host): the last output, with its epoch, that the process received or started with."""
        self._arrived: dict[tuple[str, int, str], dict[Id, bytes]] = {}
        """By (group, epoch, destination), in order of arrival."""

    def booted(self, host: Host) -> None:
        for group in self._groups:
            group_epoch, position, k = taken_outputs(host, group)
            self._taken[(group, host.name)] = (group_epoch, (position, k))
            if group_epoch and (position, k) > max(
                self._at(group, group_epoch, host), default=(0, -1)
            ):
                text = f"{host.name} has recorded ({position}, {k}) of {group}, which it was not passed"
                host.world.fail("outputs arrive once", text)

    def _at(self, group: str, group_epoch: int, host: Host) -> dict[Id, bytes]:
        return self._arrived.setdefault((group, group_epoch, f"node:{host.name}"), {})

    def effect(self, host: Host, effect: Apply | OutputsReady | SendOutputs) -> None:
        if isinstance(effect, OutputsReady):
            if effect.group in self._groups:
                self._ready(host, effect)
            return
        group = effect.unit.partition("/")[2]
        if group not in self._groups:
            return
        group_epoch = self._checks.group_epoch(host, effect.unit)
        if isinstance(effect, SendOutputs):
            self._send(host, group, group_epoch, effect)
            return
        batch = effect.batch
        said = self._said(group, batch)
        if said:
            last = batch.first + len(batch.messages) - 1
            place = (batch.stream, batch.first, last, batch.position)
            self._expected.setdefault((group, group_epoch), {})[(effect.index, place)] = said

    # -- arrivals ------------------------------------------------------------------------------------------------

    def _ready(self, host: Host, effect: OutputsReady) -> None:
        """A node accepts each once, in order, however often it is sent."""
        group_epoch = effect.group_epoch
        got = self._at(effect.group, group_epoch, host)
        before, last = self._taken.get((effect.group, host.name), (0, (0, -1)))
        last = last if before == group_epoch else (0, -1)
        for output in effect.outputs:
            id_ = (output.position, output.k)
            if id_ <= last:
                text = f"{host.name} receives {id_} of {effect.group} after {last}"
                host.world.fail("outputs arrive once", text)
            last = id_
            self._arrives(host, effect.group, got, id_, output.payload)
        self._taken[(effect.group, host.name)] = (group_epoch, last)

    def _send(self, host: Host, group: str, group_epoch: int, effect: SendOutputs) -> None:
        """A destination that is not a node receives each at least once, with its id."""
        got = self._arrived.setdefault((group, group_epoch, effect.destination), {})
        for output in effect.outputs:
            self._arrives(host, group, got, (output.position, output.k), output.payload)

    def _arrives(
        self, host: Host, group: str, got: dict[Id, bytes], id_: Id, payload: bytes
    ) -> None:
        if got.setdefault(id_, payload) != payload and not self._checks.promise(group).lone:
            host.world.fail("outputs arrive once", f"{id_} of {group} is two different outputs")

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, world: World) -> None:
        for group in self._groups:
            if self._checks.promise(group).lone or self._checks.lost_memory(group):
                continue
            group_epoch = self._checks.current_group_epoch(group)
            committed = self._checks.agreement(group).committed
            expected: dict[str, dict[Id, bytes]] = {}
            for (index, place), said in sorted(
                self._expected.get((group, group_epoch), {}).items()
            ):
                entry = committed.get(index)
                if entry is not None and _place(entry) == place:
                    for output in said:
                        ids = expected.setdefault(output.destination, {})
                        ids[(output.position, output.k)] = output.payload
            self._compare(world, group, group_epoch, expected)

    def _compare(
        self, world: World, group: str, group_epoch: int, expected: dict[str, dict[Id, bytes]]
    ) -> None:
        arrived = [key[2] for key in self._arrived if key[:2] == (group, group_epoch)]
        for destination in dict.fromkeys((*expected, *arrived)):
            wanted = expected.get(destination, {})
            got = self._arrived.get((group, group_epoch, destination), {})
            if got == wanted and list(got) == sorted(got):
                continue
            missing = [id_ for id_ in wanted if id_ not in got]
            extra = [id_ for id_ in got if id_ not in wanted]
            text = (
                f"{destination} has {len(got)} outputs of {group} of {len(wanted)}; missing {missing[:3]}, "
                f"not committed {extra[:3]}, "
                + ("in order" if list(got) == sorted(got) else "out of order")
            )
            world.fail("outputs arrive once", text)


def _place(entry: Entry) -> _Place | None:
    if entry.kind != Kind.ORDER or entry.stream is None:
        return None
    return (entry.stream, entry.first, entry.last, entry.position)
