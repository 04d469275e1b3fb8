"""The registers of the replicas of this node: promises, acceptances and decisions, each durable before its reply.

Every version of an object is decided by single-decree Paxos among the replicas that the version before it names. Rules:

- A replica votes only if the decided value names this node with this disk.
- It accepts a value only if it has the content, so a decided content is on a majority of disks.
- A replica set changes by one replica at a time, and a newcomer accepts as a member of the new set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holdfast.objects.frames import Accept, Accepted, Prepare, Promise, RegisterState
from holdfast.objects.hub import Hub
from holdfast.objects.records import Record, decode_row
from holdfast.objects.values import ID, ZERO, Ballot, Content, Sibling, Value, root_id
from holdfast.types import Nanos

replace = msgspec.structs.replace
WAIT_STEPS: Final = 5
"""How long a node that was too late keeps others from ballot 0, in steps of `backoff_ns`."""


class Registers:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._root = root_id(hub.config.domain)
        self._records: dict[bytes, Record] = {}
        self.unconfirmed: dict[bytes, None] = {}
        """Replicas that were here at the start: a quorum has not confirmed them yet."""
        self._waiting: dict[bytes, tuple[bytes, Nanos]] = {}
        """Nodes whose change keeps the content and came too late, by object, and until when ballot 0 is refused to
        others: the writer of one version after the other would be first forever."""
        self.fresh: dict[bytes, None] = {}
        """Objects whose record changed since the last scan."""

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Rows of another disk belong to replicas that are lost: they are erased."""
        for key, value in rows:
            if len(key) != ID:
                continue  # a small content
            row = decode_row(value)
            if row is None or row.disk != self._hub.disk:
                self._hub.erase(key)
                self._hub.count("emptied")
                continue
            self._records[key] = row.record
            self.unconfirmed[key] = None

    # -- looking -------------------------------------------------------------------------------------------------

    def get(self, object_id: bytes) -> Record | None:
        return self._records.get(object_id)

    def decided(self, object_id: bytes) -> Value | None:
        record = self._records.get(object_id)
        return record.decided if record is not None else None

    def __iter__(self) -> Iterator[tuple[bytes, Record]]:
        return iter(self._records.items())

    def __len__(self) -> int:
        return len(self._records)

    def mine(self, value: Value | None) -> bool:
        return value is not None and value.has(self._hub.me, self._hub.disk)

    def sound(self, record: Record) -> bool:
        """The decided content is here, as far as is known; of a loose object, that of every version."""
        value = record.decided
        if value is None or not self.mine(value):
            return False
        if value.deleted:
            return True
        contents = [sibling.content for sibling in record.siblings if not sibling.deleted]
        return all(_has(record, content) for content in (value.content, *contents))

    def uses(self, object_id: bytes, content: Content) -> bool:
        """Whether a version here has exactly this content. What a peer sends may have the digest and another size."""
        record = self._records.get(object_id)
        if record is None:
            return False
        values = [value.content for value in (record.decided, record.accepted) if value is not None]
        return content in values or any(content == s.content for s in record.siblings)

    def look(self, call: int, object_id: bytes) -> RegisterState:
        record = self._records.get(object_id)
        if record is None:
            return RegisterState(call, "unknown", disk=self._hub.disk)
        if record.decided is None and record.accepted is None:
            return RegisterState(call, "blank", disk=self._hub.disk)
        named = record.decided or record.accepted
        is_member = self.mine(named) or self.mine(record.accepted)
        reason = "" if is_member else "unknown"
        return RegisterState(
            call, reason, record.decided, record.accepted_at, record.accepted, self.sound(record),
            record.siblings, self._hub.disk,
        )  # fmt: skip

    # -- voting --------------------------------------------------------------------------------------------------

    def prepare(self, frame: Prepare) -> Promise:
        record = self._records.get(frame.object)
        if record is None:
            # A replica may have forgotten an object that moved on or was deleted. If it voted on the first version
            # again, one that missed all of that could have the object decided a second time.
            if frame.version != 1 or frame.object != self._root or not self._hub.disk:
                return Promise(frame.call, "unknown")
            record = Record()
        refused = self._refuses(record, frame.version)
        if frame.waits and (refused == "decided" or record.accepted is not None):
            until = self._hub.now + WAIT_STEPS * self._hub.config.backoff_ns
            self._waiting[frame.object] = (frame.ballot.proposer[:ID], until)
        if refused:
            return Promise(frame.call, refused, record.promised, decided=record.decided)
        if frame.ballot < record.promised:
            return Promise(frame.call, "ballot", record.promised)
        # rule: R-2a
        self._keep(frame.object, replace(record, promised=frame.ballot))
        return Promise(frame.call, "", frame.ballot, record.accepted_at, record.accepted)

    def _refuses(self, record: Record, version: int) -> str:
        """Why this replica has no vote on a version."""
        decided = record.decided
        if decided is None:
            return "" if version == 1 else "unknown"
        if decided.version >= version:
            return "decided"
        if decided.version < version - 1:
            return "behind"
        return "" if self.mine(decided) else "other disk"

    def accept(self, frame: Accept, brought: bool = False) -> Accepted:
        """`brought`: the frame has the content of its value, which is kept with the acceptance."""
        value = frame.value
        record = self._records.get(value.object) or Record()
        decided = record.decided
        newcomer = value.version > 1 and not self.mine(decided)
        if newcomer:
            refused = self._refuses_newcomer(record, frame)
        else:
            refused = self._refuses(record, value.version)
        if not refused and not newcomer:
            is_late = frame.ballot < record.promised or self._is_behind(frame)
            refused = "ballot" if is_late or not _may_skip(decided, frame) else ""
        if not refused:
            refused = self._unfit(record, value, brought)
        if refused:
            return Accepted(frame.call, refused, record.promised, record.decided)
        promised = max(record.promised, frame.ballot)
        held, digest = record.held, value.content.digest
        if brought and digest not in held and self.mine(value):
            held = (*held, digest)
        changed = replace(
            record, promised=promised, accepted_at=frame.ballot, accepted=value, held=held
        )
        self._keep(value.object, changed)
        return Accepted(frame.call, "", frame.ballot)

    def _is_behind(self, frame: Accept) -> bool:
        """Whether another node waits for its turn, so that this one has to ask for promises too."""
        node, until = self._waiting.get(frame.value.object, (b"", 0))
        if self._hub.now >= until or node == frame.ballot.proposer[:ID]:
            self._waiting.pop(frame.value.object, None)
            return False
        # rule: R-2e
        return not frame.ballot.round

    def _refuses_newcomer(self, record: Record, frame: Accept) -> str:
        value = frame.value
        if not frame.ballot.round:
            # The proposer skipped the promises. This may be a replica that has left the set, and forgotten that.
            return "unknown"
        if not self.mine(value):
            return "other disk"
        if record.decided is not None and record.decided.version >= value.version:
            return "decided"
        return ""

    def _unfit(self, record: Record, value: Value, brought: bool) -> str:
        """Why a value cannot be accepted here, whatever its ballot."""
        decided = record.decided
        if not value.replicas or len(dict.fromkeys(value.nodes)) != len(value.nodes):
            return "set"
        if value.version == 1 and not self.mine(value):
            return "other disk"
        if decided is not None and decided.version == value.version - 1:
            # rule: R-12e
            if value.token < decided.token:
                return "token"
            # rule: R-5a
            if not one_step(decided, value):
                return "set"
            if value.edition < decided.edition:
                return "edition"
        # A replica that leaves the set needs no content of the value that removes it. One that has lost the decided
        # content votes on changes that keep it, or its full disk would keep the others from being replaced.
        is_kept = decided is not None and self.mine(decided) and decided.content == value.content
        # rule: R-5b
        if self.mine(value) and not brought and lacks(record, value) and not is_kept:
            return "content"
        return ""

    def decide(self, value: Value) -> bool:
        """A version is decided. True if that is news."""
        record = self._records.get(value.object)
        if record is None:
            if not self.mine(value):
                return False
            record = Record()
        decided = record.decided
        if decided is not None and decided.version >= value.version:
            return False
        siblings = record.siblings
        changed = Record(value, ZERO, ZERO, None, record.held, () if value.deleted else siblings)
        self._keep(value.object, changed)
        self._hub.decided(value)
        return True

    # -- content and siblings --------------------------------------------------------------------------------------

    def holds(self, object_id: bytes, digest: bytes) -> None:
        """Content is durable on this disk."""
        record = self._records.get(object_id) or Record()
        if digest not in record.held:
            self._keep(object_id, replace(record, held=(*record.held, digest)))

    def dropped(self, object_id: bytes, digests: Iterable[bytes]) -> None:
        record = self._records.get(object_id)
        if record is not None:
            gone = list(digests)
            held = tuple(digest for digest in record.held if digest not in gone)
            self._keep(object_id, replace(record, held=held))

    def siblings(self, object_id: bytes, siblings: tuple[Sibling, ...]) -> None:
        record = self._records.get(object_id)
        if record is not None and record.siblings != siblings:
            self._keep(object_id, replace(record, siblings=siblings))

    def forget(self, object_id: bytes) -> None:
        if self._records.pop(object_id, None) is not None:
            self.unconfirmed.pop(object_id, None)
            self.fresh.pop(object_id, None)
            self._waiting.pop(object_id, None)
            self._hub.erase(object_id)

    def _keep(self, object_id: bytes, record: Record) -> None:
        self._records[object_id] = record
        self.fresh[object_id] = None
        self._hub.put(object_id, record)


def _may_skip(decided: Value | None, frame: Accept) -> bool:
    """Whether a ballot needs no promise, or has one. Ballot 0 belongs to the proposer of the version before."""
    if frame.ballot.round or decided is None:
        return True
    # rule: R-2d
    return bool(decided.owner) and decided.owner == frame.ballot.proposer


def lacks(record: Record, value: Value) -> bool:
    """Whether content of a value is missing."""
    return not value.deleted and not _has(record, value.content)


def _has(record: Record, content: Content) -> bool:
    return not content.size or content.digest in record.held


def one_step(old: Value, new: Value) -> bool:
    """Whether the replica sets differ by at most one replica."""
    added = [replica for replica in new.replicas if replica not in old.replicas]
    removed = [replica for replica in old.replicas if replica not in new.replicas]
    if len(added) == len(removed) == 1 and added[0].node == removed[0].node:
        return True  # the disk of a node has a new id
    return len(added) + len(removed) <= 1


def next_ballot(seen: Ballot, proposer: bytes) -> Ballot:
    return Ballot(seen.round + 1, proposer)
