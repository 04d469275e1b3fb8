"""Determines the index up to which every member of the committed view has applied the log.

This is the group's side of `holdfast.stability`: it informs the detector of the committed view and of the progress of
this replica, passes frames on, and turns the stable index into the index that may be freed. Every replica frees by
itself; the leader is only the coordinator, if the protocol has one.

A report is (held, applied). Held means in the log, committed, and on disk if the group is durable. Neither shrinks
within a life: after a rollback, or a restart of a durable replica, the replica applies its own log again and needs
nothing below its report from others (rule 2). The view of the detector has the members that are not suspended, by
their lives. For a suspended member that installs a snapshot, the log is kept from its pin on, which is part of the view
(rule 5).

In `availability` groups, two sides continue separately and one of them is rolled back, so reports do shrink. There, the
leader's account decides (`AppliedTracker`), and no detector runs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.core import Core
from holdfast.group.facts import StabilityFact
from holdfast.group.log.entries import View
from holdfast.group.membership.seating import seats_of
from holdfast.group.peers import post
from holdfast.machine import Outbox
from holdfast.stability import APPLIED, HELD, Detector
from holdfast.stability import View as StableView
from holdfast.stability.frames import ResultAck, StabilityFrame
from holdfast.stability.riding import Posts
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos, NodeId

LOOK_NS: Final = SECOND
"""The minimum interval between checks for a blocking member."""
SAMPLE_NS: Final = 30 * SECOND
"""The interval between facts while nothing changes."""
REPORT_NS: Final = MILLISECOND
"""The minimum interval between reports to the detector; under load there are many turns in a millisecond."""
IDLE_REPORT_NS: Final = 20 * MILLISECOND
"""The same while no messages are held: then no source waits, and entries of services or views are all there is to free.
Always for a member that begins no rounds: it reports before it answers anyway."""
ALONE_NS: Final = 5 * MILLISECOND
"""How soon progress is reported if nothing else happens: it does not deserve a turn of its own after each message."""


class LogStability:
    """Owns the detector of one replica."""

    def __init__(self, core: Core) -> None:
        config = core.config
        settings = msgspec.structs.replace(config.stability, calm_bytes=config.calm_bytes)
        self._core = core
        self._log = core.log
        self.active = config.mode == "majority"
        self.detector = Detector(settings, config.name, core.node, core.life, core.incarnation)
        self._view: View | None = None
        self._epoch = 0
        self._pin = 0
        """The lowest index from which the log is kept for a member that installs a snapshot; 0: none."""
        self._held = self._applied = 0
        self._acks: dict[NodeId, tuple[int, int]] = {}
        """What acknowledgements said since they were last given to the detector. Bounded by the members of the view."""
        self._reported = (-1, -1, -1)
        """The last report: held, applied, bytes."""
        self._peers_seen = -1
        self._coordinator = ""
        self._told_ns: Nanos = -REPORT_NS
        self._told_of = (-1, -1, -1)
        """What the last report was made of: applied, committed, on disk."""
        self.held_bytes = 0
        """What this replica kept of all streams at the last report."""
        self._holds = False
        """Whether messages may be held, which a source waits for."""
        self._stable: list[int] = [0, 0]
        """A copy of what is stable, and what it was copied from: it is asked for in every turn."""
        self._stable_of = self.detector.stable
        self._stable_version = self.detector.version
        self._begins = False
        """Whether this member begins rounds."""
        self._posts: Posts = []
        """Frames to send at the end of the turn."""
        self.deadline: Nanos = NEVER
        self._now: Nanos = 0
        self._look_ns: Nanos = 0
        self._sample_ns: Nanos = 0
        self._blocker = ""
        """The member that blocked at the last fact."""

    @property
    def index(self) -> int:
        """Entries up to here are needed by no other member."""
        applied = self._stable_at(APPLIED)
        # rule: S-5b
        return min(applied, self._pin) if self._pin else applied

    @property
    def held_index(self) -> int:
        """Entries up to here are committed, and every member of the committed view holds them."""
        # rule: S-1b
        return min(self._stable_at(HELD), self._log.commit) if self.active else 0

    def _stable_at(self, slot: int) -> int:
        detector = self.detector
        if detector.version != self._stable_version or detector.stable is not self._stable_of:
            self._stable_of, self._stable_version = detector.stable, detector.version
            self._stable = detector.stable.tolist()
        return self._stable[slot]

    def settle(self, now: Nanos, out: Outbox) -> None:
        """Inform the detector of changes, and do what is due. Its frames leave with `ride` or `post`."""
        core, detector = self._core, self.detector
        self._now = now
        if not self.active or not core.group_epoch:
            return
        posts = self._posts
        view = self._log.committed_view
        if view is not None and (view is not self._view or core.group_epoch != self._epoch):
            self._enter(view, now, posts)
        if core.streams.changed:
            self._holds = True
        is_often = self._holds and self._begins
        is_due = now >= self._told_ns + (REPORT_NS if is_often else IDLE_REPORT_NS)
        if is_due or core.peers.changed != self._peers_seen:
            self._follow_peers(now, posts)
        if is_due:
            self._report(now, posts)
        if detector.ready <= now or detector.is_running:
            self._learn(now, posts)
        if detector.ready <= now:
            detector.wake(now, posts)
        self._set_deadline(now)
        if now >= self._look_ns:
            self._look_ns = now + LOOK_NS
            self._record(now, out)

    def _record(self, now: Nanos, out: Outbox) -> None:
        """A fact for telemetry: rarely, and when another member blocks."""
        status = self.detector.status(now)
        first = status.blockers[0] if status.blockers else None
        blocker, why = (first.name, first.why) if first is not None else ("", "")
        if not status.protocol or (blocker == self._blocker and now < self._sample_ns):
            return
        self._blocker, self._sample_ns = blocker, now + SAMPLE_NS
        out.fact(
            StabilityFact(
                now, self._core.config.name, status.protocol, status.members, self.index,
                status.lag_ns // MILLISECOND, status.held_bytes, blocker, why, self._epoch, status.view[1],
                self._held, self._log.ground.index,
            )
        )  # fmt: skip

    def _set_deadline(self, now: Nanos) -> None:
        """After every turn, so it compares what the last report was made of, and not the report."""
        core, due_ns = self._core, self.detector.deadline
        applied, commit, on_disk = self._told_of
        if (
            core.delivery.applied != applied
            or self._log.commit != commit
            or (core.journal is not None and core.stable != on_disk)
        ):
            is_soon = self._holds and self._begins
            wait_ns = ALONE_NS if is_soon else IDLE_REPORT_NS
            due_ns = min(due_ns, max(now + 1, self._told_ns + wait_ns))
        self.deadline = due_ns

    def _enter(self, view: View, now: Nanos, posts: Posts) -> None:
        if self._core.group_epoch != self._epoch:
            self._epoch = self._core.group_epoch
            self._held = self._applied = 0
        self._view = view
        self._pin = min([member.pin for member in view.members if member.pin], default=0)
        self.detector.enter(StableView(self._epoch, view.number, seats_of(view)), now, posts)
        self._peers_seen = -1
        self._acks.clear()  # they may be of lives that the view does not have
        self._reported = (-1, -1, -1)
        self._report(now, posts)

    def _numbers(self) -> tuple[int, int]:
        core, commit = self._core, self._log.commit
        # rule: S-2b
        held, applied = min(core.stable, commit), min(core.delivery.applied, commit)
        # rule: S-2c
        return max(self._held, held), max(self._applied, min(held, applied))

    def _report(self, now: Nanos, posts: Posts) -> None:
        self._told_ns = now
        if self.detector.view is None:
            return
        core = self._core
        self._held, self._applied = self._numbers()
        self._told_of = (core.delivery.applied, self._log.commit, core.stable)
        self._begins = self.detector.initiates
        report = (self._held, self._applied, core.streams.most_bytes())
        self._holds = report[2] > 0
        self.held_bytes = core.streams.all_bytes() if self._holds else 0
        if report != self._reported:
            self._reported = report
            self.detector.report(report[:2], report[2], now, posts)

    def _follow_peers(self, now: Nanos, posts: Posts) -> None:
        """Update which members are reachable, and which one leads."""
        core, view = self._core, self._view
        if view is None:
            return
        if core.peers.changed != self._peers_seen:
            self._peers_seen = core.peers.changed
            gone = [
                NodeId(member.node)
                for member in view.members
                if member.name != core.name and not core.peers.is_here(member)
            ]
            self.detector.suspect(gone, now, posts)
        leader = core.leadership.leader
        if leader and leader != self._coordinator:
            named = view.named(leader)
            if named is not None:
                self._coordinator = leader
                self._learn(now, posts)
                self.detector.coordinate(NodeId(named.node), now, posts)

    def take(self, node: NodeId, frame: StabilityFrame, now: Nanos) -> None:
        """A frame of another member. What this replica has is reported first: a result may count on all of it."""
        if not self.active or self._view is None:
            self._core.ignore("stability")
            return
        posts = self._posts
        if type(frame) is not ResultAck:
            self._report(now, posts)
            self._learn(now, posts)
        self.detector.take(node, frame, now, posts)
        self._set_deadline(now)

    def heard(self, node: NodeId, held: int, applied: int) -> None:
        """On the leader: an acknowledgement states the progress of a member, so it is also a report (rule 10).

        Not in `fast` groups: a member that runs ahead learns later than the leader which part is committed. Under load
        a member acknowledges many times for each round; the detector gets the last one, when a round can begin or end.
        """
        # rule: S-10b
        if self.active and self._view is not None and self._core.config.delivery == "safe":
            self._acks[node] = (max(held, applied), applied)

    def _learn(self, now: Nanos, posts: Posts) -> None:
        if not self._acks:
            return
        acks, self._acks = self._acks, {}
        for node, numbers in acks.items():
            self.detector.learn(node, numbers, now, posts)

    def ride(self, node: NodeId, now: Nanos, out: Outbox) -> None:
        """Something is sent to a member in this turn: frames that waited for it travel in the same packet (S7).

        They are never `immediate`: what they report is on disk.
        """
        if self.active and self._view is not None:
            for frame in self.detector.ride(node, now):
                post(out, [node], frame)

    def post(self, out: Outbox) -> None:
        """At the end of a turn: send the frames that do not wait for a ride. They follow the entries of the turn, which
        may bring the view that they belong to."""
        at = self._core.peers.at
        for nodes, frame in self._posts:
            post(out, [node for node in nodes if at(node) is not None], frame)
        self._posts.clear()

    def status(self) -> dict[str, object]:
        """For the status: the protocol, the lag of freeing, and the members that delay it."""
        held = self._core.streams.all_bytes()
        if not self.active:
            return {
                "protocol": "account",
                "stable": 0,
                "lag_ms": 0,
                "held": held,
                "pin": 0,
                "blockers": [],
            }
        status = self.detector.status(self._now)
        return {
            "protocol": status.protocol,
            "stable": self.index,
            "round": status.round,
            "lag_ms": status.lag_ns // MILLISECOND,
            "last_lag_ms": status.last_lag_ns // MILLISECOND,
            "held": held,
            "pin": self._pin,
            "blockers": [
                {
                    "name": blocker.name,
                    "why": blocker.why,
                    "since_ms": blocker.since_ns // MILLISECOND,
                }
                for blocker in status.blockers
            ],
            "refused": status.refused,
            "sent": status.sent,
            "rode": status.rode,
        }
