"""The machine contract and what runs it.

A protocol is a machine: plain Python without IO, clock, thread or chance of its own. `contract` says what a
machine is and what it may ask for, `turn` takes one batch of inputs through all machines of a node, `deadlines`
keeps who must be woken when, `intake` bounds what waits for its turn. `rangeset` and `window` are the two
containers that most protocols here are made of.
"""

from holdfast.machine.contract import Erase, Machine, Outbox, Put, Write
from holdfast.machine.deadlines import Deadlines
from holdfast.machine.intake import Intake
from holdfast.machine.rangeset import RangeSet
from holdfast.machine.turn import Failure, Result, Turns
from holdfast.machine.window import ReplayWindow, RingWindow

__all__ = [
    "Deadlines",
    "Erase",
    "Failure",
    "Intake",
    "Machine",
    "Outbox",
    "Put",
    "RangeSet",
    "ReplayWindow",
    "Result",
    "RingWindow",
    "Turns",
    "Write",
]
