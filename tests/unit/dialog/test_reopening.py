"""A unit that raises outside of any dialog: its store is opened again, after growing waits and not for ever."""

from __future__ import annotations

from typing import Any

from tests.support.dialogs import MEMBER

from holdfast.dialog import ports
from holdfast.dialog.config import Settings
from holdfast.dialog.reopening import REMEMBERED, WAITS, Reopening, outlook
from holdfast.dialog.subsystem import DialogService
from holdfast.links.ports import PeerUp
from holdfast.sim.cluster import make_core
from holdfast.sim.dialog_load import SERVICE, UNIT, Calls
from holdfast.sim.dialog_world import add_nodes
from holdfast.sim.host import Host
from holdfast.sim.world import World
from holdfast.types import NEVER, SECOND, NodeId

POISON: Any = PeerUp(NodeId([]), MEMBER)  # type: ignore[arg-type]  # it cannot be looked up, so the unit raises
URI = f"holdfast://n2/{SERVICE}?name=orders"
SETTINGS = Settings(at_least_once=True, at_most_once=True, in_order=True, partner_silent_ns=0)


def test_each_failure_within_an_hour_doubles_the_wait_until_the_store_stays_closed() -> None:
    reopening = Reopening()
    waits = [reopening.failed("dialogs/a", at * SECOND) for at in range(len(WAITS) + 1)]
    assert waits == [*WAITS, NEVER]
    assert reopening.failed("dialogs/b", 0) == 0, "each store by itself"


def test_a_failure_is_forgiven_after_an_hour() -> None:
    reopening = Reopening()
    for number in range(20):
        assert reopening.failed("dialogs/a", number * REMEMBERED) == 0


def test_the_reason_says_what_halts_and_what_to_do() -> None:
    assert outlook("KeyError(3)", 0) == "KeyError(3); it is opened again"
    assert "halt" in outlook("KeyError(3)", 20 * SECOND)
    assert "opened again in 20 s" in outlook("KeyError(3)", 20 * SECOND)
    assert "until the node is restarted" in outlook("KeyError(3)", NEVER)


class Nodes:
    """Simulated nodes, and one dialog from `n1` to `n2`."""

    def __init__(self) -> None:
        self.world = World(1, domain="sim", replay="")
        self.near, self.far, _ = add_nodes(self.world, make_core)
        self.calls = {host: Calls(host) for host in (self.near, self.far)}
        for host in self.world.hosts.values():
            host.start()
        self.world.run_for(SECOND)
        self.ask(self.far, ports.Listen(token=0, service=SERVICE, settings=SETTINGS))
        self.service(self.far).table.services[SERVICE] = UNIT
        opened = self.ask(self.near, ports.Open(token=0, uri=URI, settings=SETTINGS))
        self.dialog = opened.dialog
        self.send(b"one")
        assert self.take() == [b"one"]

    def ask(self, host: Host, request: Any) -> Any:
        answers: list[Any] = []
        assert self.calls[host].ask(request, answers.append)
        self.world.run_for(2 * SECOND)
        return answers[0]

    def send(self, body: bytes) -> None:
        request = ports.Send(token=0, dialog=self.dialog, bodies=[body])
        assert isinstance(self.ask(self.near, request), ports.Sent)

    def take(self) -> list[bytes]:
        deadline = self.world.now + SECOND
        taken = self.ask(
            self.far, ports.Take(token=0, dialog=self.dialog, count=9, deadline=deadline)
        )
        return [bytes(message.body) for message in taken.messages]

    def service(self, host: Host) -> DialogService:
        core: Any = host.core
        found: DialogService = core.service(DialogService)
        return found

    def closed(self) -> list[str]:
        """Why stores of the receiver are not open, as its status tells."""
        status: Any = self.service(self.far).status(self.world.now)
        return [store["error"] for store in status["dialog_stores"] if "error" in store]

    def fail(self, until_s: float = 0.01) -> None:
        assert not self.closed()
        assert self.far.give(UNIT, POISON)
        self.world.run_for(int(until_s * SECOND))
        assert self.closed()


def test_a_unit_that_fails_twice_comes_back_and_its_dialogs_go_on() -> None:
    nodes = Nodes()
    nodes.fail()
    nodes.world.run_for(SECOND)
    nodes.fail()
    nodes.send(b"two")
    nodes.world.run_for(7 * SECOND)
    [why] = nodes.closed()
    assert "TypeError" in why
    assert "halt" in why
    nodes.world.run_for(2 * SECOND)
    assert not nodes.closed()
    # At once, without waiting for the retransmission: the link session is still the same.
    assert nodes.take() == [b"two"]
    stopped = nodes.far.core.turns.stopped  # type: ignore[union-attr]  # a real core
    assert not stopped


def test_a_unit_that_always_fails_stays_closed_until_the_node_is_restarted() -> None:
    nodes = Nodes()
    for _ in WAITS:
        nodes.service(nodes.far).lost(UNIT, KeyError(), nodes.world.now)
    nodes.fail()
    nodes.send(b"two")
    nodes.world.run_for(20 * SECOND)
    [why] = nodes.closed()
    assert "until the node is restarted" in why
    nodes.far.crash()
    nodes.far.start_again()
    nodes.world.run_for(5 * SECOND)
    assert not nodes.closed()
    assert nodes.take() == [b"two"]
