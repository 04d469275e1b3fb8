"""The handle of a group in a process that traces. Without tracing, the plain `Group` is used and costs nothing more."""

from __future__ import annotations

from holdfast.group.config import GroupConfig
from holdfast.runtime.driver import Driver
from holdfast.runtime.handles import Group
from holdfast.runtime.services import ServiceBook
from holdfast.runtime.tracing import CLIENT, PRODUCER, Tracing


class TracedGroup(Group):
    """Spans for `send` and `flush`. `try_send` never waits and makes none."""

    def __init__(
        self, tracing: Tracing, driver: Driver, config: GroupConfig, stream: int, book: ServiceBook
    ) -> None:
        super().__init__(driver, config, stream, book)
        self._tracing = tracing

    async def send(
        self,
        message: bytes,
        *,
        priority: int | None = None,
        topic: str = "",
        request: bytes = b"",
        resync: bool = False,
        zone: str = "",
    ) -> None:
        with self._tracing.span("group.send", PRODUCER, group=self.name):
            await super().send(
                message, priority=priority, topic=topic, request=request, resync=resync, zone=zone
            )

    async def flush(self) -> None:
        with self._tracing.span("group.flush", CLIENT, group=self.name):
            await super().flush()
