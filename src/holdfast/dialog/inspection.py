"""What people and tests see of one end of a dialog."""

from __future__ import annotations

import msgspec

from holdfast.dialog.ids import End


class Inspection(msgspec.Struct, frozen=True):
    """One end of a dialog, for people and tests."""

    dialog: bytes
    state: str
    uri: str
    epoch: int
    partner: End | None
    assurances: int
    next: int
    acked: list[tuple[int, int]]
    lowest: int
    send_limit: int
    queued: int
    in_flight: int
    resent: int
    received: list[tuple[int, int]]
    taken: list[tuple[int, int]]
    receive_limit: int
    available: int
    held: int
    leased: int
    poison: list[int]
    fault: str
    detail: str
    connected: bool
    resumed: bool
    expires: int
    priority: int
    store: str
    waiting_sends: int
    creator: bool
