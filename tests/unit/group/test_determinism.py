"""The same seed gives the same trace, to the byte, whatever Python's hash seed is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RUN = "from tests.unit.group.chaos import Chaos; print(Chaos({seed}, steps=25).run().digest())"


def trace(seed: int, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(seed=seed)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.strip()


def test_one_seed_one_trace_under_two_hash_seeds() -> None:
    first = trace(12, "1")
    assert len(first) == 32
    assert trace(12, "2") == first
    assert trace(13, "1") != first, "the trace depends on the seed"
