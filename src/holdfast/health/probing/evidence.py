"""The evidence in misses and arrivals, as integers: thousandths of a log-likelihood ratio.

Every verdict is a sequential test: evidence increases with each miss by how much more likely the fault makes it than
the known loss of the path, and decreases with each arrival. A threshold gives the rate of false verdicts for any loss:
a cumulative sum with a floor of zero reaches a threshold h by chance once in e^h observations.
"""

from __future__ import annotations

from typing import Final

# ln(0.98 / loss) in thousandths: the evidence of one missing packet at this background loss.
_MISS: Final = (
    (1_000, 6_888),
    (2_000, 6_194),
    (5_000, 5_278),
    (10_000, 4_585),
    (20_000, 3_892),
    (50_000, 2_976),
    (100_000, 2_282),
    (150_000, 1_877),
    (200_000, 1_589),
    (300_000, 1_184),
    (400_000, 896),
    (500_000, 673),
    (600_000, 491),
    (700_000, 336),
    (800_000, 203),
    (1_000_000, 60),
)
HIT: Final = 3_900
"""The evidence of one arrival against a fault: a fault lets one packet in fifty pass."""
SUSPECT: Final = 4_000
"""From here on, a suspicion justifies the probes that confirm it: one miss on a clean path, three on a very lossy
one."""
LN2: Final = 693
DAY_S: Final = 86_400


def miss_weight(loss_ppm: int) -> int:
    """The evidence of one miss."""
    for limit, value in _MISS:
        if loss_ppm <= limit:
            return value
    return _MISS[-1][1]


def compound_loss(loss_ppm: int, packets: int) -> int:
    """The loss of a probe that becomes several packets, all of which must arrive."""
    if packets <= 1:
        return loss_ppm
    passes = 1_000_000
    for _ in range(min(packets, 64)):
        passes = passes * (1_000_000 - min(loss_ppm, 1_000_000)) // 1_000_000
    return 1_000_000 - passes


def threshold(per_second: int, tests: int, alarms_per_1000_days: int) -> int:
    """The evidence for a verdict, from the false-alarm budget of the domain: `tests` are made at this rate by all
    nodes."""
    observations = max(per_second, 1) * max(tests, 1) * DAY_S * 1000 // max(alarms_per_1000_days, 1)
    return LN2 * observations.bit_length()


def patience(loss_ppm: int, evidence: int, at_least: int) -> int:
    """How many consecutive heartbeats must be missing before a path is dead."""
    return max(at_least, min(-(-evidence // miss_weight(loss_ppm)), 40))
