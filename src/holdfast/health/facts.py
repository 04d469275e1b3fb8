"""Facts of health beside those about paths (`holdfast.telemetry.facts.PathFact`)."""

from __future__ import annotations

from typing import ClassVar

from holdfast.telemetry.facts import Fact


class RepairFact(Fact, frozen=True, gc=False):
    """An operator reported that a path was repaired: errors before that are no evidence any more."""

    kind: ClassVar[str] = "repair"
    sender: str
    """The node that sends on this path, 32 hexadecimal digits."""
    sender_adapter: str
    """Its adapter."""
    listener: str
    """The node that listens on it."""
    listener_adapter: str
    """Its adapter."""
    subnet: str
    """The subnet of both adapters."""
    by: str = ""
    """The person who reported it."""
    note: str = ""
    """The note of that person."""
