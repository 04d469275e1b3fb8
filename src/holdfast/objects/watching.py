"""Watching objects: replicas report newer versions to the nodes that asked."""

from __future__ import annotations

from holdfast.objects.config import WATCHERS_MAX
from holdfast.objects.directories import Directories
from holdfast.objects.frames import Changed, Done, Watch
from holdfast.objects.hub import Hub
from holdfast.objects.parts import Parts
from holdfast.objects.ports import Change, WatchChanges
from holdfast.objects.reading import read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Answer, Procedure, Task, gather
from holdfast.objects.values import Value
from holdfast.types import SECOND

RENEW_NS = 5 * SECOND
"""A watcher asks again this often: a replica may have forgotten it, or may be a new one."""


class Watchers:
    """The nodes that watch objects of this node. When there are too many, a new one is refused."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._watchers: dict[tuple[bytes, bytes], None] = {}

    def watch(self, peer: bytes, frame: Watch) -> Done:
        key = (frame.object, peer)
        if not frame.on:
            self._watchers.pop(key, None)
        elif key not in self._watchers and len(self._watchers) >= WATCHERS_MAX:
            return Done(frame.call, "busy", f"{WATCHERS_MAX} watchers are here")
        else:
            self._watchers[key] = None
        return Done(frame.call)

    def lost(self, peer: bytes) -> None:
        for key in [key for key in self._watchers if key[1] == peer]:
            del self._watchers[key]

    def changed(self, value: Value) -> None:
        if not self._watchers:
            return
        for object_id, peer in self._watchers:
            if object_id == value.object:
                self._hub.send(peer, Changed(object_id, value.version, value.deleted))

    def __len__(self) -> int:
        return len(self._watchers)


class Watching:
    """The watches of applications on this node."""

    def __init__(self, parts: Parts, directories: Directories) -> None:
        self._parts = parts
        self._directories = directories
        self._tasks: dict[bytes, list[Task]] = {}

    def run(self, task: Task, request: WatchChanges) -> Procedure[None]:
        value, _ = yield from self._directories.find(task, request.path, request.object)
        self._tasks.setdefault(value.object, []).append(task)
        edition = value.edition
        self._parts.hub.effect(Change(request.op, edition, False))
        try:
            while not value.deleted:
                yield from self._ask(task, value)
                value, _ = yield from read_register(task, self._parts, value.object, value.nodes)
                if value.edition > edition:
                    edition = value.edition
                    self._parts.hub.effect(Change(request.op, edition, value.deleted))
                renew = task.now + RENEW_NS
                while task.now < renew:
                    event = yield renew
                    if isinstance(event, Answer) and isinstance(event.item, Changed):
                        break
        finally:
            self._tasks[value.object].remove(task)

    def _ask(self, task: Task, value: Value) -> Procedure[None]:
        ask = lambda call: Watch(call, value.object)
        replies = yield from gather(
            task, dict.fromkeys(value.nodes, ask), self._parts.config.call_ns
        )
        refused = [r for r in replies.values() if isinstance(r, Done) and r.reason]
        if refused and len(refused) == len(replies):
            raise Refusal("busy", f"no replica can be watched: {refused[0].detail}")

    def changed(self, frame: Changed) -> None:
        for task in self._tasks.get(frame.object, []):
            self._parts.tasks.answered_directly(task, frame)
