"""The checks of outputs, requests and what is told of losses: each catches the very thing that it is there for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.sim.checking import UNIT, apply, checked

from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.replicated_log import Kind
from holdfast.group.loss.loss_info import (
    AgeInfo,
    ClusterStatus,
    LossInfo,
    NextMessage,
    RecoveryInfo,
    TransportInfo,
)
from holdfast.group.ports import Batch, Output, OutputsReady, SendOutputs
from holdfast.group.streams.values import Indication
from holdfast.sim.checkers import CheckFailed
from holdfast.sim.checkers.groups import GroupPromise
from holdfast.sim.checkers.notes import REQUEST, RequestsOnce, told_wrongly
from holdfast.sim.checkers.outputs import OutputsOnce
from holdfast.sim.host import Host
from holdfast.types import MILLISECOND

RED = StreamId(b"red", 1, 0)


# -- outputs -----------------------------------------------------------------------------------------------------


class Decided:
    """Stands for the checks of groups: one history, in which these entries are decided."""

    def __init__(self, lone: bool = False) -> None:
        self.committed: dict[int, Entry] = {}
        self._promise = GroupPromise(("n1",), lone=lone)

    def agreement(self, _group: str) -> Decided:
        return self

    def promise(self, _group: str) -> GroupPromise:
        return self._promise

    def lost_memory(self, _group: str) -> bool:
        return False

    def current_group_epoch(self, _group: str) -> int:
        return 0

    def group_epoch(self, _host: Host, _unit: str) -> int:
        return 0


def said(_group: str, batch: Batch) -> list[Output]:
    return [
        Output(batch.position, k, "node:n2" if k % 2 == 0 else "till", bytes(message))
        for k, message in enumerate(batch.messages)
    ]


def talking(lone: bool = False) -> tuple[Any, Host, Host]:
    """n1 has applied two batches of two; the first is decided."""
    decided: Any = Decided(lone)
    world, n1, n2 = checked(OutputsOnce(("book",), said, decided))
    apply(n1, 1, 1, b"a", b"b")
    apply(n1, 3, 3, b"c", b"d")
    decided.committed[1] = Entry(1, 1, 1, 0, Kind.ORDER, RED, 1, 2)
    return world, n1, n2


def give(host: Host, effect: Any) -> None:
    host.give("do", effect)
    host.world.run_for(10 * MILLISECOND)


A = Output(1, 0, "", b"a")
B = Output(1, 1, "till", b"b")
C = Output(3, 0, "", b"c")


def to_node(host: Host, *outputs: Output) -> None:
    give(host, OutputsReady("book", outputs))


def to_till(host: Host, *outputs: Output) -> None:
    give(host, SendOutputs(UNIT, "till", outputs))


def test_outputs_that_arrive_once_and_elsewhere_at_least_once_are_fine() -> None:
    world, n1, n2 = talking()
    to_node(n2, A)
    to_till(n1, B)
    to_till(n2, B)
    world.finish()


def test_an_output_that_a_node_is_handed_twice_is_caught() -> None:
    _, _, n2 = talking()
    to_node(n2, A)
    with pytest.raises(CheckFailed, match=r"outputs arrive once.*n2 receives \(1, 0\)"):
        to_node(n2, A)


def test_a_process_that_died_before_it_wrote_it_down_may_be_handed_it_again() -> None:
    world, n1, n2 = talking()
    to_node(n2, A)
    n2.crash()
    n2.start_again()
    to_node(n2, A)
    to_till(n1, B)
    world.finish()


@pytest.mark.parametrize(
    ("outputs", "trouble"),
    [((), "missing"), ((A, C), r"not committed \[\(3, 0\)"), ((Output(1, 0, "", b"z"),), "")],
)
def test_outputs_that_are_missing_wrong_or_not_decided_are_caught(
    outputs: tuple[Output, ...], trouble: str
) -> None:
    world, n1, n2 = talking()
    to_till(n1, B)
    if outputs:
        to_node(n2, *outputs)
    with pytest.raises(CheckFailed, match=f"outputs arrive once.*{trouble}"):
        world.finish()


def test_two_outputs_under_one_id_are_caught() -> None:
    _, n1, _ = talking()
    to_till(n1, B)
    with pytest.raises(CheckFailed, match="two different outputs"):
        to_till(n1, Output(1, 1, "till", b"z"))


def test_sides_of_an_availability_group_may_say_different_things() -> None:
    world, n1, _ = talking(lone=True)
    to_till(n1, B)
    to_till(n1, Output(1, 1, "till", b"z"))
    world.finish()


# -- requests ----------------------------------------------------------------------------------------------------


def request(number: int) -> bytes:
    return REQUEST + number.to_bytes(8, "big") + b"do it"


def test_requests_that_all_replicas_deliver_once_are_fine() -> None:
    _, n1, n2 = checked(RequestsOnce(lambda _host, _unit: 0, ()))
    for host in (n1, n2):
        apply(host, 1, 1, request(1), b"plain", request(2))


def test_a_request_that_is_delivered_again_is_caught() -> None:
    _, n1, n2 = checked(RequestsOnce(lambda _host, _unit: 0, ()))
    apply(n1, 1, 1, request(1))
    with pytest.raises(CheckFailed, match=r"a request is delivered once.*positions 1 and 2"):
        apply(n2, 2, 1, request(1))


# -- what is told of losses --------------------------------------------------------------------------------------

PRIORITIES = bytes([3, 0, 3, 1, 3])
"""Of messages 1 to 5."""
INFO = LossInfo(
    "book",
    1,
    1,
    ((2, 3),),
    2,
    ClusterStatus(1, 1, True, ()),
    TransportInfo("n1", True, False, RED, (), "channel", 0, 0, 0, 0),
    Indication(4, ((2, 0),), (1, 0, 0, 0), (1, 0, 1, 1)),
    (NextMessage(4, 1, "", b"x"),),
    RecoveryInfo((), 0),
    AgeInfo(0, 0),
)


def test_what_is_told_of_lost_messages_may_be_vague_but_must_be_true() -> None:
    assert told_wrongly(INFO, PRIORITIES) == ""


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"priorities": Indication(4, ((3, 0),), (0, 0, 0, 0), (2, 2, 2, 2))}, "message 3 has"),
        ({"priorities": Indication(4, (), (2, 0, 0, 0), (2, 2, 2, 2))}, "1 have priority 0, not 2"),
        ({"priorities": Indication(4, (), (0, 0, 0, 0), (2, 2, 2, 0))}, "1 have priority 3, not 0"),
        ({"next": (NextMessage(4, 3, "", b"x"),)}, "message 4, shown, has priority 1, not 3"),
        (
            {"recovery": RecoveryInfo((), 0, ((4, 4),), (), (NextMessage(4, 3, "", b"x"),))},
            "message 4, shown, has priority 1, not 3",
        ),
    ],
)
def test_what_is_told_wrongly_is_named(changes: dict[str, Any], wrong: str) -> None:
    assert wrong in told_wrongly(msgspec.structs.replace(INFO, **changes), PRIORITIES)
