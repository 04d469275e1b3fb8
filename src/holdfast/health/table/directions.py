"""When the direction of an error can be claimed.

The listeners of both directions of a path find a fault independently, and notice its end independently. For a moment
after it began, the direction is therefore unknown, unless both are known to fail; and while the second of two
directions recovers, the error stays one of both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.health.classify import DELAY, PATTERN, SIZE, SoftError
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.values import Alarm
from holdfast.types import MILLISECOND, NEVER, Nanos

BEGINS_NS: Final = {SIZE: 400 * MILLISECOND, PATTERN: 400 * MILLISECOND, DELAY: 150 * MILLISECOND}
STREAM_BEGINS_NS: Final = 450 * MILLISECOND
"""After an error was found in one direction, the other has this time to show it, too; streams take longer. Errors of
other classes are claimed later than this anyway."""
ENDS_NS: Final = 3000 * MILLISECOND
"""After one of two directions has recovered, the other has this time to do so as well."""
KEPT_MAX: Final = 10_000

Key = tuple[PathKey, str, str]
"""A path, an error class and a packet kind."""


class Directions:
    """The directions that are claimed for the errors of all paths."""

    def __init__(self) -> None:
        self._alone: dict[Key, Nanos] = {}
        """Since when an error of both ways is one of this direction alone."""

    def settle(
        self,
        now: Nanos,
        path: PathKey,
        error: SoftError,
        active: Mapping[tuple[str, str], Alarm],
        since: Nanos,
    ) -> tuple[SoftError, Nanos]:
        """The error with the direction to claim now, and when to look again. `since`: when its packet kind changed."""
        name = (error.error_class, error.kind)
        known = active.get(name)
        if not error.one_way:
            self._alone.pop((path, *name), None)
            return error, NEVER
        if known is not None and known.error.one_way is False:
            if (path, *name) not in self._alone and len(self._alone) < KEPT_MAX:
                self._alone[path, *name] = now
            until = self._alone.get((path, *name), now) + ENDS_NS
            claimed: bool | None = False
        else:
            begins_ns = BEGINS_NS.get(error.error_class, 0)
            until = since + (STREAM_BEGINS_NS if begins_ns and error.kind == "tcp" else begins_ns)
            claimed = None
            if known is not None and known.error.one_way:
                return error, NEVER
        if now >= until:
            self._alone.pop((path, *name), None)
            return error, NEVER
        return msgspec.structs.replace(error, one_way=claimed), until

    def forget(self, path: PathKey) -> None:
        """The path has no errors any more."""
        for key in [key for key in self._alone if key[0] == path]:
            del self._alone[key]
