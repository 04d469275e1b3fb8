"""The content side of replicas: stages that writers fill, chunks that readers fetch, and what can be deleted.

Content comes first, the record second: a stage is verified, synced and renamed before the record says that the content
is here, and only then is the writer told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.objects.config import OBJECT_BYTES_MAX, PATCH_MAX, SMALL_MAX, STAGES_MAX
from holdfast.objects.frames import (
    Accept,
    Accepted,
    Done,
    Fetch,
    FetchList,
    Piece,
    StageChunk,
    StageClose,
    StageDrop,
    StageFind,
    StageOpen,
    StagePatch,
    StageState,
)
from holdfast.objects.hub import Hub
from holdfast.objects.members import Members
from holdfast.objects.ports import (
    CloseStage,
    DiskDone,
    DropContent,
    DropStage,
    OpenStage,
    PatchStage,
    ReadChunk,
    ReadList,
    WriteChunk,
)
from holdfast.objects.registers import Registers
from holdfast.objects.small import SmallContents, edited
from holdfast.objects.values import CHUNK, Content, chunk_digest, content_digest, content_of
from holdfast.types import Nanos

Then = Callable[[DiskDone], None]


class Stage:
    """Content that is arriving."""

    __slots__ = ("chunks", "failed", "limit", "size", "touched")

    def __init__(self, now: Nanos, announced: int) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.limit = announced if announced >= 0 else OBJECT_BYTES_MAX
        """Bytes that it may have: for more, no space is reserved."""
        self.touched = now
        self.failed = ""

    @property
    def list_digest(self) -> bytes:
        return content_digest(self.size, b"".join(self.chunks))


class Contents:
    def __init__(self, hub: Hub, registers: Registers, members: Members) -> None:
        self._hub = hub
        self._registers = registers
        self._members = members
        self._stages: dict[bytes, Stage] = {}
        self._jobs: dict[int, Then] = {}
        self._staged: dict[tuple[bytes, bytes], Nanos] = {}
        """Content that a write brought, by object and digest, until when it is kept without a version that uses it."""
        self._old: dict[tuple[bytes, bytes], Nanos] = {}
        """Content that no version uses any more, and when it is deleted."""
        self.small = SmallContents(hub, self._job)

    # -- disk work -----------------------------------------------------------------------------------------------

    def done(self, outcome: DiskDone) -> bool:
        then = self._jobs.pop(outcome.token, None)
        if then is None:
            return False
        then(outcome)
        return True

    def _job(self, make: Callable[[int], Any], then: Then) -> None:
        token = self._hub.number()
        job = make(token)
        done = self.small.answer(job)
        if done is not None:
            then(done)
            return
        self._jobs[token] = then
        self._hub.effect(job)

    def _remove(self, object_id: bytes, digest: bytes) -> None:
        self.small.drop(object_id, digest)
        self._hub.effect(DropContent(object=object_id, digest=digest))

    # -- small contents ------------------------------------------------------------------------------------------

    def accept(self, frame: Accept) -> Accepted:
        """Accept a version. A small content that it brings is verified, and kept in the same commit."""
        value, data = frame.value, frame.data
        if not len(data) or not self._hub.config.store:
            return self._registers.accept(frame)
        record, digest = self._registers.get(value.object), value.content.digest
        if record is not None and digest in record.held:
            return self._registers.accept(frame)
        refused = self.small.refuses(value.content, data, self._members.free_bytes)
        if refused:
            self._hub.count("chunks_refused")
            return Accepted(frame.call, refused, decided=record.decided if record else None)
        reply = self._registers.accept(frame, brought=True)
        if not reply.reason and self._registers.mine(value):
            self.small.keep(value.object, digest, bytes(data))
        return reply

    # -- stages --------------------------------------------------------------------------------------------------

    def find(self, peer: bytes, frame: StageFind) -> None:
        stage = self._stages.get(frame.write)
        known = stage is not None and not stage.failed
        have = len(stage.chunks) if stage is not None else 0
        self._hub.send(peer, StageState(frame.call, "" if known else "no stage", "", have))

    def open(self, peer: bytes, frame: StageOpen) -> None:
        stage = self._stages.get(frame.write)
        if stage is not None and not stage.failed:
            # A write that is resumed: its space is reserved already.
            stage.touched = self._hub.now
            have = len(stage.chunks)
            self._hub.send(peer, StageState(frame.call, "", "", have, stage.list_digest))
            return
        refused = self._refuses(frame)
        if refused:
            self._hub.send(peer, StageState(frame.call, *refused))
            return
        stage = self._stages[frame.write] = Stage(self._hub.now, frame.size)

        def opened(outcome: DiskDone) -> None:
            if outcome.reason:
                stage.failed = outcome.reason
                self._stages.pop(frame.write, None)
            self._hub.send(peer, StageState(frame.call, outcome.reason, outcome.detail))

        self._job(lambda token: OpenStage(token=token, write=frame.write, size=frame.size), opened)

    def _refuses(self, frame: StageOpen) -> tuple[str, str] | None:
        if not self._hub.disk or not self._hub.config.store:
            return "no disk", "this node holds no replicas"
        if len(self._stages) >= STAGES_MAX and frame.write not in self._stages:
            return "busy", f"{STAGES_MAX} writes are in progress here"
        if frame.size > OBJECT_BYTES_MAX:
            return "full", f"an object has at most {OBJECT_BYTES_MAX} bytes"
        if frame.size > self._members.free_bytes:
            return "full", f"{self._members.free_bytes} bytes are free, {frame.size} are needed"
        return None

    def chunk(self, peer: bytes, frame: StageChunk) -> None:
        """A chunk is verified before it is written; chunks arrive in order, without gaps."""
        stage = self._stages.get(frame.write)
        reason = self._wrong(stage, frame)
        if reason or stage is None:
            self._hub.count("chunks_refused")
            self._hub.send(peer, Done(frame.call, reason))
            return
        stage.touched = self._hub.now
        if frame.index < len(stage.chunks):
            self._hub.send(peer, Done(frame.call))  # again: it is here
            return
        stage.chunks.append(bytes(frame.check))
        stage.size += len(frame.data)

        def written(outcome: DiskDone) -> None:
            if outcome.reason:
                stage.failed = outcome.reason
                self._drop_stage(frame.write)
            self._hub.send(peer, Done(frame.call, outcome.reason, outcome.detail))

        data = frame.data
        self._job(
            lambda token: WriteChunk(token=token, write=frame.write, index=frame.index, data=data),
            written,
        )

    def _wrong(self, stage: Stage | None, frame: StageChunk) -> str:
        if stage is None:
            return "no stage"
        if stage.failed:
            return stage.failed
        if not 0 < len(frame.data) <= CHUNK or frame.index > len(stage.chunks) or frame.index < 0:
            return "hostile"
        if frame.index == len(stage.chunks) and stage.size != frame.index * CHUNK:
            return "hostile"  # the chunk before this one was shorter, so it was the last
        if frame.index == len(stage.chunks) and stage.size + len(frame.data) > stage.limit:
            return "size"  # more than was announced
        # rule: R-6b
        if chunk_digest(frame.data) != frame.check:
            return "checksum"
        return ""

    def close(self, peer: bytes, frame: StageClose) -> None:
        record = self._registers.get(frame.object)
        if record is not None and frame.content.digest in record.held:
            self._drop_stage(frame.write)
            self._keep_staged(frame.object, frame.content.digest)
            self._hub.send(peer, Done(frame.call))
            return
        stage = self._stages.get(frame.write)
        if stage is None or stage.failed:
            self._hub.send(peer, Done(frame.call, stage.failed if stage else "no stage"))
            return
        chunks = b"".join(stage.chunks)
        if (
            stage.size != frame.content.size
            or content_digest(stage.size, chunks) != frame.content.digest
        ):
            self._drop_stage(frame.write)
            self._hub.send(
                peer, Done(frame.call, "checksum", "the content is not what was announced")
            )
            return
        self.keep(frame.write, frame.object, frame.content, chunks, self._answer(peer, frame.call))

    def keep(
        self, write: bytes, object_id: bytes, content: Content, chunks: bytes, then: Then
    ) -> None:
        """Make a complete stage durable, then record that the content is here."""

        def closed(outcome: DiskDone) -> None:
            self._stages.pop(write, None)
            if not outcome.reason:
                self._keep_staged(object_id, content.digest)
                self._registers.holds(object_id, content.digest)
            then(outcome)

        self._job(
            lambda token: CloseStage(
                token=token, write=write, object=object_id, content=content, chunks=chunks
            ),
            closed,
        )

    def _answer(self, peer: bytes, call: int) -> Then:
        return lambda outcome: _sent(self._hub, peer, Done(call, outcome.reason, outcome.detail))

    def patch(self, peer: bytes, frame: StagePatch) -> None:
        """New content from the content that the patch names by its digest, and from no other."""
        record = self._registers.get(frame.object)
        if record is None or frame.base.digest not in record.held:
            self._hub.send(peer, StageState(frame.call, "base", "the base content is not here"))
            return
        size = sum(len(data) for _, data in frame.edits)
        ends = [offset + len(data) for offset, data in frame.edits]
        if (
            size > PATCH_MAX
            or min((o for o, _ in frame.edits), default=0) < 0
            or max(ends, default=0) > frame.size
        ):
            self._hub.send(peer, StageState(frame.call, "hostile"))
            return

        data = self.small.get(frame.object, frame.base.digest)
        if data is None:
            self._patch_file(peer, frame)
        elif frame.size <= SMALL_MAX:
            self._patch_small(peer, frame, data)
        else:
            key = (frame.object, frame.base.digest)
            self.small.spill(key, lambda done: self._spilled(peer, frame, done))

    def _patch_small(self, peer: bytes, frame: StagePatch, data: bytes) -> None:
        made = edited(data, frame.edits, frame.size)
        content = content_of(made)[0]
        refused = self.small.refuses(content, memoryview(made), self._members.free_bytes)
        if refused:
            self._hub.send(peer, StageState(frame.call, refused))
            return
        record = self._registers.get(frame.object)
        if content.size and record is not None and content.digest not in record.held:
            self.small.keep(frame.object, content.digest, made)
            self._registers.holds(frame.object, content.digest)
        self._keep_staged(frame.object, content.digest)
        reply = StageState(frame.call, "", "", 0, content.digest, content.size)
        self._hub.send(peer, reply)

    def _spilled(self, peer: bytes, frame: StagePatch, done: DiskDone) -> None:
        """The base is a file now: it is patched there."""
        if done.reason:
            self._hub.send(peer, StageState(frame.call, done.reason, done.detail))
            return
        self._patch_file(peer, frame)

    def _patch_file(self, peer: bytes, frame: StagePatch) -> None:
        def patched(outcome: DiskDone) -> None:
            if outcome.reason:
                self._hub.send(peer, StageState(frame.call, outcome.reason, outcome.detail))
                return
            digest = content_digest(outcome.size, bytes(outcome.data))
            content = Content(digest, outcome.size)
            reply = lambda done: _sent(
                self._hub,
                peer,
                StageState(frame.call, done.reason, done.detail, 0, digest, content.size),
            )
            self.keep(frame.write, frame.object, content, bytes(outcome.data), reply)

        self._job(
            lambda token: PatchStage(
                token=token, write=frame.write, object=frame.object, base=frame.base, edits=frame.edits,
                size=frame.size,
            ),
            patched,
        )  # fmt: skip

    def drop(self, frame: StageDrop) -> None:
        self._drop_stage(frame.write)

    def _drop_stage(self, write: bytes) -> None:
        if self._stages.pop(write, None) is not None:
            self._hub.effect(DropStage(write=write))

    def _keep_staged(self, object_id: bytes, digest: bytes) -> None:
        self._staged[object_id, digest] = self._hub.now + self._hub.config.stage_ns
        self._old.pop((object_id, digest), None)

    # -- reading -------------------------------------------------------------------------------------------------

    def fetch(self, peer: bytes, frame: Fetch) -> None:
        refused = self._absent(frame.object, frame.content)
        if not refused and not 0 <= frame.index < frame.content.chunks:
            refused = "hostile"
        if refused:
            self._hub.send(peer, Piece(frame.call, refused))
            return
        key = (frame.object, frame.content.digest)
        if key in self._old:
            # A reader of an overwritten version gets it to its end.
            self._old[key] = self._hub.now + self._hub.config.keep_old_ns
        self._job(
            lambda token: ReadChunk(
                token=token, object=frame.object, content=frame.content, index=frame.index
            ),
            self._piece(peer, frame.call, frame.object, frame.content),
        )

    def fetch_list(self, peer: bytes, frame: FetchList) -> None:
        refused = self._absent(frame.object, frame.content)
        if refused:
            self._hub.send(peer, Piece(frame.call, refused))
            return
        self._job(
            lambda token: ReadList(token=token, object=frame.object, content=frame.content),
            self._piece(peer, frame.call, frame.object, frame.content, frame.offset),
        )

    def _absent(self, object_id: bytes, content: Content) -> str:
        """Why a content cannot be read here. One with a size that no content has must not look like damage."""
        record = self._registers.get(object_id)
        if record is None or content.digest not in record.held:
            return "absent"
        return "" if 0 < content.size <= OBJECT_BYTES_MAX else "hostile"

    def _piece(
        self, peer: bytes, call: int, object_id: bytes, content: Content, offset: int | None = None
    ) -> Then:
        def read(outcome: DiskDone) -> None:
            if outcome.reason and self._registers.uses(object_id, content):
                self.damaged(object_id, content.digest, outcome.detail or outcome.reason)
            data = memoryview(outcome.data)
            if offset is not None:
                data = data[max(offset, 0) :][:CHUNK]
            self._hub.send(peer, Piece(call, outcome.reason, data))

        return read

    def damaged(self, object_id: bytes, digest: bytes, detail: str) -> None:
        """Content on this disk is missing or wrong: it counts as absent until it is copied again."""
        record = self._registers.get(object_id)
        if record is None or digest not in record.held:
            return
        self._registers.dropped(object_id, [digest])
        self._remove(object_id, digest)
        self._hub.fact("damaged", object_id, detail=detail)

    # -- deleting ------------------------------------------------------------------------------------------------

    def scan(self, object_ids: list[bytes]) -> None:
        """Delete content that no version has used for a while, and stages of writers that are gone."""
        now, config = self._hub.now, self._hub.config
        for write, stage in list(self._stages.items()):
            if now - stage.touched > config.stage_ns:
                self._drop_stage(write)
        for key, until in list(self._staged.items()):
            if until <= now:
                del self._staged[key]
        for object_id in object_ids:
            self._mark_old(object_id)
        due = [key for key, at in self._old.items() if at <= now]
        for object_id, digest in due:
            del self._old[object_id, digest]
            self._registers.dropped(object_id, [digest])
            self._remove(object_id, digest)
        self.small.spill_oldest()

    def _mark_old(self, object_id: bytes) -> None:
        record = self._registers.get(object_id)
        if record is None:
            return
        used = [sibling.content.digest for sibling in record.siblings]
        used += [
            value.content.digest
            for value in (record.decided, record.accepted)
            if value is not None and not value.deleted and self._registers.mine(value)
        ]
        for digest in record.held:
            key = (object_id, digest)
            if digest in used:
                self._old.pop(key, None)
            elif key not in self._staged and key not in self._old:
                self._old[key] = self._hub.now + self._hub.config.keep_old_ns

    def decided(self, object_id: bytes, digest: bytes) -> None:
        """A version with this content is decided: it is kept by the version now."""
        self._staged.pop((object_id, digest), None)

    def drop_all(self, object_id: bytes) -> None:
        """The replica is forgotten: nothing of it stays on the disk."""
        record = self._registers.get(object_id)
        for digest in record.held if record is not None else ():
            self._old.pop((object_id, digest), None)
            self._staged.pop((object_id, digest), None)
            self._remove(object_id, digest)

    def is_awaited(self, object_id: bytes) -> bool:
        """Whether content of this object was brought for a version that is not decided yet."""
        return any(key[0] == object_id for key in self._staged)

    @property
    def waiting(self) -> bool:
        """Whether something is to be deleted later."""
        return bool(self._old or self._staged or self._stages)

    def status(self) -> dict[str, int]:
        return {
            "stages": len(self._stages),
            "disk_jobs": len(self._jobs),
            "to_delete": len(self._old),
            "small_bytes": self.small.total,
        }


def _sent(hub: Hub, peer: bytes, frame: Any) -> None:
    hub.send(peer, frame)
