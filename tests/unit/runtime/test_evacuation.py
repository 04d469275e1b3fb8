"""The bounds of a drain: a plan travels in one message, and what arrives of dialogs has a limit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import MisuseError
from holdfast.runtime.admin.dialogs import ARRIVING_MAX, DialogMoves
from holdfast.runtime.admin.evacuation import Evacuation
from holdfast.runtime.admin.values import STEPS_MAX, DialogPart, Evacuate, changed
from holdfast.runtime.objects.handles import PlanStep

BLOCKED = 2


class Dialogs:
    """Many ends, of which some cannot move."""

    def __init__(self, count: int) -> None:
        self.ends = [f"{number:06}" for number in range(count)]
        self.blocked = self.ends[-BLOCKED:]

    async def plan(self, _hosts: object, _wish: Evacuate) -> list[PlanStep]:
        rows = [PlanStep(end, end, "b", "a", 0, "planned", kind="dialog") for end in self.ends]
        return [changed(row, state="blocked") if row.name in self.blocked else row for row in rows]

    async def carry_out(self, step: PlanStep, _hosts: object) -> PlanStep:
        self.ends.remove(step.name)
        return changed(step, state="done")


def evacuation(dialogs: Dialogs) -> Evacuation:
    async def marked(*_: object, **__: object) -> None: ...

    hub = SimpleNamespace(up={})
    edge: Any = SimpleNamespace(
        service=SimpleNamespace(machine=SimpleNamespace(hub=hub)), conditions=None, drain=marked
    )
    groups: Any = SimpleNamespace(plan=lambda *_: [])
    given: Any = dialogs
    return Evacuation(edge, "a", groups, given)


def test_a_long_plan_comes_in_pieces_and_what_is_blocked_is_shown_first() -> None:
    dialogs = Dialogs(STEPS_MAX + 10)
    made = evacuation(dialogs)

    async def run() -> list[int]:
        plan = await made.plan(Evacuate())
        assert [step.state for step in plan.steps[: BLOCKED + 1]] == ["blocked"] * 2 + ["planned"]
        assert (len(plan.steps), plan.left) == (STEPS_MAX, 10)
        lefts = []
        for _ in range(2):
            state = await made.start(Evacuate())
            while state.running:
                await asyncio.sleep(0)
                state = made.look()
            lefts.append(state.left)
        return lefts

    assert asyncio.run(run()) == [10, 0]
    assert dialogs.ends == dialogs.blocked


def test_unfinished_dialogs_that_arrive_are_bounded() -> None:
    moves = DialogMoves(None, SimpleNamespace())  # type: ignore[arg-type]  # nothing is taken over here

    async def run() -> None:
        for number in range(ARRIVING_MAX + 1):
            await moves.take_part(DialogPart(bytes([number]), 8, 0, b"half"))
        with pytest.raises(MisuseError, match="send it from the start"):
            await moves.take_part(DialogPart(bytes([0]), 8, 4, b"h"))
        await moves.take_part(DialogPart(bytes([1]), 8, 4, b"h"))
        with pytest.raises(MisuseError, match="is not taken"):
            await moves.take_part(DialogPart(b"x", 4, 2, b"long"))

    asyncio.run(run())
