"""The commit index of a leader: what a majority of the voters has in its log."""

from __future__ import annotations

from holdfast.group.consensus.replication import Replication
from holdfast.group.core import Core
from holdfast.group.log.entries import View


class Commit:
    """Advances the commit index as replicas acknowledge entries."""

    __slots__ = ("_core", "_replication")

    def __init__(self, core: Core, replication: Replication) -> None:
        self._core = core
        self._replication = replication

    def advance(self) -> None:
        """Commit what a majority has, once an entry of this term is included (Raft, 5.4.2)."""
        log = self._core.log
        agreed = self.agreed()
        # rule: 6l
        if agreed > log.commit and log.term_at(agreed) == self._core.leadership.term:
            log.commit_to(agreed)

    def agreed(self) -> int:
        """The highest index that a majority of the voters has. The view of the log counts, committed or not."""
        replication = self._replication
        matches = [progress.match for progress in replication.voters]
        if replication.is_voter:
            matches.append(self._core.stable)
        matches.sort(reverse=True)
        agreed = matches[replication.quorum() - 1]
        before = self._core.view_before
        return agreed if before is None else self._agreed_before(before, agreed)

    def _agreed_before(self, before: View, agreed: int) -> int:
        """While a view is not committed, a majority of the previous one must have it too."""
        core, log = self._core, self._core.log
        remaining = [voter for voter in before.voters if not core.peers.has_ended(voter)]
        matches = sorted(map(self._replication.match_of, remaining), reverse=True)
        quorum = core.quorum(before)
        agreed_before = matches[quorum - 1] if quorum <= len(matches) else log.commit
        return agreed if agreed_before >= log.view_index else min(agreed, agreed_before)
