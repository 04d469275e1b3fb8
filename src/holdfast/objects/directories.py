"""Directories: an object whose content is a list of names. The root directory has an id that all nodes know.

An entry is a hint: the register of an object says where it is (parent and name). An entry whose object says otherwise
is not there. Changes of one directory from one node are committed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.objects.changing import (
    change,
    check_majority,
    has_room,
    sound_nodes,
    stage,
    voters,
)
from holdfast.objects.config import DIRECTORY_MAX
from holdfast.objects.fetching import fetch_bytes
from holdfast.objects.parts import Parts
from holdfast.objects.paths import split
from holdfast.objects.quorum import has_majority
from holdfast.objects.reading import States, read_near, read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Procedure, Task, wait_for
from holdfast.objects.values import (
    DIRECTORY,
    EMPTY,
    LOOSE,
    Entry,
    Listing,
    ReplicaRef,
    Value,
    content_of,
    decode_listing,
    encode_listing,
    root_id,
    successor,
)
from holdfast.objects.verdicts import DECIDED
from holdfast.objects.writing import propose

LISTINGS_MAX: Final = 256
"""Directories whose content is remembered, by digest."""
BATCH_MAX: Final = 256
"""Changes of one directory that are committed together."""

CHANGED: Final = "changed"

Edit = Callable[[Listing], Listing | Refusal]
"""Changes a listing, or says why it cannot be done. The same object: nothing is to be changed."""


class Directories:
    """Directory contents that this node remembers, and changes that wait for their turn."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._listings: dict[bytes, Listing] = {}
        self._waiting: dict[bytes, list[tuple[int, Edit]]] = {}

    # -- reading -------------------------------------------------------------------------------------------------

    def root(self, task: Task) -> Procedure[tuple[Value, States]]:
        """The root directory; it is created when it does not exist and the configuration says where."""
        parts = self._parts
        object_id = root_id(parts.config.domain)
        founders = self._founders()
        try:
            return (yield from read_register(task, parts, object_id, [r.node for r in founders]))
        except Refusal as refusal:
            if refusal.code != "unknown":
                raise
        if not founders:
            raise Refusal(
                "no root",
                "the root directory is not reachable. To create it, set `objects.root` in the configuration, and "
                "start all nodes that it names",
            )
        value = Value(
            object_id, 1, parts.hub.new_id(), founders, len(founders), EMPTY, kind=DIRECTORY
        )
        nodes = value.nodes
        deadline = task.now + parts.config.write_ns
        verdict = yield from propose(task, parts, None, value, nodes, deadline, 1, object_id)
        if verdict.kind != DECIDED:
            raise Refusal("no root", f"the root directory was not created: {verdict.detail}")
        return (yield from read_register(task, parts, object_id, nodes))

    def _founders(self) -> tuple[ReplicaRef, ...]:
        """The configured nodes of the root; empty while one of them is not known."""
        members = self._parts.members
        refs = []
        for name in self._parts.config.root:
            node = members.names.get(name)
            ref = members.ref(node) if node is not None else None
            if ref is None:
                return ()
            refs.append(ref)
        return tuple(refs)

    def listing(self, task: Task, value: Value, states: States) -> Procedure[Listing]:
        if value.kind != DIRECTORY:
            raise Refusal("not a directory", f"{value.name!r} is not a directory")
        if not value.content.size:
            return Listing()
        digest = value.content.digest
        if digest not in self._listings:
            holders = sound_nodes(value, states, self._parts)
            data = yield from fetch_bytes(task, self._parts, value.object, value.content, holders)
            self._remember(digest, _decoded(value, data))
        return self._listings[digest]

    def _remember(self, digest: bytes, listing: Listing) -> None:
        self._listings[digest] = listing
        while len(self._listings) > LISTINGS_MAX:
            del self._listings[next(iter(self._listings))]

    def find(
        self, task: Task, path: str, object_id: bytes = b""
    ) -> Procedure[tuple[Value, States]]:
        """The object at a path, or with an id that an earlier access gave. A loose object is also found on the side of
        a partition where no majority is."""
        try:
            return (yield from self._find_now(task, path, object_id))
        except Refusal as refusal:
            if refusal.code not in ("unreachable", "no root"):
                raise
            lost = refusal
        return (yield from self._find_near(task, path, object_id, lost))

    def _find_now(self, task: Task, path: str, object_id: bytes) -> Procedure[tuple[Value, States]]:
        if not object_id:
            return (yield from self.resolve(task, split(path)))
        value, states = yield from read_register(task, self._parts, object_id)
        if value.deleted:
            raise not_found(path or object_id.hex()[:8])
        return value, states

    def _find_near(
        self, task: Task, path: str, object_id: bytes, lost: Refusal
    ) -> Procedure[tuple[Value, States]]:
        """A loose object on this side of a partition; raises `lost` if there is none."""
        try:
            if object_id:
                value, states = yield from read_near(task, self._parts, object_id)
            else:
                value, states = yield from self.resolve(task, split(path), near=True)
        except Refusal:
            raise lost from None
        if value.mode != LOOSE:
            raise lost
        if value.deleted:
            raise not_found(path or object_id.hex()[:8])
        return value, states

    def resolve(
        self, task: Task, names: Sequence[str], near: bool = False
    ) -> Procedure[tuple[Value, States]]:
        """The object at a path. Raises `Refusal`: `not found`. With `near`, what it reads may be old."""
        if near:
            value, states = yield from read_near(
                task, self._parts, root_id(self._parts.config.domain)
            )
        else:
            value, states = yield from self.root(task)
        path = ""
        for name in names:
            listing = yield from self.listing(task, value, states)
            path += "/" + name
            entry = listing.entries.get(name)
            if entry is None:
                raise not_found(path)
            value, states = yield from self.enter(task, value, name, entry, path, near)
        return value, states

    def enter(
        self, task: Task, directory: Value, name: str, entry: Entry, path: str, near: bool = False
    ) -> Procedure[tuple[Value, States]]:
        """The object of an entry, if its register says that it is here."""
        read = read_near if near else read_register
        try:
            value, states = yield from read(task, self._parts, entry.object, entry.nodes)
        except Refusal as refusal:
            if refusal.code == "unknown" and entry.pending:
                raise not_found(path) from refusal
            raise
        # rule: R-12h
        if value.deleted or not is_at(value, directory.object, name):
            raise not_found(path)
        return value, states

    # -- changing ------------------------------------------------------------------------------------------------

    def edit(self, task: Task, directory: Value, make: Edit) -> Procedure[None]:
        """Change a directory. Changes that wait at the same time are one version. Raises `Refusal`."""
        token = task.expect()
        queue = self._waiting.get(directory.object)
        if queue is None:
            queue = self._waiting[directory.object] = []
            self._parts.tasks.start(
                "directory", lambda worker: self._work(worker, directory), lambda _: None
            )
        queue.append((token, make))
        outcome = yield from wait_for(task, token, 4 * self._parts.config.write_ns)
        if isinstance(outcome, Refusal):
            raise outcome
        if outcome is None:
            raise Refusal("in doubt", "the directory was not changed in time; it may still change")

    def _work(self, worker: Task, directory: Value) -> Procedure[None]:
        """Commit what waits for one directory, until nothing does."""
        queue = self._waiting[directory.object]
        yield worker.now  # let everything that arrives in this turn take part
        while queue:
            batch, queue[:] = queue[:BATCH_MAX], queue[BATCH_MAX:]
            outcome: Any
            try:
                outcomes = yield from self._commit(worker, directory, [make for _, make in batch])
            except Refusal as refusal:
                outcomes = [refusal] * len(batch)
            for (token, _), outcome in zip(batch, outcomes, strict=True):
                self._parts.tasks.answered(token, outcome or CHANGED)
        del self._waiting[directory.object]

    def _commit(
        self, worker: Task, directory: Value, edits: Sequence[Edit]
    ) -> Procedure[list[Refusal | None]]:
        parts = self._parts
        write = parts.hub.new_id()
        deadline = worker.now + parts.config.write_ns
        states: States = {}
        value, is_assumed = parts.known(directory.object), True
        while True:
            if value is None or not self._is_usable(value):
                value, states = yield from read_register(
                    worker, parts, directory.object, directory.nodes
                )
                is_assumed = False
            if value.deleted and not is_assumed:
                raise Refusal(
                    "not found", f"directory {value.name!r} was deleted; nothing was changed"
                )
            listing = yield from self.listing(worker, value, states)
            changed, outcomes = _applied(listing, edits)
            if is_assumed and (value.deleted or changed is listing or any(outcomes)):
                value = None  # only the current version refuses a change
                continue
            if changed is listing:
                return outcomes
            data = encode_listing(changed)
            if len(data) > DIRECTORY_MAX:
                raise Refusal(
                    "full", f"directory {value.name!r} has too many names; nothing was changed"
                )
            is_small = len(data) <= parts.config.small and has_room(parts, value.nodes, len(data))
            if is_small:
                check_majority(parts, value)
                content = content_of(data)[0]
            else:
                content = yield from stage(worker, parts, value, write, data=data)
            based_on = value

            def make(
                base: Value,
                based_on: Value = based_on,
                content: Any = content,
                write: bytes = write,
            ) -> Value:
                if base.content != based_on.content or base.deleted:
                    raise Refusal("conflict", "the directory has changed")
                return successor(base, write, content=content, edition=base.edition + 1)

            try:
                carried = data if is_small else b""
                yield from change(worker, parts, value, write, make, carried)
            except Refusal as refusal:
                if refusal.code != "conflict" or worker.now >= deadline:
                    raise
                write, value = parts.hub.new_id(), None
                continue
            self._remember(content.digest, changed)
            return outcomes

    def _is_usable(self, value: Value) -> bool:
        """Whether a change can be based on a version that this node has heard of, without asking for a later one."""
        is_known = value.content.digest in self._listings
        return is_known and has_majority(value.nodes, voters(self._parts, value))


def _applied(listing: Listing, edits: Sequence[Edit]) -> tuple[Listing, list[Refusal | None]]:
    outcomes: list[Refusal | None] = []
    for edit in edits:
        result = edit(listing)
        if isinstance(result, Refusal):
            outcomes.append(result)
        else:
            listing = result
            outcomes.append(None)
    return listing, outcomes


def _decoded(value: Value, data: bytes) -> Listing:
    try:
        return decode_listing(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refusal(
            "damaged", f"{value.name!r} has no valid directory content: {error}"
        ) from error


def is_at(value: Value, parent: bytes, name: str) -> bool:
    """Whether the register of an object says that it is in this directory under this name."""
    return value.parent == parent and value.name == name


def not_found(path: str) -> Refusal:
    return Refusal("not found", f"there is no object {path!r}")


# -- edits ---------------------------------------------------------------------------------------------------------


def add_entry(name: str, entry: Entry, instead_of: bytes = b"") -> Edit:
    """Add a name. It may replace an entry of the object `instead_of`, which is not there any more."""

    def edit(listing: Listing) -> Listing | Refusal:
        old = listing.entries.get(name)
        if old is not None and old.object not in (entry.object, instead_of):
            return Refusal("exists", f"{name!r} exists; nothing was changed")
        if old is not None and old.object == entry.object:
            is_here = not old.pending and old.expects == entry.expects
            if entry.pending and (is_here or old.expects > entry.expects):
                return Refusal("conflict", f"{name!r} was moved here by another node")
            if old == entry or old.expects > entry.expects:
                return listing
        return msgspec.structs.replace(listing, entries={**listing.entries, name: entry})

    return edit


def remove_entry(name: str, object_id: bytes, version: int) -> Edit:
    """Remove the name of an object that was not here at this version. It stays if the object came back later."""

    def edit(listing: Listing) -> Listing | Refusal:
        old = listing.entries.get(name)
        # rule: R-12d
        if old is None or old.object != object_id or old.expects >= version:
            return listing
        entries = {n: e for n, e in listing.entries.items() if n != name}
        return msgspec.structs.replace(listing, entries=entries)

    return edit


def confirm_entry(name: str, object_id: bytes, nodes: tuple[bytes, ...], version: int) -> Edit:
    """The object is here at this version: the entry is not pending any more."""

    def edit(listing: Listing) -> Listing | Refusal:
        old = listing.entries.get(name)
        if old is None or old.object != object_id:
            return Refusal("withdrawn", f"the entry {name!r} was withdrawn")
        if not old.pending or old.expects >= version:
            return listing
        entry = Entry(object_id, nodes, False, version, old.kind)
        return msgspec.structs.replace(listing, entries={**listing.entries, name: entry})

    return edit
