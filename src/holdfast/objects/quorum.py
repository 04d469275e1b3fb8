"""Majorities, counted over the recorded replica set and never over the nodes that answered."""

from __future__ import annotations

from collections.abc import Container, Sequence


def majority(count: int) -> int:
    return count // 2 + 1


def has_majority(recorded: Sequence[bytes], agreed: Container[bytes]) -> bool:
    """Whether a majority of the recorded nodes agreed."""
    # rule: R-1a
    return sum(node in agreed for node in recorded) >= majority(len(recorded))


def can_reach_majority(recorded: Sequence[bytes], failed: Container[bytes]) -> bool:
    """Whether enough recorded nodes have not failed yet."""
    return sum(node not in failed for node in recorded) >= majority(len(recorded))
