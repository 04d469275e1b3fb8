"""Faults: a dialog that cannot meet its assurances stops, says so, and goes on when it is repaired.

| code               | meaning | repaired by |
| ------------------ | ------- | ----------- |
| `unknown-service`  | the resolver knows no instance for the URI | looking again, or `reroute` |
| `no-partner`       | no instance accepted in time | looking again, or `reroute` |
| `partner-silent`   | the link is up and the partner's end does not answer | `resume`; the partner answering |
| `partner-lost`     | the partner's node does not know the dialog | its state coming back |
| `position`         | the two ends do not agree on what was sent and received | `resume`, with the right store |
| `session-ttl`      | the session did not complete in time | a new time to live |
| `credentials`      | a certificate is not accepted, so there is no link to the partner | new credentials; the link |
| `internal`         | an error in the dialog's own processing, twice | `resume` |

A fault that only mirrors the partner's has its code behind `partner:` and goes when the partner's goes.
"""

from __future__ import annotations

from typing import Final

from holdfast.dialog.frames import Faulted
from holdfast.dialog.ports import RepairWanted
from holdfast.dialog.session import Dialog
from holdfast.dialog.states import FAULTED, MOVED, OPEN, TERMINATED
from holdfast.types import SECOND, Nanos

MIRRORED: Final = "partner:"
CODES: Final = (
    "unknown-service", "no-partner", "partner-silent", "partner-lost", "position", "session-ttl", "credentials",
    "internal",
)  # fmt: skip
DETAIL_MAX: Final = 500
UNPAIRED: Final = ("unknown-service", "no-partner")
"""Faults of a dialog that has no partner: it looks for one again by itself."""
REROUTE_MAX: Final = 600 * SECOND


def put_in_fault(d: Dialog, now: Nanos, code: str, detail: str, tell: bool = False) -> None:
    """Stop the dialog. The first fault counts: what follows from it adds nothing."""
    if d.state in (FAULTED, TERMINATED, MOVED):
        return
    d.change(FAULTED, now)
    d.fault = code
    d.detail = detail[:DETAIL_MAX]
    d.faulted_at = d.env.wall(now)
    d.resumed = False
    if code in UNPAIRED and d.settings.reroute_ns:
        d.reroute_at = now + min(d.settings.reroute_ns << min(d.reroutes, 20), REROUTE_MAX)
        d.reroutes += 1
    d.env.count("faults")
    d.event("faulted", d.detail)
    if not code.startswith(MIRRORED):
        # rule: D-life-6a
        d.stage.effects.append(RepairWanted(d.env.unit, d.id, code, d.detail, d.uri))
        # rule: D-4h
        if tell and d.partner is not None and d.confirmed:
            d.post(Faulted(d.to, d.far, d.epoch, code, d.detail))


def mirror(d: Dialog, now: Nanos, code: str, detail: str = "") -> None:
    """The partner's end is faulted."""
    if not code.startswith(MIRRORED):
        put_in_fault(d, now, MIRRORED + code[:40], detail or "the partner's end is faulted")


def on_faulted(d: Dialog, now: Nanos, frame: Faulted) -> None:
    mirror(d, now, frame.code, frame.detail)


def recovered(d: Dialog, now: Nanos) -> bool:
    """The partner answers as if nothing was wrong: a fault that was about the partner is over. True if one was."""
    about = d.fault.startswith(MIRRORED) or d.fault in ("partner-silent", "partner-lost")
    if d.state == FAULTED and about:
        back_in_service(d, now)
        return True
    return False


def back_in_service(d: Dialog, now: Nanos) -> None:
    """The fault is repaired; resuming follows."""
    d.change(OPEN, now)
    d.fault = d.detail = ""
    d.faulted_at = 0
    d.env.count("repaired")
    d.event("repaired")
