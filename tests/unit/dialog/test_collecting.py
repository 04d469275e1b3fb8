"""Abandoned dialogs are collected and counted; facts of deliveries add up; a deep link queue holds retransmission."""

from __future__ import annotations

from tests.support.dialogs import Pair, World, bodies

from holdfast.dialog.facts import MASK, DialogRangeFact, digest_of
from holdfast.dialog.frames import Messages
from holdfast.dialog.inactive import REVIEWED_MAX
from holdfast.dialog.ports import Deactivate, MoveDone, MoveOut, Reactivate, Take
from holdfast.links.ports import LinkQueue
from holdfast.types import SECOND, NodeId

DAY = 86_400 * SECOND


def collected(unit: object) -> int:
    return int(unit.manager.status()["counts"].get("abandoned", 0))  # type: ignore[attr-defined]


def test_an_open_dialog_whose_partner_is_gone_is_collected() -> None:
    world = World(71, abandoned_ns=DAY)
    pair = Pair(world)
    world.finish(pair.send(b"kept for a day"))
    world.disconnect(pair.a, pair.b)
    world.run(DAY // 2)
    assert pair.here() is not None
    world.run(DAY)
    assert pair.near.manager.inspect(pair.dialog) is None
    assert collected(pair.near) == 1
    ended = pair.near.kinds("terminated")
    assert "abandoned" in ended[-1].detail


def test_a_quiet_dialog_with_a_link_to_its_partner_is_kept() -> None:
    world = World(72, abandoned_ns=DAY)
    pair = Pair(world, near={"idle_ns": 0}, far={"idle_ns": 0})
    world.run(3 * DAY)
    assert pair.near.manager.inspect(pair.dialog) is not None
    assert collected(pair.near) == 0


def test_activity_is_recorded_so_that_a_restart_does_not_collect() -> None:
    """The row is old, the messages are not: after a restart the dialog must not look abandoned."""
    world = World(73, abandoned_ns=DAY)
    pair = Pair(world, near={"idle_ns": 0}, far={"idle_ns": 0})
    for _ in range(4):
        world.run(DAY // 2)
        world.finish(pair.send(b"x"))
    world.run(SECOND)
    world.crash(pair.a)
    world.disconnect(pair.a, pair.b)
    world.run(DAY // 4)
    assert pair.near.manager.inspect(pair.dialog) is not None


def deactivated(world: World) -> Pair:
    """A dialog whose two ends are in their stores only."""
    pair = Pair(world)
    both = [unit.call(Deactivate(token=0, dialog=pair.dialog)) for unit in (pair.near, pair.far)]
    assert world.finish(*both) == [None, None]
    world.run(SECOND)
    assert pair.near.tables["inactive"]
    assert len(pair.near.tables["quiet"]) == 1
    return pair


def test_a_deactivated_dialog_whose_partner_is_gone_is_collected() -> None:
    """Also by a process that has never had it in memory."""
    world = World(77, abandoned_ns=DAY)
    pair = deactivated(world)
    world.disconnect(pair.a, pair.b)
    world.crash(pair.a)
    world.run(DAY // 2)
    assert pair.near.tables["inactive"]
    assert collected(pair.near) == 0
    world.run(DAY)
    assert not pair.near.tables["inactive"]
    assert not pair.near.tables["quiet"]
    assert not pair.near.tables["dialog"]
    assert collected(pair.near) == 1
    assert "abandoned" in pair.near.kinds("terminated")[-1].detail
    call = pair.near.call(Reactivate(token=0, dialog=pair.dialog))
    assert world.finish(call)[0].code == "ended"


def test_a_deactivated_dialog_with_a_link_to_its_partner_is_kept_in_the_store_only() -> None:
    world = World(78, abandoned_ns=DAY)
    pair = deactivated(world)
    world.run(3 * DAY + DAY // 2)
    assert collected(pair.near) == 0
    assert pair.near.manager.status()["counts"].get("reactivated", 0) == 0
    world.disconnect(pair.a, pair.b)
    world.run(2 * DAY)
    assert collected(pair.near) == 1, "one period after the partner was last seen"


def test_a_reactivated_dialog_leaves_the_index() -> None:
    """The time in the index is old, the use is not: the dialog must not be collected for it."""
    world = World(79, abandoned_ns=DAY)
    pair = deactivated(world)
    world.run(DAY - SECOND)
    world.finish(pair.near.call(Reactivate(token=0, dialog=pair.dialog)))
    world.finish(pair.send(b"used again"))
    world.run(SECOND)
    assert not pair.near.tables["quiet"]
    world.disconnect(pair.a, pair.b)
    world.run(DAY // 2)
    assert collected(pair.near) == 0


def test_thousands_of_abandoned_dialogs_are_read_in_small_parts() -> None:
    """Each is read from the store by its writer's thread, on which commits wait."""
    world = World(80, abandoned_ns=DAY)
    pair = deactivated(world)
    inactive, quiet = pair.near.tables["inactive"], pair.near.tables["quiet"]
    ((key, row),) = inactive.items()
    ((first, _),) = quiet.items()
    for n in range(600):
        copy = key[:-8] + (1000 + n).to_bytes(8, "big")
        inactive[copy] = row
        quiet[first[:8] + copy] = b""
    world.disconnect(pair.a, pair.b)
    world.crash(pair.a)
    begin = world.now
    while len(quiet := pair.near.tables["quiet"]) == 601:
        world.run(SECOND // 2)
        assert world.now - begin < 2 * DAY
    assert len(quiet) >= 601 - REVIEWED_MAX
    world.run(10 * SECOND)
    assert collected(pair.near) == 601
    assert not pair.near.tables["quiet"]


def facts(unit: object, event: str) -> list[DialogRangeFact]:
    found = [f for f in unit.facts if isinstance(f, DialogRangeFact)]  # type: ignore[attr-defined]
    return [fact for fact in found if fact.event == event]


def test_facts_of_both_ends_add_up() -> None:
    world = World(74)
    pair = Pair(world)
    sent = [b"%d" % n for n in range(50)]
    for start in range(0, 50, 10):
        world.finish(pair.send(*sent[start : start + 10]))
    got: list[bytes] = []
    while len(got) < 50:
        [taken] = world.finish(pair.far.call(Take(token=0, dialog=pair.dialog, count=7)))
        got += bodies(taken)
    captured, taken_facts = facts(pair.near, "captured"), facts(pair.far, "taken")
    for found in (captured, taken_facts):
        numbers = [n for fact in found for n in range(fact.first, fact.last + 1)]
        assert numbers == list(range(50)), "each number once, in order"
        assert sum(fact.digest for fact in found) & MASK == digest_of(0, sent)
        assert {fact.sender for fact in found} == {"creator"}


def test_rule_20_nothing_is_sent_again_while_its_copy_waits_in_the_queue_of_the_link() -> None:
    """The link is slow: the message waits in its queue for longer than the time-out. A second copy would only make the
    queue longer. When the queue is short again and the acknowledgement is still missing, it is sent again."""
    world = World(75)
    pair = Pair(world)
    world.finish(pair.send(b"first"))
    world.run(SECOND)
    lost: list[object] = []
    world.filter = lambda _unit, _node, frame: (
        not (isinstance(frame, Messages) and (lost.append(frame) or True))
    )
    pair.near.give(LinkQueue(NodeId(pair.b.node), "red", 5 << 20))
    world.finish(pair.send(b"second"))
    world.run(30 * SECOND)
    assert len(lost) == 1
    pair.near.give(LinkQueue(NodeId(pair.b.node), "red", 0))
    world.run(2 * SECOND)
    assert len(lost) > 1


def test_the_state_of_an_end_that_moved_is_kept_until_the_target_has_it() -> None:
    """The source dies between its record and the hand-over of the state: asked again, it gives the same."""
    world = World(76)
    pair = Pair(world)
    target = world.add("c")
    store = target.units["default"].store
    world.finish(pair.send(b"one"))
    world.run(SECOND)
    request = MoveOut(token=0, dialog=pair.dialog, node=target.node, store=store)
    [first] = world.finish(pair.far.call(request))
    world.crash(pair.b)
    world.run(SECOND)
    [again] = world.finish(pair.far.call(request))
    assert again == first
    world.finish(pair.far.call(MoveDone(token=0, dialog=pair.dialog)))
    assert not pair.far.manager.core.exported
    assert pair.far.tables.get("exported", {}) == {}
