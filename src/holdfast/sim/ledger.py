"""An application to simulate with, and people who use it: a ledger of everything that it was given, in order."""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.group.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
from holdfast.group.loss import LossInfo
from holdfast.group.ports import Batch, Context, Multicast, Replica, SourceRoom
from holdfast.sim.checkers import Checker, GroupChecks
from holdfast.sim.seeds import chance
from holdfast.types import MILLISECOND, Nanos
from holdfast.wire.frames import StreamId

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.world import World


class LedgerState(msgspec.Struct):
    """The whole state: how many messages came from each stream, and a digest of all of it in order."""

    count: int = 0
    digest: bytes = b""
    streams: dict[str, int] = {}


class Ledger(Replica):
    """Two replicas with the same state have applied the same messages in the same order."""

    def __init__(self) -> None:
        self.state = LedgerState()

    def apply(self, batch: Batch, context: Context) -> None:
        state = self.state
        digest = blake2b(state.digest, digest_size=16)
        digest.update(b"%d %d" % (batch.position, context.random.getrandbits(16)))
        for message in batch.messages:
            digest.update(message)
        state.digest = digest.digest()
        state.count += len(batch.messages)
        stream = batch.stream
        key = f"{stream.source.hex()}/{stream.incarnation}/{stream.stream}"
        state.streams[key] = state.streams.get(key, 0) + len(batch.messages)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, state: bytes) -> None:
        self.state = msgspec.msgpack.decode(state, type=LedgerState)


class Chooser(Ledger):
    """A ledger that answers questions about lost messages, each time as chance has it."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def on_loss(self, info: LossInfo) -> Action | None:
        return self._random.choice(ANSWERS)


ANSWERS: Final[tuple[Action | None, ...]] = (
    None,
    DROP,
    RECOVER,
    RECOVER.within(0.3).otherwise(DROP),
    RECOVER.within(0.3).otherwise(SUSPEND),
    SUSPEND,
    IGNORE(("stream",), seconds=0.3),
    IGNORE(("source",), count=50),
    RECOVER.within(0.3).otherwise(DROP).and_ignore(("stream",), seconds=0.2),
)
"""None: as the group's table says."""


class Load(msgspec.Struct, frozen=True):
    """How much is sent to a group, by every node that sends."""

    every_ns: Nanos = 20 * MILLISECOND
    """One batch each time, on average."""
    batch_max: int = 20
    size_max: int = 1_000
    room_bytes: int = 1 << 20
    """A sender waits while its source holds more than this."""


class Sender:
    """Sends messages to one group from one host, as long as the source has room."""

    def __init__(self, host: Host, group: str, load: Load, until_ns: Nanos) -> None:
        self._host = host
        self.host_name = host.name
        self.group = group
        self._unit = f"source/{group}"
        self._load = load
        self._until_ns = until_ns
        self._random = chance(host.world.seed, "sender", host.name, group)
        self._held = 0
        self._boots = 0
        self.sent = 0
        """Messages that the process that runs now was given; those of a crashed one may be lost."""

    def begin(self) -> None:
        self._later()

    def room(self, _: Host, effect: SourceRoom) -> None:
        if effect.unit == self._unit:
            self._held = effect.held

    def _later(self) -> None:
        world, every_ns = self._host.world, self._load.every_ns
        when = world.now + self._random.randint(every_ns // 2, every_ns * 3 // 2)
        if when < self._until_ns:
            world.at(when, self._send)

    def _look_at_process(self) -> None:
        """A process that was started since has been given nothing yet."""
        if self._host.boots != self._boots:
            self._boots, self._held, self.sent = self._host.boots, 0, 0

    def _send(self, _: None) -> None:
        load, random = self._load, self._random
        self._look_at_process()
        if self._held < load.room_bytes:
            self._give(random.randint(1, load.batch_max))
        self._later()

    def burst(self, count: int) -> None:
        """So many messages at once, if there is a process and it has room for them."""
        self._look_at_process()
        if self._host.alive and self._held < self._load.room_bytes:
            self._give(count)

    def _give(self, count: int) -> None:
        random, size_max = self._random, self._load.size_max
        messages = [random.randbytes(random.randint(1, size_max)) for _ in range(count)]
        if self._host.give(self._unit, Multicast(messages)):
            self.sent += count

    def missing(self, state: LedgerState, skipped: dict[StreamId, int]) -> int:
        """How many of the messages that the running process was given to send are neither in `state` nor skipped."""
        me = getattr(self._host.core, "me", None)
        if me is None or self._host.boots != self._boots:
            return 0
        prefix = f"{me.node.hex()}/{me.incarnation}/"
        applied = sum(n for key, n in state.streams.items() if key.startswith(prefix))
        dropped = sum(
            count
            for stream, count in skipped.items()
            if (stream.source, stream.incarnation) == (me.node, me.incarnation)
        )
        return self.sent - applied - dropped


class Converged(Checker):
    """Invariant 8 for groups: some time after the last fault all replicas have the same state, with nothing missing
    that a process which still runs was given to send, except what the group decided to skip. A group that has lost
    its memory promises less: what it delivered before is gone."""

    def __init__(self, senders: list[Sender], checks: GroupChecks) -> None:
        self._senders = senders
        self._checks = checks

    def finish(self, world: World) -> None:
        states: dict[str, tuple[str, LedgerState]] = {}
        for host in world.hosts.values():
            for unit, worker in host.workers.items():
                if not isinstance(worker.replica, Ledger):
                    continue
                if self._checks.is_halted(unit.partition("/")[2], world):
                    continue
                state = worker.replica.state
                first, expected = states.setdefault(unit, (host.name, state))
                if state != expected:
                    text = f"{unit}: {first} applied {expected.count}, {host.name} {state.count}"
                    world.fail("replicas agree at the end", text)
        for sender in self._senders:
            if self._checks.lost_memory(sender.group):
                continue
            _, state = states.get(f"replica/{sender.group}", ("", LedgerState()))
            skipped = self._checks.skipped(sender.group)
            missing = sender.missing(state, skipped)
            if missing:
                text = (
                    f"{missing} of {sender.sent} messages of {sender.host_name} to {sender.group}"
                )
                world.fail("what was sent is delivered at the end", text)
