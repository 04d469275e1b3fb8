"""Sending the content of a write to its replicas, in chunks, before the write is proposed.

Each replica has a window of chunks. A chunk is read from the source once, and kept until every replica that still
takes part has it. A replica that fails, or holds up a majority for most of the time, is left behind and repaired later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.objects.frames import Done, StageChunk, StageClose, StageDrop, StageOpen, StageState
from holdfast.objects.parts import Parts
from holdfast.objects.ports import Progress, ReadSource, SourceChunk
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Answer, Procedure, Reply, Task
from holdfast.objects.values import CHUNK, Content, chunk_digest, content_digest
from holdfast.types import NEVER, SECOND, Nanos

LATE_NS = 1 * SECOND
"""How long the others wait at least for a replica that is slower than a majority; and half of the time so far."""
PROGRESS_CHUNKS = 16


class Target:
    """One replica that gets the content."""

    __slots__ = ("acked", "calls", "closed", "closing", "failed", "next", "node", "opened")

    def __init__(self, node: bytes) -> None:
        self.node = node
        self.opened = False
        self.next = 0
        self.acked = 0
        self.calls: dict[int, int] = {}
        """Calls that wait for an answer, with the chunk of each; -1: open, -2: close."""
        self.closing = False
        self.closed = False
        self.failed = ""


class Staged:
    """The outcome: the content, and the nodes that have it."""

    __slots__ = ("content", "failed", "nodes")

    def __init__(self, content: Content, nodes: list[bytes], failed: dict[bytes, str]) -> None:
        self.content = content
        self.nodes = nodes
        self.failed = failed


class Sending:
    def __init__(
        self, task: Task, parts: Parts, object_id: bytes, write: bytes, nodes: Sequence[bytes], size: int,
        data: bytes | None, need: int, resume: bool,
    ) -> None:  # fmt: skip
        self._task = task
        self._parts = parts
        self._object = object_id
        self._write = write
        self._size = size
        self._data = data
        self._need = need
        self._resume = resume
        self._targets = [Target(node) for node in nodes]
        self._chunks: list[bytes] = []
        self._kept: dict[int, Any] = {}
        """Chunks that a replica may still need."""
        self._read = 0
        self._total = 0
        self._reading = 0
        self._ended = False
        self._late_at = NEVER
        self._begun_at = task.now
        self._held_ns = 0
        """How long a majority has waited for slower replicas."""
        self._held_since = NEVER

    def run(self) -> Procedure[Staged]:
        try:
            return (yield from self._run())
        finally:
            # Also when the operation is cancelled. Nothing else uses these stages, and their space is reserved.
            if not self._resume:
                self._drop_stages()

    def _drop_stages(self) -> None:
        hub = self._parts.hub
        for target in self._targets:
            if not target.closed and hub.reachable(target.node):
                hub.send(target.node, StageDrop(0, self._write))

    def _run(self) -> Procedure[Staged]:
        for target in self._targets:
            self._open(target)
        patience = self._parts.config.chunk_ns
        deadline = self._task.now + patience
        while not self._over():
            self._pump()
            event = yield min(deadline, self._late_at, self._held_until())
            if event is not None:
                deadline = self._task.now + patience
                self._handle(event)
            elif self._task.now >= self._held_until():
                self._leave_slow()
            elif self._task.now >= min(deadline, self._late_at):
                self._leave_behind("too slow")
                deadline = self._task.now + patience
        done = [target.node for target in self._targets if target.closed]
        failed = {target.node: target.failed for target in self._targets if target.failed}
        return Staged(self._content(), done, failed)

    def _content(self) -> Content:
        return Content(content_digest(self._total, b"".join(self._chunks)), self._total)

    def _over(self) -> bool:
        return all(target.closed or target.failed for target in self._targets)

    # -- sending -------------------------------------------------------------------------------------------------

    def _open(self, target: Target) -> None:
        ask = lambda call: StageOpen(call, self._object, self._write, self._size)
        target.calls[self._task.call(target.node, ask)] = -1
        target.opened = not self._resume

    def _pump(self) -> None:
        window = self._parts.config.window
        live = [target for target in self._targets if not target.failed]
        for target in live:
            while target.opened and target.next < self._read and len(target.calls) < window:
                self._send(target)
            if self._complete(target):
                self._close(target)
        lowest = min((target.acked for target in live), default=self._read)
        for index in [index for index in self._kept if index < lowest]:
            del self._kept[index]
        self._note_slow(live, len(self._kept) >= window)
        if not self._ended and not self._reading and len(self._kept) < window and live:
            self._read_next()

    def _note_slow(self, live: list[Target], is_full: bool) -> None:
        """Measure how long the window is full because of replicas that are slower than a majority."""
        now = self._task.now
        idle = sum(target.acked >= self._read for target in live)
        is_held = is_full and not self._ended and self._need <= idle < len(live)
        if is_held and self._held_since == NEVER:
            self._held_since = now
        elif not is_held and self._held_since != NEVER:
            self._held_ns += now - self._held_since
            self._held_since = NEVER

    def _held_until(self) -> Nanos:
        """When the slow replicas are left behind: they have held up the others for most of the time so far."""
        if self._held_since == NEVER:
            return NEVER
        before = self._held_since - self._begun_at
        # held + x >= 3/4 (before + x), for x after the present wait began
        rest = max(LATE_NS - self._held_ns, 3 * before - 4 * self._held_ns, 0)
        return self._held_since + rest

    def _leave_slow(self) -> None:
        for target in self._targets:
            if not target.closed and not target.failed and target.acked < self._read:
                target.failed = "too slow"

    def _complete(self, target: Target) -> bool:
        """All chunks are there. Content of one chunk does not wait for the answer: it is followed by the end."""
        if not self._ended or target.closing or not target.opened:
            return False
        return target.acked >= self._read or (self._read == 1 and target.next == 1)

    def _close(self, target: Target) -> None:
        content = self._content()
        ask = lambda call: StageClose(call, self._object, self._write, content)
        target.calls[self._task.call(target.node, ask)] = -2
        target.closing = True

    def _send(self, target: Target) -> None:
        index = target.next
        target.next += 1
        data, check = self._kept[index], self._chunks[index]
        ask = lambda call: StageChunk(call, self._write, index, check, data)
        target.calls[self._task.call(target.node, ask)] = index

    def _read_next(self) -> None:
        if self._data is not None:
            self._take(memoryview(self._data)[self._read * CHUNK :][:CHUNK])
            self._pump()
            return
        op, index = self._task.op, self._read
        self._reading = self._task.work(lambda token: ReadSource(token, op, index))

    def _take(self, data: Any) -> None:
        """The next chunk of the source; a short one is the last."""
        if len(data):
            self._chunks.append(chunk_digest(data))
            self._kept[self._read] = data
            self._read += 1
            self._total += len(data)
        self._ended = len(data) < CHUNK
        if self._task.op and self._read % PROGRESS_CHUNKS == 0:
            self._parts.hub.effect(Progress(self._task.op, self._total, self._size))

    # -- what comes back -----------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        if isinstance(event, Answer) and isinstance(event.item, SourceChunk):
            self._reading = 0
            check_source(event.item)
            self._take(event.item.data)
            return
        if not isinstance(event, Reply):
            return
        for target in self._targets:
            if event.call in target.calls:
                self._replied(target, target.calls.pop(event.call), event.frame)
                break
        if self._late_at == NEVER and sum(t.closed for t in self._targets) >= self._need:
            taken = self._task.now - self._begun_at
            self._late_at = self._task.now + max(LATE_NS, taken // 2)

    def _replied(self, target: Target, index: int, frame: Any) -> None:
        if not isinstance(frame, Done | StageState):
            target.failed = target.failed or "no answer"
        elif frame.reason:
            target.failed = target.failed or f"{frame.reason}: {frame.detail}".rstrip(": ")
        elif index == -1 and isinstance(frame, StageState):
            self._opened(target, frame)
        elif index == -2:
            target.closed = True
        else:
            target.acked = max(target.acked, index + 1)

    def _opened(self, target: Target, state: StageState) -> None:
        if self._resume:
            target.next = target.acked = max(state.have, 0)
            target.opened = True

    def _leave_behind(self, why: str) -> None:
        for target in self._targets:
            if not target.closed and not target.failed:
                target.failed = why


def check_source(chunk: SourceChunk) -> None:
    if chunk.reason:
        raise Refusal(
            "source", f"the content could not be read: {chunk.reason}; nothing was written"
        )


def send_content(
    task: Task, parts: Parts, object_id: bytes, write: bytes, nodes: Sequence[bytes], need: int,
    size: int = -1, data: bytes | None = None, resume: bool = False,
) -> Procedure[Staged]:  # fmt: skip
    """Stage content on these nodes: `data`, or what the application of the operation gives."""
    known = len(data) if data is not None else size
    sending = Sending(task, parts, object_id, write, nodes, known, data, need, resume)
    return (yield from sending.run())
