"""The machine contract and the code that runs machines.

A protocol is a machine: plain Python without IO, clock, threads or randomness of its own. `contract` defines machines
and their outputs, `turn` runs a batch of inputs through all machines of a node, `deadlines` holds their wake-up times,
and `intake` bounds the inputs that wait. `rangeset` and `window` are containers used by most protocols.
"""

from holdfast.machine.contract import NODE_STORE, Machine, Outbox
from holdfast.machine.deadlines import Deadlines
from holdfast.machine.intake import Intake
from holdfast.machine.lag import LAG_NS_MIN, Lagged
from holdfast.machine.rangeset import RangeSet
from holdfast.machine.results import Failure, Result
from holdfast.machine.turn import Turns
from holdfast.machine.window import ReplayWindow, RingWindow
from holdfast.machine.writes import Erase, Put, ReadTable, StoreFailed, TableRead, Write

__all__ = [
    "LAG_NS_MIN",
    "NODE_STORE",
    "Deadlines",
    "Erase",
    "Failure",
    "Intake",
    "Lagged",
    "Machine",
    "Outbox",
    "Put",
    "RangeSet",
    "ReadTable",
    "ReplayWindow",
    "Result",
    "RingWindow",
    "StoreFailed",
    "TableRead",
    "Turns",
    "Write",
]
