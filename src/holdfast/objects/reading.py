"""Finding an object and reading its register.

A strict read needs a majority of the recorded set. It finishes or supersedes a version that is not decided before it
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.objects.frames import Look, RegisterState
from holdfast.objects.parts import Parts
from holdfast.objects.ports import Locate, Located
from holdfast.objects.quorum import has_majority
from holdfast.objects.refusal import Refusal
from holdfast.objects.tasks import Procedure, Task, gather, work
from holdfast.objects.values import Value, root_id
from holdfast.objects.verdicts import DECIDED, NOTHING_FOUND
from holdfast.objects.writing import announce, propose
from holdfast.types import SECOND

LOCATE_NS = 3 * SECOND
States = dict[bytes, RegisterState]


def read_register(
    task: Task, parts: Parts, object_id: bytes, hint: Sequence[bytes] = ()
) -> Procedure[tuple[Value, States]]:
    """The newest decided value, and the state of the replicas that were asked. Raises `Refusal`: `unknown` or
    `unreachable`."""
    deadline = task.now + parts.config.write_ns
    states: States = {}
    silent: dict[bytes, None] = {}
    answers: dict[bytes, str] = {}
    known = parts.known(object_id)
    todo = expected = known.nodes if known is not None else tuple(hint)
    located = False
    while True:
        asked = [node for node in todo if node not in states and node not in silent]
        if asked:
            yield from _look(task, parts, object_id, asked, states, silent, answers)
        best = _newest_known(parts, object_id, states)
        if best is None:
            found = _undecided(states, 1)
            # Replicas that do not know the object may have forgotten it: it can be elsewhere, at a later version.
            is_searched = located or "unknown" not in answers.values()
            if found is not None and is_searched and _may_finish(found, answers):
                yield from _settle_first(task, parts, found, deadline)
                states.clear()
                continue
        elif has_majority(best.nodes, states):
            # rule: R-4a
            pending = _undecided(
                {n: states[n] for n in best.nodes if n in states}, best.version + 1
            )
            if pending is None:
                parts.learn(best)
                return best, states
            settled = yield from settle(task, parts, best, deadline)
            if settled is None:
                parts.learn(best)
                return best, states
            announce(parts, settled, settled.nodes)
            if task.now >= deadline:
                raise _missing(parts, object_id, best, silent, expected, answers)
            states.clear()
            silent.clear()
            todo = settled.nodes
            continue
        elif any(node not in states and node not in silent for node in best.nodes):
            todo = best.nodes
            continue
        if located or task.now >= deadline:
            raise _missing(parts, object_id, best, silent, expected, answers)
        located = True
        silent.clear()
        todo = yield from locate(task, parts, object_id)


def _look(
    task: Task,
    parts: Parts,
    object_id: bytes,
    nodes: Sequence[bytes],
    states: States,
    silent: dict[bytes, None],
    answers: dict[bytes, str],
) -> Procedure[None]:
    """Ask nodes for their register. Those that have no vote on it are not counted. `answers` has the reason that each
    node gave, empty for a register."""

    def enough(replies: dict[bytes, Any]) -> bool:
        heard = {**states, **{n: r for n, r in replies.items() if counts(r)}}
        best = newest(heard)
        return best is not None and has_majority(best.nodes, heard)

    ask = lambda call: Look(call, object_id)
    replies = yield from gather(task, dict.fromkeys(nodes, ask), parts.config.call_ns, enough)
    for node, reply in replies.items():
        if isinstance(reply, RegisterState):
            answers[node] = reply.reason
        if counts(reply):
            states[node] = reply
        else:
            if isinstance(reply, RegisterState) and reply.decided is not None:
                parts.learn(reply.decided)  # it has left the set, and knows where the object went
                states.setdefault(node, reply)
            silent[node] = None


def counts(reply: Any) -> bool:
    return isinstance(reply, RegisterState) and not reply.reason


def newest(states: States) -> Value | None:
    values = [state.decided for state in states.values() if state.decided is not None]
    return max(values, key=lambda value: value.version, default=None)


def _newest_known(parts: Parts, object_id: bytes, states: States) -> Value | None:
    """The replicas that answered may all have missed a decision that this node has heard of."""
    best, known = newest(states), parts.known(object_id)
    if best is not None and known is not None and known.version > best.version:
        return known
    return best


def _undecided(states: States, version: int) -> Value | None:
    for state in states.values():
        if state.accepted is not None and state.accepted.version == version:
            return state.accepted
    return None


def read_near(
    task: Task, parts: Parts, object_id: bytes, hint: Sequence[bytes] = ()
) -> Procedure[tuple[Value, States]]:
    """A decided value of any reachable replica, or the one that this node remembers. It may be old."""
    known = parts.known(object_id)
    likely = known.nodes if known is not None else tuple(hint)
    if not likely:
        likely = yield from locate(task, parts, object_id)
    nodes = [node for node in likely if parts.hub.reachable(node)]
    ask = lambda call: Look(call, object_id)
    first = lambda replies: any(counts(r) and r.decided is not None for r in replies.values())
    nearest = parts.members.nearest(nodes)
    replies = yield from gather(task, dict.fromkeys(nearest, ask), parts.config.call_ns, first)
    states: States = {node: reply for node, reply in replies.items() if counts(reply)}
    # rule: R-4c
    best = newest(states)
    if known is not None and (best is None or best.version < known.version):
        best = known
    if best is None:
        raise Refusal("unreachable", f"no replica of object {object_id.hex()[:8]} is reachable")
    return best, states


def settle(task: Task, parts: Parts, base: Value, deadline: int) -> Procedure[Value | None]:
    """Finish the version after `base` if a replica has accepted a value for it; None if a majority has not."""
    verdict = yield from propose(
        task, parts, base, None, base.nodes, deadline, base.version + 1, base.object
    )
    if verdict.kind == DECIDED:
        return verdict.value
    if verdict.kind == NOTHING_FOUND:
        return None
    raise Refusal(
        "unreachable",
        f"object {base.object.hex()[:8]}: a version is not decided, and no majority answers: {verdict.detail}; "
        "try again when more replicas are reachable",
    )


def _settle_first(task: Task, parts: Parts, found: Value, deadline: int) -> Procedure[None]:
    """An object whose creator may be gone: finish its creation."""
    verdict = yield from propose(task, parts, None, found, found.nodes, deadline, 1, found.object)
    if verdict.kind != DECIDED:
        raise Refusal(
            "unreachable",
            f"object {found.object.hex()[:8]} is being created, and no majority answers: {verdict.detail}",
        )


def locate(task: Task, parts: Parts, object_id: bytes) -> Procedure[tuple[bytes, ...]]:
    """Nodes that may have a replica: those that published its role, else all that hold replicas."""
    answer = yield from work(task, lambda token: Locate(token, object_id), LOCATE_NS)
    found = answer.nodes if isinstance(answer, Located) else ()
    everyone = [node for node in sorted(parts.members.offers) if node not in found]
    return (*found, *everyone)


def _may_finish(found: Value, answers: dict[bytes, str]) -> bool:
    """Whether a majority has a record of an object that is being created. A replica without one may have forgotten the
    object, and does not vote on its first version again."""
    return has_majority(found.nodes, [node for node, why in answers.items() if why != "unknown"])


def _missing(
    parts: Parts,
    object_id: bytes,
    best: Value | None,
    silent: dict[bytes, None],
    expected: Sequence[bytes],
    answers: dict[bytes, str],
) -> Refusal:
    """`unknown` only if no replica can exist behind a partition: a name of such an object is given away."""
    short = object_id.hex()[:8]
    is_complete = all(node in answers for node in expected) and (
        # The nodes that hold the root directory never forget it.
        object_id == root_id(parts.config.domain) or parts.members.is_complete
    )
    if best is None and is_complete:
        return Refusal("unknown", f"no node has a replica of object {short}")
    nodes = best.nodes if best is not None else expected
    names = ", ".join(n[:4].hex() for n in nodes if n in silent or not parts.hub.reachable(n))
    if best is None:
        text = f"object {short} was not found, and some nodes do not answer ({names or 'of the domain'})"
    else:
        text = (
            f"object {short}: no majority of its {len(nodes)} replicas answers (missing: {names})"
        )
    return Refusal("unreachable", f"{text}; nothing was changed")
