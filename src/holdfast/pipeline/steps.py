"""The steps of a run: what it tells of them, and independent ones at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.pipeline.run_context import Progress, Step

Work = Callable[[], None]


class Steps:
    """Tells of each step as it begins. Up to `threads` pieces of work are done at a time."""

    def __init__(self, tell: Progress, total: int, threads: int) -> None:
        self._tell, self._total, self._threads = tell, total, threads
        self._lock = threading.Lock()
        self._done = 0
        self._broken = ""
        self._mine = threading.local()
        self._mine.doing = "starting"

    @property
    def doing(self) -> str:
        """The step that failed first, or the newest one of this thread."""
        return self._broken or str(self._mine.doing)

    def begin(self, text: str) -> None:
        """The step `text` begins; the one before it in this thread is over."""
        self._mine.doing = text
        with self._lock:
            self._tell(Step(text, min(self._done, self._total), self._total))
            self._done += 1

    def together(self, works: Sequence[Work]) -> None:
        """Do all of this work, in any order; raises the first failure when no other work is going on any more."""
        if self._threads < 2 or len(works) < 2:
            for work in works:
                work()
            return
        with ThreadPoolExecutor(self._threads, "pipeline") as pool:
            going = [pool.submit(self._one, work) for work in works]
        for one in going:
            one.result()

    def _one(self, work: Work) -> None:
        self._mine.doing = "starting"
        # What is left of a run that failed is thrown away.
        if self._broken:
            return
        try:
            work()
        except BaseException:
            self._fail(self._mine.doing)
            raise

    def _fail(self, text: str) -> None:
        with self._lock:
            self._broken = self._broken or text
