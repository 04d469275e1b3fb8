"""Reading content from replicas, verified chunk by chunk, to the application or to this node's disk.

Chunks come from the nearest replica that has the content. A replica that sends wrong bytes is notified, and
the next one is asked for the missing chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.objects.frames import Damaged, Fetch, FetchList, Piece
from holdfast.objects.pacing import Pace
from holdfast.objects.parts import Parts
from holdfast.objects.ports import Deliver, DiskDone, DropStage, OpenStage, Taken, WriteChunk
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Answer, Procedure, Reply, Task, gather, work
from holdfast.objects.values import CHUNK, ID, Content, chunk_digest, content_digest
from holdfast.types import NEVER, Nanos

GONE = "gone"


class ToApplication:
    """Chunks go to the operation's application, which says how many it has taken."""

    def __init__(self, task: Task, parts: Parts, first: int) -> None:
        self._task = task
        self._hub = parts.hub
        self._window = 2 * parts.config.window
        self._given = self._taken = first

    wake_at = NEVER

    def asked(self, size: int) -> None:
        """The application sets the pace."""

    @property
    def room(self) -> bool:
        return self._given - self._taken < self._window

    def give(self, index: int, data: Any) -> None:
        self._hub.effect(Deliver(self._task.op, index, data))
        self._given = index + 1

    def handle(self, event: Any) -> None:
        if isinstance(event, Answer) and isinstance(event.item, Taken):
            self._taken = max(self._taken, event.item.count)

    @property
    def failed(self) -> str:
        return ""

    @property
    def settled(self) -> bool:
        return True


class ToMemory:
    """Chunks are joined: for directories and small content."""

    room = True
    failed = ""
    settled = True
    wake_at = NEVER

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def asked(self, size: int) -> None:
        """There is no pace."""

    def give(self, index: int, data: Any) -> None:
        self.pieces.append(data)

    def handle(self, event: Any) -> None:
        """Nothing comes back."""


class ToDisk:
    """Chunks go to a stage on this node's disk, at no more than the rate of repairs."""

    def __init__(self, task: Task, parts: Parts, write: bytes, pace: Pace) -> None:
        self._task = task
        self._parts = parts
        self._write = write
        self._pace = pace
        self._tokens: dict[int, None] = {}
        self.failed = ""

    @property
    def room(self) -> bool:
        if len(self._tokens) >= self._parts.config.window:
            return False
        # rule: R-10d
        return self._task.now >= self._pace.ready_at

    @property
    def wake_at(self) -> Nanos:
        """When there is room again, if it is the pace that leaves none."""
        at = self._pace.ready_at
        return at if self._task.now < at else NEVER

    def asked(self, size: int) -> None:
        self._pace.take(size)

    def give(self, index: int, data: Any) -> None:
        write = self._write
        token = self._task.work(
            lambda token: WriteChunk(token=token, write=write, index=index, data=data)
        )
        self._tokens[token] = None

    def handle(self, event: Any) -> None:
        if isinstance(event, Answer) and event.token in self._tokens:
            del self._tokens[event.token]
            if isinstance(event.item, DiskDone) and event.item.reason:
                self.failed = event.item.reason

    @property
    def settled(self) -> bool:
        return not self._tokens


Sink = ToApplication | ToMemory | ToDisk


def fetch_content(
    task: Task,
    parts: Parts,
    object_id: bytes,
    content: Content,
    holders: Sequence[bytes],
    sink: Sink,
    first: int = 0,
) -> Procedure[bytes]:
    """Fetch a content into a sink, from chunk `first` on; returns its chunk list. Raises `Refusal`: `gone`."""
    if not content.size:
        return b""
    left = list(holders)
    chunks = b""
    if content.chunks > 1:
        chunks = yield from _fetch_list(task, parts, object_id, content, left)
    fetching = _Fetching(task, parts, object_id, content, chunks, sink, first)
    while left:
        if (yield from fetching.run(left[0])):
            return fetching.chunks
        if sink.failed:
            raise Refusal("disk", f"the copy could not be written: {sink.failed}")
        left.pop(0)
    raise Refusal(GONE, f"no reachable replica of object {object_id.hex()[:8]} has the content")


def _fetch_list(
    task: Task, parts: Parts, object_id: bytes, content: Content, holders: list[bytes]
) -> Procedure[bytes]:
    """The chunk list, which its digest proves."""
    wanted = content.chunks * ID
    while holders:
        chunks = b""
        while len(chunks) < wanted:
            at = len(chunks)
            ask = lambda call, at=at: FetchList(call, object_id, content, at)
            replies = yield from gather(task, {holders[0]: ask}, parts.config.chunk_ns)
            piece = replies[holders[0]]
            if not isinstance(piece, Piece) or piece.reason or not len(piece.data):
                break
            chunks += bytes(piece.data)
        if len(chunks) == wanted and content_digest(content.size, chunks) == content.digest:
            return chunks
        parts.hub.count("lists_refused")
        if chunks:
            parts.hub.send(holders[0], Damaged(object_id, content, 0))
        holders.pop(0)
    raise Refusal(GONE, f"no reachable replica of object {object_id.hex()[:8]} has the content")


class _Fetching:
    def __init__(
        self,
        task: Task,
        parts: Parts,
        object_id: bytes,
        content: Content,
        chunks: bytes,
        sink: Sink,
        first: int,
    ) -> None:
        self._task = task
        self._parts = parts
        self._object = object_id
        self._content = content
        self.chunks = chunks
        self._sink = sink
        self._next = first
        """The next chunk for the sink."""
        self._early: dict[int, Any] = {}
        """Chunks that came before the ones in front of them; at most a window of them."""

    def run(self, holder: bytes) -> Procedure[bool]:
        """Fetch what is missing from one replica; False if it fails."""
        task, count = self._task, self._content.chunks
        asked = self._next
        calls: dict[int, int] = {}
        patience = self._parts.config.chunk_ns
        deadline = task.now + patience
        is_good = True
        self._early.clear()
        while self._next < count or not self._sink.settled:
            if self._sink.failed or not is_good:
                break
            while asked < count and len(calls) < self._parts.config.window and self._sink.room:
                calls[self._ask(holder, asked)] = asked
                self._sink.asked(self._size(asked))
                asked += 1
            event = yield min(deadline, self._sink.wake_at) if asked < count else deadline
            if event is None:
                if task.now < deadline:
                    continue
                if calls:
                    break
                deadline = task.now + patience
                continue
            deadline = task.now + patience
            if isinstance(event, Reply) and event.call in calls:
                is_good = self._received(holder, calls.pop(event.call), event.frame)
            else:
                self._sink.handle(event)
        for call in calls:
            task.give_up(call)
        return self._next >= count and self._sink.settled and not self._sink.failed

    def _ask(self, holder: bytes, index: int) -> int:
        return self._task.call(holder, lambda call: Fetch(call, self._object, self._content, index))

    def _received(self, holder: bytes, index: int, frame: Any) -> bool:
        if not isinstance(frame, Piece) or frame.reason:
            return False
        if not self._verified(index, frame.data):
            self._parts.hub.count("chunks_wrong")
            self._parts.hub.send(holder, Damaged(self._object, self._content, index))
            return False
        self._early[index] = frame.data
        while self._next in self._early:
            self._sink.give(self._next, self._early.pop(self._next))
            self._next += 1
        return True

    def _size(self, index: int) -> int:
        return min(CHUNK, self._content.size - index * CHUNK)

    def _verified(self, index: int, data: Any) -> bool:
        size = self._size(index)
        if len(data) != size:
            return False
        digest = chunk_digest(data)
        if self._content.chunks == 1:
            if content_digest(size, digest) != self._content.digest:
                return False
            self.chunks = digest
            return True
        return digest == self.chunks[index * ID : (index + 1) * ID]


def fetch_bytes(
    task: Task, parts: Parts, object_id: bytes, content: Content, holders: Sequence[bytes]
) -> Procedure[bytes]:
    """A whole content in memory: for directories and conflict handlers."""
    sink = ToMemory()
    yield from fetch_content(task, parts, object_id, content, holders, sink)
    return b"".join(bytes(piece) for piece in sink.pieces)


def copy_here(
    task: Task,
    parts: Parts,
    object_id: bytes,
    content: Content,
    holders: Sequence[bytes],
    pace: Pace,
) -> Procedure[bytes]:
    """Copy a content to a stage on this node; returns (write id + chunk list) for `Contents.keep`."""
    write = parts.hub.new_id()
    opened = yield from work(
        task,
        lambda token: OpenStage(token=token, write=write, size=content.size),
        parts.config.chunk_ns,
    )
    if not isinstance(opened, DiskDone) or opened.reason:
        why = f"{opened.reason} {opened.detail}" if isinstance(opened, DiskDone) else "no answer"
        raise Refusal("disk", f"no space for a copy: {why}")
    sink = ToDisk(task, parts, write, pace)
    is_copied = False
    try:
        chunks = yield from fetch_content(task, parts, object_id, content, holders, sink)
        is_copied = True
    finally:
        if not is_copied:
            # Its space is reserved: a copy that fails again and again would fill the disk.
            parts.hub.effect(DropStage(write=write))
    return write + chunks
