"""The result that a turn returns to its driver."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.machine.writes import Write
from holdfast.types import Nanos


class Failure(msgspec.Struct, frozen=True):
    """A machine raised. `inputs` are recorded for replay; `stopped` means that the unit will not run again,
    unless its service is allowed to add it (`Turns.forgive`)."""

    unit: str
    error: BaseException
    inputs: list[Any]
    at: Nanos
    stopped: bool


class Result(msgspec.Struct):
    """The requests of a turn to the driver. The writes of a store are committed together, in turn order."""

    number: int
    writes: list[Write]
    """For the node's own store."""
    effects: list[Any]
    facts: list[Any]
    failures: list[Failure]
    more: bool
    """Items wait for the next turn; run it without waiting for an input."""
    store_writes: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    """For other stores, by name."""
