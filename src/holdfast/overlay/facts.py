"""What the overlay records for telemetry."""

from __future__ import annotations

from typing import ClassVar

from holdfast.telemetry.facts import Fact


class OverlayFact(Fact, frozen=True, gc=False):
    """Events of roles, trees and the mesh: `published`, `role_lost`, `moved`, `recovery`, `cycle`, `stale`,
    `partition`, `unpartition`."""

    kind: ClassVar[str] = "overlay"
    event: str
    """One of the events above."""
    tree: str = ""
    """The tree that it concerns, if any."""
    role: str = ""
    """The role that it concerns, if any."""
    peer: str = ""
    """The node at the other end, in hexadecimal."""
    detail: str = ""
    """More, in plain words."""
    count: int = 1
    """How many instances, routes or nodes it concerns."""
