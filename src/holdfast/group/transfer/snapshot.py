"""Snapshot transfer from one replica to another, in chunks. The receiver pulls, so the provider keeps no state for it.

    head: where in the order, and the digest of every part        state: parts of equal size
    ├──────────────────────────────────────────────────────┤├────┬────┬────┬────┬────┬────┤

A request names the transfer and the missing parts, and is answered with exactly these. Repeating it is harmless, and
lost parts are requested again by the receiver's timer. If the provider fails in the middle, the receiver keeps what it
has: from the snapshot of the next provider it requests only parts whose digests it does not know. Applications are
deterministic, so at the same index those are the missing ones; at a later index they are the parts that changed, as
long as the bytes before them have not shifted.

The application returns and takes its state in one piece. A provider therefore holds one snapshot, however many replicas
ask for it, and a receiver holds up to two while it joins the parts: at most `state_bytes` each.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from holdfast.group.config import GroupConfig, replica_unit
from holdfast.group.core import Core
from holdfast.group.frames import StateChunk, StateRequest
from holdfast.group.log.replicated_log import Cursor
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.group.ports import SnapshotTaken, TakeSnapshot
from holdfast.group.transfer.checkpoint import Checkpoint, encode_checkpoint, make_checkpoint
from holdfast.group.transfer.values import CHUNK, Head
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import NEVER, Nanos

WINDOW: Final = 16
"""Parts that may be in flight."""
TRIES_MAX: Final = 5
"""Requests without an answer before another replica is asked."""
_encode_head: Final = msgspec.msgpack.Encoder().encode
_head_decoder: Final = msgspec.msgpack.Decoder(Head)


class Snapshot:
    """A state as it is sent; its bytes are those returned by the application."""

    __slots__ = ("_head", "_state", "begin", "head_parts", "index", "parts")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.index = checkpoint.index
        self.begin = checkpoint.begin.index
        self._state = memoryview(checkpoint.state)
        size = len(self._state)
        digests = b"".join(
            xxh3_128_digest(self._state[at : at + CHUNK]) for at in range(0, size, CHUNK)
        )
        bare = msgspec.structs.replace(checkpoint, state=b"")
        self._head = memoryview(_encode_head(Head(bare, size, digests)))
        self.head_parts = -(-len(self._head) // CHUNK)
        self.parts = self.head_parts + -(-size // CHUNK)

    @property
    def size(self) -> int:
        return len(self._head) + len(self._state)

    def part(self, number: int) -> memoryview:
        if number < self.head_parts:
            return self._head[number * CHUNK : (number + 1) * CHUNK]
        at = (number - self.head_parts) * CHUNK
        return self._state[at : at + CHUNK]


class _Giving:
    """A transfer to one replica."""

    __slots__ = ("peer", "snapshot", "transfer")

    def __init__(self, transfer: int, peer: Peer, snapshot: Snapshot | None = None) -> None:
        self.transfer = transfer
        self.peer = peer
        self.snapshot = snapshot


class SnapshotSender:
    """Provides snapshots to other replicas: requests one from the application, and sends the requested parts."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._log = core.log
        self._delivery = core.delivery
        self._giving: dict[str, _Giving] = {}
        self._request = 0
        self._taking: tuple[Cursor, int] | None = None
        """The place in the order when the snapshot was requested, and the digest there."""
        self._for_store = False
        self._unsure: tuple[Cursor, int, bytes] | None = None
        """A snapshot at a place that is not committed yet."""
        self.problem = ""
        """Why this application provides no snapshot; empty if it does."""
        self._retry_ns: Nanos = 0

    def asked(self, peer: Peer, frame: StateRequest, now: Nanos, out: Outbox) -> None:
        giving = self._giving.get(peer.name)
        if giving is None or giving.transfer != frame.request or giving.peer != peer:
            if frame.ranges and frame.ranges[0][0] == 0:
                self._begin(peer, frame, now, out)
        elif not frame.ranges:
            del self._giving[peer.name]
        elif giving.snapshot is not None:
            self._send(giving, giving.snapshot, frame.ranges, out)
        # rule: 11o
        elif self._unsure is not None and self._unsure[0].index > self._log.commit:
            # It has asked before and waits. The uncommitted entries may not be committable without it.
            self._give_ahead(giving, self._unsure, now, out)
        # rule: 8h
        elif self._taking is not None:
            at_it = StateChunk(self._config.name, giving.transfer, 0, 0, 0, memoryview(b""))
            post(out, [peer.node], at_it)

    def _begin(self, peer: Peer, frame: StateRequest, now: Nanos, out: Outbox) -> None:
        """A new request. A snapshot that is being sent to another replica will do, while the order continues from
        it."""
        giving = _Giving(frame.request, peer)
        for other in self._giving.values():
            given = other.snapshot
            if given and given.index >= frame.least and given.begin >= self._log.ground.index:
                giving.snapshot = given
        self._giving[peer.name] = giving
        if giving.snapshot is not None:
            self._send(giving, giving.snapshot, frame.ranges, out)
        else:
            self._take_if_may(now, out)

    def _take_if_may(self, now: Nanos, out: Outbox) -> None:
        """One at a time, and not immediately after one that failed."""
        if self._taking is None and self._unsure is None and now >= self._retry_ns:
            self._take(out)

    def _take(self, out: Outbox) -> None:
        self._request += 1
        at = self._delivery.at.copy()
        self._taking = (at, self._delivery.digest)
        effect = TakeSnapshot(replica_unit(self._config.name), self._request, at.index)
        # At its position among the batches, which do not wait for writes either, so that none overtakes it.
        out.effect(effect, immediate=True)

    @property
    def is_unsure(self) -> bool:
        """Whether there is a snapshot that is not known to be committed yet."""
        return self._unsure is not None

    def for_store(self, now: Nanos, out: Outbox) -> None:
        """This replica needs a snapshot for its own store: the next one is kept."""
        self._for_store = True
        self._take_if_may(now, out)

    def taken(self, item: SnapshotTaken, now: Nanos, out: Outbox) -> None:
        """The application returned its state: all waiting replicas get it, once it is committed."""
        if self._taking is None or item.request != self._request:
            return
        # rule: 9e
        at, digest = self._taking
        self._taking = None
        self.problem = item.error or self._too_large(len(item.data))
        if self.problem:
            self._give_none(now, out)
        elif not self._delivery.suspended:
            self._unsure = (at, digest, item.data)
            self.settle(now, out)

    def _too_large(self, size: int) -> str:
        limit = self._config.state_bytes
        return f"the snapshot has {size} bytes, the limit is {limit}" if size > limit else ""

    def _give_none(self, now: Nanos, out: Outbox) -> None:
        """The application returned no state. Waiting replicas ask another replica, and later this one again."""
        self._retry_ns = now + self._config.rejoin_ns
        self._core.fact("no state", self.problem, now, out)
        for name in [name for name, giving in self._giving.items() if giving.snapshot is None]:
            del self._giving[name]

    def settle(self, now: Nanos, out: Outbox) -> None:
        """In `fast` groups a snapshot may be ahead of the commit index: requests for it wait."""
        if self._unsure is None or self._unsure[0].index > self._log.commit:
            return
        (at, digest, data), self._unsure = self._unsure, None
        waiting = [giving for giving in self._giving.values() if giving.snapshot is None]
        if not (waiting or self._for_store):
            return
        outputs = self._delivery.output_buffer.before(at.position)
        checkpoint = make_checkpoint(self._core.group_epoch, at, digest, data, outputs)
        if self._for_store and self._core.journal is not None:
            self._for_store = False
            self._core.journal.keep_state(at, encode_checkpoint(checkpoint))
        if waiting and at.index < self._log.ground.index:
            # Entries after the snapshot have been removed; a newer one is needed.
            self._take(out)
            return
        snapshot = Snapshot(checkpoint) if waiting else None
        for giving in waiting:
            assert snapshot is not None
            self._give(giving, snapshot, at, now, out)

    def _give_ahead(
        self, giving: _Giving, unsure: tuple[Cursor, int, bytes], now: Nanos, out: Outbox
    ) -> None:
        """A snapshot that is ahead of the commit index, and the index from which the log up to it is available."""
        at, digest, data = unsure
        ground = self._log.cursor_at(self._log.commit)
        outputs = self._delivery.output_buffer.before(at.position)
        checkpoint = make_checkpoint(self._core.group_epoch, at, digest, data, outputs, ground)
        self._give(giving, Snapshot(checkpoint), at, now, out)

    def _give(
        self, giving: _Giving, snapshot: Snapshot, at: Cursor, now: Nanos, out: Outbox
    ) -> None:
        giving.snapshot = snapshot
        ahead = f", {at.index - snapshot.begin} ahead" if snapshot.begin < at.index else ""
        detail = f"{snapshot.size} bytes to {giving.peer.name}{ahead}"
        name, epoch = self._config.name, self._core.group_epoch
        out.fact(GroupFact(now, name, "state_sent", at.term, at.index, detail, epoch))
        self._send(giving, snapshot, ((0, 0),), out)

    def _send(
        self,
        giving: _Giving,
        snapshot: Snapshot,
        ranges: tuple[tuple[int, int], ...],
        out: Outbox,
    ) -> None:
        room = WINDOW
        for first, last in ranges[:WINDOW]:
            for part in range(max(first, 0), min(last + 1, snapshot.parts, max(first, 0) + room)):
                chunk = StateChunk(
                    self._config.name, giving.transfer, snapshot.index, part, snapshot.parts,
                    snapshot.part(part), snapshot.head_parts,
                )  # fmt: skip
                post(out, [giving.peer.node], chunk)
                room -= 1

    def peer_down(self, peer: Peer) -> None:
        self._giving.pop(peer.name, None)

    def stop(self) -> None:
        """No replica needs this snapshot now."""
        self._giving.clear()
        self._taking = self._unsure = None
        self._for_store = False


class SnapshotReceiver:
    """Receives a snapshot from another replica."""

    def __init__(self, config: GroupConfig, rng: Random) -> None:
        self._config = config
        self._parts_max = config.state_bytes // CHUNK + 1
        # A replica that is rebuilt in the same incarnation must not receive the rest of an earlier transfer.
        self._transfer = rng.getrandbits(31)
        self.peer: Peer | None = None
        self._least = 0
        self._index = 0
        self._parts = 0
        """Of head and state together; 0 before the first chunk has arrived."""
        self._head_parts = 0
        self._head: Head | None = None
        self._have: dict[int, bytes] = {}
        self._asked: dict[int, None] = {}
        """Parts that were requested and have not arrived."""
        self._next = 0
        """The first part that was neither requested nor known."""
        self._kept: dict[bytes, bytes] = {}
        """Parts from an earlier transfer, by digest."""
        self._tries = 0
        self._until_ns: Nanos = 0
        """How long a provider may report that its application is busy. Asking a second one would block both."""
        self._due_ns = NEVER

    @property
    def active(self) -> bool:
        return self.peer is not None

    @property
    def kept(self) -> int:
        """Parts of an earlier transfer that the next one may use."""
        return len(self._kept)

    def begin(self, peer: Peer, now: Nanos, out: Outbox, least: int = 0) -> None:
        """Request a snapshot from a replica, at entry `least` or later."""
        self.stop()
        self._transfer += 1
        self._least = least
        self.peer = peer
        self._until_ns = now + self._config.patience_ns
        self._asked[0] = None
        self._next = 1
        self._ask(list(self._asked), now, out)

    def stop(self) -> None:
        """Cancel the transfer. Received parts are kept for the next one."""
        if self._head is not None:
            for part, data in self._have.items():
                if part >= self._head_parts:
                    self._kept[self._head.digest(part - self._head_parts)] = data
        self.peer = None
        self._head = None
        self._parts = self._head_parts = self._next = self._tries = 0
        self._have = {}
        self._asked = {}
        self._due_ns = NEVER

    def forget(self) -> None:
        """A snapshot is no longer needed."""
        self._kept = {}

    def _ask(self, parts: list[int], now: Nanos, out: Outbox) -> None:
        """Request parts; an empty list reports that all have arrived."""
        assert self.peer is not None
        ranges: list[tuple[int, int]] = []
        for part in parts:
            if ranges and ranges[-1][1] + 1 == part:
                ranges[-1] = (ranges[-1][0], part)
            else:
                ranges.append((part, part))
        request = StateRequest(self._config.name, self._transfer, tuple(ranges), self._least)
        post(out, [self.peer.node], request)
        self._due_ns = now + self._config.transfer_retry_ns

    def wake(self, now: Nanos, out: Outbox) -> bool:
        """Request missing parts again; False if the transfer was cancelled after too many attempts."""
        if self._due_ns > now:
            return True
        self._tries += 1
        if self._tries > TRIES_MAX:
            self.stop()
            return False
        self._ask(list(self._asked), now, out)
        return True

    def chunk(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> Checkpoint | None:
        """A part arrived; returns the snapshot if it was the last missing one."""
        if peer != self.peer or frame.request != self._transfer or frame.part not in self._asked:
            return None
        if not frame.parts:
            self._tries = 0 if now < self._until_ns else self._tries
            return None
        sound = 1 <= frame.head <= frame.parts <= self._parts_max and frame.index >= self._least
        if not self._parts and sound:
            self._parts, self._head_parts, self._index = frame.parts, frame.head, frame.index
        this = (frame.parts, frame.head, frame.index)
        if this != (self._parts, self._head_parts, self._index) or len(frame.data) > CHUNK:
            return None
        data = bytes(frame.data)
        if frame.part >= self._head_parts:
            assert self._head is not None, "the head comes before the parts"
            if xxh3_128_digest(data) != self._head.digest(frame.part - self._head_parts):
                return None
        del self._asked[frame.part]
        self._have[frame.part] = data
        self._tries = 0
        self._due_ns = now + self._config.transfer_retry_ns
        if self._head is None and len(self._have) == self._head_parts and not self._open():
            self.stop()
            return None
        if len(self._have) == self._parts:
            self._ask([], now, out)
            return self._finish()
        self._ask_more(now, out)
        return None

    def _open(self) -> bool:
        """The head is complete: use the parts that are known already; False if the head is invalid."""
        try:
            head = _head_decoder.decode(b"".join(self._have[k] for k in range(self._head_parts)))
        except (msgspec.DecodeError, ValueError):
            return False
        if (
            not head.is_sound(self._parts - self._head_parts)
            or head.checkpoint.index != self._index
        ):
            return False
        self._head = head
        for part in range(self._parts - self._head_parts):
            data = self._kept.get(head.digest(part))
            if data is not None:
                self._have[self._head_parts + part] = data
        self._kept = {}
        return True

    def _ask_more(self, now: Nanos, out: Outbox) -> None:
        """Keep up to a window of parts in flight; parts of the state only when the head is known."""
        if len(self._asked) > WINDOW // 2:
            return
        end = self._parts if self._head is not None else self._head_parts
        more: list[int] = []
        while self._next < end and len(self._asked) < WINDOW:
            if self._next not in self._have:
                self._asked[self._next] = None
                more.append(self._next)
            self._next += 1
        if more:
            self._ask(more, now, out)

    def _finish(self) -> Checkpoint | None:
        head = self._head
        assert head is not None, "a snapshot is complete only with its head"
        state = b"".join(self._have[part] for part in range(self._head_parts, self._parts))
        self._have = {}
        self.stop()
        return (
            msgspec.structs.replace(head.checkpoint, state=state)
            if len(state) == head.size
            else None
        )

    def deadline(self) -> Nanos:
        return self._due_ns
