"""Invariants of the overlay, in every simulated run: roles, their holders, and the sizes of tables.

`RolesOnce` watches the effects. `Holders` and `OverlayBounds` inspect the machines through `OverlaySight`, so that a
test can pass them a state that violates them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.overlay.ports import Delivered, Ended, Published
from holdfast.overlay.subsystem import OverlayService
from holdfast.sim.checkers.base import Checker
from holdfast.types import SECOND, Nanos

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.overlay.machine import OverlayMachine
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

EVERY_TURNS: Final = 256
"""The number of turns of a host between two checks of its sizes."""
QUIET_NS: Final = 10 * SECOND
"""Within this time after the last change of a session, holders of exclusive roles have found each other."""


class OverlaySight(msgspec.Struct, frozen=True):
    """The view of one node that the checkers use."""

    host: str
    node: bytes
    quiet_ns: Nanos
    """How long no session of this node has begun or ended."""
    reaches: frozenset[bytes]
    """The nodes on its side of the network, itself included."""
    exclusive: tuple[tuple[bytes, str], ...]
    """(tree, role) of the exclusive roles that it holds and that are linked."""
    sizes: dict[str, int]
    bounds: dict[str, int]


def machine_of(host: Host) -> OverlayMachine | None:
    """The overlay of a running host; None if its core has none."""
    service = getattr(host.core, "service", None)
    if not host.alive or service is None:
        return None
    try:
        found = service(OverlayService)
    except MisuseError:
        return None
    return getattr(found, "machine", None)


def look_at_overlay(host: Host, machine: OverlayMachine) -> OverlaySight:
    inspect = machine.inspect
    return OverlaySight(
        host.name,
        machine.hub.me,
        host.now - machine.hub.changed_at,
        frozenset(machine.topology.reachable()),
        tuple(
            (role.tree, role.role)
            for role in machine.local.all()
            if role.exclusive and role.linked and not role.moving_to
        ),
        inspect.sizes(),
        inspect.bounds(),
    )


class RolesOnce(Checker):
    """An application receives a request once for each instance and port, and each operation ends once."""

    effects: ClassVar[tuple[type, ...]] = (Delivered, Ended, Published)

    def __init__(self) -> None:
        self._delivered: dict[str, dict[tuple[bytes, bytes, int], bool]] = {}
        self._ended: dict[str, dict[int, bool]] = {}
        self.deliveries = 0

    def booted(self, host: Host) -> None:
        """Operations and instance ids of an earlier process are not reused."""
        self._delivered[host.name] = {}
        self._ended[host.name] = {}

    def effect(self, host: Host, effect: Any) -> None:
        if isinstance(effect, Delivered):
            self._delivery(host, effect)
            return
        ended = self._ended.setdefault(host.name, {})
        if effect.op in ended:
            host.world.fail(
                "a request ends once", f"{host.name}: operation {effect.op} ended twice"
            )
        ended[effect.op] = True

    def _delivery(self, host: Host, effect: Delivered) -> None:
        self.deliveries += 1
        seen = self._delivered.setdefault(host.name, {})
        key = (effect.request, effect.instance, effect.port)
        if key in seen:
            host.world.fail(
                "an instance performs a request once",
                f"{host.name} received request {effect.request.hex()} for role {effect.role!r} twice",
            )
        seen[key] = True


class Holders(Checker):
    """Once the overlay is quiet, nodes that reach each other have at most one holder of an exclusive role."""

    def finish(self, world: World) -> None:
        machines = [(host, machine_of(host)) for host in world.hosts.values()]
        self.check(world, [look_at_overlay(h, m) for h, m in machines if m is not None])

    def check(self, world: World, sights: Iterable[OverlaySight]) -> None:
        holders: dict[tuple[bytes, str], list[OverlaySight]] = {}
        for sight in sights:
            for name in sight.exclusive if sight.quiet_ns >= QUIET_NS else ():
                holders.setdefault(name, []).append(sight)
        for (_, role), found in holders.items():
            for first, second in combinations(found, 2):
                if second.node in first.reaches and first.node in second.reaches:
                    world.fail(
                        "one holder of an exclusive role",
                        f"{first.host} and {second.host} hold role {role!r} and reach each other",
                    )


class OverlayBounds(Checker):
    """No table of the overlay exceeds its limit."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def turn(self, host: Host, result: Result) -> None:
        turns = self._turns[host.name] = self._turns.get(host.name, 0) + 1
        if turns % EVERY_TURNS:
            return
        machine = machine_of(host)
        if machine is not None:
            self.check(host.world, look_at_overlay(host, machine))

    def check(self, world: World, sight: OverlaySight) -> None:
        for name, bound in sight.bounds.items():
            size = sight.sizes[name]
            if size > bound:
                world.fail("the overlay is bounded", f"{sight.host}: {size} {name} (bound {bound})")


def overlay_checkers() -> tuple[Checker, ...]:
    return RolesOnce(), Holders(), OverlayBounds()
