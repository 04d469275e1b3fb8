"""Advice in force on this node: which of its flows to leave, and what share of its diagnostics to send.

Advice only ranks. A flow that it avoids stays usable: traffic leaves it if another flow meets its needs, and uses it
rather than one that does not. Without valid advice everything is as before. The rules that damp moves are those of
`holdfast.telemetry.advice.Follower`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from holdfast.health.ports import AdviceNews
from holdfast.links.ports import FlowReady
from holdfast.telemetry.advice import PPM, Follower
from holdfast.types import NEVER, SECOND, Nanos, NodeId

REFRESH_NS: Final = 5 * SECOND
"""Interval between checks whether advice expired, a risk passed, or a busy window began."""
NOT_CONFIGURED: Final = "no [advice] directory is configured"
_AGE: Final = re.compile(r" \d+ s ago$")
SHOWN_MAX: Final = 100
"""Avoided paths and busy windows in a status."""

Pair = tuple[str, str, str]
"""Our adapter, the peer, its adapter. A risk of one transport concerns all flows of the pair: a fault of a path
usually affects them all, and moving between them would help nothing."""


class Advised:
    """What a node makes of advice. It outlives the unit that uses it."""

    def __init__(self, me: NodeId) -> None:
        self.deadline: Nanos = NEVER
        """When `refresh` may change something."""
        self.wall_offset_ns: Nanos = 0
        self._me = me.hex()
        self._follower = Follower()
        self._follower.problem = NOT_CONFIGURED
        self._source = ""
        self._damaged: tuple[str, ...] = ()
        self._reasons: dict[Pair, str] = {}
        self._said = ""

    def take(self, now: Nanos, news: AdviceNews) -> bool:
        """The newest edition, or that there is none; True if flows must be judged again."""
        self.wall_offset_ns = news.wall_offset_ns
        self._source, self._damaged = news.source, news.damaged
        if news.advice is None:
            self._follower.drop(f"no readable advice in {news.source}")
            self.deadline = NEVER
            return self._changed()
        self._follower.take(news.advice, self._wall_us(now))
        self.deadline = now + REFRESH_NS
        return self._changed()

    def refresh(self, now: Nanos) -> bool:
        """Apply validity, thresholds and dwell times now; True if flows must be judged again."""
        self.deadline = now + REFRESH_NS if self._follower.advice is not None else NEVER
        self._follower.refresh(self._wall_us(now))
        return self._changed()

    def reason(self, ready: FlowReady) -> str:
        """Why a flow is avoided; empty if it is not."""
        if not self._reasons:
            return ""
        return self._reasons.get((ready.adapter, ready.peer.hex(), ready.remote_adapter), "")

    def unsound(self) -> dict[str, int]:
        """The nodes that replicas should leave, and the share of their paths that are bad (ppm)."""
        return {one.node: one.bad_ppm for one in self._follower.unsound()}

    def permille(self, now: Nanos, adapter: str) -> int:
        """The share of diagnostics that an adapter should send now."""
        advice = self._follower.advice
        if advice is None or not advice.busy:
            return 1000
        return self._follower.probe_share_ppm(self._me, adapter, self._wall_us(now)) // 1000

    def news(self) -> str:
        """One sentence if something has changed since the last call: in force or not, and what is avoided."""
        said = self._sentence()
        if said == self._said:
            return ""
        self._said = said
        return said

    def _sentence(self) -> str:
        if self._follower.problem:
            # Without ages: the same state is reported once.
            why = _AGE.sub("", self._follower.problem)
            return f"not followed, this node works as before: {why}"
        if not self._reasons:
            return "in force, no path is avoided"
        paths = "; ".join(
            f"{adapter} to {peer[:8]}/{remote}: {why}"
            for (adapter, peer, remote), why in sorted(self._reasons.items())[:5]
        )
        return f"in force, {len(self._reasons)} avoided: {paths}"

    def status(self, now: Nanos) -> dict[str, Any]:
        """For the status of the node and its page."""
        follower, wall_us = self._follower, self._wall_us(now)
        advice = follower.advice
        status: dict[str, Any] = {
            "source": self._source,
            "in_force": not follower.problem,
            "problem": follower.problem,
            "damaged": list(self._damaged),
            "snapshot": follower.snapshot,
            "avoided": [],
            "busy": [],
            "unsound": [],
            "placements": {},
            "findings": list(advice.findings[:SHOWN_MAX]) if advice is not None else [],
        }
        if advice is None or follower.problem:
            return status
        status["valid_s"] = (advice.valid_until_us - wall_us) // 1_000_000
        status["moves_max"] = advice.moves_max
        status["avoided"] = [msgspec.to_builtins(item) for item in follower.avoided()[:SHOWN_MAX]]
        status["unsound"] = [msgspec.to_builtins(one) for one in follower.unsound()[:SHOWN_MAX]]
        status["placements"] = {
            one.node: one.bad_ppm / PPM
            for one in sorted(advice.placements, key=lambda one: -one.bad_ppm)[:SHOWN_MAX]
        }
        status["busy"] = [
            {"adapter": window.adapter, "probe_share": window.probe_share_ppm / PPM}
            for window in advice.busy[:SHOWN_MAX]
            if window.node == self._me and window.start_us <= wall_us < window.end_us
        ]
        return status

    def _changed(self) -> bool:
        before = self._reasons
        self._reasons = {
            (item.path[1], item.path[2], item.path[3]): f"advised to avoid it: {item.why or 'risk'}"
            for item in self._follower.avoided()
            if item.path[0] == self._me
        }
        return self._reasons != before

    def _wall_us(self, now: Nanos) -> int:
        return (now + self.wall_offset_ns) // 1000
