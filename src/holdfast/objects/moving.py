"""Moving an object to another name: over the trees of the object, its old parent and its new parent.

The move commits in the object's register, which has its parent and name. A name is reserved in the new parent first,
confirmed there afterwards, and the old one is removed. Whatever meets a reserved entry asks the object: it is confirmed
if the object is there, and withdrawn otherwise, after the object took a version that the mover does not expect.

Two directories could be moved into each other at the same time. So the move of a directory is announced in the root
directory, one at a time; the version of the root at that time is its token, and an object refuses an older token.
"""

from __future__ import annotations

import msgspec

from holdfast.objects import ports
from holdfast.objects.changing import change, named
from holdfast.objects.directories import (
    Directories,
    Edit,
    add_entry,
    confirm_entry,
    is_at,
    remove_entry,
)
from holdfast.objects.parts import Parts
from holdfast.objects.paths import DEPTH_MAX, parent_of
from holdfast.objects.reading import read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Procedure, Task
from holdfast.objects.values import (
    DIRECTORY,
    Entry,
    Listing,
    MoveIntent,
    Value,
    root_id,
    successor,
)
from holdfast.types import Nanos

replace = msgspec.structs.replace


class Moving:
    def __init__(self, parts: Parts, directories: Directories) -> None:
        self._parts = parts
        self._directories = directories
        self._pending_since: dict[tuple[bytes, str, bytes], Nanos] = {}
        """When an entry was first seen pending by this node."""

    def move(self, task: Task, request: ports.Move) -> Procedure[ports.Written]:
        old_names, old_name = parent_of(request.source)
        new_names, new_name = parent_of(request.target)
        old_parent, _ = yield from self._directories.resolve(task, old_names)
        value, _ = yield from self._directories.resolve(task, (*old_names, old_name))
        new_parent, states = yield from self._directories.resolve(task, new_names)
        if (old_parent.object, old_name) == (new_parent.object, new_name):
            return ports.Written(value, 0)
        if value.left[0]:
            value = yield from self.finish(
                task, value
            )  # an earlier move, whose mover is gone or slow
        token = 0
        write = self._parts.hub.new_id()
        if value.kind == DIRECTORY:
            # rule: R-12g
            token = yield from self._lock(task, value, write, new_parent, new_name)
        try:
            # rule: R-12f
            yield from self._check_cycle(task, value, new_parent, request)
            listing = yield from self._directories.listing(task, new_parent, states)
            instead = yield from self._vacate(task, new_parent, new_name, listing, request.target)
            entry = Entry(value.object, value.nodes, True, value.version, value.kind)
            reserve = add_entry(new_name, entry, instead)
            yield from self._directories.edit(task, new_parent, reserve)
            moved = yield from self._commit(task, value, write, new_parent, new_name, token)
        finally:
            if token:
                self._unlock_later(write)
        yield from self.finish(task, moved)
        self._parts.hub.fact("moved", value.object, moved.version, request.target)
        return ports.Written(moved, 0)

    def _commit(
        self, task: Task, value: Value, write: bytes, parent: Value, name: str, token: int
    ) -> Procedure[Value]:
        """Set parent and name in the object's register: from here on the move has taken place."""
        edition, place = value.edition, (value.parent, value.name)

        def make(base: Value) -> Value:
            if base.edition != edition or base.deleted or (base.parent, base.name) != place:
                raise Refusal(
                    "conflict", f"{named(base)} was changed at the same time; it was not moved"
                )
            if base.version != value.version:
                raise Refusal("retry", "a version was decided between")
            return successor(
                base, write, parent=parent.object, name=name, left=(*place, base.version + 1), edition=edition + 1,
                token=token or base.token,
            )  # fmt: skip

        while True:
            try:
                moved, _ = yield from change(task, self._parts, value, write, make)
            except Refusal as refusal:
                if refusal.code not in ("retry", "conflict", "token"):
                    raise
                if refusal.code != "retry" or token:
                    # The version between may be a fence: a directory is moved only while its mover has the lock.
                    # Its reservation goes, but not an entry that another mover has confirmed.
                    entry = Entry(value.object, value.nodes, True, value.version, value.kind)
                    yield from self._directories.edit(task, parent, _withdraw(name, entry))
                    raise Refusal(
                        "conflict", f"{named(value)} was changed at the same time; it was not moved"
                    ) from refusal
                # The reservation may have been withdrawn: the object is read first, then the entry.
                value, _ = yield from read_register(task, self._parts, value.object, value.nodes)
                yield from self._still_reserved(task, parent, name, value)
                continue
            return moved

    def _still_reserved(
        self, task: Task, parent: Value, name: str, value: Value
    ) -> Procedure[None]:
        entry = Entry(value.object, value.nodes, True, value.version, value.kind)
        yield from self._directories.edit(task, parent, _renew(name, entry))

    def finish(self, task: Task, value: Value) -> Procedure[Value]:
        """After the commit: confirm the new entry, and remove the old one. Any node may do it, at any time: when the
        object has been moved again meanwhile, the entry that this one has made is removed. Returns the version then."""
        parent, _ = yield from read_register(task, self._parts, value.parent)
        entry = Entry(value.object, value.nodes, False, value.version, value.kind)
        yield from self._directories.edit(task, parent, _settle(value.name, entry))
        # rule: R-12b
        yield from self._remove_name(task, value, *value.left[:2])
        write = self._parts.hub.new_id()

        def clear(base: Value) -> Value | None:
            if base.left != value.left or base.deleted:
                return None
            return successor(base, write, left=(b"", "", 0))

        now, _ = yield from change(task, self._parts, value, write, clear)
        if not is_at(now, value.parent, value.name) or now.deleted:
            yield from self._remove_name(task, now, value.parent, value.name)
        return now

    def _remove_name(self, task: Task, value: Value, parent: bytes, name: str) -> Procedure[None]:
        """The object is not there at this version."""
        directory, _ = yield from read_register(task, self._parts, parent)
        if not directory.deleted:
            edit = remove_entry(name, value.object, value.version)
            yield from self._directories.edit(task, directory, edit)

    # -- entries that are pending ----------------------------------------------------------------------------------

    def _vacate(
        self, task: Task, parent: Value, name: str, listing: Listing, path: str
    ) -> Procedure[bytes]:
        """The object of an entry that may be replaced. Raises `Refusal`: `exists`, `busy`."""
        entry = listing.entries.get(name)
        if entry is None:
            return b""
        settled = yield from self.settle_entry(task, parent, name, entry)
        if settled == "busy":
            raise Refusal("busy", f"{path!r} is being created or moved by another node; try again")
        if settled == "here":
            raise Refusal("exists", f"{path!r} exists; nothing was moved")
        return entry.object

    def settle_entry(self, task: Task, parent: Value, name: str, entry: Entry) -> Procedure[str]:
        """Ask the object of an entry whether it is here: `here`, `gone`, or `busy` while its mover may go on."""
        try:
            value, _ = yield from read_register(task, self._parts, entry.object, entry.nodes)
        except Refusal as refusal:
            if refusal.code != "unknown":
                raise
            value = None
        if value is not None and not value.deleted and is_at(value, parent.object, name):
            if entry.pending:
                edit = confirm_entry(name, entry.object, value.nodes, value.version)
                yield from self._directories.edit(task, parent, edit)
            return "here"
        if not entry.pending or (value is not None and value.deleted):
            return "gone"
        key = (parent.object, name, entry.object)
        since = self._pending_since.setdefault(key, task.now)
        if task.now - since < self._parts.config.settle_ns:
            return "busy"
        if value is not None:
            # rule: R-12c
            yield from self._fence(task, entry, value)
        yield from self._directories.edit(task, parent, _withdraw(name, entry))
        self._pending_since.pop(key, None)
        return "gone"

    def _fence(self, task: Task, entry: Entry, value: Value) -> Procedure[None]:
        """Decide a version that the mover does not expect, so that it cannot commit any more."""
        write = self._parts.hub.new_id()
        if value.version == entry.expects:
            yield from change(task, self._parts, value, write, lambda base: _unchanged(base, write))

    # -- moves of directories --------------------------------------------------------------------------------------

    def _lock(
        self, task: Task, value: Value, write: bytes, parent: Value, name: str
    ) -> Procedure[int]:
        """Announce the move of a directory in the root; returns its token. A move that another node left is settled
        first."""
        deadline = task.now + 2 * self._parts.config.write_ns
        intent = MoveIntent(value.object, write, parent.object, name, value.version, value.nodes)
        root, states = yield from self._directories.root(task)
        while True:
            listing = yield from self._directories.listing(task, root, states)
            if listing.intent is not None and listing.intent.write != write:
                yield from self._settle_intent(task, root, listing.intent)
            try:
                yield from self._directories.edit(task, root, _announce(intent))
            except Refusal as refusal:
                if refusal.code != "busy" or task.now >= deadline:
                    raise
            root, states = yield from self._directories.root(task)
            listing = yield from self._directories.listing(task, root, states)
            if listing.intent is not None and listing.intent.write == write:
                return root.version
            if task.now >= deadline:
                raise Refusal("busy", "another directory is being moved; try again")

    def _settle_intent(self, task: Task, root: Value, intent: MoveIntent) -> Procedure[None]:
        """Another directory is being moved: wait for it, and fence it when its mover seems to be gone."""
        key = (root.object, "", intent.write)
        since = self._pending_since.setdefault(key, task.now)
        wait = self._parts.config.settle_ns
        while task.now < since + wait:
            yield since + wait
        value, _ = yield from read_register(task, self._parts, intent.object, intent.nodes)
        if value.version == intent.expects:
            write = self._parts.hub.new_id()
            yield from change(task, self._parts, value, write, lambda base: _unchanged(base, write))
        yield from self._directories.edit(task, root, _retract(intent.write))
        self._pending_since.pop(key, None)

    def _unlock_later(self, write: bytes) -> None:
        """The announcement is removed by a task of its own: the move does not wait for it."""

        def unlock(task: Task) -> Procedure[None]:
            root, _ = yield from self._directories.root(task)
            yield from self._directories.edit(task, root, _retract(write))

        self._parts.tasks.start("unlock", unlock, lambda _: None)

    def _check_cycle(
        self, task: Task, value: Value, parent: Value, request: ports.Move
    ) -> Procedure[None]:
        """A directory cannot be moved into itself. With the lock, no other move changes the answer."""
        if value.kind != DIRECTORY:
            return
        root = root_id(self._parts.config.domain)
        at, _ = yield from read_register(task, self._parts, parent.object)
        for _ in range(DEPTH_MAX + 1):
            if at.object == value.object:
                raise Refusal(
                    "misuse", f"{request.target!r} is inside {request.source!r}; nothing was moved"
                )
            if at.object == root or not at.parent:
                return
            at, _ = yield from read_register(task, self._parts, at.parent)
        raise Refusal("misuse", f"{request.target!r} is too deep; nothing was moved")


def _unchanged(base: Value, write: bytes) -> Value:
    return successor(base, write)


def _renew(name: str, entry: Entry) -> Edit:
    """A reservation that still exists expects the version that the object has now."""

    def edit(listing: Listing) -> Listing | Refusal:
        old = listing.entries.get(name)
        is_mine = old is not None and old.object == entry.object and old.pending
        if old is None or not is_mine or old.expects > entry.expects:
            return Refusal(
                "conflict", f"the reservation of {name!r} was withdrawn; nothing was moved"
            )
        return replace(listing, entries={**listing.entries, name: entry})

    return edit


def _settle(name: str, entry: Entry) -> Edit:
    """The object is here by its register. A name that was taken meanwhile stays with the object that has it."""

    def edit(listing: Listing) -> Listing | Refusal:
        old = listing.entries.get(name)
        if old is not None and (old.object != entry.object or old.expects >= entry.expects):
            return listing
        return replace(listing, entries={**listing.entries, name: entry})

    return edit


def _withdraw(name: str, entry: Entry) -> Edit:
    """Remove a reservation, if it is still the one that was fenced."""

    def edit(listing: Listing) -> Listing | Refusal:
        # rule: R-12i
        if listing.entries.get(name) != entry:
            return listing
        return replace(listing, entries={n: e for n, e in listing.entries.items() if n != name})

    return edit


def _announce(intent: MoveIntent) -> Edit:
    def edit(listing: Listing) -> Listing | Refusal:
        if listing.intent is not None and listing.intent.write != intent.write:
            return Refusal("busy", "another directory is being moved")
        return replace(listing, intent=intent)

    return edit


def _retract(write: bytes) -> Edit:
    def edit(listing: Listing) -> Listing | Refusal:
        if listing.intent is None or listing.intent.write != write:
            return listing
        return replace(listing, intent=None)

    return edit
