"""Seeded fault campaigns for stability detectors: the faults of a world, and how long it may take to settle."""

from __future__ import annotations

from tests.support.stability_world import World, with_protocol

from holdfast.stability.hypercube import dimensions, neighbours
from holdfast.types import MICROSECOND, MILLISECOND, Nanos

ROUNDS_AFTER_FAULTS = 4
"""After the last fault everything is stable within this many rounds: the current one with old reports, one with the new
ones, and one more for a member that is a round behind, each preceded by its wait."""


def settle_bound_ns(world: World) -> Nanos:
    """Time for `ROUNDS_AFTER_FAULTS` rounds without loss, plus the longest pending waits."""
    config, size = world.config, len(world.view.members)
    hop_ns = world.delay_us[1] * MICROSECOND
    apply_ns = 24 * world.pace_us[1] * MICROSECOND
    round_ns = (2 * dimensions(size) + 4) * hop_ns + config.repeat_max_ns
    waits_ns = 3 * config.period_max_ns
    return apply_ns + ROUNDS_AFTER_FAULTS * (round_ns + waits_ns)


class Campaign:
    """Loss, duplication, reordering, crashes, restarts of both kinds, cuts and view changes, by one seed."""

    def __init__(self, protocol: str, size: int, seed: int, **settings: int) -> None:
        self.world = World(
            size, with_protocol(protocol, **settings), seed,
            loss=0.2, duplicate=0.1, delay_us=(50, 1500),
        )  # fmt: skip
        self.rng = self.world.rng
        self.away: list[str] = []
        """Crashed, still in the view or not."""
        self.extra = 0

    def run(self, faults: int) -> None:
        actions = [self._crash, self._remove, self._restart, self._restart_durable]
        actions += [self._join, self._leave, self._cut, self._swap]
        for _ in range(faults):
            self.world.order(self.rng.randint(0, 20))
            actions[self.rng.randrange(len(actions))]()
            self.world.run(self.rng.randint(1, 12) * MILLISECOND)

    def end_faults(self) -> None:
        """End all loss, and commit a view with exactly the running members."""
        world = self.world
        world.heal()
        while self.away:
            self._remove()
        world.order(5)

    def check_progress(self) -> None:
        world = self.world
        bound_ns = settle_bound_ns(world)
        assert world.run(bound_ns, world.is_settled), (
            f"seed {world.seed}: not settled {bound_ns // MILLISECOND} ms after the last fault: "
            + str({name: world.status(name) for name in self._members()[:4]})
        )

    def _members(self) -> list[str]:
        return [member.name for member in self.world.view.members]

    def _living(self) -> list[str]:
        return [name for name in self._members() if name not in self.away]

    def _crash(self) -> None:
        living = self._living()
        if len(living) > 1:
            name = living[self.rng.randrange(len(living))]
            self.world.crash(name)
            self.away.append(name)
            for other in self._living():
                self.world.suspect(other, self.away)

    def _remove(self) -> None:
        if self.away:
            name = self.away.pop(self.rng.randrange(len(self.away)))
            self.world.commit_view([other for other in self._members() if other != name])

    def _restart(self) -> None:
        """A crashed member restarts without its state; the view admits the new life."""
        if self.away:
            name = self.away.pop()
            host = self.world.restart(name)
            self.world.commit_view(self._members())
            self.world.join(host)

    def _restart_durable(self) -> None:
        living = self._living()
        self.world.restart_durable(living[self.rng.randrange(len(living))])

    def _join(self) -> None:
        self.extra += 1
        host = self.world.add_host(f"x{self.extra}")
        self.world.commit_view([*self._members(), host.name])
        self.world.join(host)

    def _leave(self) -> None:
        living = self._living()
        if len(living) > 2:
            name = living[self.rng.randrange(len(living))]
            self.world.crash(name)
            self.world.commit_view([other for other in self._members() if other != name])

    def _cut(self) -> None:
        living = self._living()
        one, other = self.rng.choice(living), self.rng.choice(living)
        if one != other:
            self.world.cut(one, other)

    def _swap(self) -> None:
        """The placement changes: the same members at other places."""
        members = list(self.world.view.members)
        a, b = self.rng.randrange(len(members)), self.rng.randrange(len(members))
        members[a], members[b] = members[b], members[a]
        self.world.commit(tuple(members))


def silence_neighbours(world: World, place: int, count: int, first: int = 0) -> list[str]:
    """Crash `count` neighbours of one place of the cube, from the one at `first` on, in turn."""
    near = neighbours(len(world.view.members), place)
    names = [world.view.members[near[(first + k) % len(near)]].name for k in range(count)]
    for name in names:
        world.crash(name)
    return names
