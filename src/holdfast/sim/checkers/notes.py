"""Message metadata: a request is delivered once, and loss information is correct."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.group.frames import StreamId
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.ports import Apply, AskLoss
from holdfast.sim.checkers.base import Checker

if TYPE_CHECKING:
    from holdfast.sim.host import Host

REQUEST: Final = b"request:"
"""A message with a request id starts with this and the id, so that it can be identified on delivery."""
REQUEST_SIZE: Final = len(REQUEST) + 8


class RequestsOnce(Checker):
    """A message with a request id is delivered once, whichever node sends it again."""

    effects = (Apply,)

    def __init__(self, group_epoch: Callable[[Host, str], int], loose: tuple[str, ...]) -> None:
        self._group_epoch = group_epoch
        self._loose = loose
        self._places: dict[tuple[str, int, bytes], int] = {}

    def effect(self, host: Host, effect: Apply) -> None:
        if effect.unit in self._loose:
            return  # rolled-back messages are delivered again
        batch, life = effect.batch, self._group_epoch(host, effect.unit)
        for position, message in enumerate(batch.messages, batch.position):
            head = bytes(message[:REQUEST_SIZE])
            if not head.startswith(REQUEST):
                continue
            request = head[len(REQUEST) :]
            first = self._places.setdefault((effect.unit, life, request), position)
            if first != position:
                text = f"request {request.hex()} is at positions {first} and {position} of {effect.unit}"
                host.world.fail("a request is delivered once", text)


class LossesAreTold(Checker):
    """The priorities of lost messages in loss information are correct: `truth` knows them."""

    effects = (AskLoss,)

    def __init__(self, truth: Callable[[str, StreamId], bytes | bytearray]) -> None:
        """`truth`: the priorities of all messages of a stream, by number."""
        self._truth = truth

    def effect(self, host: Host, effect: AskLoss) -> None:
        info = effect.info
        true = self._truth(info.group, info.transport.stream)
        wrong = told_wrongly(info, true) if true else ""
        if wrong:
            text = f"{host.name} asks about {info.lost} of {info.transport.source}: {wrong}"
            host.world.fail("loss information is correct", text)


def told_wrongly(info: LossInfo, true: bytes | bytearray) -> str:
    """What the question states wrongly; empty if it is correct."""
    lost = [true[number - 1] for first, last in info.lost for number in range(first, last + 1)]
    for number, priority in info.priorities.known:
        if true[number - 1] != priority:
            return f"message {number} has priority {true[number - 1]}, not {priority}"
    for level in range(info.priorities.levels):
        count = lost.count(level)
        least, most = info.priorities.at_least[level], info.priorities.at_most[level]
        if not least <= count <= most:
            return f"{count} have priority {level}, not {least} to {most}"
    for item in (*info.next, *info.recovery.messages):
        if true[item.number - 1] != item.priority:
            return f"message {item.number}, shown, has priority {true[item.number - 1]}, not {item.priority}"
    return ""
