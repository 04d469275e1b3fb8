"""Steps that tests of dialogs share: what a unit has sent, a network that loses frames, one more dialog."""

from __future__ import annotations

from typing import Any

from tests.support.dialogs import SERVICE, Pair, Unit, World, settings

from holdfast.dialog.ports import Open
from holdfast.types import SECOND


def sent_frames(unit: Unit, kind: type[Any]) -> list[Any]:
    return [frame for _, frame in unit.frames if type(frame) is kind]


def lose(world: World, kind: type[Any], times: int = 1) -> list[Any]:
    """The network loses the next frames of a kind; gives the list of those that it lost."""
    lost: list[Any] = []

    def passes(_unit: Unit, _node: bytes, frame: Any) -> bool:
        if type(frame) is kind and len(lost) < times:
            lost.append(frame)
            return False
        return True

    world.filter = passes
    return lost


def another(world: World, pair: Pair, code: int = 7, **more: Any) -> bytes:
    call = pair.near.call(Open(token=0, uri=SERVICE, settings=settings(code, **more)))
    dialog: bytes = world.finish(call)[0].dialog
    world.run(SECOND)
    return dialog
