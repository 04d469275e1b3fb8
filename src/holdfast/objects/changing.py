"""Changing an object: compare-and-set on its register, with the outcome resolved by reading.

A change is refused with `conflict` only when another edition is decided. When contact is lost the outcome is in doubt:
the register is read again, and the write is found in its lineage, or proposed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.objects.parts import Parts
from holdfast.objects.quorum import majority
from holdfast.objects.reading import States, read_register
from holdfast.objects.refusal import Refusal
from holdfast.objects.staging import Staged, send_content
from holdfast.objects.tasks import Procedure, Task, pause
from holdfast.objects.values import LINEAGE, Content, ReplicaRef, Value
from holdfast.objects.verdicts import DECIDED, IN_DOUBT, UNFIT, Verdict
from holdfast.objects.writing import propose

Change = Callable[[Value], Value | None]
"""Makes the next version from the current one; None: nothing is to be changed. May raise `Refusal`."""


def change(
    task: Task, parts: Parts, base: Value, write: bytes, make: Change, data: bytes = b"",
    found_late: Callable[[Value], None] = lambda _: None,
) -> Procedure[tuple[Value, int]]:  # fmt: skip
    """Decide the version that `make` gives, on top of the current one. Returns it, and how many replicas have it.
    `data` is its content, if the replicas do not have it. `found_late` is notified if a later version than `base` was
    decided before the first replica was asked."""
    deadline = task.now + parts.config.write_ns
    doubt, tried = "", 0
    proposer, is_first = parts.hub.proposer(), True
    while True:
        if doubt and base.version - tried >= LINEAGE:
            raise no_majority(base, Verdict(IN_DOUBT, detail="many versions followed"), doubt)
        want = make(base)
        if want is None:
            return base, 0
        want = msgspec.structs.replace(want, owner=proposer)
        verdict = yield from propose(
            task, parts, base, want, base.nodes, deadline, base.version + 1, base.object, data,
            parts.ballot_of(base) if want.replicas == base.replicas else b"",
        )  # fmt: skip
        if verdict.kind == DECIDED and verdict.value is not None:
            if verdict.value.write == write or write in verdict.value.lineage:
                parts.own(verdict.value, proposer)
                return verdict.value, verdict.copies
            if is_first and verdict.at_first:
                found_late(verdict.value)
            base, is_first = verdict.value, False
            continue
        if verdict.kind == UNFIT:
            raise _unfit(base, verdict)
        # rule: R-3b
        if verdict.kind == IN_DOUBT and not doubt:
            doubt, tried = "in doubt", want.version
        if task.now >= deadline:
            raise no_majority(base, verdict, doubt)
        yield from pause(task, parts.config.backoff_ns * 5)
        base = yield from _read_again(task, parts, base, verdict, doubt)
        if write in base.lineage:
            return base, 0
        if is_first and not doubt:
            found_late(base)  # the replicas had moved
        is_first = False


def _read_again(
    task: Task, parts: Parts, base: Value, verdict: Verdict, doubt: str
) -> Procedure[Value]:
    try:
        value, _ = yield from read_register(task, parts, base.object, base.nodes)
    except Refusal as refusal:
        if doubt:
            raise no_majority(base, verdict, doubt) from refusal
        raise
    return value


def _unfit(base: Value, verdict: Verdict) -> Refusal:
    texts = {
        "full": "the replicas have no space for the content",
        "checksum": "the replicas got other content than was announced",
        "content": "a majority of the replicas does not have the content yet; repair the object first",
        "token": "a later directory move holds the lock",
        "set": "the replica set changes by one replica at a time",
        "edition": "the change is based on a newer edition than the replicas have",
    }
    why = texts.get(verdict.detail, verdict.detail)
    return Refusal(verdict.detail or "unfit", f"{named(base)}: {why}; nothing was changed")


def no_majority(base: Value, verdict: Verdict, doubt: str) -> Refusal:
    if doubt:
        return Refusal(
            "in doubt",
            f"{named(base)}: contact with a majority of the replicas was lost ({verdict.detail}); the change may take "
            "effect. Read the object to find out",
        )
    return Refusal(
        "unreachable",
        f"{named(base)}: no majority of its {len(base.replicas)} replicas answers ({verdict.detail}); nothing was "
        "changed",
    )


def named(value: Value) -> str:
    return f"object {value.name or value.object.hex()[:8]!r}"


def stage(
    task: Task, parts: Parts, base: Value, write: bytes, size: int = -1, data: bytes | None = None,
    resume: bool = False,
) -> Procedure[Content]:  # fmt: skip
    """Bring content to a majority of the recorded replicas. Raises `Refusal` when that fails; nothing took effect."""
    check_majority(parts, base)
    nodes, need = voters(parts, base), majority(len(base.replicas))
    staged = yield from send_content(
        task, parts, base.object, write, nodes, need, size, data, resume
    )
    if len(staged.nodes) < need:
        raise too_few(base, staged.failed, need)
    return staged.content


def check_majority(parts: Parts, base: Value) -> None:
    """Refuse a change that cannot be decided now, before it is proposed and its outcome is in doubt."""
    nodes = voters(parts, base)
    need = majority(len(base.replicas))
    if len(nodes) < need:
        raise too_few(base, {node: "unreachable" for node in base.nodes if node not in nodes}, need)


def voters(parts: Parts, base: Value) -> list[bytes]:
    """The nodes of the recorded replicas that can vote now, as far as this node knows."""
    return [r.node for r in base.replicas if r.node not in parts.hub.gone and not emptied(parts, r)]


def has_room(parts: Parts, nodes: Sequence[bytes], size: int) -> bool:
    """Whether a majority of these nodes has space, as far as this node has heard."""
    offers = parts.members.offers
    roomy = [n for n in nodes if n in offers and offers[n].disk and offers[n].free_bytes >= size]
    return len(roomy) >= majority(len(nodes))


def emptied(parts: Parts, replica: ReplicaRef) -> bool:
    """The node has another disk now: it has no vote on this object."""
    return parts.members.ref(replica.node) is not None and not parts.members.is_there(replica)


def too_few(base: Value, failed: dict[bytes, str], need: int) -> Refusal:
    why = "; ".join(f"{node[:4].hex()} {reason}" for node, reason in failed.items())
    code = (
        "full" if failed and all("full" in reason for reason in failed.values()) else "unreachable"
    )
    return Refusal(
        code,
        f"{named(base)}: the content reached fewer than {need} of {len(base.replicas)} replicas ({why}); nothing was "
        "changed",
    )


def sound_nodes(value: Value, states: States, parts: Parts) -> list[bytes]:
    """Replicas with the content of a value, nearest first; then those that were not asked."""
    sound = [
        node
        for node in value.nodes
        if node in states and states[node].sound and states[node].decided == value
    ]
    maybe = [node for node in value.nodes if node not in sound and node not in parts.hub.gone]
    return parts.members.nearest(sound) + parts.members.nearest(maybe)


def brief(nodes: Sequence[bytes]) -> str:
    return ", ".join(node[:4].hex() for node in nodes)


__all__ = [
    "Change",
    "Staged",
    "brief",
    "change",
    "check_majority",
    "has_room",
    "named",
    "no_majority",
    "sound_nodes",
    "stage",
    "too_few",
    "voters",
]
