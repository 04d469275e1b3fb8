"""Invariant 6 under crashes between any two steps, lost and lagging writes, partitions and a network that misbehaves.

A dialog with at-least-once that reports success has delivered; with at-most-once never twice; in order means in
order; an aborted transaction leaves no trace; a committed one leaves all of them.
"""

from __future__ import annotations

import pytest
from tests.support.dialogs import Call, Pair, Trouble, Unit, World, bodies

from holdfast.dialog.ports import Outcome, Prepare, Prepared, Send, Sent, Take, Taken
from holdfast.types import MILLISECOND, SECOND

SEEDS = [*range(4), *[pytest.param(seed, marks=pytest.mark.campaign) for seed in range(4, 60)]]
"""A few in every run of the tests; the others are a campaign."""


class Sender:
    """An application that sends numbered messages, one batch after the other."""

    def __init__(self, pair: Pair, unit: Unit, total: int) -> None:
        self.pair = pair
        self.unit = unit
        self.total = total
        self.next = 0
        self.captured: list[bytes] = []
        """Messages whose send was answered: they are in the store."""
        self.doubtful: list[bytes] = []
        """Messages whose send was cut off by a crash: they may be in the store."""
        self.call: Call | None = None

    def step(self) -> None:
        call = self.call
        if call is not None:
            if not call.done:
                return
            sent = call.request.bodies
            if isinstance(call.value, Sent):
                self.captured += sent
            elif call.refused == "crash":
                self.doubtful += sent
            self.call = None
        if self.next < self.total and self.unit.up:
            count = min(self.pair.world.random.randint(1, 7), self.total - self.next)
            batch = [b"%d" % n for n in range(self.next, self.next + count)]
            self.next += count
            self.call = self.unit.call(
                Send(
                    token=0,
                    dialog=self.pair.dialog,
                    bodies=batch,
                    deadline=self.pair.world.now + 3600 * SECOND,
                )
            )

    @property
    def done(self) -> bool:
        return self.next >= self.total and self.call is None


class Receiver:
    """An application that takes without transactions."""

    def __init__(self, pair: Pair, unit: Unit) -> None:
        self.pair = pair
        self.unit = unit
        self.got: list[bytes] = []
        self.call: Call | None = None

    def step(self) -> None:
        if self.call is not None:
            if not self.call.done:
                return
            if isinstance(self.call.value, Taken):
                self.got += bodies(self.call.value)
            self.call = None
        if self.unit.up:
            count = self.pair.world.random.randint(1, 9)
            self.call = self.unit.call(Take(token=0, dialog=self.pair.dialog, count=count))


class Processor:
    """An application that receives in transactions together with a table of its own: exactly-once processing."""

    def __init__(self, pair: Pair, unit: Unit, abort: float = 0.2) -> None:
        self.pair = pair
        self.unit = unit
        self.abort = abort
        self.table: list[bytes] = []
        """The application's own durable table, changed with the commit and not otherwise."""
        self.tx = b""
        self.call: Call | None = None
        self.batch: list[bytes] = []

    def step(self) -> None:
        unit, random = self.unit, self.pair.world.random
        call = self.call
        if call is not None and not call.done:
            return
        self.call = None
        if call is None or call.refused:
            self._abort()
            if unit.up:
                self.tx = random.randbytes(16)
                count = random.randint(1, 9)
                self.call = unit.call(
                    Take(token=0, dialog=self.pair.dialog, count=count, tx=self.tx)
                )
        elif isinstance(call.value, Taken):
            self.batch = bodies(call.value)
            if random.random() < self.abort:
                self._abort()
            else:
                self.call = unit.call(Prepare(token=0, tx=self.tx))
        elif isinstance(call.value, Prepared):
            if unit.commit_transaction(call.value):
                self.table += self.batch
                if random.random() < 0.1:
                    self.pair.world.crash(unit.host)  # Between commit and notice.
                else:
                    unit.give(Outcome(self.tx, True))
            else:
                unit.give(Outcome(self.tx, False, False))
            self.tx = b""

    def _abort(self) -> None:
        if self.tx and self.unit.up:
            self.unit.give(Outcome(self.tx, False, counts=False))
        self.tx = b""


def misbehave(world: World, pair: Pair, chance: float) -> None:
    """Now and then a crash or a partition."""
    if world.random.random() >= chance:
        return
    what = world.random.randrange(3)
    if what == 0 and pair.near.up:
        world.crash(pair.a)
    elif what == 1 and pair.far.up:
        world.crash(pair.b)
    elif pair.b.node in pair.a.linked:
        world.disconnect(pair.a, pair.b)
        world.at(30 * MILLISECOND, lambda: world.connect(pair.a, pair.b))


def numbers(messages: list[bytes]) -> list[int]:
    return [int(message) for message in messages]


def check_order(got: list[int]) -> None:
    assert got == sorted(got)


@pytest.mark.parametrize("code", range(8))
@pytest.mark.parametrize("seed", SEEDS)
def test_assurances_hold_through_crashes(code: int, seed: int) -> None:
    world = World(1000 * code + seed, Trouble(loss=0.1, duplication=0.1, reordering=0.2))
    pair = Pair(world, code)
    sender, receiver = Sender(pair, pair.near, 200), Receiver(pair, pair.far)
    quiet = 0
    for _ in range(4000):
        if not sender.done:
            misbehave(world, pair, 0.02)
        sender.step()
        receiver.step()
        world.run(50 * MILLISECOND if sender.done else 5 * MILLISECOND)
        here = pair.here()
        if sender.done and here is not None and not here.queued and not here.in_flight:
            quiet += 1
            if quiet > 200:
                break
    got = numbers(receiver.got)
    captured, doubtful = numbers(sender.captured), numbers(sender.doubtful)
    assert set(got) <= {*captured, *doubtful}, "nothing is invented"
    alo, amo, order = bool(code & 4), bool(code & 2), bool(code & 1)
    if amo:
        assert len(set(got)) == len(got), "at most once"
    if order:
        # Without at-most-once, what was handed over right before a crash comes again; nothing overtakes.
        check_order(list(dict.fromkeys(got)))
    if alo and not amo:
        # Handed over before it is removed: a crash of the receiver delivers again, and loses nothing.
        assert set(captured) <= set(got)
    if alo:
        there = pair.there()
        assert there.taken == [(0, there.taken[-1][1])], "everything acknowledged was handed over"
        assert pair.here().acked == there.received


@pytest.mark.parametrize("code", [4, 5, 6, 7])
@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_process_each_message_exactly_once(code: int, seed: int) -> None:
    world = World(77_000 + 100 * code + seed, Trouble(loss=0.05, duplication=0.1, reordering=0.1))
    pair = Pair(world, code, near={"poison_after": 0}, far={"poison_after": 0})
    sender, processor = Sender(pair, pair.near, 150), Processor(pair, pair.far)
    for step in range(6000):
        if not sender.done or step % 7 == 0:
            misbehave(world, pair, 0.01 if step < 2000 else 0)
        sender.step()
        processor.step()
        world.run(50 * MILLISECOND if step > 2000 else 5 * MILLISECOND)
        if (
            sender.done
            and {*numbers(sender.captured)} <= {*numbers(processor.table)}
            and step > 2000
        ):
            break
    got = numbers(processor.table)
    assert {*numbers(sender.captured)} <= {*got}, "every message that was captured was processed"
    assert {*got} <= {*numbers(sender.captured + sender.doubtful)}
    if code & 2 or code & 1:
        assert len(set(got)) == len(got), "processed once"
    if code & 1:
        check_order(got)
