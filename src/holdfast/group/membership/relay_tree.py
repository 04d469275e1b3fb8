"""Determines which replicas pass messages on to which learners in a large group.

Sources send to the voters only. Learners form a tree below them, with `FAN_OUT` children each, in the order of the
view, so that every replica computes the same tree. The leader passes nothing on while there are other voters, because
its CPU time limits the throughput of the group.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.log.entries import View

FAN_OUT: Final = 8


def relays(config: GroupConfig, view: View | None) -> bool:
    """Whether learners of this view receive their messages from other replicas."""
    if view is None or config.mode != "majority" or len(view.members) < config.relay_from:
        return False
    return len(view.voters) < len(view.members)


def feeds_of(view: View, name: str, leader: str) -> list[str]:
    """The replicas from which a learner can receive its messages, the best one first.

    All of them are nearer to the sources than the learner itself, so there are no cycles. A voter has none.
    """
    learners = [member.name for member in view.members if not member.voter]
    if name not in learners:
        return []
    roots = [member.name for member in view.voters if not member.suspended]
    others = [root for root in roots if root != leader] or roots
    ranks = [*others, *learners]
    place = learners.index(name)
    found: list[str] = []
    at = place // FAN_OUT
    while others and at >= len(others):
        found.append(ranks[at])
        at = (at - len(others)) // FAN_OUT
    if others:
        found += [*others[at:], *others[:at]]
    suspended = {member.name: None for member in view.members if member.suspended}
    return [
        *[other for other in found if other not in suspended],
        *[r for r in roots if r not in found],
    ]
