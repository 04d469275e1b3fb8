"""What a hostile or broken peer sends is refused and counted. It never raises, and nothing is lost."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.support.dialogs import Pair, World

from holdfast.dialog import frames
from holdfast.dialog.frames import Ack, DialogFrame, Done, Fin, Invite, Messages, Resume, Terms
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.blocks import pack_block

KINDS = DialogFrame.__args__  # type: ignore[attr-defined]


def counts(pair: Pair) -> dict[str, int]:
    return dict(pair.near.manager.status()["counts"])


def attack(world: World, pair: Pair, frame: Any) -> None:
    """The partner's node sends a frame of its own making to the near end."""
    world.carry(pair.far, pair.a.node, frame)
    world.run(SECOND)


@pytest.mark.parametrize(
    "ranges",
    [[0, 5], [0], [3, 1], [-1, 1], [0, 1, 0, 1], [0, 1 << 62], [1, 1]],
)
def test_an_acknowledgement_of_what_was_not_sent_frees_nothing(ranges: list[int]) -> None:
    world = World(1)
    pair = Pair(world)
    world.filter = lambda _u, _n, frame: type(frame) is not Messages
    world.finish(pair.send(b"1", b"2", b"3"))
    world.run(100_000_000)
    attack(world, pair, Ack(pair.near.store, pair.dialog, 0, ranges, 10, 0, 0))
    assert counts(pair)["false_acknowledgements"] == 1
    assert pair.here().acked == []
    world.filter = lambda *_: True
    world.run(60 * SECOND)
    assert pair.drain() == [b"1", b"2", b"3"]


def test_an_acknowledgement_of_what_waits_to_be_transmitted_frees_nothing() -> None:
    """The partner shuts its window, and acknowledges what it was never sent."""
    world = World(8)
    pair = Pair(world, far={"quota_messages": 1})
    world.finish(pair.send(b"1"))
    world.finish(pair.send(b"2"))
    world.run(SECOND)
    assert (pair.here().acked, pair.here().queued) == ([(0, 1)], 1)
    attack(world, pair, Ack(pair.near.store, pair.dialog, 0, [0, 2], 1, 0, 0))
    assert counts(pair)["false_acknowledgements"] == 1
    assert pair.here().queued == 1
    assert pair.drain() == [b"1"]
    world.run(30 * SECOND)
    assert pair.drain() == [b"2"]


def test_an_acknowledgement_of_what_an_earlier_process_transmitted_is_taken() -> None:
    """It was lost with the process. The resume says it again."""
    world = World(9)
    pair = Pair(world)
    world.filter = lambda _u, _n, frame: type(frame) is not Ack
    world.finish(pair.send(b"1"))
    world.run(SECOND)
    world.crash(pair.a)
    world.run(SECOND)
    assert pair.here().acked == [(0, 1)]
    world.filter = lambda *_: True
    world.finish(pair.send(b"2"))
    world.run(SECOND)
    assert pair.here().acked == [(0, 2)]
    assert "false_acknowledgements" not in counts(pair)


@pytest.mark.parametrize("kind", [frames.Confirmed, frames.NeverConfirmed])
def test_a_third_node_cannot_answer_for_the_instance_that_is_asked_to_confirm(
    kind: type[Any],
) -> None:
    """The creator would deliver to an end that has not confirmed, or pair with a second instance."""
    world = World(10)
    world.filter = lambda unit, _n, frame: unit.host.name != "b" or type(frame) is frames.Offer
    pair = Pair(world, wait=False)
    world.run(SECOND)
    assert pair.here().state == "confirming"
    c = world.add("c")
    world.connect(pair.a, c)
    world.run(SECOND)
    thief = c.units["default"]
    more = {"limit": 100} if kind is frames.Confirmed else {}
    world.carry(thief, pair.a.node, kind(pair.near.store, pair.dialog, thief.store, **more))
    # In the name of the instance's store, too: the node counts.
    world.carry(thief, pair.a.node, kind(pair.near.store, pair.dialog, pair.far.store, **more))
    world.run(10 * MILLISECOND)
    assert pair.here().state == "confirming"
    assert pair.here().partner.node == pair.b.node
    world.filter = lambda *_: True
    world.run(60 * SECOND)
    assert pair.here().state == pair.there().state == "open"


def test_a_third_node_cannot_confirm_for_the_creator() -> None:
    """It would give the secret, by which it could claim the creator's end later."""
    world = World(12)
    world.filter = lambda unit, _n, frame: (
        unit.host.name != "a" or type(frame) is not frames.Confirm
    )
    pair = Pair(world, wait=False)
    world.run(SECOND)
    assert pair.there().state == "offered"
    c = world.add("c")
    world.connect(pair.b, c)
    forged = frames.Confirm(pair.far.store, pair.dialog, pair.near.store, b"x" * 32, 100)
    world.carry(c.units["default"], pair.b.node, forged)
    world.run(SECOND)
    assert pair.there().state == "offered"
    assert pair.far.manager.status()["counts"]["forged"] == 1
    world.filter = lambda *_: True
    world.run(30 * SECOND)
    assert pair.here().state == pair.there().state == "open"


def test_a_second_confirmation_with_another_secret_is_not_answered() -> None:
    """Whoever knows the secret may move the end: it is the one that was recorded."""
    world = World(11)
    pair = Pair(world)
    before = len([f for _, f in pair.far.frames if type(f) is frames.Confirmed])
    forged = frames.Confirm(pair.far.store, pair.dialog, pair.near.store, b"x" * 32, 100)
    world.carry(pair.near, pair.b.node, forged)
    world.run(SECOND)
    assert len([f for _, f in pair.far.frames if type(f) is frames.Confirmed]) == before
    assert pair.far.manager.core.dialogs[pair.dialog].secret != b"x" * 32


def test_a_third_node_cannot_speak_for_the_partner() -> None:
    world = World(2)
    pair = Pair(world)
    c = world.add("c")
    world.connect(pair.a, c)
    world.finish(pair.send(b"1"))
    thief = c.units["default"]
    body = pack_block([b"forged"])
    for frame in (
        Ack(pair.near.store, pair.dialog, 0, [0, 1], 10),
        Messages(pair.near.store, pair.dialog, 0, 0, 1, 0, memoryview(body)),
        Fin(pair.near.store, pair.dialog, 0, 0),
        frames.Terminate(pair.near.store, pair.dialog, 0, "", []),
        frames.Ended(pair.near.store, pair.dialog, "completed", []),
        frames.Unknown(pair.near.store, pair.dialog, thief.store),
    ):
        world.carry(thief, pair.a.node, frame)
    world.run(SECOND)
    assert counts(pair)["forged"] == 6
    assert pair.here().state == "open"


def test_a_dialog_cannot_be_made_in_the_name_of_another_node() -> None:
    world = World(3)
    pair = Pair(world)
    invite = Invite(
        bytes(16) + bytes(8) + bytes(8), "service:orders", bytes(8), Terms(7, 100, 0), 1
    )
    world.carry(pair.near, pair.b.node, invite)
    world.run(SECOND)
    assert pair.far.manager.status()["counts"]["forged"] == 1


def test_damage_is_found_and_the_message_is_sent_again() -> None:
    world = World(4)
    pair = Pair(world)
    damaged = []

    def damage(_unit: Any, _node: bytes, frame: Any) -> bool:
        if type(frame) is Messages and not damaged:
            damaged.append(frame)
            body = bytearray(frame.body)
            body[-1] ^= 1
            other = msgspec.structs.replace(frame, body=memoryview(bytes(body)))
            world.at(1000, lambda: world.deliver(pair.a.node, pair.b.node, 1, other))
            return False
        return True

    world.filter = damage
    world.finish(pair.send(b"one"))
    world.run(30 * SECOND)
    assert pair.far.manager.status()["counts"]["damaged"] == 1
    assert pair.drain() == [b"one"]


def test_a_message_above_the_agreed_size_is_refused() -> None:
    world = World(5)
    pair = Pair(world, near={"message_bytes_max": 10})
    from xxhash import xxh3_64_intdigest

    body = pack_block([b"x" * 100])
    frame = Messages(
        pair.near.store, pair.dialog, 0, 0, 1, xxh3_64_intdigest(body), memoryview(body)
    )
    attack(world, pair, frame)
    assert counts(pair)["oversized"] == 1
    assert pair.here().received == []


@pytest.mark.parametrize("seed", range(30))
def test_frames_with_random_fields_never_raise(seed: int) -> None:
    """Every field of every frame is set to something else now and then; the dialog goes on, or is faulted by it."""
    random = Random(seed)
    world = World(seed)
    pair = Pair(world)
    world.finish(pair.send(b"one", b"two"), pair.send(b"three", unit=pair.far))
    world.run(SECOND)
    known = [frame for _, frame in pair.far.frames]
    for _ in range(60):
        frame = random.choice(known)
        values = {name: getattr(frame, name) for name in frame.__struct_fields__}
        name = random.choice(list(values))
        values[name] = strange(random, values[name])
        world.carry(pair.far, pair.a.node, type(frame)(**values))
        world.run(SECOND // 10)
    world.run(10 * SECOND)
    assert pair.near.manager.status()["counts"].get("dialog_errors", 0) == 0


def strange(random: Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([-1, 0, 1, value + 1, value - 1, 1 << 62, -(1 << 62)])
    if isinstance(value, bytes):
        return random.choice([b"", value[:-1], random.randbytes(len(value)), b"x" * 100])
    if isinstance(value, memoryview):
        return memoryview(random.randbytes(random.randrange(40)))
    if isinstance(value, str):
        return random.choice(["", "x" * 10_000, "completed"])
    if isinstance(value, list):
        return random.choice([[], [1], [5, 2], [0, 1 << 40], [-3, 4], [0, 1, 1, 2]])
    if isinstance(value, Terms):
        return Terms(random.randrange(-5, 20), random.randrange(-5, 5), -1, "?")
    if isinstance(value, tuple):
        return (b"", b"x")
    return value


def test_a_forged_session_costs_a_bounded_number_of_reads() -> None:
    world = World(6)
    pair = Pair(world)
    for n in range(3000):
        session = pair.b.node + bytes(8) + n.to_bytes(8, "big")
        world.deliver(pair.b.node, pair.a.node, 1, Done(pair.near.store, session, 0))
    assert pair.near.manager.status()["parked"] <= 1024
    world.run(SECOND)
    assert pair.near.manager.status()["parked"] == 0
    assert counts(pair)["parking_full"] > 0


def test_every_frame_has_its_own_tag_in_the_range_of_dialogs() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
    assert all(128 <= tag <= 159 for tag in tags)
    assert Resume in KINDS
