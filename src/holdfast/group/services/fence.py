"""A fence: what is protected by a lock refuses tokens that are out of date."""

from __future__ import annotations

from typing import NoReturn

from holdfast.errors import StaleToken


class Fence:
    """Refuses tokens that are out of date. One for each thing that a lock protects.

    A node that was cut off may not know that it lost its lock. A later holder has a higher token; once that was seen,
    the lower one is refused.
    """

    def __init__(self, token: int = 0) -> None:
        self.token = token
        """The highest token that was seen."""

    def admit(self, token: int) -> None:
        """Raise `StaleToken` if a higher one was seen."""
        if type(token) is not int or token <= 0:
            self._refuse(f"{token!r} is not a token")
        if token < self.token:
            self._refuse(f"token {token} is stale: {self.token} was seen")
        self.token = token

    def _refuse(self, why: str) -> NoReturn:
        raise StaleToken(f"{why}; nothing was done")
