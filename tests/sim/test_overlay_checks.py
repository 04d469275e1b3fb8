"""The checkers of the overlay find what they are there for."""

from __future__ import annotations

import pytest
from tests.sim.checking import checked

from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.overlay.ids import numbered, tree_id
from holdfast.overlay.ports import Delivered, Ended
from holdfast.sim.checkers import CheckFailed
from holdfast.sim.checkers.declared import declared_checkers
from holdfast.sim.checkers.overlay import Holders, OverlayBounds, OverlaySight, RolesOnce
from holdfast.types import SECOND

TREE = tree_id("tree")
A, B = b"a" * 16, b"b" * 16
ROLE = (TREE, "role")


def delivered(request: int, attempt: int = 0) -> Delivered:
    return Delivered(
        1,
        7,
        TREE,
        "role",
        numbered(A, 1, 1),
        7,
        b"x",
        numbered(B, 1, request),
        attempt,
        False,
        True,
    )


def sight(host: str, node: bytes, **changes: object) -> OverlaySight:
    values: dict[str, object] = {
        "quiet_ns": 60 * SECOND,
        "reaches": frozenset((A, B)),
        "exclusive": (ROLE,),
        "sizes": {"records": 3},
        "bounds": {"records": 3},
    }
    return OverlaySight(host, node, **{**values, **changes})  # type: ignore[arg-type]


def test_the_overlay_declares_its_checkers() -> None:
    kinds = {type(checker) for checker in declared_checkers(SUBSYSTEMS)}
    assert kinds >= {RolesOnce, Holders, OverlayBounds}


def test_a_request_that_an_instance_performs_twice_is_found() -> None:
    once = RolesOnce()
    _, first, second = checked(once)
    once.effect(first, delivered(1))
    once.effect(first, delivered(2))
    once.effect(second, delivered(1))
    with pytest.raises(CheckFailed, match="an instance performs a request once"):
        once.effect(first, delivered(1, attempt=1))
    assert once.deliveries == 4


def test_a_request_that_ends_twice_is_found_and_a_new_process_may_use_its_number() -> None:
    once = RolesOnce()
    _, first, _ = checked(once)
    once.effect(first, Ended(1, "done", b""))
    once.booted(first)
    once.effect(first, Ended(1, "done", b""))
    with pytest.raises(CheckFailed, match="ended twice"):
        once.effect(first, Ended(1, "null", b""))


def test_two_holders_that_reach_each_other_are_found() -> None:
    world, _, _ = checked()
    holders = Holders()
    holders.check(world, [sight("n1", A), sight("n2", B, exclusive=())])
    holders.check(world, [sight("n1", A), sight("n2", B, reaches=frozenset((B,)))])
    holders.check(world, [sight("n1", A), sight("n2", B, quiet_ns=SECOND)])
    with pytest.raises(CheckFailed, match="n1 and n2 hold role 'role'"):
        holders.check(world, [sight("n1", A), sight("n2", B)])


def test_a_table_over_its_bound_is_found() -> None:
    world, _, _ = checked()
    OverlayBounds().check(world, sight("n1", A))
    with pytest.raises(CheckFailed, match="4 records"):
        OverlayBounds().check(world, sight("n1", A, sizes={"records": 4}))
