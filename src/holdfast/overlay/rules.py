"""The six forwarding rules of publish and recovery (seed: 'Forwarding a Publish Message', '... a Recovery Request').

Rule 1 (a message that was seen is answered `seen`) is the waves' own. The others are here, as one function without
state, so that each can be read and tested by itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.overlay.frames import INFINITE, RECOVER
from holdfast.types import NodeId

UNTIL_OUTSIDE: Final = -2
"""Spew hops that are infinite until the message has left the realm."""


class Situation(msgspec.Struct, frozen=True, gc=False):
    """What a node knows when a builder message arrives."""

    kind: int
    spew: int
    spew_hops: int
    """What rule 3 resets the spew hops to."""
    holder: bool
    """This node has another instance of the role."""
    role_built: bool
    tree_built: bool
    broken: bool
    """A failure broke a route here, and no node can be asked directly. A cache that evicted the tree is no failure."""
    outside_lost: bool
    routes: list[NodeId]
    edges: list[NodeId]
    links: list[NodeId]
    """All three without the link that the message came over."""


class Forward(msgspec.Struct, frozen=True, gc=False):
    rule: int
    spew: int
    links: list[NodeId]


def forward(at: Situation) -> Forward:
    """Where the message goes on to, with how many spew hops, and by which rule."""
    spew = _spew_hops(at)
    # rule: O-publish-2a
    if at.holder and at.spew == 0:
        return Forward(2, 0, [])
    # rule: O-publish-4a
    if spew == 0 and at.role_built:
        return Forward(4, 0, at.routes)
    # rule: O-publish-5a
    if spew == 0 and at.tree_built:
        return Forward(5, 0, at.edges)
    if spew == 0:
        return Forward(4, 0, at.routes)
    # rule: O-publish-6a
    return Forward(6, spew, at.links)


def _spew_hops(at: Situation) -> int:
    """Rule 3. A publish resets the spew hops only if role and tree are not built, a recovery if the role is not."""
    # rule: O-publish-3a
    resets = at.broken and not at.role_built and (at.kind == RECOVER or not at.tree_built)
    if resets:
        # rule: O-timing-1a
        return UNTIL_OUTSIDE if at.outside_lost else at.spew_hops
    # rule: O-publish-3c
    if at.role_built and at.spew > 0:
        return at.spew - 1
    # rule: O-publish-3d
    if not at.role_built and at.spew > 0 and not at.broken:
        return at.spew - 1
    return at.spew


def spew_over(spew: int, inside: bool) -> int:
    """The spew hops that a copy carries over a link."""
    return 0 if spew == UNTIL_OUTSIDE and not inside else spew


def is_spew(value: int) -> bool:
    return value in (INFINITE, UNTIL_OUTSIDE) or 0 <= value <= 64
