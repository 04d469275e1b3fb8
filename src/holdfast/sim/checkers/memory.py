"""Whether a group can still remember what it delivered.

In `memory` a process that ends takes with it what it acknowledged. What is committed is on a majority of the voters of
the view, in the lives that the view names; as long as fewer than a majority of those lives have ended, somebody has it,
and it must stay in the order. When more have ended the group has *lost its memory*: it stands until an operator has it
founded again, under another history, and only then may it be. A `durable` group never loses its memory.

In `fast` and `availability` groups replicas give up states that turn out to be wrong, and take another's. When all that
are left have done so there is no other: that is a loss of memory too, whatever is on disks.
"""

from __future__ import annotations

from holdfast.group.entries import View
from holdfast.sim.checkers.sight import Sight, Violation


class Memory:
    """Of one group: who decides in it, which of those have ended, and which history it is in."""

    def __init__(self, durable: bool = False) -> None:
        self.durable = durable
        self.history = 0
        """The founding that the group goes back to."""
        self.lost = False
        """A majority has forgotten; nobody has founded the group again since."""
        self.losses = 0
        self._view: View | None = None
        """The last view that was decided."""
        self._processes: dict[tuple[str, int], int] = {}
        """The life in which a process takes part, by (host, boot)."""
        self._old: dict[int, None] = {}
        """Histories that are over."""
        self._ended: dict[tuple[str, int], None] = {}
        """Lives that are over, by (name, life)."""
        self._stateless: dict[tuple[str, int], None] = {}
        """Lives that gave up their state and were not given another since."""

    def see(self, sight: Sight) -> None:
        self._processes[sight.life] = 0 if self.durable else sight.incarnation
        if sight.history and sight.history != self.history:
            self._other_history(sight)
        view = sight.view
        if sight.history == self.history and view is not None and self._is_newer(view):
            self._view = view

    def _is_newer(self, view: View) -> bool:
        return self._view is None or view.number > self._view.number

    def _other_history(self, sight: Sight) -> None:
        """One that remembers an older history stands aside; a new one is founded only when the last is lost."""
        if sight.history in self._old:
            return
        if self.history and not self.lost:
            raise Violation(
                "a group that remembers is not founded again",
                f"{sight.group}: {sight.host} belongs to history {sight.history:x}; the group is in "
                f"{self.history:x} and has not lost its memory",
            )
        self._old[self.history] = None
        self.history = sight.history
        self.lost = False
        self._view = None

    def gave_up(self, host: str, boots: int) -> None:
        """A process gives up the state of its application."""
        self._stateless[(host, self._processes.get((host, boots), 0))] = None
        self._look()

    def restored(self, host: str, boots: int) -> None:
        self._stateless.pop((host, self._processes.get((host, boots), 0)), None)

    def is_stateless(self, host: str, boots: int) -> bool:
        return (host, self._processes.get((host, boots), 0)) in self._stateless

    def ended(self, host: str, boots: int) -> None:
        """A process is gone."""
        life = self._processes.pop((host, boots), None)
        if life is None:
            return
        if self.durable:
            self._stateless.pop((host, life), None)
            return
        self._ended[(host, life)] = None
        self._look()

    def _look(self) -> None:
        """Whether it is lost now."""
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
