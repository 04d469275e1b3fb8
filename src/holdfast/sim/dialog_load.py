"""Simulated applications that use dialogs while their processes crash: send, receive, process, move.

Data that an application keeps on its own disk (numbers, ids, exported state, its table of results) is here and survives
crashes; pending requests are lost with the process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.dialog import ports
from holdfast.dialog.config import Settings, assurances_of
from holdfast.dialog.ports import dialog_unit
from holdfast.sim.checkers import NoFailures
from holdfast.sim.checkers.dialogs import DialogChecks, NoDialogRaises
from holdfast.sim.cluster import make_core
from holdfast.sim.dialogs import commit_transaction
from holdfast.sim.host import Host
from holdfast.sim.nemesis import Budget, plan
from holdfast.sim.scenario import Scenario
from holdfast.sim.seeds import chance
from holdfast.sim.trace import Trace
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, SECOND, Nanos

STORE: Final = "default"
UNIT: Final = dialog_unit(STORE)
SERVICE: Final = "work"
STEP_NS: Final = 20 * MILLISECOND
WAIT_NS: Final = 20 * SECOND
"""The timeout for an answer; after it, the effect of the request is unknown."""
Answered = Callable[[Any], None]


class Calls:
    """Requests of one application. They end with the process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._next = 1
        self._waiting: dict[int, tuple[int, Nanos, Answered]] = {}
        host.on(ports.Answer, self._answered)

    def ask(self, request: Any, answered: Answered) -> bool:
        host = self.host
        token, self._next = self._next, self._next + 1
        if host.give(UNIT, msgspec.structs.replace(request, token=token)):
            self._waiting[token] = (host.boots, host.world.now + WAIT_NS, answered)
            return True
        return False

    def _answered(self, host: Host, answer: ports.Answer) -> None:
        boots, _, answered = self._waiting.pop(answer.token, (0, 0, None))
        if answered is not None and boots == host.boots:
            answered(answer.value)

    def forget_dead(self) -> None:
        """Remove requests of an earlier process, or to a unit that has ended: they get no answer."""
        now, boots = self.host.world.now, self.host.boots
        for token, (life, until, answered) in list(self._waiting.items()):
            if life != boots or not self.host.alive or now >= until:
                del self._waiting[token]
                answered(ports.Refused("lost", "no answer"))


class Sender:
    """Opens one dialog and sends numbers on it, plainly or in transactions."""

    def __init__(self, load: DialogLoad, host: Host, name: str, code: int, total: int) -> None:
        self.load, self.calls, self.name, self.code = load, load.calls[host.name], name, code
        self.host = host
        self.dialog = b""
        self.next, self.total = 0, total
        self.busy = False
        self.random = chance(load.world.seed, "dialog sender", name)
        load.checks.begin(name, code, load.transacted)

    def step(self) -> None:
        if self.busy or not self.host.alive:
            return
        if not self.dialog:
            a = assurances_of(self.code)
            settings = Settings(
                at_least_once=a.at_least_once,
                at_most_once=a.at_most_once,
                in_order=a.in_order,
                poison_after=0,
                partner_silent_ns=0,
                idle_ns=self.random.choice((0, SECOND)),
            )
            uri = f"holdfast://{self.load.target}/{SERVICE}?name={self.name}"
            request = ports.Open(token=0, uri=uri, settings=settings)
            self.busy = self.calls.ask(request, self._opened)
        elif self.next < self.total:
            self._send()

    def _opened(self, value: Any) -> None:
        self.busy = False
        if isinstance(value, ports.Opened):
            self.dialog = value.dialog
            self.load.names[value.dialog] = self.name

    def _send(self) -> None:
        count = min(self.random.randint(1, 5), self.total - self.next)
        numbers = range(self.next, self.next + count)
        self.next += count
        bodies = [b"%d" % number for number in numbers]
        tx = self.random.randbytes(16) if self.random.random() < 0.3 else b""
        self.load.checks.tries(self.name, numbers)
        request = ports.Send(
            token=0, dialog=self.dialog, bodies=bodies, tx=tx, deadline=self.host.now + WAIT_NS // 2
        )
        done = partial(self._staged, tx, numbers) if tx else partial(self._sent, numbers)
        self.busy = self.calls.ask(request, done)

    def _sent(self, numbers: range, value: Any) -> None:
        self.busy = False
        if isinstance(value, ports.Sent):
            self.load.checks.captures(self.name, numbers)

    def _staged(self, tx: bytes, numbers: range, value: Any) -> None:
        if not isinstance(value, ports.Sent) or self.random.random() < 0.3:
            self.busy = False
            self.host.give(UNIT, ports.Outcome(tx, False))
            self.load.checks.aborts(self.name, numbers)
            return
        prepared = partial(self._prepared, tx, numbers)
        if not self.calls.ask(ports.Prepare(token=0, tx=tx), prepared):
            self._prepared(tx, numbers, None)

    def _prepared(self, tx: bytes, numbers: range, value: Any) -> None:
        self.busy = False
        committed = isinstance(value, ports.Prepared) and commit_transaction(
            self.host, STORE, value.inserts, value.epoch
        )
        if committed:
            self.load.checks.captures(self.name, numbers)
        else:
            self.load.checks.aborts(self.name, numbers)
        if self.random.random() < 0.9:  # otherwise as if it died between commit and notice
            self.host.give(UNIT, ports.Outcome(tx, committed))
        else:
            self.load.world.at(self.load.world.now, _crash, self.host)

    @property
    def done(self) -> bool:
        return self.next >= self.total and not self.busy


class Receiver:
    """Receives from any dialog of its node: plainly, or in transactions with a table of its own."""

    def __init__(self, load: DialogLoad, host: Host) -> None:
        self.load, self.host, self.calls = load, host, load.calls[host.name]
        self.random = chance(load.world.seed, "dialog receiver", host.name)
        self.busy = False
        self.listening = 0

    def step(self) -> None:
        host = self.host
        if not host.alive or self.busy:
            return
        if self.listening != host.boots:
            listen = ports.Listen(token=0, service=SERVICE, settings=NO_ASSURANCE)
            self.busy = self.calls.ask(listen, partial(self._listens, host.boots))
            return
        tx = self.random.randbytes(16) if self.load.transacted else b""
        request = ports.Take(
            token=0,
            dialog=b"",
            count=self.random.randint(1, 9),
            tx=tx,
            deadline=host.now + SECOND,
        )
        self.busy = self.calls.ask(request, partial(self._taken, tx))

    def _listens(self, boots: int, value: Any) -> None:
        self.busy = False
        if not isinstance(value, ports.Refused):
            self.listening = boots
            core: Any = self.host.core
            from holdfast.dialog.subsystem import DialogService

            core.service(DialogService).table.services[SERVICE] = UNIT

    def _taken(self, tx: bytes, value: Any) -> None:
        self.busy = False
        taken = isinstance(value, ports.Taken) and value.messages
        if not taken:
            if tx:
                self.host.give(UNIT, ports.Outcome(tx, False, counts=False))
            return
        numbers = [int(bytes(message.body)) for message in value.messages]
        if tx:
            self._process(tx, value.dialog, numbers)
            return
        for number in numbers:
            self.load.gets(value.dialog, number)
        if value.lease:
            self.host.give(UNIT, ports.HandedOver(value.dialog, value.lease))

    def _process(self, tx: bytes, dialog: bytes, numbers: list[int]) -> None:
        if self.random.random() < 0.2:
            self.host.give(UNIT, ports.Outcome(tx, False, counts=False))
            return
        done = partial(self._prepared, tx, dialog, numbers)
        self.busy = self.calls.ask(ports.Prepare(token=0, tx=tx), done)

    def _prepared(self, tx: bytes, dialog: bytes, numbers: list[int], value: Any) -> None:
        self.busy = False
        committed = isinstance(value, ports.Prepared) and commit_transaction(
            self.host, STORE, value.inserts, value.epoch
        )
        if committed:
            for number in numbers:
                self.load.gets(dialog, number)
        if self.random.random() < 0.95:
            self.host.give(UNIT, ports.Outcome(tx, committed, counts=False))
        else:
            self.load.world.at(self.load.world.now, _crash, self.host)


NO_ASSURANCE: Final = Settings(
    at_least_once=False, at_most_once=False, in_order=False, poison_after=0, partner_silent_ns=0
)


def _crash(host: Host) -> None:
    if host.alive:
        host.crash()
        host.world.at(host.world.now + 200 * MILLISECOND, lambda _: host.start_again())


class Mover:
    """Moves the receiving end of a dialog to another node, once; it retries after every crash until the move is
    complete."""

    def __init__(self, load: DialogLoad, source: Host, target: Host, at: Nanos) -> None:
        self.load, self.source, self.target, self.at = load, source, target, at
        self.dialog = b""
        self.state = b""
        self.busy = self.done = False

    def step(self) -> None:
        if self.done or self.busy or self.load.world.now < self.at or not self.load.names:
            return
        self.dialog = self.dialog or next(iter(self.load.names))
        if not self.state:
            core: Any = self.target.core
            if core is None or not self.source.alive:
                return
            store = chance(self.load.world.seed, "dialog store", self.target.name, STORE)
            request = ports.MoveOut(
                token=0, dialog=self.dialog, node=bytes(core.me.node), store=store.randbytes(8)
            )
            self.busy = self.load.calls[self.source.name].ask(request, self._out)
        elif self.target.alive:
            move_in = ports.MoveIn(token=0, state=self.state)
            self.busy = self.load.calls[self.target.name].ask(move_in, self._in)

    def _out(self, value: Any) -> None:
        self.busy = False
        if isinstance(value, ports.Exported):
            self.state = bytes(value.state)

    def _in(self, value: Any) -> None:
        self.busy = False
        self.done = isinstance(value, ports.Opened)


class DialogLoad:
    """A world of three nodes: `n1` sends to `n2`, whose ends may move to `n3`. Random faults, then a fault-free
    time."""

    def __init__(
        self,
        seed: int,
        *,
        messages: int = 60,
        transacted: bool | None = None,
        moves: bool | None = None,
        seconds: int = 30,
        trace: Trace | None = None,
    ) -> None:
        from holdfast.sim.dialog_world import add_nodes

        random = chance(seed, "dialog load")
        self.world = World(
            seed,
            domain="sim",
            trace=trace,
            replay=f"holdfast sim dialogs --seed {seed} --messages {messages} --seconds {seconds}",
        )
        self.transacted = random.random() < 0.5 if transacted is None else transacted
        wants_move = random.random() < 0.5 if moves is None else moves
        self.target = "n2"
        self.names: dict[bytes, str] = {}
        self.checks = DialogChecks(self.world.fail)
        for check in (self.checks, NoDialogRaises(), NoFailures()):
            self.world.check(check)
        hosts = add_nodes(self.world, make_core)
        self.calls = {host.name: Calls(host) for host in hosts}
        codes = random.sample(range(8), 3)
        codes = codes if any(code & 4 for code in codes) else [*codes[1:], 7]
        self.senders = [Sender(self, hosts[0], f"{code:03b}", code, messages) for code in codes]
        self.receivers = [Receiver(self, host) for host in hosts[1:]]
        move_at = random.randint(2, max(3, seconds // 3)) * SECOND
        self.movers = [Mover(self, hosts[1], hosts[2], move_at)] if wants_move else []
        self._until = seconds * SECOND
        self._quiet = max(12 * SECOND, self._until // 2)

    def gets(self, dialog: bytes, number: int) -> None:
        name = self.names.get(dialog)
        if name is not None:
            passage = self.checks.passages[name]
            if not self.transacted and passage.at_least_once and passage.at_most_once:
                # A crash between removal and hand-over loses it, which at-most-once permits.
                passage.excused = True
            self.checks.gets(name, number)

    def scenario(self) -> Scenario:
        budget = Budget(
            down_max=2,
            settle_ns=SECOND,
            tricks=("down", "down", "break", "break", "split", "pause", "disk"),
        )
        hosts = list(self.world.hosts)
        return plan(self.world.seed, hosts, ["red", "blue"], self._until, self._quiet, budget)

    def run(self) -> dict[str, Any]:
        """Run it with all checks; returns what was exercised."""
        for host in self.world.hosts.values():
            host.start()
        self.scenario().schedule(self.world)
        self.world.at(self.world.now + STEP_NS, self._step)
        self.world.run(self._until)
        self._until_delivered()
        self.world.finish()
        return {
            "seed": self.world.seed,
            "delivered": sum(sum(p.got.values()) for p in self.checks.passages.values()),
            "captured": sum(len(p.captured) for p in self.checks.passages.values()),
            "aborted": sum(len(p.aborted) for p in self.checks.passages.values()),
            "starts": sum(host.boots for host in self.world.hosts.values()),
            "moved": sum(mover.done for mover in self.movers),
            "events": dict(self.checks.events),
        }

    def _until_delivered(self) -> None:
        """Back-off may be long after many faults: messages must eventually be delivered, within a bound."""
        for _ in range(30):
            try:
                DialogChecks.complete(_Silent(self.checks))
            except _Incomplete:
                self.world.run_for(5 * SECOND)
            else:
                return

    def _step(self, _: object) -> None:
        for calls in self.calls.values():
            calls.forget_dead()
        steps = [part.step for part in self.senders] + [part.step for part in self.receivers]
        for step in steps + [part.step for part in self.movers]:
            step()
        self.world.at(self.world.now + STEP_NS, self._step)


class _Incomplete(Exception):
    pass


class _Silent(DialogChecks):
    """The same history, but missing messages are not a failure yet."""

    def __init__(self, checks: DialogChecks) -> None:
        super().__init__()
        self.passages = checks.passages

    def fail(self, detail: str) -> None:
        raise _Incomplete(detail)
