"""Loose objects: a write needs one replica; versions are version vectors, and concurrent ones are merged.

The register of a loose object holds its replica set and its place. Its contents are siblings: versions of which none
has seen the other. They are merged by the conflict handler of the application, at one replica.
"""

from __future__ import annotations

from typing import Any

from holdfast.objects import ports
from holdfast.objects.changing import named, too_few
from holdfast.objects.config import SIBLINGS_MAX
from holdfast.objects.fetching import fetch_bytes
from holdfast.objects.frames import Look, Merge, Merged
from holdfast.objects.parts import Parts
from holdfast.objects.reading import States, counts
from holdfast.objects.refusal import Refusal
from holdfast.objects.staging import send_content
from holdfast.objects.tasks import Procedure, Task, gather, work
from holdfast.objects.values import EMPTY, Content, Sibling, Value
from holdfast.objects.vectors import advanced, combined, merged
from holdfast.types import SECOND

HANDLER_NS = 60 * SECOND
"""How long a conflict handler may take."""


class Loose:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._actor = parts.hub.me + parts.hub.entropy(4)
        """This life of this node: counts of an earlier life may not be known any more."""
        self._counts: dict[bytes, int] = {}
        self._tried: dict[bytes, tuple[Sibling, ...]] = {}
        """Conflicts whose handler failed: both versions stay until another one comes."""

    # -- applications ----------------------------------------------------------------------------------------------

    def first(self, task: Task, value: Value, content: Content) -> Procedure[None]:
        sibling = Sibling(((self._actor, self._next(value.object, ())),), value.write, content)
        yield from self._spread(task, value, (sibling,))

    def write(
        self, task: Task, base: Value, size: int, data: bytes | None = None
    ) -> Procedure[ports.Written]:
        """New content on every replica that is reachable, at least one. It supersedes what these replicas have."""
        states = yield from self._look(task, base)
        seen = self.merged(states)
        if len(seen) >= SIBLINGS_MAX:
            raise Refusal(
                "conflict", f"{named(base)} has {len(seen)} versions that must be merged first"
            )
        write = self._parts.hub.new_id()
        staged = yield from send_content(
            task, self._parts, base.object, write, list(states), len(states), size, data
        )
        if not staged.nodes:
            raise too_few(base, staged.failed, 1)
        sibling = self._successor(base, seen, write, staged.content)
        copies = yield from self._spread(task, base, (sibling,), staged.nodes)
        return ports.Written(base, copies)

    def delete(self, task: Task, base: Value) -> Procedure[ports.Written]:
        """A version that deletes. Against a concurrent update it is a conflict like any other."""
        states = yield from self._look(task, base)
        seen = self.merged(states)
        sibling = self._successor(base, seen, self._parts.hub.new_id(), EMPTY, deleted=True)
        copies = yield from self._spread(task, base, (sibling,), list(states))
        return ports.Written(base, copies)

    def content(self, value: Value, states: States) -> Content:
        """The content that a read gives: of the only version, or of one of several, the same on all nodes."""
        siblings = self.merged(states)
        alive = [sibling for sibling in siblings if not sibling.deleted]
        if not alive:
            raise Refusal("not found", f"{named(value)} was deleted")
        return alive[-1].content

    @staticmethod
    def merged(states: States) -> tuple[Sibling, ...]:
        return combined(sibling for state in states.values() for sibling in state.siblings)

    # -- replicas --------------------------------------------------------------------------------------------------

    def take(self, object_id: bytes, siblings: tuple[Sibling, ...]) -> tuple[Sibling, ...]:
        """Versions whose content is here join those of this replica."""
        record = self._parts.registers.get(object_id)
        if record is None:
            return ()
        here = [
            s
            for s in siblings
            if s.deleted or not s.content.size or s.content.digest in record.held
        ]
        joined = combined((*record.siblings, *here))
        if joined != record.siblings:
            self._parts.registers.siblings(object_id, joined)
        return joined

    def absent(self, object_id: bytes, siblings: tuple[Sibling, ...]) -> list[Content]:
        """Contents that must be copied before these versions count."""
        record = self._parts.registers.get(object_id)
        if record is None:
            return []
        news = [s for s in combined((*record.siblings, *siblings)) if s not in record.siblings]
        return [
            s.content
            for s in news
            if not s.deleted and s.content.size and s.content.digest not in record.held
        ]

    def must_resolve(self, value: Value, siblings: tuple[Sibling, ...]) -> bool:
        """Whether the conflict handler is to be run on these versions."""
        return len(siblings) > 1 and self._tried.get(value.object) != siblings

    def resolve(self, task: Task, value: Value, siblings: tuple[Sibling, ...]) -> Procedure[None]:
        """Run the conflict handler. Its result dominates all versions; if it fails, all of them stay."""
        self._tried[value.object] = siblings
        versions: list[bytes | None] = []
        for sibling in siblings:
            if sibling.deleted:
                versions.append(None)
                continue
            data = yield from fetch_bytes(
                task, self._parts, value.object, sibling.content, (self._parts.hub.me, *value.nodes)
            )
            versions.append(data)
        ask = lambda token: ports.ResolveConflict(token, value.object, value.name, tuple(versions))
        answer = yield from work(task, ask, HANDLER_NS)
        # rule: R-11d
        if not isinstance(answer, ports.Resolved) or answer.reason:
            why = answer.reason if isinstance(answer, ports.Resolved) else "no answer"
            self._parts.hub.fact(
                "conflict", value.object, value.version, f"the handler failed: {why}"
            )
            return
        states = yield from self._look(task, value)
        write = self._parts.hub.new_id()
        content, nodes = EMPTY, list(states)
        if not answer.deleted:
            staged = yield from send_content(
                task, self._parts, value.object, write, nodes, len(nodes), data=answer.data or b""
            )
            content, nodes = staged.content, staged.nodes
        # rule: R-11c
        result = self._successor(value, siblings, write, content, answer.deleted)
        yield from self._spread(task, value, (result,), nodes)
        self._parts.hub.fact("merged", value.object, value.version, f"{len(siblings)} versions")

    # -- plumbing --------------------------------------------------------------------------------------------------

    def _successor(
        self,
        value: Value,
        seen: tuple[Sibling, ...],
        write: bytes,
        content: Content,
        deleted: bool = False,
    ) -> Sibling:
        vector = merged(sibling.vector for sibling in seen)
        count = self._next(value.object, vector)
        joined = merged((vector, ((self._actor, count),)))
        return Sibling(joined, write, content, deleted)

    def _next(self, object_id: bytes, vector: Any) -> int:
        """No two writes of this node have the same count, even if one has not seen the other."""
        seen = dict(advanced(vector, self._actor))[self._actor]
        count = max(seen, self._counts.get(object_id, 0) + 1)
        self._counts[object_id] = count
        return count

    def _look(self, task: Task, base: Value) -> Procedure[States]:
        nodes = [node for node in base.nodes if self._parts.hub.reachable(node)]
        ask = lambda call: Look(call, base.object)
        replies = yield from gather(task, dict.fromkeys(nodes, ask), self._parts.config.call_ns)
        states = {node: reply for node, reply in replies.items() if counts(reply)}
        if not states:
            raise Refusal("unreachable", f"{named(base)}: no replica answers; nothing was changed")
        return states

    def _spread(
        self,
        task: Task,
        value: Value,
        siblings: tuple[Sibling, ...],
        nodes: list[bytes] | None = None,
    ) -> Procedure[int]:
        """Give versions to replicas; at least one must take them."""
        targets = nodes if nodes is not None else list(value.nodes)
        ask = lambda call: Merge(call, value.object, siblings)
        replies = yield from gather(task, dict.fromkeys(targets, ask), self._parts.config.call_ns)
        taken = sum(isinstance(r, Merged) and not r.reason for r in replies.values())
        if not taken:
            raise Refusal(
                "in doubt", f"{named(value)}: no replica confirmed the write; read it to find out"
            )
        return taken
