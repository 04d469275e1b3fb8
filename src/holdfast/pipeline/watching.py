"""Looking for new segments again and again: a look that fails is reported, and the next one may succeed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.errors import HoldfastError, MisuseError
from holdfast.pipeline.jobs import PipelineBusy, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KeptEngine:
    """One engine for many runs. After a run that failed, the next one gets a new engine.

    Java that was killed, or a cluster that was restarted, would otherwise fail every later run.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[SparkSession]]) -> None:
        self._start = start
        self._running = contextlib.ExitStack()
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """The session, started if none is there."""
        if self._session is None:
            self._session = self._running.enter_context(self._start())
        return self._session

    @contextlib.contextmanager
    def renewed_after_failure(self) -> Iterator[SparkSession]:
        """The session for one run. After any failure but a busy directory the engine may be the cause."""
        from py4j.protocol import Py4JError

        try:
            yield self.session()
        except PipelineBusy:
            raise
        except Py4JError as failure:
            self.stop()
            raise PipelineFailed(
                f"the engine failed; published tables and report are unchanged. {failure}"
            ) from failure
        except (HoldfastError, OSError):
            self.stop()
            raise

    def stop(self) -> None:
        self._session = None
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def keep_watching(
    look: Callable[[], None],
    every_s: float,
    runs: int,
    tell: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Call `look` every `every_s` seconds, `runs` times, or without end if that is 0.

    Misuse ends it. Any other failure (a busy directory, a full disk, an engine that restarts) is reported, and the
    watch continues.
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
