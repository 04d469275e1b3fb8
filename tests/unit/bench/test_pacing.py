"""How the members of a group benchmark send at a given rate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.bench import group_member
from holdfast.bench.group_member import Member, Recorder
from holdfast.bench.member_processes import MemberProcess, MemberProcesses
from holdfast.types import MILLISECOND, SECOND


class Clock:
    """Virtual time: a sleep lets it pass."""

    now = 0

    async def sleep(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class Group:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sent_at: list[int] = []

    def try_send(self, _message: bytes) -> bool:
        self.sent_at.append(self.clock.now // MILLISECOND)
        return True


class Local(MemberProcess):
    """A member in this process."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, cast(Any, None), Path())
        self.group = Group(clock)
        node = SimpleNamespace(group=lambda _name: self.group)
        self.member = Member(cast(Any, node), Recorder())

    async def ask(self, do: str, **values: Any) -> dict[str, Any]:
        self.group.clock.now = 0
        return dict(await getattr(self.member, do)(values))


def test_members_at_a_low_rate_send_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise four messages compete, and the latency of single messages is that of four."""
    clock = Clock()
    monkeypatch.setattr(group_member, "monotonic_ns", lambda: clock.now)
    monkeypatch.setattr(group_member, "asyncio", SimpleNamespace(sleep=clock.sleep))
    members = [Local(name, clock) for name in ("m1", "m2", "m3", "m4")]
    asyncio.run(MemberProcesses(list(members)).in_turn("send", size=100, seconds=0.05, rate=50))
    assert [member.group.sent_at for member in members] == [[20, 40], [25, 45], [30], [35]]
