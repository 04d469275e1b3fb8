"""Relays messages to learners: a replica passes new messages on to the learners that asked for them.

A learner of a large group asks another replica for a feed (`relay_tree` determines which), and repeats the request
while it wants one. The learner decides: if its feed is unreachable, or does not supply what the order names, it chooses
the next one. Messages missed in between are a gap like any other, and the feed is asked for them first.

Only new messages are passed on, so a message reaches every replica once, even if feeds form a cycle.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.core import Core
from holdfast.group.frames import FeedRequest, Payload
from holdfast.group.log.entries import View
from holdfast.group.membership.relay_tree import feeds_of, relays
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.machine import Outbox
from holdfast.types import NEVER, SECOND, Nanos, NodeId

FEEDS_MAX: Final = 64
"""Learners that one replica feeds; further requests are refused, and those learners ask another replica."""
REPEAT_NS: Final = SECOND
"""Interval at which a learner asks again, and checks whether its feed is good enough."""
EXPIRES_NS: Final = 4 * SECOND
"""A replica feeds a learner for this long after its last request."""
MISSES_MAX: Final = 8
"""Requests for missing messages in one interval after which a learner takes another feed."""


class Relay:
    """The feed of this replica, and the replicas that it feeds."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fed: dict[NodeId, Nanos] = {}
        """The learners that are fed from here, and until when."""
        self._feed: Peer | None = None
        self._known: tuple[View | None, str, int] = (None, "", -1)
        """The inputs that determine the feed: the committed view, the leader, and the reachable nodes."""
        self._candidates: list[str] = []
        self._turn = 0
        """How often a feed was given up."""
        self._nacks = 0
        """Requests for missing messages until the last check."""
        self._repeat_ns: Nanos = NEVER
        self.passed_on = 0
        """Payload frames that were passed on, counted per learner."""

    @property
    def deadline(self) -> Nanos:
        return self._repeat_ns

    # -- feeding others ------------------------------------------------------------------------------------------

    def asked(self, node: NodeId, frame: FeedRequest, now: Nanos) -> None:
        """A learner wants a feed, or no longer wants one."""
        core = self._core
        if not frame.wanted:
            self._fed.pop(node, None)
        elif core.peers.replica_at(node) is None or core.config.mode != "majority":
            core.ignore("stranger")
        elif node not in self._fed and len(self._fed) >= FEEDS_MAX:
            core.ignore("too many feeds")
        else:
            self._fed[node] = now + EXPIRES_NS
            self._repeat_ns = min(self._repeat_ns, now + REPEAT_NS)

    def pass_on(self, frame: Payload, sender: NodeId, out: Outbox) -> None:
        """A payload has something that is new here."""
        if not self._fed:
            return
        source = frame.stream.source
        to = [node for node in self._fed if node not in (sender, source)]
        if to:
            self.passed_on += len(to)
            post(out, to, frame)

    def peer_down(self, node: NodeId) -> None:
        self._fed.pop(node, None)

    # -- this replica's feed -------------------------------------------------------------------------------------

    def settle(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        view, leader, changed = core.log.committed_view, core.leadership.leader, core.peers.changed
        known = self._known
        # Equal views are not compared: that takes as long as the view is large, in every turn.
        if view is not known[0] or leader != known[1] or changed != known[2]:
            self._known = (view, leader, changed)
            wanted = view is not None and relays(core.config, view)
            self._candidates = feeds_of(view, core.name, leader) if wanted and view else []
            self._choose(now, out)
        if now >= self._repeat_ns:
            self._check(now, out)

    def _check(self, now: Nanos, out: Outbox) -> None:
        """Ask again. A feed that leaves many messages missing is given up."""
        self._fed = {node: until for node, until in self._fed.items() if until > now}
        nacks = self._core.recovery.nacks
        # rule: S-11c
        if self._feed is not None and nacks - self._nacks >= MISSES_MAX:
            self._turn += 1
            self._choose(now, out)
        self._nacks = nacks
        self._ask(now, out)

    def _choose(self, now: Nanos, out: Outbox) -> None:
        """Take the first candidate that is reachable, after those that were given up."""
        peers = [self._core.peers.named(name) for name in self._candidates]
        here = [peer for peer in peers if peer is not None]
        feed = here[self._turn % len(here)] if here else None
        before, self._feed = self._feed, feed
        if feed is before:
            return
        turn = here.index(feed) if feed is not None else 0
        self._core.recovery.feeds = tuple([peer.node for peer in [*here[turn:], *here[:turn]]])
        if before is not None and self._core.peers.at(before.node) is not None:
            post(out, [before.node], FeedRequest(self._core.config.name, False))
        self._nacks = self._core.recovery.nacks
        self._ask(now, out)

    def _ask(self, now: Nanos, out: Outbox) -> None:
        if self._feed is not None:
            post(out, [self._feed.node], FeedRequest(self._core.config.name, True))
        self._repeat_ns = now + REPEAT_NS if self._feed is not None or self._fed else NEVER

    def status(self) -> dict[str, object]:
        return {
            "from": "" if self._feed is None else self._feed.name,
            "to": len(self._fed),
            "passed_on": self.passed_on,
        }
