"""After a failed commit, a store accepts no more and reports the first reason."""

from __future__ import annotations

from holdfast.errors import StoreError


def refuse_after(failure: StoreError | None) -> None:
    """Raise the error of the first failed commit, if any, for a later commit."""
    if failure is not None:
        raise type(failure)(f"nothing was written: an earlier commit failed. {failure}")
