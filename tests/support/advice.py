"""Advice for tests: editions that are valid around a time."""

from __future__ import annotations

from holdfast.telemetry.advice import PPM, Advice, BusyWindow, PathRisk, Placement

S_US = 1_000_000


def edition(
    now_us: int,
    *avoid: tuple[str, str, str, str],
    snapshot: int = 1,
    valid_s: int = 3600,
    busy: tuple[BusyWindow, ...] = (),
    dwell_s: int = 0,
    placements: tuple[Placement, ...] = (),
) -> Advice:
    """Avoid these paths (sender, adapter, listener, adapter), with a risk of 90 %."""
    until_us = now_us + valid_s * S_US
    risks = tuple(
        PathRisk((*path, path[1], "udp"), 9 * PPM // 10, until_us, True, "fails at night")
        for path in avoid
    )
    return Advice(
        snapshot=snapshot,
        created_us=now_us,
        valid_until_us=until_us,
        dwell_us=dwell_s * S_US,
        risks=risks,
        busy=busy,
        placements=placements,
    )
