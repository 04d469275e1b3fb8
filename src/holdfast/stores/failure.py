"""After a failed commit a store takes no more, and says why: the first reason, not the last."""

from __future__ import annotations

from holdfast.errors import StoreError


def refuse_after(failure: StoreError | None) -> None:
    """Raise the error of the commit that failed, if one did, for a commit that comes after it."""
    if failure is not None:
        raise type(failure)(f"nothing was written: an earlier commit failed. {failure}")
