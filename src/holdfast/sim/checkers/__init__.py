"""Invariants, watched while a world runs. A check that fails ends the run and prints the command that repeats it.

`base` says what a check is. `hosts` looks at single nodes, `delivery` at what applications are given. The rest looks
into replicas: `sight` is what it sees, `memory` knows whether a group can still remember, `agreement`, `buffers` and
`calm` hold the invariants, each as a book that is fed sights, so that a test can feed it a history that breaks it.
`groups` feeds them in a run.
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
