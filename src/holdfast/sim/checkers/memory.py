"""Whether the state of a group survives.

In `memory` groups, a process that ends loses what it acknowledged. Committed entries are on a majority of the voters,
in the lives that the view names. While fewer than a majority of those lives have ended, some replica has them, and they
must stay in the order. If more have ended, the group has *lost its state*: it halts until an operator restarts it under
a new epoch. A `durable` group never loses its state.

In `fast` and `availability` groups, replicas discard states that turn out to be wrong, and restore the snapshot of
another replica. If all remaining ones have done so, there is none: that is a loss of state too, whatever is on disk.
"""

from __future__ import annotations

from holdfast.group.log.entries import View
from holdfast.sim.checkers.sight import Sight, Violation


class Memory:
    """For one group: the voters, which of their lives have ended, and the current epoch."""

    def __init__(self, durable: bool = False) -> None:
        self.durable = durable
        self.group_epoch = 0
        """The current group epoch."""
        self.lost = False
        """A majority has lost its state, and the group has not been re-created since."""
        self.losses = 0
        self._view: View | None = None
        """The last committed view."""
        self._processes: dict[tuple[str, int], int] = {}
        """The life with which a process participates, by (host, boot)."""
        self._old: dict[int, None] = {}
        """Ended epochs."""
        self._ended: dict[tuple[str, int], None] = {}
        """Ended lives, by (name, life)."""
        self._stateless: dict[tuple[str, int], None] = {}
        """Lives that discarded their state and have not restored another since."""

    def see(self, sight: Sight) -> None:
        self._processes[sight.life] = 0 if self.durable else sight.incarnation
        if sight.group_epoch and sight.group_epoch != self.group_epoch:
            self._other_history(sight)
        view = sight.view
        if sight.group_epoch == self.group_epoch and view is not None and self._is_newer(view):
            self._view = view

    def _is_newer(self, view: View) -> bool:
        return self._view is None or view.number > self._view.number

    def _other_history(self, sight: Sight) -> None:
        """A replica of an older epoch stays suspended; a new epoch starts only if the last is lost."""
        if sight.group_epoch in self._old:
            return
        if self.group_epoch and not self.lost:
            raise Violation(
                "a group that has its state is not re-created",
                f"{sight.group}: {sight.host} belongs to epoch {sight.group_epoch:x}; the group is in "
                f"{self.group_epoch:x} and has not lost its state",
            )
        self._old[self.group_epoch] = None
        self.group_epoch = sight.group_epoch
        self.lost = False
        self._view = None

    def gave_up(self, host: str, boots: int) -> None:
        """A process discards the state of its application."""
        self._stateless[(host, self._processes.get((host, boots), 0))] = None
        self._look()

    def restored(self, host: str, boots: int) -> None:
        self._stateless.pop((host, self._processes.get((host, boots), 0)), None)

    def is_stateless(self, host: str, boots: int) -> bool:
        return (host, self._processes.get((host, boots), 0)) in self._stateless

    def ended(self, host: str, boots: int) -> None:
        """A process has ended."""
        life = self._processes.pop((host, boots), None)
        if life is None:
            return
        if self.durable:
            self._stateless.pop((host, life), None)
            return
        self._ended[(host, life)] = None
        self._look()

    def _look(self) -> None:
        """Whether the state is lost now."""
        view = self._view
        if view is None or self.lost:
            return
        lives = [(voter.name, voter.life) for voter in view.voters]
        gone = [life for life in lives if life in self._ended]
        if len(gone) >= view.majority or all(
            life in self._ended or life in self._stateless for life in lives
        ):
            self.lost = True
            self.losses += 1
