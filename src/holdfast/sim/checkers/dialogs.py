"""Invariant 6: the assurances of dialogs, checked against what applications sent and received.

The applications of a run supply the history, or a test with a history that violates an assurance.

- With at-least-once, every captured message is eventually delivered.
- With at-most-once, nothing is delivered twice. With in-order, messages arrive in the order of sending.
- A transaction takes effect completely if it is committed, and not at all if it is aborted.
- Nothing is delivered that was not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from holdfast.dialog import ports
from holdfast.dialog.ids import dialog_name
from holdfast.dialog.subsystem import DialogService
from holdfast.sim.checkers.base import Checker

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

INVARIANT: Final = "dialogs keep their assurances"
Fail = Callable[[str, str], Any]


class Passage:
    """One direction of one dialog: numbers in the order of sending, and their outcome."""

    def __init__(self, assurances: int, transacted: bool) -> None:
        self.at_least_once = bool(assurances & 4)
        self.at_most_once = bool(assurances & 2) or transacted
        """Whether nothing may be delivered twice: by the assurance, or because transactions process exactly once."""
        self.in_order = bool(assurances & 1)
        self.transacted = transacted
        self.tried: dict[int, None] = {}
        self.captured: dict[int, None] = {}
        self.aborted: dict[int, None] = {}
        """Sent in a transaction that was aborted."""
        self.got: dict[int, int] = {}
        """How often each number was delivered or processed."""
        self.highest = -1
        self.excused = False
        """The application ended the dialog, or lost messages itself: completeness cannot be checked."""


class NoDialogRaises(Checker):
    """No dialog raises. It would be read again from its store, which hides most mistakes from the other checks."""

    def turn(self, host: Host, result: Result) -> None:
        assert host.core is not None
        for name, manager in host.core.service(DialogService).managers():  # type: ignore[attr-defined]  # a real core
            for dialog, error in manager.core.errors:
                detail = f"{dialog_name(dialog)} of store {name} on {host.name} raised {error!r}"
                host.world.fail("no dialog raises", detail, error)


class DialogChecks(Checker):
    """Watches every dialog that an application reports."""

    effects: ClassVar[tuple[type, ...]] = (ports.Event,)

    def __init__(self, fail: Fail | None = None) -> None:
        self.passages: dict[str, Passage] = {}
        self.events: dict[str, int] = {}
        self._fail = fail

    def begin(self, name: str, assurances: int, transacted: bool = False) -> Passage:
        return self.passages.setdefault(name, Passage(assurances, transacted))

    def tries(self, name: str, numbers: range) -> None:
        """A send was requested; it may take effect from now on."""
        self.passages[name].tried.update(dict.fromkeys(numbers))

    def captures(self, name: str, numbers: range) -> None:
        """The send was answered, or its transaction committed: the store has the messages."""
        self.passages[name].captured.update(dict.fromkeys(numbers))

    def aborts(self, name: str, numbers: range) -> None:
        """The transaction that sent them was certainly aborted."""
        self.passages[name].aborted.update(dict.fromkeys(numbers))

    def gets(self, name: str, number: int) -> None:
        """The application received a message, or committed its processing."""
        passage = self.passages[name]
        if number not in passage.tried:
            self.fail(f"{name}: message {number} was never sent")
        if number in passage.aborted:
            self.fail(f"{name}: message {number} was sent in a transaction that was aborted")
        again = passage.got.get(number, 0)
        passage.got[number] = again + 1
        if again and passage.at_most_once:
            self.fail(f"{name}: message {number} was delivered twice")
        if not again and passage.in_order and number < passage.highest:
            self.fail(f"{name}: message {number} came after {passage.highest}")
        passage.highest = max(passage.highest, number)

    def fail(self, detail: str) -> None:
        if self._fail is None:
            raise AssertionError(f"{INVARIANT}: {detail}")
        self._fail(INVARIANT, detail)

    # -- the end of a run ----------------------------------------------------------------------------------------

    def effect(self, host: Host, effect: ports.Event) -> None:
        self.events[effect.kind] = self.events.get(effect.kind, 0) + 1

    def finish(self, world: World) -> None:
        self.complete()

    def complete(self) -> None:
        """The run had time to deliver everything."""
        for name, passage in self.passages.items():
            if not passage.at_least_once or passage.excused:
                continue
            missing = [number for number in passage.captured if number not in passage.got]
            if missing:
                self.fail(
                    f"{name}: {len(missing)} captured messages were not delivered, first {missing[0]}"
                )
