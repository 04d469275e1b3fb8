"""Deciding a version: the proposer's side of a register.

The quorum is a majority of the recorded replica set of the version before, and of the new set where it changes. A
proposer that finds an accepted value finishes that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.objects.frames import Accept, Accepted, Decide, Done, Prepare, Promise, Pull
from holdfast.objects.parts import Parts
from holdfast.objects.quorum import has_majority
from holdfast.objects.registers import next_ballot
from holdfast.objects.tasks import Procedure, Task, gather, pause
from holdfast.objects.values import ZERO, Ballot, Value
from holdfast.objects.verdicts import DECIDED, IN_DOUBT, NOTHING_FOUND, UNFIT, UNREACHABLE, Verdict
from holdfast.types import SECOND, Nanos

replace = msgspec.structs.replace
BACK_OFF_DOUBLINGS: Final = 5


def propose(
    task: Task,
    parts: Parts,
    base: Value | None,
    want: Value | None,
    members: Sequence[bytes],
    deadline: Nanos,
    version: int,
    object_id: bytes,
    data: bytes = b"",
    owner: bytes = b"",
) -> Procedure[Verdict]:
    """Decide `version` of an object, with `want` if no other value was accepted. Without `want`, only finish a value
    that a replica has accepted. `members` are the nodes of the recorded set, `data` is the content of `want` if the
    replicas do not have it, and `owner` the proposer of ballot 0, if that is this node."""
    seen, risked, is_first = ZERO, False, True
    stuck: list[bytes] = []
    if owner and want is not None:
        verdict = yield from _accept(task, parts, members, Ballot(0, owner), want, data)
        if verdict.kind in (DECIDED, UNFIT):
            return verdict
        seen, risked, is_first = verdict.ballot, not verdict.is_refused, verdict.is_refused
    # Two writers on one node are two proposers: with the same ballot, both could be decided.
    # rule: R-2b
    proposer = parts.hub.proposer()
    waits = want is not None and base is not None and want.content == base.content
    tries = 0
    while True:
        tries += 1
        ballot = next_ballot(seen, proposer)
        ask = _preparing(object_id, version, ballot, waits)
        promises = yield from _prepare(task, parts, version, ask, members, stuck)
        later = _decided(promises, version)
        if later is not None:
            parts.learn(later)
            return Verdict(DECIDED, later, at_first=is_first)
        is_first = False
        seen = max([ballot, *(p.ballot for p in promises.values() if p is not None)])
        if not has_majority(members, _agreed(promises)):
            teach(parts, promises, base)
            contested = any(
                p is not None and p.reason in ("ballot", "behind") for p in promises.values()
            )
            if not contested or task.now >= deadline:
                return Verdict(IN_DOUBT if risked else UNREACHABLE, base, _names(promises))
            yield from _back_off(task, parts, tries)
            continue
        chosen = _found(_quorum(promises, members, stuck)) or want
        if chosen is None:
            return Verdict(NOTHING_FOUND, base)
        carried = data if want is not None and chosen.content == want.content else b""
        verdict = yield from _accept(task, parts, members, ballot, chosen, carried)
        if chosen is not want and not stuck and verdict.lacking and not verdict.holders:
            # The content of an accepted value is lost. A majority that has not accepted it continues without it.
            stuck = [node for node, p in promises.items() if p is not None and p.accepted == chosen]
            seen = max(seen, verdict.ballot)
            continue
        if verdict.kind == DECIDED or (verdict.kind == UNFIT and not risked):
            return replace(verdict, at_first=False)
        risked = risked or chosen is want
        brought = yield from _bring(task, parts, chosen, verdict)
        if not (verdict.contested or brought) or task.now >= deadline:
            return Verdict(IN_DOUBT, base, verdict.detail)
        seen = max(seen, verdict.ballot)
        yield from _back_off(task, parts, tries)


def create(
    task: Task, parts: Parts, value: Value, deadline: Nanos, data: bytes = b""
) -> Procedure[Verdict]:
    """Decide the first version of a new object. Only its creator knows its id, so no promise is needed."""
    ballot = Ballot(0, parts.hub.proposer())
    first = yield from _accept(task, parts, value.nodes, ballot, value, data)
    if first.kind in (DECIDED, UNFIT):
        return first
    verdict = yield from propose(
        task, parts, None, value, value.nodes, deadline, 1, value.object, data
    )
    if verdict.kind == UNREACHABLE:
        # A replica may have accepted it before, and finish it later.
        return Verdict(IN_DOUBT, None, verdict.detail)
    return verdict


_UNFIT: Final = ("content", "token", "set", "edition", "full", "checksum", "hostile")


def _preparing(
    object_id: bytes, version: int, ballot: Ballot, waits: bool
) -> Callable[[int], Prepare]:
    return lambda call: Prepare(call, object_id, version, ballot, waits)


def _prepare(
    task: Task,
    parts: Parts,
    version: int,
    ask: Callable[[int], Prepare],
    members: Sequence[bytes],
    stuck: Sequence[bytes],
) -> Procedure[dict[bytes, Promise | None]]:
    def enough(replies: dict[bytes, Any]) -> bool:
        agreed = [node for node in _agreed(replies) if node not in stuck]
        return has_majority(members, agreed) or _decided(replies, version) is not None

    replies = yield from gather(task, dict.fromkeys(members, ask), parts.config.call_ns, enough)
    return {node: reply if isinstance(reply, Promise) else None for node, reply in replies.items()}


def _accept(
    task: Task, parts: Parts, members: Sequence[bytes], ballot: Ballot, value: Value, data: bytes
) -> Procedure[Verdict]:
    everyone = tuple(dict.fromkeys((*members, *value.nodes)))
    ask = lambda call: Accept(call, ballot, value, memoryview(data))

    def enough(replies: dict[bytes, Any]) -> bool:
        agreed = _agreed(replies)
        # rule: R-5d
        both = has_majority(members, agreed) and has_majority(value.nodes, agreed)
        return both or _decided(replies, value.version) is not None

    replies = yield from gather(task, dict.fromkeys(everyone, ask), parts.config.call_ns, enough)
    agreed = _agreed(replies)
    # rule: R-5c
    if has_majority(members, agreed) and has_majority(value.nodes, agreed):
        parts.learn(value)
        announce(parts, value, everyone)
        return Verdict(DECIDED, value, copies=len(agreed))
    later = _decided(replies, value.version)
    if later is not None:
        parts.learn(later)
        return Verdict(DECIDED, later, at_first=True)
    answers = [r for r in replies.values() if isinstance(r, Accepted)]
    unfit = [r.reason for r in answers if r.reason in _UNFIT]
    contested = any(r.reason in ("ballot", "behind") for r in answers)
    # Only when every replica refused is it certain that none has accepted.
    is_refused = len(answers) == len(everyone) and not agreed
    kind = UNFIT if unfit and is_refused else UNREACHABLE
    highest = max((r.ballot for r in answers), default=ZERO)
    return Verdict(
        kind, None, unfit[0] if unfit else _names(replies), contested=contested, ballot=highest, is_refused=is_refused,
        holders=tuple(agreed),
        lacking=tuple(n for n, r in replies.items() if isinstance(r, Accepted) and r.reason == "content"),
    )  # fmt: skip


def _bring(task: Task, parts: Parts, value: Value, verdict: Verdict) -> Procedure[bool]:
    """Replicas that lack the content of a value copy it from those that accepted it. True if one has it now.

    Content is brought to a majority of the set that is recorded when a write begins. The set may have grown since, and
    an accepted value that a majority cannot accept would block the object."""
    # rule: R-4b
    if not verdict.holders or not verdict.lacking:
        return False
    content = value.content
    ask = lambda call: Pull(call, value.object, content, verdict.holders)
    timeout = parts.config.chunk_ns + (content.size >> 20) * SECOND
    replies = yield from gather(task, dict.fromkeys(verdict.lacking, ask), timeout)
    return any(isinstance(reply, Done) and not reply.reason for reply in replies.values())


def announce(parts: Parts, value: Value, nodes: Sequence[bytes]) -> None:
    """Tell the replicas that a version is decided. One that misses it learns of it on contact."""
    for node in nodes:
        parts.hub.send(node, Decide(0, value))


def _agreed(replies: dict[bytes, Any]) -> dict[bytes, None]:
    return {
        node: None
        for node, r in replies.items()
        if isinstance(r, Promise | Accepted) and not r.reason
    }


def _decided(replies: dict[bytes, Any], version: int) -> Value | None:
    """The newest decided value that a replica knows, if it settles this version."""
    known = [
        r.decided
        for r in replies.values()
        if isinstance(r, Promise | Accepted)
        and r.decided is not None
        and r.decided.version >= version
    ]
    return max(known, key=lambda value: value.version, default=None)


def _quorum(
    promises: dict[bytes, Promise | None], members: Sequence[bytes], stuck: Sequence[bytes]
) -> dict[bytes, Promise | None]:
    """The promises that count: those of the replicas that are not stuck, if they are a majority."""
    others = {node: promise for node, promise in promises.items() if node not in stuck}
    return others if has_majority(members, _agreed(others)) else promises


def _found(promises: dict[bytes, Promise | None]) -> Value | None:
    """The value accepted at the highest ballot: it may be decided already."""
    accepted = [
        p for p in promises.values() if p is not None and not p.reason and p.accepted is not None
    ]
    if not accepted:
        return None
    return max(accepted, key=lambda promise: promise.accepted_at).accepted


def teach(parts: Parts, promises: dict[bytes, Promise | None], base: Value | None) -> None:
    """Replicas that missed the version before get it: they vote on this one then."""
    if base is not None:
        late = [n for n, p in promises.items() if p is not None and p.reason == "behind"]
        announce(parts, base, late)


def _back_off(task: Task, parts: Parts, tries: int) -> Procedure[None]:
    """Longer every time: proposers that wait less than a round trip would overtake each other until their deadline."""
    step = parts.config.backoff_ns << min(tries - 1, BACK_OFF_DOUBLINGS)
    yield from pause(task, step + parts.hub.rng.randrange(3 * step))


def _names(replies: dict[bytes, Any]) -> str:
    """The nodes that did not agree, and why."""
    return ", ".join(
        f"{node[:4].hex()} ({r.reason if r is not None else 'no answer'})"
        for node, r in replies.items()
        if r is None or r.reason
    )
