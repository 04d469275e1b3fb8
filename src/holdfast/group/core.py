"""The state shared by all parts of a replica: its place in the group, its log, its buffers, and counters of ignored
frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.group.config import GroupConfig
from holdfast.group.consensus.leadership import Leadership
from holdfast.group.delivery import Delivery
from holdfast.group.frames import StreamId
from holdfast.group.log.entries import Member, View
from holdfast.group.log.pending_entries import PendingEntries
from holdfast.group.log.replicated_log import Log
from holdfast.group.peer import Peer
from holdfast.group.peers import Peers
from holdfast.group.streams.gap_recovery import Recovery
from holdfast.group.streams.stream_buffer import Streams
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import Nanos, NodeId

if TYPE_CHECKING:
    from holdfast.group.log.journal import Journal
    from holdfast.group.log.stability import LogStability


class Core:
    """The parts that a replica has as leader, as follower and at its start."""

    def __init__(self, config: GroupConfig, node: NodeId, name: str, incarnation: int) -> None:
        self.config = config
        self.node = node
        self.name = name
        self.incarnation = incarnation
        self.life = 0 if config.is_durable else incarnation
        self.peers = Peers(config, name)
        self.leadership = Leadership()
        self.log = Log()
        self.streams = Streams(2 * config.window_bytes, config.streams)
        self.pending = PendingEntries(self.log, self.streams, binding=config.mode == "majority")
        self.delivery = Delivery(config, self.log, self.streams, config.zones_of(name))
        self.recovery = Recovery(config, node, incarnation, self.log, self.streams, self.peers)
        self.ignored: dict[str, int] = {}
        """Frames that were ignored, by reason."""
        self.stability: LogStability | None = None
        """Set by the replica."""
        self.journal: Journal | None = None
        """Of a durable replica."""
        self._peers_of: tuple[View | None, str, bool] = (None, "", True)
        """The inputs that determine the peers: the view of the log, the leader, and whether the view is committed."""
        self._quorum: tuple[View | None, int, int] = (None, -1, 0)
        """The last result of `quorum`, with its view and peers."""

    @property
    def group_epoch(self) -> int:
        """The group epoch of the log; 0 while this replica has no state: it has just started, has acknowledged nothing
        in this incarnation, and knows no group."""
        return self.log.epoch

    @group_epoch.setter
    def group_epoch(self, epoch: int) -> None:
        self.log.epoch = epoch

    @property
    def is_blank(self) -> bool:
        return not self.group_epoch

    # -- the view ------------------------------------------------------------------------------------------------

    @property
    def me(self) -> Member | None:
        """This replica in the view of its log, if that names this life."""
        return self.member_in(self.log.tail.view)

    def member_in(self, view: View | None) -> Member | None:
        member = view.named(self.name) if view is not None else None
        if member is None or member.node != self.node or member.life != self.life:
            return None
        return member

    def voters_here(self) -> list[Peer]:
        """The other reachable voters of the view, in the lives that it names."""
        view, peers = self.log.tail.view, self.peers
        if view is None:
            return []
        return [
            peer
            for peer in peers.replicas
            if (member := view.named(peer.name)) is not None and member.voter and peers.is_here(member)
        ]  # fmt: skip

    def quorum(self, view: View) -> int:
        """The number of voters needed to commit: a majority.

        Lives that are known to have ended never acknowledge or vote again. If they are fewer than a majority, every
        earlier majority included one of the others, so all the others together can commit as well: a group of two
        survives the restart of one. In `availability` groups the reachable voters are enough.
        """
        known, changed, quorum = self._quorum
        if known is not view or changed != self.peers.changed:
            quorum = self._count_quorum(view)
            self._quorum = (view, self.peers.changed, quorum)
        return quorum

    def _count_quorum(self, view: View) -> int:
        if self.config.mode == "availability":
            mine = self.member_in(view)
            # rule: 11m
            here = len(self.voters_here()) + (mine is not None and mine.voter)
            return max(1, min(view.majority, here))
        return self.true_majority(view)

    def true_majority(self, view: View) -> int:
        """The number of voters needed to commit in every mode except `availability`, where view changes need this
        many."""
        majority = view.majority
        ended = sum(1 for voter in view.voters if self.peers.has_ended(voter))
        # rule: 2i
        return min(majority, len(view.voters) - ended) if ended < majority else majority

    def needed(self, view: View) -> int:
        """How many voters must be present for a membership change. In `availability` groups both sides of a partition
        continue and must stay one group; an ended life is on no side."""
        majority = self.true_majority(view)
        if self.config.mode == "majority":
            return majority
        remaining = sum(1 for voter in view.voters if not self.peers.has_ended(voter))
        return max(1, min(majority, remaining))

    @property
    def view_before(self) -> View | None:
        """The view whose voters must also have everything while a voter change is not committed; None if there is none.

        Voters may continue without those whose lives have ended. A majority without a member in common with the others
        of the previous view would be unknown to them: that of a new voter and one that then loses its state, or that of
        one voter that removes the other of two and loses its state. If lives do not end, any two majorities intersect;
        a restarted replica may not know that a view is committed, nor reach the members of the previous one.
        """
        config, log = self.config, self.log
        # rule: 6g
        if log.view_index <= log.commit or config.is_durable or config.mode == "availability":
            return None
        before, view = log.view_before, log.tail.view
        if before is None or view is None or before.group_epoch != view.group_epoch:
            return None
        lives = [{(voter.node, voter.life) for voter in one.voters} for one in (before, view)]
        # rule: 6e
        return before if lives[0] != lives[1] else None

    def follow_view(self) -> bool:
        """Check whether the view of the log has changed, and determine the peers; True if it has.

        A member that is being removed is a peer until that is committed: voters that have not heard of it may elect it.
        A leader that removes itself is one until another leads: it commits that, and hands over.
        """
        log = self.log
        view, leader, is_decided = (
            log.tail.view,
            self.leadership.leader,
            log.view_index <= log.commit,
        )
        known, led, was_decided = self._peers_of
        if view is known and leader == led and is_decided == was_decided:
            return False
        self._peers_of = (view, leader, is_decided)
        names = [] if view is None else [member.name for member in view.members]
        removed = () if view is None else view.removed
        names += [name for name in self.config.replicas if name not in removed]
        # rule: 6f
        before = None if is_decided else log.view_before
        if before is not None:
            names += [member.name for member in before.members]
        # rule: 8k
        if leader:
            names.append(leader)
        self.peers.use(names)
        return True

    def new_term(self, term: int) -> None:
        """A later term starts. Pending entries may never have been committed (rule 1)."""
        self.leadership.adopt(term)
        self.pending.new_term()

    @property
    def stable(self) -> int:
        """Up to where the log of this replica counts in a majority: a crash must not lose what it counted for."""
        # rule: 2c
        return self.log.last if self.journal is None else min(self.journal.durable, self.log.last)

    # -- messages ------------------------------------------------------------------------------------------------

    @property
    def is_tight(self) -> bool:
        """Whether so much is held that a sender may be waiting for room."""
        return (
            len(self.log) >= self.config.log_entries // 2
            or self.streams.most_bytes() >= self.config.tight_bytes
        )

    def know(self, stream: StreamId, number: int) -> None:
        """Number `number` of the stream exists somewhere."""
        self.streams.know(stream, number, self.log.tail.next.get(stream, 1))

    def why_not_suspend(self) -> str:
        """Why this replica must not step down voluntarily; empty if it may. The remaining ones must be able to commit,
        and one of them to lead."""
        view, voters = self.log.tail.view, self.voters_here()
        here = len(voters)
        needed = view.majority if view is not None and self.config.mode == "majority" else 1
        # rule: 8n
        if here < needed:
            return f"{here} other voters are reachable, {needed} are needed without {self.name}"
        members = [view.named(peer.name) for peer in voters] if view is not None else []
        if any(
            member is not None and member.may_lead and not member.suspended for member in members
        ):
            return ""
        return "none of the other reachable voters may lead"

    # -- ignored frames ------------------------------------------------------------------------------------------

    def ignore(self, why: str) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1

    def fact(
        self, event: str, detail: str, now: Nanos, out: Outbox, rollback_index: int = -1
    ) -> None:
        term, index, name = self.leadership.term, self.log.last, self.config.name
        out.fact(GroupFact(now, name, event, term, index, detail, self.group_epoch, rollback_index))
