"""How long messages take when datagrams get lost: in virtual time, so that only the protocol's own waiting counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.group.harness import App, World, ready, settle

from holdfast.group.frames import Nack, Payload
from holdfast.group.loss.rule import Rule
from holdfast.group.ports import Apply
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, Nanos
from holdfast.wire.codec import encode

DROP = Rule("drop", at_once=True, priority=1)
IGNORE = Rule(
    "drop and ignore", at_once=True, priority=1, ignore_by=("stream", "priority"), ignore_s=0.2
)
LAN_US = (30, 120)


class Timed(App):
    """Notes how old each message is when it is delivered."""

    def __init__(self, now: Callable[[], Nanos]) -> None:
        super().__init__()
        self._now = now
        self.ages_ns: list[Nanos] = []
        self.urgent = 0

    def apply(self, effect: Apply) -> None:
        for message in effect.batch.messages:
            self.ages_ns.append(self._now() - int.from_bytes(message[:8], "little"))
            self.urgent += message[8]


def paced(loss: float, rules: tuple[Rule, ...] = (), each: int = 250, together: int = 1) -> World:
    """Four replicas, each a source that sends `each` times in a second, every tenth time something urgent."""
    world = World(
        voters=4, transport="datagram", priorities=2, policy=rules, delay_us=LAN_US, datagram_loss=loss
    )  # fmt: skip
    world.app_delay_us = (10, 40)
    world.start()
    ready(world)
    for host in world.hosts.values():
        host.app = Timed(lambda: world.now)
    begin, gap = world.now, SECOND // each
    for k in range(each):
        for place, name in enumerate(world.names):
            world.at(begin + k * gap + place * gap // 4, _sends(world, name, k % 10 == 0, together))
    world.run(2 * SECOND)
    return world


def _sends(world: World, name: str, urgent: bool, together: int = 1) -> Callable[[], None]:
    def send() -> None:
        stamped = world.now.to_bytes(8, "little") + bytes([urgent]) + bytes(900)
        world.send(name, [stamped] * together, priority=0 if urgent else 1)

    return send


def apps(world: World) -> list[Timed]:
    return [host.app for host in world.hosts.values() if isinstance(host.app, Timed)]


def slowest_ns(world: World, per_mille: int) -> Nanos:
    """Of the replica that is worst."""
    found = []
    for app in apps(world):
        ages = sorted(app.ages_ns)
        found.append(ages[(len(ages) - 1) * per_mille // 1000])
    return max(found)


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_what_is_lost_on_a_lan_is_here_again_within_a_few_milliseconds(loss: float) -> None:
    world = paced(loss)
    assert [len(app.ages_ns) for app in apps(world)] == [1000] * 4
    assert world.events("gap")
    assert slowest_ns(world, 990) < 3 * MILLISECOND
    assert slowest_ns(world, 1000) < 8 * MILLISECOND


@pytest.mark.parametrize("rule", [DROP, IGNORE], ids=["drop", "ignore"])
def test_where_low_priority_is_given_up_at_once_nothing_waits_long_and_all_urgent_ones_come(
    rule: Rule,
) -> None:
    world = paced(0.05, (rule,), together=3)
    assert len(world.events("decides")) > 3
    assert all(app.urgent == 300 for app in apps(world))
    assert len({len(app.ages_ns) for app in apps(world)}) == 1
    assert len(apps(world)[0].ages_ns) < 3000
    assert slowest_ns(world, 990) < 3 * MILLISECOND


def test_a_slow_network_is_not_asked_for_the_same_again_before_it_can_answer() -> None:
    """The leader does not take for lost what is on its way: nobody is asked to decide anything."""
    asked: dict[tuple[str, str, int, int], int] = {}
    world = paced(0.0, each=50)
    world.datagram_loss = 0.05
    world.delay_us = (5_000, 30_000)

    def count(sender: str, target: str, frame: object) -> bool:
        if isinstance(frame, Nack):
            for first, last in frame.ranges:
                key = (sender, frame.stream.source.hex(), first, last)
                asked[key] = asked.get(key, 0) + 1
        return False

    world.drop = count
    for k in range(50):
        for name in world.names:
            world.at(world.now + k * 20 * MILLISECOND, _sends(world, name, False))
    world.run(3 * SECOND)
    assert [len(app.ages_ns) for app in apps(world)] == [400] * 4
    assert asked
    assert sum(asked.values()) < 1.3 * len(asked)
    assert sum(len(host.asked) for host in world.hosts.values()) <= 2


def test_a_gap_that_later_messages_show_is_asked_for_before_one_that_is_only_heard_of() -> None:
    def asks_after_ns(messages: int) -> Nanos:
        """How long after sending `n2` asks for the first message, which it never gets as a datagram."""
        asked_ns: list[Nanos] = []
        world = World(voters=3, sources=1, transport="datagram", delay_us=LAN_US)
        world.start()
        ready(world)

        def drop(sender: str, target: str, frame: object) -> bool:
            if isinstance(frame, Nack) and sender == "n2":
                asked_ns.append(world.now)
            first = isinstance(frame, Payload) and frame.first == 1
            return first and target == "n2" and not asked_ns

        world.drop = drop
        begin = world.now
        world.send("s1", [b"." * 1000] * messages)
        settle(world, messages)
        return asked_ns[0] - begin

    config = World().config
    assert config.nack_delay_ns <= asks_after_ns(1) < 2 * MILLISECOND
    assert config.reorder_ns <= asks_after_ns(2) < config.nack_delay_ns


@pytest.mark.parametrize("lost", [0, 7])
def test_what_is_still_arriving_is_not_requested(lost: int) -> None:
    """`n2` reads its socket more slowly than the order arrives. The last messages, if lost, are requested when nothing
    more arrives."""
    asked: list[tuple[Nanos, tuple[tuple[int, int], ...]]] = []
    arrived: list[Nanos] = []
    world = World(voters=3, sources=1, transport="datagram", delay_us=LAN_US)
    world.start()
    ready(world)
    count, apart = 60, world.config.nack_delay_ns // 2

    def hold(sender: str, target: str, frame: object) -> bool:
        if isinstance(frame, Nack) and sender == "n2":
            asked.append((world.now, frame.ranges))
        late = isinstance(frame, Payload) and sender == "s1" and target == "n2" and not asked
        if late and frame.first <= count - lost:
            at = world.now + frame.first * apart
            arrived.append(at)
            world.at(at, world._arrival(sender, target, encode(frame)))
        return late

    world.drop = hold
    world.send("s1", [b"." * 1000] * count)
    settle(world, count)
    assert arrived
    if not lost:
        assert not asked
        return
    at, ranges = asked[0]
    assert ranges == ((count - lost + 1, count),)
    assert arrived[-1] < at < arrived[-1] + 3 * MILLISECOND


def test_what_the_order_names_is_asked_of_the_leader_when_its_source_is_gone() -> None:
    asked: list[str] = []
    world = World(voters=4, sources=1, transport="datagram", delay_us=LAN_US)
    world.start()
    ready(world)
    lost = {"n2", "n3", "n4"}

    def drop(sender: str, target: str, frame: object) -> bool:
        if isinstance(frame, Nack) and sender == "n4":
            asked.append(target)
        return isinstance(frame, Payload) and target in lost and sender == "s1"

    world.drop = drop
    world.send("s1", [b"1" * 1000])
    world.run(MICROSECOND * 300)
    world.kill("s1")
    settle(world, 1)
    assert asked[0] == "n1"
