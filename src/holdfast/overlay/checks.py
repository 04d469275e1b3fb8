"""Whether what a peer sent can be used. A frame that fails is counted and dropped; nothing here raises."""

from __future__ import annotations

from typing import Final

from holdfast.overlay.frames import (
    OUTCOMES,
    SEARCH,
    CutHealed,
    Entry,
    Found,
    Message,
    Part,
    Reply,
    Wave,
    WaveAnswer,
)
from holdfast.overlay.ids import (
    NODE_SIZE,
    NUMBERED_SIZE,
    REALM_BYTES_MAX,
    ROLE_PLAIN_MAX,
    TREE_SIZE,
    is_node,
    is_numbered,
    is_role,
    is_tree,
)
from holdfast.overlay.rules import is_spew

TTL_MS_MAX: Final = 600_000
IDS_MAX: Final = 4096
HOPS_MAX: Final = 64
DATA_MAX: Final = 16 << 20
TRACE_MAX: Final = 64
"""Letters of a trace context; a `traceparent` of W3C has 55."""
COUNT_MAX: Final = 1 << 62
SUSPECT_EPOCH: Final = 1 << 48
"""No role gets so far by publishing: a peer has made such an epoch up. It is not remembered beyond its instance."""


def sound_wave(frame: Wave) -> bool:
    return (
        is_numbered(frame.wave)
        and is_numbered(frame.root)
        and is_tree(frame.tree)
        and is_role(frame.role)
        and 0 <= frame.hops <= HOPS_MAX + 1
        and 0 < frame.ttl_ms <= TTL_MS_MAX
        and (not frame.target or is_node(frame.target))
        and (not frame.then or is_node(frame.then))
        and is_spew(frame.spew)
        and -1 <= frame.extent <= HOPS_MAX
        and len(frame.exclude) <= IDS_MAX
        and (not frame.instance or is_numbered(frame.instance))
        and 0 <= frame.epoch < COUNT_MAX
        and 0 <= frame.seq < COUNT_MAX
        and frame.scope in (0, 1)
        and (frame.entry is None or sound_entry(frame.entry))
        and (frame.kind in (0, SEARCH) or is_numbered(frame.instance))
    )


def sound_entry(entry: Entry) -> bool:
    return (
        is_tree(entry.tree)
        and is_role(entry.role)
        and is_numbered(entry.instance)
        and 0 <= entry.epoch < COUNT_MAX
        and 0 < len(entry.realm.encode()) <= REALM_BYTES_MAX
    )


def sound_found(found: Found) -> bool:
    return (
        is_numbered(found.instance)
        and 0 <= found.epoch < COUNT_MAX
        and 0 <= found.seq < COUNT_MAX
        and 0 <= found.hops <= 2 * HOPS_MAX
    )


def sound_answer(answer: WaveAnswer) -> bool:
    return (
        is_numbered(answer.wave)
        and 0 <= answer.status <= 2
        and len(answer.found) <= IDS_MAX
        and len(answer.met) <= IDS_MAX
        and all(sound_found(found) for found in answer.found)
        and all(is_numbered(met) for met in answer.met)
        and (not answer.beaten_by or is_numbered(answer.beaten_by))
        and 0 <= answer.beaten_epoch < COUNT_MAX
        and (answer.entry is None or sound_entry(answer.entry))
    )


def sound_message(frame: Message) -> bool:
    return (
        len(frame.request) == NUMBERED_SIZE
        and 0 <= frame.attempt < 1 << 31
        and len(frame.tree) == TREE_SIZE
        and (0 < len(frame.role) <= ROLE_PLAIN_MAX or is_role(frame.role))
        and 0 <= frame.protocol < 1 << 31
        and len(frame.data) <= DATA_MAX
        and 0 < frame.ttl_ms <= TTL_MS_MAX
        and 0 <= frame.hops <= HOPS_MAX
        and (not frame.instance or len(frame.instance) == NUMBERED_SIZE)
        and (not frame.prefer or len(frame.prefer) == NUMBERED_SIZE)
        and (not frame.taker or len(frame.taker) == NUMBERED_SIZE)
        and len(frame.trace) <= TRACE_MAX
        and (not frame.entry or len(frame.entry) == NODE_SIZE)
    )


def sound_part(part: Part) -> bool:
    return (
        (not part.instance or is_numbered(part.instance))
        and len(part.data) <= DATA_MAX
        and (not part.grant or is_role(part.grant))
        and (not part.moved_from or is_numbered(part.moved_from))
        and 0 <= part.epoch < COUNT_MAX
    )


def sound_reply(frame: Reply) -> bool:
    return (
        len(frame.request) == NUMBERED_SIZE
        and 0 <= frame.attempt < 1 << 31
        and 0 <= frame.kind <= 5
        and len(frame.parts) <= IDS_MAX
        and len(frame.expected) <= IDS_MAX
        and len(frame.outcomes) <= IDS_MAX
        and len(frame.reason) <= 1000
        and _sound_contents(frame)
    )


def _sound_contents(frame: Reply) -> bool:
    """Plain loops: most replies name one instance, for which `all` would cost more than the check."""
    for instance in frame.expected:
        if len(instance) != NUMBERED_SIZE:
            return False
    for instance, how in frame.outcomes:
        if len(instance) != NUMBERED_SIZE or not 0 <= how < len(OUTCOMES):
            return False
    for part in frame.parts:
        plain = len(part.instance) == NUMBERED_SIZE and not part.grant and not part.moved_from
        if not (plain and len(part.data) <= DATA_MAX and not part.epoch) and not sound_part(part):
            return False
    return True


def sound_cut(event: CutHealed) -> bool:
    return (
        is_node(event.near)
        and is_node(event.far)
        and 0 < len(event.realm.encode()) <= REALM_BYTES_MAX
        and 0 <= event.number < COUNT_MAX
        and all(len(colour) == 16 for colour in event.colours)
    )
