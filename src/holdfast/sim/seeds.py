"""One seed decides everything: each concern has a `Random` of its own, derived by a stable hash of its name.

Concerns do not share a `Random`, so a fault that is added on one path leaves the chances of all others as they were:
a scenario can be shrunk without becoming another one.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def derive(seed: int, *names: str | int) -> int:
    """A seed for one concern. The same on every machine, Python and hash seed."""
    text = "\0".join((str(seed), *map(str, names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def chance(seed: int, *names: str | int) -> Random:
    """The `Random` of one concern."""
    return Random(derive(seed, *names))
