"""The invariant checkers that subsystems declare."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.sim.checkers.base import Checker
from holdfast.subsystem import Subsystem
from holdfast.subsystem.resolve import resolve


def declared_checkers(subsystems: Iterable[Subsystem]) -> tuple[Checker, ...]:
    """New checkers of all subsystems, in their order."""
    named = [subsystem.checkers for subsystem in subsystems if subsystem.checkers]
    return tuple(checker for name in named for checker in resolve(name)())
