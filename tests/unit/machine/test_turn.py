"""The turn: layers, what is carried over, writes before sends, a machine that raises, deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.machine import Machine, Outbox, Put, StoreFailed, Turns
from holdfast.machine.turn import FORGIVEN_AFTER
from holdfast.types import NEVER, SECOND

LAYERS = tuple(map(str, range(8)))

Act = Callable[[Outbox], None]
Call = tuple[str, str, list[Any]]


class Scripted(Machine):
    """Does what its inputs say: an input that can be called is called with the outbox. Logs every call."""

    def __init__(self, name: str, log: list[Call], deadline: int = NEVER) -> None:
        self.name = name
        self.log = log
        self.deadline = deadline
        self.on_wake: Act = lambda out: None
        self.wake_again = NEVER

    def up(self, now: int, inputs: list[Any], out: Outbox) -> None:
        self._do("up", inputs, out)

    def down(self, now: int, inputs: list[Any], out: Outbox) -> None:
        self._do("down", inputs, out)

    def wake(self, now: int, out: Outbox) -> None:
        self.log.append((self.name, "wake", []))
        self.deadline = self.wake_again
        self.on_wake(out)

    def _do(self, what: str, inputs: list[Any], out: Outbox) -> None:
        self.log.append((self.name, what, [item for item in inputs if not callable(item)]))
        for item in inputs:
            if callable(item):
                item(out)


def scripted(layer: int, name: str, log: list[Call], deadline: int = NEVER) -> Scripted:
    kind: type[Scripted] = type("Scripted", (Scripted,), {"layer": str(layer)})
    return kind(name, log, deadline)


class Node:
    """A `Turns` with units named after their layer: `a0`, `b0`, `a1`, ..."""

    def __init__(self, *names: str) -> None:
        self.log: list[Call] = []
        self.now = 1000
        self.rebuilt: list[str] = []
        self.turns = Turns(self.rebuild, LAYERS)
        for name in names:
            self.turns.add(name, self.make(name))

    def make(self, name: str, deadline: int = NEVER) -> Scripted:
        return scripted(int(name[1]), name, self.log, deadline)

    def rebuild(self, name: str) -> Machine | None:
        self.rebuilt.append(name)
        return self.make(name)

    def unit(self, name: str) -> Scripted:
        machine = self.turns.machine(name)
        assert isinstance(machine, Scripted)
        return machine

    def run(self, *inputs: tuple[str, Any]) -> Any:
        self.log.clear()
        return self.turns.run(self.now, inputs)


def write(key: str) -> Act:
    return lambda out: out.write(Put("t", key.encode(), b""))


def down(unit: str, item: Any, immediate: bool = False) -> Act:
    return lambda out: out.down(unit, item, immediate)


def up(unit: str, item: Any) -> Act:
    return lambda out: out.up(unit, item)


def effect(item: Any, immediate: bool = False) -> Act:
    return lambda out: out.effect(item, immediate)


def fail(out: Outbox) -> None:
    raise RuntimeError("on purpose")


# -- passes ------------------------------------------------------------------------------------------------------


def test_a_turn_goes_up_through_the_layers_and_then_down() -> None:
    node = Node("a6", "a0", "a2")
    result = node.run(
        ("a6", down("a2", "sent")),
        ("a2", down("a0", "probe")),
        ("a2", up("a6", "told")),
        ("a0", up("a2", "heard")),
    )
    assert node.log == [
        ("a0", "up", []),
        ("a2", "up", ["heard"]),
        ("a6", "up", ["told"]),
        ("a2", "down", ["sent"]),
        ("a0", "down", ["probe"]),
    ]
    assert not result.more


def test_a_unit_gets_all_its_inputs_in_one_call_in_the_order_they_came() -> None:
    node = Node("a0", "b0")
    node.run(("a0", 1), ("b0", 2), ("a0", 3), ("b0", 4))
    assert node.log == [("a0", "up", [1, 3]), ("b0", "up", [2, 4])]


def test_what_several_layers_send_down_reaches_a_unit_in_one_call() -> None:
    node = Node("a0", "a3", "a5")
    node.run(("a5", down("a0", "five")), ("a3", down("a0", "three")))
    assert node.log[-1] == ("a0", "down", ["three", "five"])
    assert [call for call in node.log if call[1] == "down"] == [node.log[-1]]


def test_down_in_two_steps_stays_within_one_turn() -> None:
    node = Node("a0", "a3", "a5")
    node.run(("a5", down("a3", down("a0", "at the bottom"))))
    assert node.log[-1] == ("a0", "down", ["at the bottom"])


@pytest.mark.parametrize("target", ["a2", "b2", "a1"])
def test_what_is_handed_up_sideways_or_to_a_lower_layer_waits_for_the_next_turn(
    target: str,
) -> None:
    node = Node("a2", "b2", "a1")
    result = node.run(("a2", up(target, "later")))
    assert result.more
    assert node.log == [("a2", "up", [])]
    assert not node.run().more
    assert node.log == [(target, "up", ["later"])]


def test_what_is_raised_on_the_pass_down_waits_for_the_next_turn_and_comes_before_new_inputs() -> (
    None
):
    node = Node("a0", "a3")
    result = node.run(("a3", down("a0", up("a3", "answer"))))
    assert result.more
    node.run(("a3", "new"))
    assert node.log == [("a3", "up", ["answer", "new"])]


@pytest.mark.parametrize("target", ["a3", "b3"])
def test_on_the_way_up_a_unit_may_ask_for_the_pass_down_of_its_own_layer(target: str) -> None:
    node = Node("a3", "b3")
    assert not node.run(("a3", down(target, "now"))).more
    assert node.log == [("a3", "up", []), (target, "down", ["now"])]


def test_what_is_sent_down_to_a_higher_layer_waits_for_the_next_turn() -> None:
    node = Node("a3", "a5")
    assert node.run(("a3", down("a5", "later"))).more
    assert node.log == [("a3", "up", [])]
    node.run()
    assert node.log == [("a5", "down", ["later"])]


@pytest.mark.parametrize("target", ["a3", "b3", "a5"])
def test_on_the_way_down_only_a_lower_layer_can_be_reached_in_the_same_turn(target: str) -> None:
    node = Node("a3", "b3", "a5")
    assert node.run(("a3", down("a3", down(target, "later")))).more
    assert node.log == [("a3", "up", []), ("a3", "down", [])]
    node.run()
    assert node.log == [(target, "down", ["later"])]


def test_a_posted_item_comes_before_the_inputs_of_the_next_turn() -> None:
    node = Node("a3")
    node.turns.post("a3", "posted")
    node.run(("a3", "arrived"))
    assert node.log == [("a3", "up", ["posted", "arrived"])]


def test_units_that_pass_work_to_each_other_endlessly_cost_one_step_per_turn() -> None:
    node = Node("a2", "b2")

    def ping(out: Outbox) -> None:
        out.up("b2", pong)

    def pong(out: Outbox) -> None:
        out.up("a2", ping)

    node.run(("a2", ping))
    for turn in range(5):
        assert node.run().more
        assert len(node.log) == 1, turn


def test_a_carried_item_keeps_its_place_before_what_is_sent_in_the_next_turn() -> None:
    node = Node("a3", "b3")
    node.run(("a3", down("a3", down("b3", "one"))))
    node.run(("a3", down("b3", "two")))
    assert node.log[-1] == ("b3", "down", ["one", "two"])


def test_a_carried_item_keeps_its_place_before_a_later_one_that_was_held() -> None:
    node = Node("a3", "a4", "a5")
    # On the way up `one` is carried; on the way down the unit writes, and `two` waits for that.
    node.run(
        ("a3", down("a5", "one")),
        ("a4", down("a3", write("k"))),
        ("a4", down("a3", down("a5", "two"))),
    )
    node.turns.written(1)
    node.run()
    assert node.log == [("a5", "down", ["one", "two"])]


def test_effects_and_facts_come_out_in_the_order_in_which_units_ran() -> None:
    node = Node("a0", "a4")
    result = node.run(
        ("a4", effect("top")),
        ("a4", lambda out: out.fact("fact of a4")),
        ("a0", effect("bottom")),
        ("a0", lambda out: out.fact("fact of a0")),
    )
    assert result.effects == ["bottom", "top"]
    assert result.facts == ["fact of a0", "fact of a4"]


def test_items_for_units_that_do_not_exist_are_counted_and_harmless() -> None:
    node = Node("a2")
    node.run(
        ("nobody", "input"),
        ("a2", up("nobody", "up")),
        ("a2", down("nobody", "down")),
        ("a2", "known"),
    )
    assert node.turns.unclaimed == 3
    assert node.log == [("a2", "up", ["known"])]


def test_a_carried_item_whose_unit_is_dropped_meanwhile_is_counted() -> None:
    node = Node("a2", "b2", "a3")
    node.run(("a2", up("b2", "lost")), ("a2", down("a3", "lost too")))
    node.turns.drop("b2")
    node.turns.drop("a3")
    assert not node.run().more
    assert node.turns.unclaimed == 2
    assert node.turns.units() == ["a2"]


def test_turns_are_numbered_from_one() -> None:
    node = Node("a0")
    assert [node.run().number for _ in range(3)] == [1, 2, 3]


# -- deadlines ---------------------------------------------------------------------------------------------------


def test_arrivals_come_before_deadlines() -> None:
    node = Node()
    node.turns.add("a1", node.make("a1", deadline=1000))
    node.turns.add("b1", node.make("b1", deadline=900))
    node.run(("a1", "heard"))
    assert node.log == [("a1", "up", ["heard"]), ("a1", "wake", []), ("b1", "wake", [])]


def test_an_arrival_can_move_a_deadline_away() -> None:
    node = Node()
    node.turns.add("a1", node.make("a1", deadline=1000))
    machine = node.unit("a1")
    node.run(("a1", lambda out: setattr(machine, "deadline", 5000)))
    assert ("a1", "wake", []) not in node.log
    assert node.turns.next_deadline() == 5000


def test_a_unit_is_woken_when_its_time_has_come_and_not_before() -> None:
    node = Node()
    node.turns.add("a1", node.make("a1", deadline=1001))
    node.run()
    assert node.log == []
    assert node.turns.next_deadline() == 1001
    node.now = 1001
    node.run()
    assert node.log == [("a1", "wake", [])]
    assert node.turns.next_deadline() == NEVER


def test_what_a_woken_unit_asks_for_is_done_in_the_same_turn() -> None:
    node = Node("a0", "a5")
    node.turns.add("a2", node.make("a2", deadline=1000))

    def tick(out: Outbox) -> None:
        out.up("a5", "tick")
        out.down("a0", "probe")

    node.unit("a2").on_wake = tick
    node.run()
    assert node.log == [
        ("a2", "wake", []),
        ("a5", "up", ["tick"]),
        ("a0", "down", ["probe"]),
    ]


def test_a_deadline_set_on_the_pass_down_counts() -> None:
    node = Node("a1", "a3")
    machine = node.unit("a1")
    node.run(("a3", down("a1", lambda out: setattr(machine, "deadline", 2000))))
    assert node.turns.next_deadline() == 2000


def test_a_unit_that_asks_to_be_woken_in_the_past_has_failed() -> None:
    node = Node()
    node.turns.add("a1", node.make("a1", deadline=1000))
    node.unit("a1").wake_again = 1000
    result = node.run()
    (failure,) = result.failures
    assert failure.unit == "a1"
    assert "deadline in the past" in str(failure.error)
    assert node.turns.next_deadline() == NEVER


def test_a_dropped_unit_is_not_woken() -> None:
    node = Node()
    node.turns.add("a1", node.make("a1", deadline=1000))
    node.turns.drop("a1")
    node.turns.drop("a1")
    node.run()
    assert node.log == []


# -- writes before sends -----------------------------------------------------------------------------------------


def test_what_a_unit_sends_waits_until_its_writes_are_durable() -> None:
    node = Node("a1", "a6")
    result = node.run(("a6", write("vote")), ("a6", down("a1", "vote")), ("a6", effect("told")))
    assert [w.key for w in result.writes] == [b"vote"]
    assert result.effects == []
    assert node.run().effects == []
    assert node.log == []
    assert node.turns.written(1)
    assert node.run().effects == ["told"]
    assert node.log == [("a1", "down", ["vote"])]


def test_the_order_of_the_requests_within_a_call_does_not_matter() -> None:
    node = Node("a6")
    assert node.run(("a6", effect("told")), ("a6", write("vote"))).effects == []


def test_a_unit_that_wrote_nothing_is_not_held_up_by_another() -> None:
    node = Node("a6", "b6")
    result = node.run(("a6", write("k")), ("b6", effect("free")), ("a6", effect("held")))
    assert result.effects == ["free"]


def test_what_is_handed_up_does_not_wait() -> None:
    node = Node("a1", "a6")
    node.run(("a1", write("k")), ("a1", up("a6", "delivered")))
    assert node.log[-1] == ("a6", "up", ["delivered"])


def test_immediate_items_overtake_and_the_others_keep_their_order() -> None:
    node = Node("a6")
    first = node.run(("a6", write("k")), ("a6", effect(1)), ("a6", effect("probe", immediate=True)))
    second = node.run(("a6", effect(2)), ("a6", effect("payload", immediate=True)))
    assert (first.effects, second.effects) == (["probe"], ["payload"])
    node.turns.written(1)
    assert node.run(("a6", effect(3))).effects == [1, 2, 3]


def test_each_item_waits_for_the_writes_before_it_when_several_turns_are_outstanding() -> None:
    node = Node("a6")
    node.run(("a6", write("k1")), ("a6", effect(1)))
    node.run(("a6", write("k2")), ("a6", effect(2)))
    node.run(("a6", effect("after 2")))
    node.run(("a6", write("k4")), ("a6", effect(4)))
    assert node.turns.written(1)
    assert node.run().effects == [1]
    assert node.turns.written(2)
    assert node.run().effects == [2, "after 2"]
    assert not node.turns.written(3)
    assert node.run().effects == []
    assert node.turns.written(4)
    assert node.run().effects == [4]


def test_commits_never_go_back() -> None:
    node = Node("a6")
    node.run()
    node.run()
    node.turns.written(2)
    with pytest.raises(AssertionError, match="turn order"):
        node.turns.written(1)


def test_a_held_item_for_a_unit_that_is_gone_is_counted() -> None:
    node = Node("a1", "a6")
    node.run(("a6", write("k")), ("a6", down("a1", "late")))
    node.turns.drop("a1")
    node.turns.written(1)
    node.run()
    assert node.turns.unclaimed == 1


def test_a_dropped_unit_sends_nothing_that_it_held() -> None:
    node = Node("a6")
    node.run(("a6", write("k")), ("a6", effect("late")))
    node.turns.drop("a6")
    assert not node.turns.written(1)
    assert node.run().effects == []


step = st.tuples(
    st.sampled_from(["a5", "b6"]),
    st.booleans(),  # it writes
    st.integers(0, 3),  # effects
    st.integers(0, 3),  # items for the unit below
    st.booleans(),  # they are immediate
    st.integers(0, 2),  # commits that the disk reports before the turn
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(step, max_size=25))
def test_nothing_leaves_early_and_nothing_is_lost_or_overtaken(
    steps: list[tuple[str, bool, int, int, bool, int]],
) -> None:
    node = Node("a0", "a5", "b6")
    wrote: list[int] = []
    durable = 0
    asked: dict[str, list[tuple[int, int, str]]] = {"a5": [], "b6": []}
    last_write = {"a5": 0, "b6": 0}
    left: list[tuple[int, int, str]] = []
    serial = 0

    def run(inputs: list[tuple[str, Any]]) -> None:
        result = node.run(*inputs)
        if result.writes:
            wrote.append(result.number)
        left.extend(result.effects)
        left.extend(i for unit, what, items in node.log if unit == "a0" for i in items)
        assert all(after <= durable for _, after, way in left if way != "immediate")

    for unit, writes, effects, downs, immediate, commits in steps:
        for _ in range(commits):
            if wrote:
                durable = wrote.pop(0)
                node.turns.written(durable)
        inputs: list[tuple[str, Any]] = []
        if writes:
            inputs.append((unit, write("k")))
            last_write[unit] = node.turns.number + 1
        for way, count in (("effect", effects), ("down", downs)):
            for _ in range(count):
                serial += 1
                kind = "immediate" if immediate else way
                item = (serial, last_write[unit], kind)
                asked[unit].append(item)
                act = effect(item, immediate) if way == "effect" else down("a0", item, immediate)
                inputs.append((unit, act))
        run(inputs)
    if wrote:
        durable = wrote[-1]
        node.turns.written(durable)
    run([])
    everything = sorted(item for items in asked.values() for item in items)
    assert sorted(left) == everything
    for items in asked.values():
        for way in ("effect", "down"):
            mine = [item for item in left if item in items and item[2] == way]
            assert mine == sorted(mine)


# -- a machine that raises ---------------------------------------------------------------------------------------


def test_a_unit_that_raises_loses_only_its_own_outputs() -> None:
    node = Node("a1", "a6", "b6")
    result = node.run(
        ("a6", write("torn")),
        ("a6", effect("torn")),
        ("a6", down("a1", "torn")),
        ("a6", up("b6", "torn")),
        ("a6", lambda out: out.fact("torn")),
        ("a6", fail),
        ("b6", write("kept")),
        ("b6", effect("kept", immediate=True)),
        ("b6", down("a1", "kept", immediate=True)),
    )
    assert [w.key for w in result.writes] == [b"kept"]
    assert result.effects == ["kept"]
    assert result.facts == []
    assert not result.more
    assert node.log[-1] == ("a1", "down", ["kept"])
    (failure,) = result.failures
    assert (failure.unit, failure.at, failure.stopped) == ("a6", 1000, False)
    assert isinstance(failure.error, RuntimeError)
    assert failure.inputs[-1] is fail


def test_a_unit_that_raises_is_rebuilt_and_runs_on() -> None:
    node = Node("a6")
    before = node.unit("a6")
    node.run(("a6", fail))
    assert node.rebuilt == ["a6"]
    assert node.unit("a6") is not before
    node.run(("a6", "again"))
    assert node.log == [("a6", "up", ["again"])]


def test_a_rebuilt_unit_gets_what_is_sent_down_to_it_in_the_same_turn() -> None:
    node = Node("a2", "a5")
    node.run(("a2", fail), ("a5", down("a2", "order")))
    assert node.log[-1] == ("a2", "down", ["order"])


def test_what_a_failed_unit_held_is_discarded_but_not_its_earlier_writes() -> None:
    node = Node("a6")
    first = node.run(("a6", write("k")), ("a6", effect("held")))
    node.run(("a6", fail))
    assert len(first.writes) == 1
    assert node.run(("a6", effect("of the rebuilt one"))).effects == []
    assert node.turns.written(1)
    assert node.run().effects == ["of the rebuilt one"]


def test_a_rebuilt_unit_still_waits_for_writes_of_the_one_before() -> None:
    node = Node("a6")
    node.run(("a6", write("k")))
    node.run(("a6", fail))
    assert node.run(("a6", effect("ack"))).effects == []
    node.turns.written(1)
    assert node.run().effects == ["ack"]


def test_a_failure_on_the_pass_down_keeps_what_the_unit_asked_for_on_the_way_up() -> None:
    node = Node("a2", "a5")
    result = node.run(("a2", effect("kept")), ("a5", down("a2", fail)), ("a5", effect("other")))
    assert result.effects == ["kept", "other"]
    assert [failure.unit for failure in result.failures] == ["a2"]


def test_a_failure_while_waking_discards_the_same_call_s_arrivals() -> None:
    node = Node()
    node.turns.add("a1", node.make("a1", deadline=1000))
    node.unit("a1").on_wake = fail
    result = node.run(("a1", effect("torn")))
    assert result.effects == []
    assert len(result.failures) == 1


def test_a_second_failure_within_a_minute_stops_that_unit_and_no_other() -> None:
    node = Node("a6", "b6")
    node.run(("a6", fail))
    node.now += FORGIVEN_AFTER - 1
    result = node.run(("a6", fail), ("b6", "fine"))
    assert result.failures[0].stopped
    assert node.log[-1] == ("b6", "up", ["fine"])
    assert node.turns.units() == ["b6"]
    assert list(node.turns.stopped) == ["a6"]
    node.run(("a6", "anyone?"))
    assert node.turns.unclaimed == 1
    node.turns.add("a6", node.make("a6"))
    assert node.turns.machine("a6") is None


def test_a_unit_that_was_stopped_runs_again_when_its_service_forgives_and_adds_it() -> None:
    node = Node("a6")
    node.run(("a6", fail))
    assert node.run(("a6", fail)).failures[0].stopped
    node.turns.forgive("a6")
    assert not node.turns.stopped
    node.turns.add("a6", node.make("a6"))
    node.run(("a6", "back"))
    assert node.log[-1] == ("a6", "up", ["back"])
    assert node.run(("a6", fail)).failures[0].stopped, "within a minute of the last failure"


def test_after_a_minute_a_failure_is_forgiven() -> None:
    node = Node("a6")
    for _ in range(5):
        result = node.run(("a6", fail))
        assert not result.failures[0].stopped
        node.now += 60 * SECOND
    assert node.rebuilt == ["a6"] * 5


def test_a_unit_that_is_rebuilt_later_comes_back_by_add() -> None:
    node = Node()
    node.turns = Turns(lambda name: None, LAYERS)
    node.turns.add("a6", node.make("a6", deadline=5000))
    result = node.run(("a6", fail))
    assert not result.failures[0].stopped
    assert node.turns.units() == []
    assert node.turns.next_deadline() == NEVER
    node.turns.add("a6", node.make("a6"))
    node.run(("a6", "back"))
    assert node.log == [("a6", "up", ["back"])]
    assert node.run(("a6", fail)).failures[0].stopped


def test_a_unit_that_cannot_be_rebuilt_stops_and_the_node_goes_on() -> None:
    def refuse(name: str) -> Machine | None:
        raise ValueError("its rows are damaged")

    node = Node()
    node.turns = Turns(refuse, LAYERS)
    node.turns.add("a6", node.make("a6"))
    node.turns.add("b6", node.make("b6"))
    result = node.run(("a6", fail), ("b6", "fine"))
    (failure,) = result.failures
    assert failure.stopped
    assert "its rows are damaged" in failure.error.__notes__[0]
    assert node.turns.units() == ["b6"]
    assert node.log[-1] == ("b6", "up", ["fine"])


def test_a_rebuilt_unit_has_the_deadline_that_it_asks_for() -> None:
    node = Node("a6")
    node.turns = Turns(lambda name: node.make(name, deadline=7000), LAYERS)
    node.turns.add("a6", node.make("a6", deadline=9000))
    node.run(("a6", fail))
    assert node.turns.next_deadline() == 7000


def test_a_unit_that_a_callback_drops_in_the_middle_of_a_turn_is_left_out() -> None:
    node = Node("a2", "a6")

    def rebuild(name: str) -> Machine | None:
        node.turns.drop("b6")
        return node.make(name)

    node.turns = Turns(rebuild, LAYERS)
    for name in ("a2", "a6", "b6"):
        node.turns.add(name, node.make(name))
    node.run(("a2", fail), ("b6", "gone"), ("a6", "fine"))
    assert node.log == [("a2", "up", []), ("a6", "up", ["fine"])]
    assert node.turns.unclaimed == 1


def test_what_is_not_an_exception_of_the_machine_is_not_caught() -> None:
    node = Node("a6")

    def interrupt(out: Outbox) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        node.run(("a6", interrupt))


def test_a_unit_has_one_name_and_a_known_layer() -> None:
    node = Node("a6")
    with pytest.raises(AssertionError, match="exists"):
        node.turns.add("a6", node.make("a6"))
    with pytest.raises(AssertionError):
        node.turns.add("a8", node.make("a8"))


# -- several stores ----------------------------------------------------------------------------------------------


def in_store(node: Node, unit: str, store: str) -> None:
    """From the next rebuild on its writes go to another store."""
    machine = node.unit(unit)
    node.turns.drop(unit)
    machine.store = store
    node.turns.add(unit, machine)


def test_a_unit_waits_for_the_writes_of_its_own_store_and_for_no_other() -> None:
    node = Node("a1", "b1")
    in_store(node, "b1", "mail")
    result = node.run(
        ("a1", write("x")), ("a1", effect("sent a")), ("b1", write("y")), ("b1", effect("sent b"))
    )
    assert [w.key for w in result.writes] == [b"x"]
    assert {store: [w.key for w in writes] for store, writes in result.store_writes.items()} == {
        "mail": [b"y"]
    }
    assert result.effects == []
    assert node.turns.written(1, "mail")
    assert node.run().effects == ["sent b"]
    assert node.turns.written(1)
    assert node.run().effects == ["sent a"]


def test_units_of_a_store_that_is_full_wait_and_all_others_go_on() -> None:
    node = Node("a1", "b1")
    in_store(node, "b1", "mail")
    node.turns.block("mail", blocked=True)
    node.run(("a1", "one"), ("b1", "two"))
    assert node.log == [("a1", "up", ["one"])]
    node.run(("b1", "three"), ("a1", down("b1", "never: same layer")))
    assert [name for name, _, _ in node.log] == ["a1"]
    assert node.turns.block("mail", blocked=False), "something waited"
    node.run(("b1", "four"))
    assert ("b1", "up", ["two", "three", "four"]) in node.log
    assert not node.turns.block("mail", blocked=False)


def test_the_deadline_of_a_unit_whose_store_is_full_comes_when_it_has_room() -> None:
    node = Node("b1")
    in_store(node, "b1", "mail")
    unit = node.unit("b1")
    unit.deadline = node.now + 5
    node.run(("b1", "set it"))
    node.turns.block("mail", blocked=True)
    node.now += 10
    assert not node.run().more
    assert node.log == []
    assert node.turns.next_deadline() == NEVER, "it does not spin"
    node.turns.block("mail", blocked=False)
    node.run()
    assert node.log == [("b1", "wake", [])]


def test_a_failed_store_discards_what_waited_for_it_and_tells_its_units() -> None:
    node = Node("a1", "b1")
    in_store(node, "b1", "mail")
    node.run(
        ("a1", write("x")), ("a1", effect("sent a")), ("b1", write("y")), ("b1", effect("sent b"))
    )
    node.turns.fail_store("mail", "no route to the database")
    assert node.run().effects == []
    assert node.log == [("b1", "up", [StoreFailed("mail", "no route to the database")])]
    node.turns.written(1)
    assert node.run().effects == ["sent a"], "the node's own store is not concerned"
    assert node.run(("b1", effect("on"))).effects == ["on"]
