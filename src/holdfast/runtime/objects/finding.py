"""Objects by role: each confirmed replica publishes the role `replica` on the tree of its object.

A node that does not know where an object is finds the instances and connects to them directly. Publishing is paced and
bounded: objects beyond the bound are found by their directory entry, or by asking all nodes that hold replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.objects.ports import Locate, Located, Publish
from holdfast.overlay.ids import node_of
from holdfast.runtime.roles import Roles
from holdfast.runtime.roles_handles import DirectTree, Instance

ROLE: Final = "replica"
NEIGHBOURHOOD: Final = 3
"""Direct links of objects: the overlay keeps the most recently used ones."""
PUBLISHED_MAX: Final = 256
PACE_S: Final = 0.05
FIND_S: Final = 2.0
TREES_MAX: Final = 32
log = logging.getLogger("holdfast")


class Finder:
    def __init__(self, roles: Roles | None, answer: Callable[[Any], None]) -> None:
        self._roles = roles
        self._answer = answer
        self._waiting: dict[bytes, bool] = {}
        """What is to be published or not; the last wish counts."""
        self._published: dict[bytes, Instance] = {}
        self._working = False
        self._trees: dict[bytes, DirectTree] = {}

    async def locate(self, effect: Locate) -> None:
        nodes: tuple[bytes, ...] = ()
        if self._roles is not None:
            try:
                async with asyncio.timeout(FIND_S):
                    nodes = await self._find(self._roles, effect.object)
            except (HoldfastError, TimeoutError) as error:
                object_id = effect.object.hex()
                log.debug(
                    "object %s was not found by its role: %s",
                    object_id,
                    error,
                    extra=_fields("find_failed", object_id, error),
                )
        self._answer(Located(effect.token, nodes))

    async def _find(self, roles: Roles, object_id: bytes) -> tuple[bytes, ...]:
        locations = await roles.find(ROLE, object_id)
        if not locations:
            return ()
        old = self._trees.pop(object_id, None)
        if old is not None:
            old.close()
        self._trees[object_id] = await roles.connect(locations, NEIGHBOURHOOD)
        if len(self._trees) > TREES_MAX:
            self._trees.pop(next(iter(self._trees))).close()
        return tuple(dict.fromkeys(bytes(node_of(location.instance)) for location in locations))

    def publish(self, effect: Publish) -> bool:
        """True if `work` must be started."""
        if self._roles is None:
            return False
        if effect.on and len(self._published) + len(self._waiting) >= PUBLISHED_MAX:
            return False
        self._waiting[effect.object] = effect.on
        return not self._working

    async def work(self) -> None:
        """Publish what waits, one after the other."""
        if self._working or self._roles is None:
            return
        self._working = True
        try:
            while self._waiting:
                object_id = next(iter(self._waiting))
                wanted = self._waiting.pop(object_id)
                try:
                    await self._set(self._roles, object_id, wanted)
                except HoldfastError as error:
                    extra = _fields("publish_failed", object_id.hex(), error)
                    log.debug("object %s: %s", object_id.hex(), error, extra=extra)
                await asyncio.sleep(PACE_S)
        finally:
            self._working = False

    async def _set(self, roles: Roles, object_id: bytes, wanted: bool) -> None:
        if wanted and object_id not in self._published:
            self._published[object_id] = await roles.publish(ROLE, object_id)
        elif not wanted and object_id in self._published:
            await self._published.pop(object_id).unpublish()


def _fields(event: str, object_id: str, error: BaseException) -> dict[str, str]:
    """What the log knows about an object that was not found or published."""
    return {"event": event, "subsystem": "objects", "object": object_id, "error": repr(error)}
