"""How long to wait before the same is asked for again."""

from __future__ import annotations

from holdfast.group.streams.round_trip import NODES_MAX, RoundTrips
from holdfast.types import MILLISECOND, SECOND, NodeId

NODE = NodeId(b"n" * 16)


def test_a_node_that_is_not_known_is_given_the_configured_time() -> None:
    trips = RoundTrips(20 * MILLISECOND, SECOND)
    assert trips.mean_ns(NODE) == 0
    assert trips.wait_ns(NODE, 1) == 20 * MILLISECOND


def test_a_quick_node_is_asked_again_sooner_and_a_slow_one_later() -> None:
    quick, slow = RoundTrips(20 * MILLISECOND, SECOND), RoundTrips(20 * MILLISECOND, SECOND)
    for _ in range(50):
        quick.took(NODE, MILLISECOND // 5)
        slow.took(NODE, 80 * MILLISECOND)
    assert quick.wait_ns(NODE, 1) == 5 * MILLISECOND
    assert 80 * MILLISECOND <= slow.wait_ns(NODE, 1) < 100 * MILLISECOND


def test_each_request_doubles_the_wait_up_to_a_bound() -> None:
    trips = RoundTrips(20 * MILLISECOND, SECOND)
    waits = [trips.wait_ns(NODE, tries) for tries in (1, 2, 3, 100)]
    assert waits == [20 * MILLISECOND, 40 * MILLISECOND, 80 * MILLISECOND, SECOND]


def test_uneven_answers_are_waited_for_longer_than_their_mean() -> None:
    trips = RoundTrips(20 * MILLISECOND, SECOND)
    for k in range(100):
        trips.took(NODE, (5 if k % 2 else 45) * MILLISECOND)
    assert trips.wait_ns(NODE, 1) > 45 * MILLISECOND


def test_a_request_that_waited_for_a_session_does_not_spoil_the_account() -> None:
    trips = RoundTrips(20 * MILLISECOND, SECOND)
    trips.took(NODE, 3600 * SECOND)
    assert trips.mean_ns(NODE) == SECOND


def test_only_so_many_nodes_are_remembered() -> None:
    trips = RoundTrips(20 * MILLISECOND, SECOND)
    for k in range(NODES_MAX + 1):
        trips.took(NodeId(k.to_bytes(16, "big")), MILLISECOND)
    assert trips.mean_ns(NodeId((0).to_bytes(16, "big"))) == 0
    assert trips.mean_ns(NodeId(NODES_MAX.to_bytes(16, "big"))) == MILLISECOND
