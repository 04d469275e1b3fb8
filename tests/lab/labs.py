"""Labs for tests: under a name of their own, and gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.lab.lab import Lab

_numbers = count(1)


@contextmanager
def a_lab(directory: Path, **shape: Any) -> Iterator[Lab]:
    """A lab of this shape (as `Lab.up` takes it)."""
    name = f"t{os.getpid()}x{next(_numbers)}"
    lab = Lab.up(name, run_in=directory, **shape)
    try:
        yield lab
    finally:
        Lab.down(name, directory)
