"""Waves: builder messages that every node answers exactly once (rule 6)."""

from __future__ import annotations

from typing import Any

from tests.support.overlay_world import Host, World, node_id

from holdfast.links.ports import Received
from holdfast.overlay import tree_id
from holdfast.overlay.frames import FAILED, INFINITE, RECOVER, Wave, WaveAnswer
from holdfast.overlay.ids import numbered
from holdfast.types import MILLISECOND, SECOND


def test_a_wave_that_comes_again_from_inside_the_realm_has_not_failed() -> None:
    """Found with 200 nodes in six realms. A node handles a wave again if it came from outside its realm first. It sends
    the wave over a link where the first one is still under way. Taken for a failure, this made recoveries of that role
    fail again and again, until the messages that waited for them had expired."""
    world = World()
    for name, realm in (("x", "r0"), ("inside", "r0"), ("slow", "r0"), ("outside", "r1")):
        world.add(name, realm)
    for name in ("inside", "slow", "outside"):
        world.link("x", name)
    world.run(SECOND)
    answers: list[tuple[str, int]] = []

    def watch(sender: Host, receiver: Host, frame: Any) -> None:
        if sender.name == "x" and isinstance(frame, WaveAnswer):
            answers.append((receiver.name, frame.status))

    world.watch = watch
    made = numbered(node_id("far"), 1, 1)
    wave = Wave(made, made, RECOVER, tree_id("tree"), "role", 1, 2000, spew=INFINITE)
    world.stall("slow", 300 * MILLISECOND)
    world.post(world.hosts["x"], [Received(node_id("outside"), [wave], world.now)])
    world.run(50 * MILLISECOND)
    assert answers == [], "it waits for the slow node"
    world.post(world.hosts["x"], [Received(node_id("inside"), [wave], world.now)])
    world.run(2 * SECOND)
    assert sorted(name for name, _ in answers) == ["inside", "outside"]
    assert all(status != FAILED for _, status in answers), answers


def test_a_wave_over_a_link_that_is_closed_has_failed() -> None:
    world = World()
    for name in ("x", "b", "c"):
        world.add(name)
    world.link("x", "b")
    world.link("x", "c")
    world.run(SECOND)
    answers: list[int] = []

    def watch(sender: Host, _receiver: Host, frame: Any) -> None:
        if sender.name == "x" and isinstance(frame, WaveAnswer):
            answers.append(frame.status)

    world.watch = watch
    made = numbered(node_id("far"), 1, 1)
    wave = Wave(made, made, RECOVER, tree_id("tree"), "role", 1, 2000, spew=INFINITE)
    world.stall("c", 5 * SECOND)
    world.post(world.hosts["x"], [Received(node_id("b"), [wave], world.now)])
    world.run(10 * MILLISECOND)
    world.cut("x", "c")
    world.run(SECOND)
    assert answers == [FAILED]
