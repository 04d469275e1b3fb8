"""Periodically reads the newest advice of the pipeline, in a thread, and passes it to the unit `health`.

A node without advice, or with stale or damaged advice, works as usual; status, page and log state the reason.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from holdfast.health.advice_config import AdviceConfig
from holdfast.health.ports import HEALTH, AdviceNews
from holdfast.runtime.threads import aside

if TYPE_CHECKING:
    from holdfast.recording.advice import Found
    from holdfast.subsystem import Port

log = logging.getLogger("holdfast")


class AdviceReader:
    """Checks for a new edition every `every_s` seconds while a node runs."""

    def __init__(self, port: Port, config: AdviceConfig, node: str) -> None:
        self._port = port
        self._config = config
        self._node = node
        self._seen: tuple[str, ...] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._config.directory:
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _go_on(self) -> None:
        while True:
            try:
                found = await aside(self._look)
                if found is not None:
                    self._hand_over(found)
            except Exception:
                log.exception(
                    "advice in %s could not be read",
                    self._config.directory,
                    extra=self._fields("advice_unreadable"),
                )
            await asyncio.sleep(self._config.every_s)

    def _look(self) -> Found | None:
        """In a thread: the newest edition, if the directory has changed."""
        from holdfast.recording.advice import editions, newest_advice

        directory = Path(self._config.directory)
        seen = editions(directory)
        if seen == self._seen:
            return None
        found = newest_advice(directory, self._node)
        self._seen = seen
        return found

    def _hand_over(self, found: Found) -> None:
        for problem in found.problems:
            extra = self._fields("advice_damaged") | {"reason": problem}
            log.warning("damaged advice is skipped: %s", problem, extra=extra)
        offset_ns = time_ns() - monotonic_ns()
        news = AdviceNews(found.advice, self._config.directory, found.problems, offset_ns)
        self._port.answer(HEALTH, news)

    def _fields(self, event: str) -> dict[str, str]:
        """What the log knows about advice."""
        return {"event": event, "subsystem": "health", "directory": self._config.directory}
