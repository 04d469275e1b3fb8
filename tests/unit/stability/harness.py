"""Members of one view that exchange frames by hand, for tests that spell out a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.stability_world import EPOCH, FAST, node_id, with_protocol

from holdfast.stability import Detector, Member, StabilityConfig, View
from holdfast.stability.frames import StabilityFrame
from holdfast.stability.ports import ORDER_SLOTS
from holdfast.stability.riding import Posts
from holdfast.types import NodeId

SCOPE = "g"


def member(name: str, life: int = 1) -> Member:
    return Member(name, node_id(name), life)


def view_of(
    names: Iterable[str], index: int = 1, slots: tuple[int, ...] = ORDER_SLOTS, **lives: int
) -> View:
    members = tuple(member(name, lives.get(name, 1)) for name in names)
    return View(EPOCH, index, members, slots)


class Table:
    """Detectors and the frames between them. Nothing is delivered unless the test says so."""

    def __init__(
        self, names: str, protocol: str = "cube", config: StabilityConfig = FAST, **settings: Any
    ) -> None:
        self.config = with_protocol(protocol, config, **settings)
        self.now = 1_000_000_000
        self.frames: list[tuple[str, str, StabilityFrame]] = []
        """(sender, receiver, frame) on their way."""
        self.cut_off = ""
        """Members whose frames, in both directions, are lost."""
        self.detectors: dict[str, Detector] = {}
        for name in names:
            self.add(name)
        self.view = view_of(names)

    def add(self, name: str, life: int = 1, incarnation: int | None = None) -> Detector:
        made = incarnation if incarnation is not None else life
        detector = Detector(self.config, SCOPE, node_id(name), life, made)
        self.detectors[name] = detector
        return detector

    def __getitem__(self, name: str) -> Detector:
        return self.detectors[name]

    def _collect(self, name: str, out: Posts) -> None:
        for nodes, frame in out:
            self.frames += [
                (name, self._name(node), frame)
                for node in nodes
                if name not in self.cut_off and self._name(node) not in self.cut_off
            ]

    @staticmethod
    def _name(node: NodeId) -> str:
        return node.rstrip(b"\0").decode()

    # -- what a test does ----------------------------------------------------------------------------------------

    def enter(self, names: str | None = None, view: View | None = None) -> None:
        view = view or self.view
        for name in self.detectors if names is None else names:
            out: Posts = []
            self[name].enter(view, self.now, out)
            self._collect(name, out)

    def report(self, name: str, *values: int, held_bytes: int = 0) -> None:
        out: Posts = []
        self[name].report(values, held_bytes, self.now, out)
        self._collect(name, out)

    def report_all(self, *values: int) -> None:
        for name in self.detectors:
            self.report(name, *values)

    def deliver(
        self, count: int = 1_000_000, sender: str = "", receiver: str = "", kind: type[Any] = object
    ) -> int:
        """Deliver waiting frames that match, and those that they cause. Returns how many were delivered."""
        done = 0
        at = 0
        while at < len(self.frames) and done < count:
            one, other, frame = self.frames[at]
            if (
                sender not in ("", one)
                or receiver not in ("", other)
                or not isinstance(frame, kind)
            ):
                at += 1
                continue
            del self.frames[at]
            self.take(one, other, frame)
            done += 1
            at = 0
        return done

    def take(self, sender: str, receiver: str, frame: StabilityFrame) -> None:
        out: Posts = []
        self[receiver].take(node_id(sender), frame, self.now, out)
        self._collect(receiver, out)

    def drop(self, sender: str = "", receiver: str = "", kind: type[Any] = object) -> int:
        """Lose waiting frames that match."""
        kept = [
            (one, other, frame)
            for one, other, frame in self.frames
            if sender not in ("", one) or receiver not in ("", other) or not isinstance(frame, kind)
        ]
        lost = len(self.frames) - len(kept)
        self.frames = kept
        return lost

    def suspect(self, name: str, *others: str) -> None:
        out: Posts = []
        self[name].suspect([node_id(other) for other in others], self.now, out)
        self._collect(name, out)

    def wake_until(self, end_ns: int, *, deliver: bool = True) -> None:
        """Let time pass, waking detectors when they ask for it; frames take no time."""
        while True:
            if deliver:
                self.deliver()
            due = min(self.detectors, key=lambda name: self[name].deadline)
            if self[due].deadline > end_ns:
                break
            self.now = max(self.now, self[due].deadline)
            out: Posts = []
            self[due].wake(self.now, out)
            self._collect(due, out)
        self.now = end_ns

    def later(self, duration_ns: int, *, deliver: bool = True) -> None:
        self.wake_until(self.now + duration_ns, deliver=deliver)

    def stable(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].stable.tolist())

    def status(self, name: str) -> Any:
        return self[name].status(self.now)
