"""An application to simulate with, and people who use it: a ledger of everything that it was given, in order."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from holdfast.group.ports import Batch, Context, Multicast, Replica, SourceRoom
from holdfast.sim.checkers import Checker
from holdfast.sim.seeds import chance
from holdfast.types import MILLISECOND, Nanos

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.world import World


class LedgerState(msgspec.Struct):
    """The whole state: how much came from each stream, and a digest of all of it in order."""

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
        state.streams[key] = batch.first + len(batch.messages) - 1

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, state: bytes) -> None:
        self.state = msgspec.msgpack.decode(state, type=LedgerState)


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

    def _send(self, _: None) -> None:
        host, load, random = self._host, self._load, self._random
        if host.boots != self._boots:
            self._boots, self._held, self.sent = host.boots, 0, 0
        if self._held < load.room_bytes:
            messages = [
                random.randbytes(random.randint(1, load.size_max))
                for _ in range(random.randint(1, load.batch_max))
            ]
            if host.give(self._unit, Multicast(messages)):
                self.sent += len(messages)
        self._later()

    def missing(self, state: LedgerState) -> int:
        """How many of the messages that the running process was given to send are not in `state`."""
        me = getattr(self._host.core, "me", None)
        if me is None or self._host.boots != self._boots:
            return 0
        prefix = f"{me.node.hex()}/{me.incarnation}/"
        applied = sum(n for key, n in state.streams.items() if key.startswith(prefix))
        return self.sent - applied


class Converged(Checker):
    """Invariant 8 for groups: some time after the last fault all replicas have the same state, with nothing missing
    that a process which still runs was given to send."""

    def __init__(self, senders: list[Sender]) -> None:
        self._senders = senders

    def finish(self, world: World) -> None:
        states: dict[str, tuple[str, LedgerState]] = {}
        for host in world.hosts.values():
            for unit, worker in host.workers.items():
                if not isinstance(worker.replica, Ledger):
                    continue
                state = worker.replica.state
                first, expected = states.setdefault(unit, (host.name, state))
                if state != expected:
                    text = f"{unit}: {first} applied {expected.count}, {host.name} {state.count}"
                    world.fail("replicas agree at the end", text)
        for sender in self._senders:
            _, state = states.get(f"replica/{sender.group}", ("", LedgerState()))
            missing = sender.missing(state)
            if missing:
                text = (
                    f"{missing} of {sender.sent} messages of {sender.host_name} to {sender.group}"
                )
                world.fail("what was sent is delivered at the end", text)
