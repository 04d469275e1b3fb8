"""When a node moves its replicas away by itself.

A path with an error has two ends, and both count it. The node that drains is the one with bad paths to the most others,
at least half of them: a single bad path does not say which end is sick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.types import Nanos


class Policy:
    def __init__(self, me: bytes, after_ns: Nanos) -> None:
        self._me = me
        self._after_ns = after_ns
        self._since: Nanos | None = None
        """Since when the opposite of the present state is wanted."""
        self.is_drained = False

    def decide(
        self, now: Nanos, penalties: Mapping[bytes, int], members: Sequence[bytes]
    ) -> bool | None:
        """True: drain this node now. False: take replicas again. None: leave it as it is."""
        wanted = self.is_sick(penalties, members)
        if wanted == self.is_drained:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        if now - self._since < self._after_ns:
            return None
        self._since = None
        self.is_drained = wanted
        return wanted

    def failed(self) -> None:
        """What was decided could not be done: it is tried again after the same time."""
        self.is_drained = not self.is_drained

    def is_sick(self, penalties: Mapping[bytes, int], members: Sequence[bytes]) -> bool:
        """Whether this node has bad paths to more others than any other node, and to at least half of them."""
        mine = penalties.get(self._me, 0)
        others = [penalties.get(node, 0) for node in members if node != self._me]
        if not mine or not others:
            return False
        return mine > max(others) and mine * 2 >= len(others)
