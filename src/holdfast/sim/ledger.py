"""A test application and its senders: a ledger of everything that was applied, in order."""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.ports import Batch, Context, Multicast, Output, Replica, SourceRoom
from holdfast.group.streams.values import Note
from holdfast.sim.checkers import Checker, GroupChecks
from holdfast.sim.checkers.notes import REQUEST
from holdfast.sim.seeds import chance
from holdfast.types import MILLISECOND, Nanos

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.world import World


SAID_BYTES: Final = 24
NOTED: Final = 4
"""One in this many messages has metadata, if senders use it."""
REQUESTS_KEPT: Final = 200
"""Request ids of a sender that it may send again: fewer than a group stores."""
TOPICS: Final = ("", "prices", "orders")
AGREED: Final = "replicas agree at the end"
DELIVERED: Final = "sent messages are delivered at the end"


class LedgerState(msgspec.Struct):
    """The whole state: the number of messages from each stream, and a digest of all of it in order."""

    count: int = 0
    digest: bytes = b""
    streams: dict[str, int] = {}


def spoken(batch: Batch, destinations: tuple[str, ...]) -> list[Output]:
    """The outputs of a ledger for a batch: one for one message in sixteen."""
    said: list[Output] = []
    for message in batch.messages if destinations else ():
        mark = crc32(message)
        if mark & 15 == 0:
            destination = destinations[(mark >> 4) % len(destinations)]
            said.append(Output(batch.position, len(said), destination, bytes(message[:SAID_BYTES])))
    return said


class Ledger(Replica):
    """Two replicas with the same state have applied the same messages in the same order."""

    def __init__(self, destinations: tuple[str, ...] = ()) -> None:
        self.state = LedgerState()
        self._destinations = destinations

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
        for output in spoken(batch, self._destinations):
            context.output(output.destination, output.payload)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, state: bytes) -> None:
        self.state = msgspec.msgpack.decode(state, type=LedgerState)


class Chooser(Ledger):
    """A ledger that answers loss questions at random."""

    def __init__(self, random: Random, destinations: tuple[str, ...] = ()) -> None:
        super().__init__(destinations)
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
    IGNORE(("topic",), seconds=0.3, count=20),
    IGNORE(("priority",), count=20),
    IGNORE(("stream",), seconds=0.6, resync=True),
    RECOVER.within(0.3).and_ignore(("topic",), seconds=0.2),
    RECOVER.within(0.3).otherwise(IGNORE(("stream",), seconds=0.2)),
    RECOVER.within(0.3).otherwise(SUSPEND.and_ignore(("priority",), count=5)),
    SUSPEND.and_ignore(("stream",), seconds=0.2),
)
"""Every action and combination; None: use the rules of the group."""


class Load(msgspec.Struct, frozen=True):
    """How much every sending node sends to a group."""

    every_ns: Nanos = 20 * MILLISECOND
    """Average interval between batches."""
    batch_max: int = 20
    size_max: int = 1_000
    room_bytes: int = 1 << 20
    """A sender waits while its source holds more than this."""
    priorities: int = 1
    """If above one, some messages have a priority, a topic, a request id or a resync mark."""


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
        """Messages accepted by the running process; those of a crashed one may be lost."""
        self._talk = chance(host.world.seed, "notes", host.name, group)
        self._requests: list[bytes] = []
        self.priorities: dict[tuple[bytes, int], bytearray] = {}
        """By (node, incarnation): the priorities of all messages it was given, in order."""

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
        """A newly started process has been given nothing yet."""
        if self._host.boots != self._boots:
            self._boots, self._held, self.sent = self._host.boots, 0, 0

    def _send(self, _: None) -> None:
        load, random = self._load, self._random
        self._look_at_process()
        if self._held < load.room_bytes:
            self._give(random.randint(1, load.batch_max))
        self._later()

    def burst(self, count: int) -> None:
        """Send this many messages at once, if there is a process and room."""
        self._look_at_process()
        if self._host.alive and self._held < self._load.room_bytes:
            self._give(count)

    def _give(self, count: int) -> None:
        random, size_max = self._random, self._load.size_max
        messages = [random.randbytes(random.randint(1, size_max)) for _ in range(count)]
        notes = self._notes(messages) if self._load.priorities > 1 else ()
        if self._host.give(self._unit, Multicast(messages, notes)):
            self.sent += count
            if self._load.priorities > 1:
                self._remember(count, notes)

    def _notes(self, messages: list[bytes]) -> tuple[tuple[int, Note], ...]:
        """Add metadata to some messages; those with a request id start with it."""
        talk, notes = self._talk, []
        for place in range(len(messages)):
            if talk.randrange(NOTED):
                continue
            request = self._request() if talk.randrange(4) == 0 else b""
            if request:
                messages[place] = REQUEST + request + messages[place]
            priority = talk.randrange(self._load.priorities)
            notes.append(
                (place, Note(priority, talk.choice(TOPICS), request, not talk.randrange(20)))
            )
        return tuple(notes)

    def _request(self) -> bytes:
        """A new request id, or one that was sent before, by this process or an earlier one."""
        if self._requests and self._talk.randrange(3) == 0:
            return self._talk.choice(self._requests)
        request = self._talk.randbytes(8)
        self._requests.append(request)
        del self._requests[:-REQUESTS_KEPT]
        return request

    def _remember(self, count: int, notes: tuple[tuple[int, Note], ...]) -> None:
        me = getattr(self._host.core, "me", None)
        if me is None:
            return
        known = self.priorities.setdefault((me.node, me.incarnation), bytearray())
        start = len(known)
        known.extend([self._load.priorities - 1] * count)
        for place, note in notes:
            known[start + place] = note.priority

    def missing(self, state: LedgerState, checks: GroupChecks) -> int:
        """How many messages accepted by the running process are neither in `state` nor skipped."""
        me = getattr(self._host.core, "me", None)
        if me is None or self._host.boots != self._boots:
            return 0
        prefix = f"{me.node.hex()}/{me.incarnation}/"
        applied = sum(n for key, n in state.streams.items() if key.startswith(prefix))
        dropped = checks.skipped(self.group, me.node, me.incarnation)
        return self.sent - applied - dropped


class Converged(Checker):
    """Recovery of groups: some time after the last fault, all replicas have the same state, and nothing is missing that
    a running process accepted, except skipped messages. A group that has lost its state guarantees less."""

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
                    world.fail(AGREED, text)
        for sender in self._senders:
            if self._checks.lost_memory(sender.group):
                continue
            _, state = states.get(f"replica/{sender.group}", ("", LedgerState()))
            missing = sender.missing(state, self._checks)
            if self._checks.promise(sender.group).lone:
                # The losing side takes along what its sources have freed, and reports it; one side may have delivered
                # what the other skipped.
                missing = 0 if self._checks.gave_up(sender.group) else max(0, missing)
            if missing:
                text = (
                    f"{missing} of {sender.sent} messages of {sender.host_name} to {sender.group}"
                )
                world.fail(DELIVERED, text)
