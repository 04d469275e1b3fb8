"""Breaks the network on purpose, below the edge of a transport: for demonstrations and tests, without privileges.

Rules hit what a node sends. A datagram that a rule hits vanishes. On a stream nothing vanishes: as on a real cable,
a segment that never passes stalls everything behind it. So the write that is hit and all later ones are kept, and
sent when the fault is healed (`loss`: after a while, as TCP would send it again).

What differs from a real cable: the peer still sees that a connection is closed, and it can still connect to us.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from holdfast.errors import MisuseError

OVER_SIZE: Final = "over_size"
DROP_ALL: Final = "drop_all"
LOSS: Final = "loss"
KINDS: Final = (OVER_SIZE, DROP_ALL, LOSS)

HEADERS_BYTES: Final = {"udp": 28, "tcp": 40, "frag": 28, "multicast": 28}
"""What IP and UDP or TCP put in front of our bytes (IPv4, no options), by kind of packets. A datagram that would be
fragmented counts as its largest fragment."""
_UDP: Final = ("frag", "multicast")
"""Kinds that a rule for `udp` hits as well."""
RETRY_S: Final = 0.2
"""How long a lost segment holds up its stream: the least that Linux waits before it sends one again."""


class Rule(msgspec.Struct, frozen=True):
    """What is hit. None means any. An accepted TCP connection has the peer's passing port, so name its host."""

    kind: str
    adapter: str | None = None
    """The adapter that sends."""
    host: str | None = None
    """The remote host, as a number."""
    port: int | None = None
    transport: str | None = None
    direction: str = "out"
    size: int = 0
    """`over_size`: the largest that passes, in bytes on the wire, headers of IP and UDP or TCP included."""
    loss_ppm: int = 0
    """`loss`: how many of a million are hit."""

    def text(self) -> str:
        what = {
            OVER_SIZE: f"larger than {self.size} bytes",
            DROP_ALL: "everything",
            LOSS: f"{self.loss_ppm} of a million",
        }[self.kind]
        target = "anybody" if self.host is None else self.host
        port = "" if self.port is None else f":{self.port}"
        via = self.transport or "any transport"
        return f"{what}, from {self.adapter or 'any adapter'} to {target}{port}, {via}"


class Faults:
    """The rules in force. One of these serves all transports of a node; without rules it costs nothing."""

    def __init__(self, seed: int = 0) -> None:
        self.rules: dict[int, Rule] = {}
        self._hits: dict[int, int] = {}
        self._random = Random(seed)
        self._next_id = 1
        self._listeners: list[Callable[[], None]] = []

    def add(self, rule: Rule) -> int:
        """Put a rule in force; the number is for `remove`."""
        _check(rule)
        number = self._next_id
        self._next_id += 1
        self.rules[number] = rule
        self._hits[number] = 0
        return number

    def remove(self, number: int) -> None:
        if number not in self.rules:
            known = ", ".join(map(str, self.rules)) or "none"
            raise MisuseError(
                f"there is no fault {number} (in force: {known}); nothing was changed"
            )
        del self.rules[number], self._hits[number]
        self._healed()

    def clear(self) -> None:
        """Heal everything."""
        self.rules.clear()
        self._hits.clear()
        self._healed()

    def describe(self) -> list[str]:
        """A line for each rule in force, with how often it hit."""
        return [
            f"{number}: {rule.text()}: hit {self._hits[number]} times"
            for number, rule in self.rules.items()
        ]

    def hit(self, adapter: str, transport: str, host: str, port: int, size: int) -> Rule | None:
        """The rule that keeps `size` bytes of payload from passing now, if any. Each call is one more packet."""
        on_wire = size + HEADERS_BYTES[transport]
        for number, rule in self.rules.items():
            if (
                (rule.adapter is None or rule.adapter == adapter)
                and _covers(rule.transport, transport)
                and (rule.host is None or rule.host == host)
                and (rule.port is None or rule.port == port)
                and self._strikes(rule, on_wire)
            ):
                self._hits[number] += 1
                return rule
        return None

    def listen(self, healed: Callable[[], None]) -> None:
        """Call `healed` whenever a rule is taken away."""
        self._listeners.append(healed)

    def unlisten(self, healed: Callable[[], None]) -> None:
        if healed in self._listeners:
            self._listeners.remove(healed)

    def _strikes(self, rule: Rule, on_wire: int) -> bool:
        if rule.kind == OVER_SIZE:
            return on_wire > rule.size
        if rule.kind == LOSS:
            return self._random.randrange(1_000_000) < rule.loss_ppm
        return True

    def _healed(self) -> None:
        for listener in list(self._listeners):
            listener()


class FaultyStream:
    """The outgoing direction of one stream, as far as the faults let it pass. What is held is bounded by its owner."""

    __slots__ = (
        "_adapter",
        "_faults",
        "_held",
        "_host",
        "_port",
        "_released",
        "_retry",
        "_write",
        "held_bytes",
    )

    def __init__(
        self,
        faults: Faults,
        adapter: str,
        host: str,
        port: int,
        write: Callable[[bytes | memoryview], None],
        released: Callable[[], None],
    ) -> None:
        self._faults = faults
        self._adapter = adapter
        self._host = host
        self._port = port
        self._write = write
        self._released = released
        """Called after held bytes were sent."""
        self._held: deque[bytes | memoryview] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self.held_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        if self._held or (self._faults.rules and self._is_hit(data)):
            self._held.append(data)
            self.held_bytes += len(data)
        else:
            self._write(data)

    def release(self) -> None:
        """Send what may pass now; called when a fault is healed."""
        before = self.held_bytes
        while self._held and not self._is_hit(self._held[0]):
            data = self._held.popleft()
            self.held_bytes -= len(data)
            self._write(data)
        if self.held_bytes < before:
            self._released()

    def close(self) -> None:
        """Forget what is held."""
        self._held.clear()
        self.held_bytes = 0
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _is_hit(self, data: bytes | memoryview) -> bool:
        rule = self._faults.hit(self._adapter, "tcp", self._host, self._port, len(data))
        if rule is not None and rule.kind == LOSS and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._again)
        return rule is not None

    def _again(self) -> None:
        self._retry = None
        self.release()


def _covers(wanted: str | None, kind: str) -> bool:
    return wanted is None or wanted == kind or (wanted == "udp" and kind in _UDP)


def _check(rule: Rule) -> None:
    if rule.kind not in KINDS:
        raise MisuseError(
            f"fault {rule.kind!r} is unknown: one of {', '.join(KINDS)}; nothing changed"
        )
    if rule.direction != "out":
        raise MisuseError(
            "a node breaks only what it sends: direction is 'out'; nothing was changed"
        )
    if rule.transport is not None and rule.transport not in HEADERS_BYTES:
        raise MisuseError(
            f"transport {rule.transport!r} is unknown: tcp, udp, frag or multicast; nothing was changed"
        )
    if rule.kind == OVER_SIZE and rule.size <= 0:
        raise MisuseError("over_size needs the largest size that passes, in bytes; nothing changed")
    if rule.kind == LOSS and not 0 < rule.loss_ppm <= 1_000_000:
        raise MisuseError("loss needs loss_ppm between 1 and 1000000; nothing was changed")
