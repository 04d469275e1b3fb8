"""When a node moves its replicas away by itself."""

from __future__ import annotations

from holdfast.runtime.objects.policy import Policy
from holdfast.types import SECOND

ME, OTHERS = b"m", [b"a", b"b", b"c"]
ALL = [ME, *OTHERS]


def test_a_node_whose_paths_stay_bad_is_drained_once() -> None:
    policy = Policy(ME, 10 * SECOND)
    sick = {ME: 3, b"a": 1, b"b": 1, b"c": 1}
    assert policy.decide(0, sick, ALL) is None
    assert policy.decide(9 * SECOND, sick, ALL) is None
    assert policy.decide(10 * SECOND, sick, ALL) is True
    assert policy.decide(60 * SECOND, sick, ALL) is None


def test_an_error_that_passes_drains_nothing() -> None:
    policy = Policy(ME, 10 * SECOND)
    sick = {ME: 3, b"a": 1}
    assert policy.decide(0, sick, ALL) is None
    assert policy.decide(5 * SECOND, {}, ALL) is None
    assert policy.decide(12 * SECOND, sick, ALL) is None


def test_one_bad_path_does_not_say_which_end_is_sick() -> None:
    policy = Policy(ME, SECOND)
    assert not policy.is_sick({ME: 1, b"a": 1}, ALL)
    assert not policy.is_sick({ME: 1, b"a": 2}, ALL)
    assert not policy.is_sick({}, ALL)
    assert not policy.is_sick({ME: 5}, [ME])


def test_a_node_that_is_well_again_takes_replicas_again() -> None:
    policy = Policy(ME, SECOND)
    policy.decide(0, {ME: 3}, ALL)
    assert policy.decide(SECOND, {ME: 3}, ALL) is True
    policy.decide(2 * SECOND, {}, ALL)
    assert policy.decide(3 * SECOND, {}, ALL) is False


def test_a_drain_that_failed_is_tried_again() -> None:
    policy = Policy(ME, SECOND)
    policy.decide(0, {ME: 3}, ALL)
    assert policy.decide(SECOND, {ME: 3}, ALL) is True
    policy.failed()
    policy.decide(2 * SECOND, {ME: 3}, ALL)
    assert policy.decide(3 * SECOND, {ME: 3}, ALL) is True
