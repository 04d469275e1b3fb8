"""One seed determines everything: each concern has its own `Random`, derived by a stable hash of its name.

Concerns do not share a `Random`, so adding a fault on one path does not change the random values of others. A scenario
can therefore be shrunk without becoming another one.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def derive(seed: int, *names: str | int) -> int:
    """A seed for one concern. The same on every machine, Python version and hash seed."""
    text = "\0".join((str(seed), *map(str, names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def chance(seed: int, *names: str | int) -> Random:
    """The `Random` of one concern."""
    return Random(derive(seed, *names))
