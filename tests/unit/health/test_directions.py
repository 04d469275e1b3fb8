"""A direction is claimed when both listeners had time to find, or to lose, an error (H15)."""

from __future__ import annotations

from holdfast.health.classify import LOSS, SIZE, SoftError
from holdfast.health.table.directions import BEGINS_NS, ENDS_NS, Directions
from holdfast.health.table.values import Alarm
from holdfast.types import NEVER, SECOND

PATH = (b"a", "red", b"b", "red")
FOUND = 10 * SECOND


def alarm(error: SoftError) -> dict[tuple[str, str], Alarm]:
    return {(error.error_class, error.kind): Alarm(PATH, error, FOUND)}


def test_the_first_of_two_directions_is_not_called_one_way() -> None:
    directions, here = Directions(), SoftError(SIZE, "udp", 1000, one_way=True)
    said, again_at = directions.settle(FOUND, PATH, here, {}, FOUND)
    assert (said.one_way, again_at) == (None, FOUND + BEGINS_NS[SIZE])
    assert directions.settle(again_at, PATH, here, alarm(said), FOUND) == (here, NEVER)
    both = SoftError(SIZE, "udp", 1000, one_way=False)
    assert directions.settle(FOUND + 1, PATH, both, alarm(said), FOUND) == (both, NEVER)


def test_the_last_of_two_directions_to_recover_is_not_called_one_way() -> None:
    directions, both = Directions(), SoftError(SIZE, "udp", 1000, one_way=False)
    here = SoftError(SIZE, "udp", 1000, one_way=True)
    now = FOUND + SECOND
    said, again_at = directions.settle(now, PATH, here, alarm(both), now)
    assert (said, again_at) == (both, now + ENDS_NS)
    assert directions.settle(again_at, PATH, here, alarm(both), now) == (here, NEVER)


def test_a_class_that_is_claimed_late_has_its_direction_at_once() -> None:
    lost = SoftError(LOSS, "udp", 200_000, one_way=True)
    assert Directions().settle(FOUND, PATH, lost, {}, FOUND) == (lost, NEVER)
