"""The operations of applications: create, write, patch, read, delete, list, describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.objects import ports
from holdfast.objects.changing import (
    change,
    check_majority,
    has_room,
    named,
    sound_nodes,
    stage,
    too_few,
    voters,
)
from holdfast.objects.config import PATCH_MAX, REPLICAS_MAX
from holdfast.objects.directories import Directories, add_entry, not_found, remove_entry
from holdfast.objects.fetching import ToApplication, fetch_content
from holdfast.objects.frames import Look, StageFind, StagePatch, StageState
from holdfast.objects.loose import Loose
from holdfast.objects.parts import Parts
from holdfast.objects.paths import parent_of, split
from holdfast.objects.quorum import has_majority, majority
from holdfast.objects.reading import States, counts, newest, read_near
from holdfast.objects.refusal import Refusal
from holdfast.objects.staging import check_source, send_content
from holdfast.objects.tasks import Procedure, Task, gather, work
from holdfast.objects.values import (
    DIRECTORY,
    EMPTY,
    LOOSE,
    Content,
    Entry,
    ReplicaRef,
    Value,
    content_of,
    successor,
)
from holdfast.objects.verdicts import DECIDED, IN_DOUBT
from holdfast.objects.writing import create as decide_first
from holdfast.types import SECOND

PATCH_NS_PER_MB = SECOND // 20
"""How long a replica may take for each megabyte of a content that is patched."""


class Operations:
    def __init__(self, parts: Parts, directories: Directories, loose: Loose) -> None:
        self._parts = parts
        self._directories = directories
        self._loose = loose

    # -- create --------------------------------------------------------------------------------------------------

    def create(self, task: Task, request: ports.Create) -> Procedure[ports.Written]:
        """Content first, then the object, then its name. Whatever is left by a creator that died is finished or
        withdrawn by the replicas."""
        parents, name = parent_of(request.path)
        directory, states = yield from self._directories.resolve(task, parents)
        listing = yield from self._directories.listing(task, directory, states)
        instead_of = yield from self._occupant(
            task, directory, listing.entries.get(name), request.path
        )
        wanted = request.replicas or self._parts.config.replicas
        if not 1 <= wanted <= REPLICAS_MAX:
            raise Refusal("misuse", f"an object has 1 to {REPLICAS_MAX} replicas, not {wanted}")
        value = yield from self._first_version(task, request, wanted, directory.object, name)
        entry = Entry(value.object, value.nodes, kind=value.kind)
        failed = None
        try:
            yield from self._directories.edit(task, directory, add_entry(name, entry, instead_of))
        except Refusal as refusal:
            failed = refusal
        if failed is not None:
            if failed.code != "in doubt":
                yield from self._withdraw(task, value)
            if failed.code == "exists":
                raise Refusal("exists", f"{request.path!r} exists; nothing was changed") from failed
            raise failed
        return ports.Written(value, len(value.replicas), value.write)

    def _occupant(
        self, task: Task, directory: Value, entry: Entry | None, path: str
    ) -> Procedure[bytes]:
        """The object of an entry that can be replaced, because it is deleted or elsewhere."""
        if entry is None:
            return b""
        try:
            yield from self._directories.enter(
                task, directory, path.rpartition("/")[2], entry, path
            )
        except Refusal as refusal:
            gone = ("not found", "unknown") if not entry.pending else ("not found",)
            if refusal.code in gone:
                return entry.object
            raise
        raise Refusal("exists", f"{path!r} exists; nothing was changed")

    def _first_version(
        self, task: Task, request: ports.Create, wanted: int, parent: bytes, name: str
    ) -> Procedure[Value]:
        parts = self._parts
        # A resumed attempt finds its stages, and makes another object. The first one may be decided, on other replicas.
        write, object_id = request.write or parts.hub.new_id(), parts.hub.new_id()
        parts.hub.effect(ports.Begun(request.op, None, write))
        nodes = list(request.nodes)
        if not nodes:
            nodes = yield from self._places(task, request, object_id, wanted)
        need = majority(wanted)
        blank = Value(
            object_id, 0, write, tuple(ReplicaRef(node) for node in nodes), wanted, name=name
        )
        if len(nodes) < need:
            raise Refusal(
                "unreachable",
                f"{request.path!r}: {wanted} replicas need at least {need} nodes with {_space(request.size)}; "
                f"{len(nodes)} such nodes are reachable; nothing was created",
            )
        content, kept, data = EMPTY, nodes, b""
        small = yield from _small(task, parts, request, nodes)
        if small is not None:
            content, data = content_of(small)[0], small
        elif request.kind != DIRECTORY:
            staged = yield from send_content(
                task, parts, object_id, write, nodes, need, request.size, None, bool(request.write)
            )
            content, kept = staged.content, staged.nodes
            if len(kept) < need:
                raise too_few(blank, staged.failed, need)
        refs = tuple(ref for ref in (parts.members.ref(node) for node in kept) if ref is not None)
        if len(refs) < need:
            raise too_few(blank, dict.fromkeys(nodes, "lost"), need)
        loose = request.mode == LOOSE
        value = Value(
            object_id, 1, write, refs, wanted, Content() if loose else content, parent, name, request.kind,
            request.mode, lineage=(write,), owner=parts.hub.proposer(),
        )  # fmt: skip
        yield from self._decide_first(task, value, data)
        if loose:
            yield from self._loose.first(task, value, content)
        return value

    def _places(
        self, task: Task, request: ports.Create, object_id: bytes, wanted: int
    ) -> Procedure[list[bytes]]:
        """Where the replicas of a new object go: first to the nodes that have content of the attempt that is
        resumed. Their space is reserved already, so it does not count as free."""
        members = self._parts.members
        begun: list[bytes] = []
        if request.write:
            ask = lambda call: StageFind(call, request.write)
            holding = [
                node
                for node, offer in sorted(members.offers.items())
                if offer.disk and not offer.draining
            ]
            replies = yield from gather(
                task, dict.fromkeys(holding, ask), self._parts.config.call_ns
            )
            have = {
                node: reply.have
                for node, reply in replies.items()
                if isinstance(reply, StageState) and not reply.reason
            }
            begun = sorted(have, key=lambda node: -have[node])[:wanted]
        return begun + members.place(object_id, wanted - len(begun), request.size, begun)

    def _decide_first(self, task: Task, value: Value, data: bytes) -> Procedure[None]:
        deadline = task.now + self._parts.config.write_ns
        verdict = yield from decide_first(task, self._parts, value, deadline, data)
        if verdict.kind == DECIDED:
            if verdict.value is None or verdict.value.deleted:
                raise Refusal("conflict", f"{named(value)} was withdrawn while it was created")
            self._parts.own(verdict.value, value.owner)
            return
        if verdict.kind == IN_DOUBT:
            raise Refusal(
                "in doubt",
                f"{named(value)}: contact with a majority of the replicas was lost ({verdict.detail}); it may be "
                "created. List the directory to find out",
            )
        code = "full" if verdict.detail == "full" else "unreachable"
        raise Refusal(code, f"{named(value)}: {verdict.detail}; nothing was created")

    def _withdraw(self, task: Task, value: Value) -> Procedure[None]:
        """The name was taken: the object without a name is deleted. If that fails, its replicas do it later."""
        write = self._parts.hub.new_id()
        try:
            yield from change(task, self._parts, value, write, lambda base: tombstone(base, write))
        except Refusal:
            self._parts.hub.count("withdrawn_later")

    # -- write ---------------------------------------------------------------------------------------------------

    def write(self, task: Task, request: ports.Write) -> Procedure[ports.Written]:
        base = self._remembered(request)
        is_assumed = base is not None
        if base is None:
            base, _ = yield from self._directories.find(task, request.path, request.object)
        _check_file(base, request.path)
        if base.mode == LOOSE:
            return (yield from self._loose.write(task, base, request.size))
        if request.write and request.write in base.lineage:
            return ports.Written(base, 0, request.write)  # the attempt that is resumed took effect
        expected = request.edition or base.edition
        if expected != base.edition:
            raise _conflict(base, expected)
        write = request.write or self._parts.hub.new_id()
        self._parts.hub.effect(ports.Begun(request.op, base, write))
        small = yield from _small(task, self._parts, request, base.nodes)
        if small is not None:
            check_majority(self._parts, base)
            content = content_of(small)[0]
        else:
            content = yield from stage(
                task, self._parts, base, write, request.size, None, bool(request.write)
            )
        value, copies = yield from self._set_content(
            task, base, write, content, expected, small or b"", is_assumed and not request.edition
        )
        return ports.Written(value, copies, write)

    def _remembered(self, request: ports.Write) -> Value | None:
        """The version that this node has heard of, for a small write that names no other one: the replicas say
        whether it is current when they are asked to replace it."""
        if not request.object or request.write or not 0 <= request.size <= self._parts.config.small:
            return None
        known = self._parts.known(request.object)
        if known is None or known.deleted or known.mode == LOOSE:
            return None
        if not has_majority(known.nodes, voters(self._parts, known)):
            return None  # the replicas may have moved
        return known if request.edition in (0, known.edition) else None

    def _set_content(
        self, task: Task, base: Value, write: bytes, content: Content, expected: int,
        data: bytes = b"", may_follow: bool = False,
    ) -> Procedure[tuple[Value, int]]:  # fmt: skip
        """With `may_follow`, the write goes on top of a later edition that was current when it began."""
        editions = [expected]

        def found_late(current: Value) -> None:
            if may_follow:
                editions[0] = current.edition

        def make(current: Value) -> Value:
            # rule: R-3a
            # rule: R-3d
            if current.edition != editions[0] or current.deleted:
                raise _conflict(current, editions[0])
            return successor(current, write, content=content, edition=current.edition + 1)

        return (yield from change(task, self._parts, base, write, make, data, found_late))

    def patch(self, task: Task, request: ports.Patch) -> Procedure[ports.Written]:
        """Replicas make the new content from the base that the patch names; what they make must be the same."""
        base, _ = yield from self._directories.find(task, request.path, request.object)
        _check_file(base, request.path)
        if base.mode == LOOSE:
            raise Refusal("misuse", f"{request.path!r} is loose; a part of it cannot be changed")
        # rule: R-7a
        if request.base and request.base != base.content.digest:
            raise _conflict(base, base.edition)
        if sum(len(data) for _, data in request.edits) > PATCH_MAX:
            raise Refusal(
                "misuse", f"a patch has at most {PATCH_MAX} bytes; write the object instead"
            )
        size = request.size
        if size < 0:
            size = max([base.content.size, *(offset + len(data) for offset, data in request.edits)])
        write = self._parts.hub.new_id()
        content = yield from self._stage_patch(task, base, write, request.edits, size)
        value, copies = yield from self._set_content(task, base, write, content, base.edition)
        return ports.Written(value, copies, write)

    def _stage_patch(
        self, task: Task, base: Value, write: bytes, edits: tuple[tuple[int, bytes], ...], size: int
    ) -> Procedure[Content]:
        ask = lambda call: StagePatch(call, base.object, write, base.content, edits, size)
        timeout = (
            self._parts.config.chunk_ns + (max(size, base.content.size) >> 20) * PATCH_NS_PER_MB
        )
        replies = yield from gather(task, dict.fromkeys(base.nodes, ask), timeout)
        made: dict[bytes, list[bytes]] = {}
        failed: dict[bytes, str] = {}
        for node, reply in replies.items():
            if isinstance(reply, StageState) and not reply.reason and reply.size == size:
                made.setdefault(reply.digest, []).append(node)
            else:
                failed[node] = reply.reason if isinstance(reply, StageState) else "no answer"
        for digest, nodes in made.items():
            # rule: R-7b
            if has_majority(base.nodes, nodes):
                return Content(digest, size)
        raise too_few(base, failed, majority(len(base.replicas)))

    # -- read ----------------------------------------------------------------------------------------------------

    def read(self, task: Task, request: ports.Read) -> Procedure[ports.ReadDone]:
        if request.fresh:
            value, states = yield from self._directories.find(task, request.path, request.object)
        else:
            value, states = yield from self._old(task, request)
        _check_file(value, request.path)
        content = value.content
        if value.mode == LOOSE:
            content = self._loose.content(value, states)
        if request.digest and request.digest != content.digest:
            raise Refusal("conflict", f"{request.path!r} has changed; start the read again")
        self._parts.hub.effect(ports.Begun(request.op, value, content.digest))
        holders = sound_nodes(value, states, self._parts)
        sink = ToApplication(task, self._parts, request.first)
        yield from fetch_content(
            task, self._parts, value.object, content, holders, sink, request.first
        )
        return ports.ReadDone(value, content)

    def _old(self, task: Task, request: ports.Read) -> Procedure[tuple[Value, States]]:
        """A decided version of the nearest replica, which may be old."""
        if request.object:
            value, states = yield from read_near(task, self._parts, request.object)
        else:
            value, states = yield from self._directories.resolve(
                task, split(request.path), near=True
            )
        if value.deleted:
            raise not_found(request.path)
        return value, states

    def stat(self, task: Task, request: ports.Stat) -> Procedure[ports.Description]:
        value, _ = yield from self._directories.find(task, request.path, request.object)
        return (yield from self.describe(task, value))

    def describe(self, task: Task, value: Value) -> Procedure[ports.Description]:
        """Ask every replica how it is."""
        ask = lambda call: Look(call, value.object)
        replies = yield from gather(
            task, dict.fromkeys(value.nodes, ask), self._parts.config.call_ns
        )
        states = tuple(_state(value, node, replies[node]) for node in value.nodes)
        heard: States = {node: r for node, r in replies.items() if counts(r)}
        siblings = self._loose.merged(heard)
        size = max((s.content.size for s in siblings), default=value.content.size)
        return ports.Description(newest(heard) or value, states, len(siblings), size)

    def list_names(self, task: Task, request: ports.ListNames) -> Procedure[ports.Names]:
        value, states = yield from self._directories.resolve(task, split(request.path))
        listing = yield from self._directories.listing(task, value, states)
        rows = [
            (name, entry.object, entry.kind)
            for name, entry in sorted(listing.entries.items())
            if not entry.pending
        ]
        return ports.Names(tuple(rows))

    # -- delete --------------------------------------------------------------------------------------------------

    def delete(self, task: Task, request: ports.Delete) -> Procedure[ports.Written]:
        """Decide a tombstone, then remove the name."""
        parents, name = parent_of(request.path)
        directory, _ = yield from self._directories.resolve(task, parents)
        base, states = yield from self._directories.resolve(task, (*parents, name))
        expected = request.edition or base.edition
        if base.kind == DIRECTORY:
            listing = yield from self._directories.listing(task, base, states)
            if listing.entries:
                raise Refusal(
                    "not empty",
                    f"{request.path!r} has {len(listing.entries)} names; delete them first",
                )
        if base.mode == LOOSE:
            return (yield from self._loose.delete(task, base))
        write = self._parts.hub.new_id()

        def make(current: Value) -> Value | None:
            if current.edition != expected:
                raise _conflict(current, expected)
            return tombstone(current, write)

        value, copies = yield from change(task, self._parts, base, write, make)
        yield from self._directories.edit(
            task, directory, remove_entry(name, base.object, value.version)
        )
        return ports.Written(value, copies, write)


def _small(
    task: Task, parts: Parts, request: ports.Create | ports.Write, nodes: Sequence[bytes]
) -> Procedure[bytes | None]:
    """The content of an operation if it is small, and sent together with the version; None if it is staged."""
    if request.write or not 0 <= request.size <= parts.config.small:
        return None
    if isinstance(request, ports.Create) and (request.kind == DIRECTORY or request.mode == LOOSE):
        return None
    if not has_room(parts, nodes, request.size):
        return None
    answer = yield from work(task, lambda token: ports.ReadSource(token, request.op, 0))
    assert isinstance(answer, ports.SourceChunk)
    check_source(answer)
    return bytes(answer.data) if len(answer.data) == request.size else None


def tombstone(base: Value, write: bytes) -> Value | None:
    """The version that deletes an object; None if it is deleted."""
    if base.deleted:
        return None
    return successor(base, write, deleted=True, content=Content(), edition=base.edition + 1)


def _space(size: int) -> str:
    return f"{size} bytes of free space" if size > 0 else "space"


def _check_file(value: Value, path: str) -> None:
    if value.kind == DIRECTORY:
        raise Refusal("misuse", f"{path!r} is a directory")


def _conflict(current: Value, expected: int) -> Refusal:
    what = "was deleted" if current.deleted else f"is at edition {current.edition}"
    return Refusal(
        "conflict",
        f"{named(current)} {what}, and the change is based on edition {expected}; nothing was changed. Read it and try "
        "again",
    )


def _state(value: Value, node: bytes, reply: Any) -> ports.ReplicaState:
    if reply is None:
        return ports.ReplicaState(node, "unreachable")
    if not counts(reply):
        return ports.ReplicaState(node, "emptied")
    version = reply.decided.version if reply.decided is not None else 0
    if version < value.version:
        return ports.ReplicaState(node, "late", version)
    return ports.ReplicaState(node, "sound" if reply.sound else "damaged", version)
