"""Whether this node has found the domain, so that a role that it publishes can be found from everywhere.

A node that has just started knows only itself. If it registered a role then, it would register with itself and take the
role for the first of its kind. So a publish waits until every neighbour that the node has a link to has said hello and
has sent its map. A node that is to join a domain and has met no other node waits as well, but not without end: the
other nodes may be down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.overlay.hub import Hub
from holdfast.overlay.topology import Topology
from holdfast.types import MILLISECOND, Nanos

CHECK_NS: Final = 50 * MILLISECOND


class Readiness:
    def __init__(self, hub: Hub, topology: Topology) -> None:
        self._hub = hub
        self._topology = topology
        self._started: Nanos = hub.now
        self._waiting: list[Callable[[], None]] = []
        self._checks = False
        self.joins: Callable[[], bool] = lambda: False
        """From the links: there are nodes to meet, and none of them has refused."""

    def ready(self) -> bool:
        hub = self._hub
        if hub.meeting() or self._topology.catching_up():
            return False
        if hub.open_peers:
            return True
        return hub.now - self._started >= hub.config.join_ns or not self.joins()

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call now, or as soon as the domain has been found."""
        if not self._waiting and self.ready():
            call()
            return
        self._waiting.append(call)
        self._check_later()

    def waiting(self) -> int:
        return len(self._waiting)

    def check(self) -> None:
        """Something has changed; those that wait go on in the order in which they came."""
        if self._waiting and self.ready():
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()

    def _check_later(self) -> None:
        if not self._checks:
            self._checks = True
            self._hub.after(CHECK_NS, self._checked)

    def _checked(self) -> None:
        self._checks = False
        self.check()
        if self._waiting:
            self._check_later()
