"""Fault injection below a transport, for demonstrations and tests, without privileges.

Rules apply to what a node sends. A matching datagram is dropped. On a stream nothing is dropped: as on a real network,
a segment that never passes stalls everything behind it. The matching write and all later ones are therefore held, and
sent when the fault is removed (`loss`: after a while, as TCP would retransmit). The syntax is that of
`holdfast.faults`; delayed, changed or duplicated packets need the lab.

Unlike on a real network, the peer still sees that a connection is closed, and can still connect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.faults.amounts import MILLION
from holdfast.faults.model import BELOW_SOCKETS, KINDS, Loss, Over
from holdfast.faults.text import Words, parse_kind, parse_what

HEADERS_BYTES: Final = {"udp": 28, "tcp": 40, "frag": 28, "multicast": 28}
"""Size of the IP and UDP or TCP headers (IPv4, no options), by packet kind. A datagram that would be fragmented counts
as its largest fragment."""
RETRY_S: Final = 0.2
"""How long a lost segment delays its stream: the minimum retransmission timeout of Linux."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An effect on some packets that this node sends. None means any. An accepted TCP connection has an ephemeral peer
    port, so match its host."""

    fault: str
    """The effect, and which packets it is for: `over 1000`, `blackout only tcp`, `loss 20%`."""
    adapter: str | None = None
    """The sending adapter."""
    host: str | None = None
    """The remote host, as a numeric address."""
    port: int | None = None

    def text(self) -> str:
        target = "any host" if self.host is None else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.fault}, from {self.adapter or 'any adapter'} to {target}{port}"


class ActiveRule:
    """A rule, with its effect parsed and its matches counted."""

    __slots__ = ("hits", "only", "rule", "what")

    def __init__(self, rule: Rule) -> None:
        try:
            words = Words(rule.fault)
            self.what = parse_what(words, BELOW_SOCKETS)
            self.only = parse_kind(words) if words.take("only") else ""
            words.end()
        except MisuseError as error:
            raise MisuseError(f"fault {rule.fault!r}: {error}; nothing was changed") from None
        self.rule = rule
        self.hits = 0

    @property
    def retries(self) -> bool:
        """Whether an affected packet passes when it is sent again."""
        return isinstance(self.what, Loss)

    def matches(self, adapter: str, kind: str, host: str, port: int) -> bool:
        rule = self.rule
        return (
            (rule.adapter is None or rule.adapter == adapter)
            and (not self.only or self.only in KINDS[kind])
            and (rule.host is None or rule.host == host)
            and (rule.port is None or rule.port == port)
        )

    def drops(self, on_wire: int, random: Random) -> bool:
        match self.what:
            case Over(size):
                return on_wire > size
            case Loss(ppm):
                return random.randrange(MILLION) < ppm
        return True


class Faults:
    """The active rules. One instance serves all transports of a node; without rules it costs nothing."""

    def __init__(self, seed: int = 0) -> None:
        self.rules: dict[int, ActiveRule] = {}
        self._random = Random(seed)
        self._next_id = 1
        self._listeners: list[Callable[[], None]] = []

    def add(self, rule: Rule) -> int:
        """Add a rule; the returned number is for `remove`."""
        active = ActiveRule(rule)
        number = self._next_id
        self._next_id += 1
        self.rules[number] = active
        return number

    def remove(self, number: int) -> None:
        if number not in self.rules:
            known = ", ".join(map(str, self.rules)) or "none"
            raise MisuseError(f"there is no fault {number} (active: {known}); nothing was changed")
        del self.rules[number]
        self._healed()

    def clear(self) -> None:
        """Remove all rules."""
        self.rules.clear()
        self._healed()

    def describe(self) -> list[str]:
        """One line per active rule, with the number of matches."""
        return [
            f"{number}: {active.rule.text()}: hit {active.hits} times"
            for number, active in self.rules.items()
        ]

    def hit(self, adapter: str, kind: str, host: str, port: int, size: int) -> ActiveRule | None:
        """The rule that blocks `size` bytes of payload now, if any. Each call counts as one packet."""
        on_wire = size + HEADERS_BYTES[kind]
        for active in self.rules.values():
            if active.matches(adapter, kind, host, port) and active.drops(on_wire, self._random):
                active.hits += 1
                return active
        return None

    def listen(self, healed: Callable[[], None]) -> None:
        """Call `healed` when a rule is removed."""
        self._listeners.append(healed)

    def unlisten(self, healed: Callable[[], None]) -> None:
        if healed in self._listeners:
            self._listeners.remove(healed)

    def _healed(self) -> None:
        for listener in list(self._listeners):
            listener()


class FaultyStream:
    """The outgoing direction of one stream, with faults applied. Its owner bounds what is held."""

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
        """Send what may pass now; called when a fault is removed."""
        before = self.held_bytes
        while self._held and not self._is_hit(self._held[0]):
            data = self._held.popleft()
            self.held_bytes -= len(data)
            self._write(data)
        if self.held_bytes < before:
            self._released()

    def close(self) -> None:
        """Discard what is held."""
        self._held.clear()
        self.held_bytes = 0
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _is_hit(self, data: bytes | memoryview) -> bool:
        rule = self._faults.hit(self._adapter, "tcp", self._host, self._port, len(data))
        if rule is not None and rule.retries and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._again)
        return rule is not None

    def _again(self) -> None:
        self._retry = None
        self.release()
