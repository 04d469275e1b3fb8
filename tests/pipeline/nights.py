"""Days of telemetry of simulated nodes before their simulation begins: what they heard, in their own format."""

from __future__ import annotations

from pathlib import Path

from holdfast.recording.memory_segments import MemorySegments
from holdfast.sim.host import EPOCH_NS
from holdfast.telemetry.facts import Fact, PathFact
from holdfast.types import SECOND

STEP_S = 150
HOUR_S = 3600
NIGHT_S = (600, 2100)
"""The fault lasts from ten past midnight to 35 past."""


def write_nights(
    directory: Path, nodes: dict[str, str], adapters: tuple[str, ...], bad: str, nights: int
) -> None:
    """Two nodes (name to id) that hear each other on each adapter. The first night is the first thing that they see;
    in each, packets over 600 bytes vanish from the first node to the second on adapter `bad`. The last fact is from
    just before midnight of the day on which the simulation begins."""
    first_s = -nights * 24 * HOUR_S - 2 * HOUR_S
    names = list(nodes)
    for listener, sender in zip(names, reversed(names), strict=True):
        segments = MemorySegments(nodes[listener], listener, 0, EPOCH_NS + first_s * SECOND)
        facts: list[Fact] = []
        for at_s in range(first_s, 0, STEP_S):
            dark = NIGHT_S[0] <= at_s % (24 * HOUR_S) < NIGHT_S[1]
            for adapter in adapters:
                fails = dark and adapter == bad and sender == names[0]
                facts.append(
                    PathFact(
                        (at_s - first_s) * SECOND, "sample", nodes[sender], sender, adapter, adapter, adapter,
                        "udp", True, 600 if fails else 1472, 1472, 0, 200, 10, 10,
                    )
                )  # fmt: skip
        segments.record(facts)
        segments.write(directory)
