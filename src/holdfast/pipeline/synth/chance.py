"""One seed decides everything: a random generator for each named use, the same on every machine."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def generator(seed: int, *use: object) -> np.random.Generator:
    """The generator of one use, independent of all others."""
    import numpy as np

    words = hashlib.blake2b(repr((seed, use)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(words, "big")))
