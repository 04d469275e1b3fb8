"""Invariants, checked while a world runs. A failed check ends the run and prints the command that replays it.

`base` defines a check. `hosts` checks single nodes, `delivery` what applications receive. The others check replicas:
`sight` is what they see, `memory` knows whether the state of a group survives, and `agreement`, `buffers` and `calm`
hold the invariants. Each is fed sights, so that a test can feed it a history that violates it. `groups` feeds them in a
run.
"""

from holdfast.sim.checkers.base import Checker, CheckFailed
from holdfast.sim.checkers.delivery import DeliveryOrder
from holdfast.sim.checkers.groups import GroupChecks
from holdfast.sim.checkers.hosts import Bounds, DeadlinesMove, NoFailures

__all__ = [
    "Bounds",
    "CheckFailed",
    "Checker",
    "DeadlinesMove",
    "DeliveryOrder",
    "GroupChecks",
    "NoFailures",
]
