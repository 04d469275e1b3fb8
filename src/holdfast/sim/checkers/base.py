"""The base of all checks. A failed check ends the run and prints the command that replays it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import HoldfastError
from holdfast.faults.amounts import time_text
from holdfast.types import Nanos

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.host import Host
    from holdfast.sim.world import World


class CheckFailed(HoldfastError):
    """An invariant was violated in a simulated run. The message contains the command that replays it."""

    def __init__(self, invariant: str, detail: str, at: Nanos, replay: str) -> None:
        super().__init__(f"{invariant}: violated at {time_text(at)}: {detail}\nreplay: {replay}")
        self.invariant = invariant
        self.detail = detail
        self.at = at
        self.replay = replay


class Checker:
    """Base class of all checks. Override what you need; `world.fail` ends the run.

    `effects` names the types of effects that `effect` receives, before the host performs them. An effect that a crash
    prevents is not shown.
    """

    effects: ClassVar[tuple[type, ...]] = ()

    def booted(self, host: Host) -> None:
        """A process starts: only the disk remains of the previous one."""

    def ended(self, host: Host) -> None:
        """A process has ended: its memory is lost."""

    def effect(self, host: Host, effect: Any) -> None:
        """An effect of a type in `effects` is about to be performed."""

    def turn(self, host: Host, result: Result) -> None:
        """A turn ended."""

    def finish(self, world: World) -> None:
        """The run is over."""
