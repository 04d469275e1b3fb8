"""The `async with` block of a transaction, the same embedded in a node and through its daemon."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from holdfast.runtime.dialogs.blame import is_infrastructure
from holdfast.runtime.tracing import INTERNAL, Tracing


class TransactionScope:
    """Commits at the end of the block, or aborts when the block raises. With tracing, the block is one span."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self._span: AbstractContextManager[Any] | None = None

    async def begin(self) -> None:
        """At the start of the block."""
        raise NotImplementedError

    async def commit(self) -> None:
        """Make everything permanent. Raises `TransactionAborted`: nothing took effect."""
        raise NotImplementedError

    async def abort(self, counts: bool = True) -> None:
        """Undo everything. An abort by the application counts against the messages it received."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._tracing is not None:
            self._span = self._tracing.span("dialog.transaction", INTERNAL)
            self._span.__enter__()
        try:
            await self.begin()
        except BaseException:
            self._end_span(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Both shield themselves: a transaction ends one way or the other, and its dialogs learn it.
            if kind is None:
                await self.commit()
            else:
                # rule: D-14k
                await self.abort(counts=not is_infrastructure(error))
        except BaseException:
            self._end_span(*sys.exc_info())
            raise
        self._end_span(kind, error, trace)

    def _end_span(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
            self._span = None
