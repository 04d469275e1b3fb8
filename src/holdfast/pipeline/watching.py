"""Looking for new segments again and again: a look that fails is reported, and the next one may succeed."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.errors import HoldfastError, MisuseError


def keep_watching(
    look: Callable[[], None],
    every_s: float,
    runs: int,
    tell: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Call `look` every `every_s` seconds, `runs` times, or without end if that is 0.

    A wrong call ends it. Anything else (a busy directory, a full disk, a node that restarts) is told, and it goes on.
    """
    done = 0
    while True:
        try:
            look()
        except MisuseError:
            raise
        except (HoldfastError, OSError) as problem:
            tell(str(problem))
        done += 1
        if done == runs:
            return
        pause(every_s)
