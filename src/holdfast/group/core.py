"""What all parts of a replica share: its place in the group, its log, what it holds, and how it counts oddities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.group.config import GroupConfig
from holdfast.group.delivery import Delivery
from holdfast.group.entries import Member, View
from holdfast.group.leadership import Leadership
from holdfast.group.log import Log
from holdfast.group.peers import Peer, Peers
from holdfast.group.recovery import Recovery
from holdfast.group.streams import Streams
from holdfast.group.waiting import Waiting
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import Nanos, NodeId
from holdfast.wire.frames import StreamId

if TYPE_CHECKING:
    from holdfast.group.journal import Journal


class Core:
    """The parts that a replica has whether it leads, follows or has just started."""

    def __init__(self, config: GroupConfig, node: NodeId, name: str, incarnation: int) -> None:
        self.config = config
        self.node = node
        self.name = name
        self.incarnation = incarnation
        self.life = 0 if config.is_durable else incarnation
        self.peers = Peers(config, name)
        self.leadership = Leadership()
        self.history = 0
        """Which founding of the group the log goes back to; 0 while this replica is *blank*: it has just started, has
        acknowledged nothing in this life, and knows of no group."""
        self.log = Log()
        self.streams = Streams(2 * config.window_bytes, config.streams)
        self.waiting = Waiting(self.log, self.streams, binding=config.mode == "majority")
        self.delivery = Delivery(config, self.log, self.streams)
        self.recovery = Recovery(config, node, incarnation, self.log, self.streams, self.peers)
        self.ignored: dict[str, int] = {}
        """Frames that were not acted upon, by reason."""
        self.journal: Journal | None = None
        """Of a durable replica."""
        self._peers_of: tuple[View | None, str, bool] = (None, "", True)
        """What the peers follow from: the view of the log, who leads, and whether the view is decided."""
        self._quorum: tuple[View | None, int, int] = (None, -1, 0)
        """What `quorum` last found, for which view and which peers."""

    @property
    def is_blank(self) -> bool:
        return not self.history

    # -- the view ------------------------------------------------------------------------------------------------

    @property
    def me(self) -> Member | None:
        """This replica in the view of its log, if that names this very life."""
        return self.member_in(self.log.tail.view)

    def member_in(self, view: View | None) -> Member | None:
        member = view.named(self.name) if view is not None else None
        if member is None or member.node != self.node or member.life != self.life:
            return None
        return member

    def voters_here(self) -> list[Peer]:
        """The other voters of the view, in the lives that it names, as far as they can be reached."""
        view, peers = self.log.tail.view, self.peers
        if view is None:
            return []
        return [
            peer
            for peer in peers.replicas
            if (member := view.named(peer.name)) is not None and member.voter and peers.is_here(member)
        ]  # fmt: skip

    def quorum(self, view: View) -> int:
        """How many voters decide: a majority.

        Lives that are known to have ended acknowledge and vote no more, for anybody. Where they are fewer than a
        majority, every majority of the past had one of the others in it, so all the others together decide as well: a
        group of two survives the restart of one. In `availability` groups those that can be reached are enough.
        """
        known, changed, quorum = self._quorum
        if known is not view or changed != self.peers.changed:
            quorum = self._count_quorum(view)
            self._quorum = (view, self.peers.changed, quorum)
        return quorum

    def _count_quorum(self, view: View) -> int:
        if self.config.mode == "availability":
            mine = self.member_in(view)
            here = len(self.voters_here()) + (mine is not None and mine.voter)
            return max(1, min(view.majority, here))
        return self.true_majority(view)

    def true_majority(self, view: View) -> int:
        """How many voters decide in every mode but `availability`, where views need so many."""
        majority = view.majority
        ended = sum(1 for voter in view.voters if self.peers.has_ended(voter))
        return min(majority, len(view.voters) - ended) if ended < majority else majority

    def needed(self, view: View) -> int:
        """How many voters must be here for a change of who is in the group. In `availability` groups both sides of a
        cut go on, and must stay one group; a life that has ended is on no side."""
        majority = self.true_majority(view)
        if self.config.mode == "majority":
            return majority
        living = sum(1 for voter in view.voters if not self.peers.has_ended(voter))
        return max(1, min(majority, living))

    @property
    def view_before(self) -> View | None:
        """The view whose voters must have everything, too, while a change of the voters is not decided; None where
        there is none.

        Voters may go on without those of them whose lives have ended. A majority that has nobody in common with all the
        others of the view before would be unknown to them: that of a new voter and one whose memory is lost then, or
        that of one alone who removes the other of two and loses its memory. Where lives do not end any two majorities
        have somebody in common; one that restarts may not know that a view is decided, nor find who was in the one
        before.
        """
        config, log = self.config, self.log
        if log.view_index <= log.commit or config.is_durable or config.mode == "availability":
            return None
        before, view = log.view_before, log.tail.view
        if before is None or view is None or before.founding != view.founding:
            return None
        lives = [{(voter.node, voter.life) for voter in one.voters} for one in (before, view)]
        return before if lives[0] != lives[1] else None

    def follow_view(self) -> bool:
        """Look whether the view of the log has changed, and who the peers are then; True when it has.

        Who is being removed is a peer until that is decided: it may be elected by those who have not heard of it. A
        leader that removes itself is one until another leads: it decides that, and hands over.
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
        before = None if is_decided else log.view_before
        if before is not None:
            names += [member.name for member in before.members]
        if leader:
            names.append(leader)
        self.peers.use(names)
        return True

    def new_term(self, term: int) -> None:
        """A later term begins. What waits for its messages may never have been decided (rule 1)."""
        self.leadership.adopt(term)
        self.waiting.new_term()

    @property
    def stable(self) -> int:
        """Up to where this replica's own log counts in a majority: a crash must not forget what it counted for."""
        return self.log.last if self.journal is None else min(self.journal.durable, self.log.last)

    # -- messages ------------------------------------------------------------------------------------------------

    @property
    def is_tight(self) -> bool:
        """So much is held that somebody may be waiting for room."""
        return (
            len(self.log) >= self.config.log_entries // 2
            or self.streams.most_bytes() >= self.config.tight_bytes
        )

    def know(self, stream: StreamId, number: int) -> None:
        """Number `number` of the stream exists somewhere."""
        self.streams.know(stream, number, self.log.tail.next.get(stream, 1))

    def why_not_suspend(self) -> str:
        """Why this replica must not stop leading of its own accord; empty when it may. Those that are left must be
        able to decide, and one of them to lead."""
        view, voters = self.log.tail.view, self.voters_here()
        here = len(voters)
        needed = view.majority if view is not None and self.config.mode == "majority" else 1
        if here < needed:
            return f"{here} other voters can be reached, {needed} are needed without {self.name}"
        members = [view.named(peer.name) for peer in voters] if view is not None else []
        if any(
            member is not None and member.may_lead and not member.suspended for member in members
        ):
            return ""
        return "none of the other voters that can be reached may lead"

    # -- oddities ------------------------------------------------------------------------------------------------

    def ignore(self, why: str) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1

    def fact(self, event: str, detail: str, now: Nanos, out: Outbox) -> None:
        term, index = self.leadership.term, self.log.last
        out.fact(GroupFact(now, self.config.name, event, term, index, detail))
