"""Changing where the replicas of an object are: one at a time, by compare-and-set on its register.

A newcomer copies the content first, and counts when it has verified it. A replica is removed only when enough others
are verified.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.objects.changing import brief, change, named, sound_nodes
from holdfast.objects.frames import Done, Look, Merge, Pull, RegisterState
from holdfast.objects.loose import Loose
from holdfast.objects.parts import Parts
from holdfast.objects.reading import States, counts, read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Procedure, Task, gather, pause
from holdfast.objects.values import LOOSE, Content, ReplicaRef, Sibling, Value, successor
from holdfast.objects.vectors import dominates
from holdfast.types import SECOND

PULL_NS_PER_MB = SECOND
"""How long a newcomer may take for each megabyte."""
TRIES = 5
"""Attempts to add or remove a replica of an object that is written at the same time."""
HOLD_MAX = 64 << 20
"""Up to this size, writers wait for the copy from the second attempt on. A larger content is only copied again."""


def add_replica(task: Task, parts: Parts, value: Value, node: bytes) -> Procedure[Value]:
    """Add a replica on a node, once its copy is verified. A node with a new disk replaces its old replica."""
    ref = parts.members.ref(node)
    if ref is None:
        raise Refusal(
            "unreachable", f"node {node[:4].hex()} holds no replicas, or is not reachable"
        )
    tries = 0
    while True:
        value, states = yield from read_register(task, parts, value.object, value.nodes)
        if ref in value.replicas:
            return value
        tries += 1
        may_hold = tries > 1 and value.content.size <= HOLD_MAX
        try:
            yield from _bring_content(task, parts, value, states, node)
            return (yield from _add(task, parts, value, ref, may_hold))
        except Refusal as refusal:
            # Written while it was copied: what was copied may be gone by now.
            known = parts.known(value.object)
            is_old = known is not None and known.content != value.content
            if not is_old or refusal.code not in ("conflict", "copy") or tries == TRIES:
                raise


def _add(
    task: Task, parts: Parts, value: Value, ref: ReplicaRef, may_hold: bool
) -> Procedure[Value]:
    """With `may_hold`, the replica also joins a later content: then the next version waits until it has that."""
    write = parts.hub.new_id()

    def make(base: Value) -> Value | None:
        if ref in base.replicas:
            return None
        if base.deleted or (base.content != value.content and not may_hold):
            raise Refusal("conflict", f"{named(base)} was changed while it was copied; try again")
        others = tuple(replica for replica in base.replicas if replica.node != ref.node)
        return successor(base, write, replicas=(*others, ref))

    changed, _ = yield from change(task, parts, value, write, make)
    return changed


def _bring_content(
    task: Task, parts: Parts, value: Value, states: States, node: bytes
) -> Procedure[None]:
    contents = [value.content] if value.content.size else []
    siblings = Loose.merged(states)
    contents += [s.content for s in siblings if s.content.size and not s.deleted]
    sources = tuple(n for n in sound_nodes(value, states, parts) if n != node)
    for content in contents:
        yield from pull(task, parts, value, content, node, sources)
    if siblings:
        yield from gather(
            task, {node: lambda call: Merge(call, value.object, siblings)}, parts.config.call_ns
        )


def pull(
    task: Task, parts: Parts, value: Value, content: Content, node: bytes, sources: Sequence[bytes]
) -> Procedure[None]:
    """Let a node copy content from replicas that have it."""
    timeout = parts.config.chunk_ns + (content.size >> 20) * PULL_NS_PER_MB
    ask = lambda call: Pull(call, value.object, content, tuple(sources))
    replies = yield from gather(task, {node: ask}, timeout)
    reply = replies[node]
    if not isinstance(reply, Done) or reply.reason:
        why = f"{reply.reason} {reply.detail}".strip() if isinstance(reply, Done) else "no answer"
        raise Refusal(
            "copy",
            f"{named(value)} was not copied to node {node[:4].hex()}: {why}; nothing was changed",
        )


def remove_replica(
    task: Task, parts: Parts, value: Value, replica: ReplicaRef, keep: int
) -> Procedure[Value]:
    """Remove a replica if at least `keep` others are verified."""
    tries = 0
    while True:
        value, _ = yield from read_register(task, parts, value.object, value.nodes)
        if replica not in value.replicas:
            return value
        others = [r.node for r in value.replicas if r != replica]
        sound = yield from verified(task, parts, value, others, replica.node)
        tries += 1
        # rule: R-10e
        if len(sound) >= max(keep, 1):
            break
        if tries == TRIES:
            raise Refusal(
                "too few",
                f"{named(value)}: only {len(sound)} other replicas are verified ({brief(sound) or 'none'}), "
                f"{max(keep, 1)} are required; nothing was removed",
            )
        yield from pause(task, parts.config.backoff_ns)  # a write may be on its way to the others
    write = parts.hub.new_id()

    def make(base: Value) -> Value | None:
        if replica not in base.replicas:
            return None
        if [r.node for r in base.replicas if r != replica] != others:
            raise Refusal(
                "conflict", f"the replicas of {named(base)} were changed at the same time"
            )
        left = tuple(r for r in base.replicas if r != replica)
        return successor(base, write, replicas=left)

    changed, _ = yield from change(task, parts, value, write, make)
    return changed


def verified(
    task: Task, parts: Parts, value: Value, nodes: Sequence[bytes], leaving: bytes
) -> Procedure[list[bytes]]:
    """The nodes whose replica has the newest decided content; of a loose object, every version that the replica has
    which is to leave: a write may have one copy only."""
    ask = lambda call: Look(call, value.object)
    asked = dict.fromkeys(nodes, ask)
    if value.mode == LOOSE and parts.hub.reachable(leaving):
        asked[leaving] = ask
    replies = yield from gather(task, asked, parts.config.call_ns)
    last = replies.get(leaving)
    versions = last.siblings if isinstance(last, RegisterState) else ()
    heard = [
        reply.decided for reply in replies.values() if counts(reply) and reply.decided is not None
    ]
    newest = max([value, *heard], key=lambda known: known.version)
    return [node for node in nodes if _is_sound(newest, replies[node], versions)]


def _is_sound(newest: Value, reply: object, versions: Sequence[Sibling]) -> bool:
    if not isinstance(reply, RegisterState) or not counts(reply) or reply.decided is None:
        return False
    if not all(any(dominates(own.vector, s.vector) for own in reply.siblings) for s in versions):
        return False
    # A replica that has not heard of the last change of the set has the content all the same.
    return reply.sound and reply.decided.content == newest.content
