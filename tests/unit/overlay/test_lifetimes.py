"""Lifetimes of messages: each hop shortens that of its copy, but a node remembers the message for as long as any copy
of it may be under way."""

from __future__ import annotations

import pytest
from tests.support.overlay_world import PORT, World, node_id

from holdfast.links.ports import Received
from holdfast.overlay import tree_id
from holdfast.overlay.frames import HIDDEN, Message, Reply
from holdfast.overlay.ids import numbered
from holdfast.overlay.seen import MARGIN_NS, lifetime_at_sender, shortened
from holdfast.types import MILLISECOND, SECOND

REQUEST = numbered(node_id("far"), 1, 1)


def copy(hops: int, ttl_ms: int) -> Message:
    return Message(REQUEST, 0, tree_id("tree"), "role", PORT, b"once", ttl_ms, hops)


@pytest.mark.parametrize("lifetime_ms", [1, 7, 400, 10_000])
def test_the_lifetime_at_the_sender_is_never_underestimated(lifetime_ms: int) -> None:
    left = lifetime_ms * MILLISECOND
    for hops in range(1, 61):
        left = max(shortened(left) // MILLISECOND, 1) * MILLISECOND
        found = lifetime_at_sender(left, hops)
        assert found >= lifetime_ms * MILLISECOND
        if hops <= 20:
            assert found <= 3 * (lifetime_ms + 20) * MILLISECOND, "nor by far overestimated"


def test_a_copy_on_a_shorter_path_that_comes_later_is_not_delivered_again() -> None:
    """Found with 200 nodes. A copy over eleven hops has half the lifetime left; its copy over two hops waits for a
    recovery on its way, and comes when the first one has expired here."""
    world = World()
    for name in ("d", "b", "c"):
        world.add(name)
    world.link("d", "b")
    world.link("d", "c")
    world.run(SECOND)
    world.publish("d")
    world.run(SECOND)
    hidden: list[str] = []

    def watch(_sender, receiver, frame) -> None:  # type: ignore[no-untyped-def]
        if isinstance(frame, Reply) and frame.kind == HIDDEN:
            hidden.append(receiver.name)

    world.watch = watch
    host = world.hosts["d"]
    world.post(host, [Received(node_id("b"), [copy(11, 5000)], world.now)])
    world.run(5500 * MILLISECOND)
    world.post(host, [Received(node_id("c"), [copy(2, 3000)], world.now)])
    world.run(SECOND)
    assert world.receivers(b"once") == {"d": 1}
    assert hidden == ["c"], "the second copy ends as a duplicate"


def test_a_message_is_forgotten_when_no_copy_can_be_left() -> None:
    world = World()
    world.add("d")
    world.add("b")
    world.link("d", "b")
    world.run(SECOND)
    host = world.hosts["d"]
    world.post(host, [Received(node_id("b"), [copy(3, 1000)], world.now)])
    router = host.machine.router
    assert len(router.seen) == 1
    world.run(
        lifetime_at_sender(SECOND, 3) + MARGIN_NS + 11 * SECOND
    )  # sweeps are five seconds apart
    assert len(router.seen) == 0
