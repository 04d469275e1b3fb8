"""One seed decides everything: the same seed gives the same trace, to the byte, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

from tests.sim.storm import digest, storm

from holdfast.sim.seeds import chance, derive
from holdfast.sim.trace import Trace

ROOT = Path(__file__).parents[2]


def digest_elsewhere(seed: int, hash_seed: str) -> str:
    """The digest of a run in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.storm", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_the_same_seed_gives_the_same_trace_under_another_hash_seed() -> None:
    here = digest(11)
    assert digest_elsewhere(11, "1") == here
    assert digest_elsewhere(11, "4242") == here


def test_another_seed_gives_another_trace() -> None:
    assert digest(12) != digest(13)


def test_a_trace_changes_nothing() -> None:
    traced, silent = storm(14, Trace()), storm(14, None)
    assert traced.events == silent.events
    assert traced.sequence == silent.sequence


def test_the_trace_is_in_the_file_and_its_digest_is_of_the_file() -> None:
    file = StringIO()
    trace = Trace(file)
    storm(15, trace)
    again = Trace()
    for line in file.getvalue().splitlines():
        now, who, what = line.split(" ", 2)
        again.line(int(now), who, what)
    assert again.digest() == trace.digest()
    assert trace.lines == len(file.getvalue().splitlines()) > 1000
    assert list(trace.tail)[-1] == file.getvalue().splitlines(keepends=True)[-1]


def test_concerns_do_not_share_their_chance() -> None:
    assert derive(1, "path", "n1", "n2") != derive(1, "path", "n1n2")
    assert derive(1, "a") != derive(2, "a")
    assert chance(1, "a").getrandbits(64) == chance(1, "a").getrandbits(64)


def test_stable_hash_has_a_known_value() -> None:
    assert derive(7, "path", "n1") == 9050681974645119818
