"""Stream flows: reliable and ordered while they last, and blocked by a packet that does not pass."""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.links.ports import Credit, FlowClosed
from holdfast.types import MILLISECOND, SECOND, FlowId, Nanos
from holdfast.wire.packet import AnyPacket

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.network import Adapter
    from holdfast.sim.path import Path
    from holdfast.sim.world import World

PREFIX: Final = 4
"""A stream transport prefixes each packet with its length."""
HEADS: Final = 40
"""Size of the IP and TCP headers of each segment."""
ACK_SIZE: Final = 40
FAST_AFTER: Final = 3
"""After this many packets behind a lost one, it is retransmitted without waiting for the timer."""


class TcpSettings(msgspec.Struct, frozen=True):
    """The behaviour of the kernels of all hosts."""

    connect_timeout_ns: Nanos = 3 * SECOND
    timeout_ns: Nanos = 10 * SECOND
    """A flow whose data is not acknowledged for this long is closed at its sender."""
    retry_ns: Nanos = 200 * MILLISECOND
    """The first retransmission timeout; it doubles up to `retry_ns_max`."""
    retry_ns_max: Nanos = 1600 * MILLISECOND
    full_bytes: int = 256 << 10
    """No more credit above this, until the buffer has drained to a quarter of it."""
    hard_bytes: int = 64 << 20
    """A sender that continues without credit up to here loses the flow."""
    measure_timeout_ns: Nanos = 2 * SECOND
    """The same for a measuring flow, which should be retried soon."""
    window_bytes: int = 64 << 10
    """The maximum number of unacknowledged bytes."""


class TcpEnd:
    """One side of a connection."""

    __slots__ = ("adapter", "flow", "host", "into", "open", "out", "remote")

    def __init__(self, host: Host, adapter: Adapter, remote: tuple[str, int], flow: FlowId) -> None:
        self.host = host
        self.adapter = adapter
        self.remote = remote
        self.flow = flow
        self.open = True
        self.out: Pipe
        self.into: Pipe

    def send(self, packets: list[AnyPacket]) -> None:
        self.out.send(list(map(bytes, packets)))

    def close(self) -> None:
        """Close in order: accepted data is still sent, then the peer is informed. A measuring flow is reset: stuck data
        must not delay the end."""
        self.open = False
        if self.out.measures:
            self.out.waiting.clear()
        self.out.finish()

    def abort(self, silent: bool) -> None:
        """The process has ended, or (`silent`) the whole machine: waiting data is lost."""
        self.open = False
        self.out.waiting.clear()
        if not silent:
            self.out.finish()

    def gone(self, reason: str) -> None:
        """The kernel informs the process that the flow has ended."""
        if self.open:
            self.open = False
            self.host.flow_gone(FlowClosed(self.flow, reason))


class Pipe:
    """One direction of a connection, from the buffer of the sender to the process of the listener."""

    __slots__ = (
        "_armed",
        "_finishing",
        "_full",
        "_since_ns",
        "_stalled",
        "_tries",
        "back",
        "key",
        "last_ns",
        "listener",
        "measures",
        "path",
        "queued",
        "segment",
        "sender",
        "settings",
        "timeout_ns",
        "unacked",
        "waiting",
        "world",
    )

    def __init__(
        self,
        world: World,
        sender: TcpEnd,
        listener: TcpEnd,
        path: Path,
        back: Path,
        key: bytes,
        mss: int = 0,
        measures: bool = False,
    ) -> None:
        self.world = world
        settings = self.settings = world.network.tcp
        self.segment = min(path.mtu, mss + HEADS) if mss else path.mtu
        """The largest packet on the wire."""
        self.measures = measures
        self.timeout_ns = settings.measure_timeout_ns if measures else settings.timeout_ns
        self.sender = sender
        self.listener = listener
        self.path = path
        self.back = back
        self.key = key
        self.waiting: deque[bytes] = deque()
        """Accepted, but not on the wire yet; the first one blocks the others."""
        self.queued = 0
        """Bytes that were accepted and not read by the process of the listener."""
        self.unacked = 0
        """Bytes on the wire; counted only while a fault is active on one of the paths."""
        self.last_ns = 0
        self._full = False
        self._finishing = False
        self._armed = False
        self._stalled = False
        """The first waiting packet was lost; it is retransmitted when the timer fires."""
        self._since_ns = 0
        self._tries = 0

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, packets: list[bytes]) -> None:
        world = self.world
        path = self.path
        path.sent += len(packets)
        size = sum(map(len, packets)) + PREFIX * len(packets)
        self.queued += size
        # The packets of a turn are sent together, so all segments but the last are full.
        segments = -(-size // (self.segment - HEADS))
        path.wire_bytes["tcp"] += size + segments * HEADS
        if self.queued > self.settings.full_bytes and not self._overfull():
            return
        if path.faults or self.back.faults or self.waiting:
            self.waiting.extend(packets)
            if not self._stalled:
                self._pump()
            return
        at = world.now + path.delay_ns + (path.draw(16) * path.jitter_ns >> 16)
        if at < self.last_ns:
            at = self.last_ns
        else:
            self.last_ns = at
        world.sequence = sequence = world.sequence + 1
        heappush(world.heap, (at, sequence, self._arrive, packets))

    def _overfull(self) -> bool:
        """Stop the sender; False if it did not stop and has lost the flow."""
        if not self._full:
            self._full = True
            self.sender.host.tell(Credit(self.sender.flow, False))
        if self.queued <= self.settings.hard_bytes:
            return True
        self.sender.gone(f"{self.queued} bytes were sent without credit")
        self.waiting.clear()
        self.finish()
        return False

    def taken(self, size: int) -> None:
        """The process of the listener has read `size` bytes."""
        self.queued -= size
        if self._full and self.queued <= self.settings.full_bytes >> 2:
            self._full = False
            if self.sender.open:
                self.sender.host.tell(Credit(self.sender.flow, True))

    def _pump(self) -> None:
        """Send what passes, in order; retransmit later what does not."""
        world, path = self.world, self.path
        fate = world.network.fate
        while self.waiting and self.unacked < self.settings.window_bytes:
            packet = self.waiting[0]
            size = min(len(packet) + PREFIX + HEADS, self.segment)
            path.judge(world.now, "tcp", self.key, packet, size, fate)
            if fate.lost:
                self._stalled = True
                break
            self.waiting.popleft()
            self.unacked += len(packet) + PREFIX
            self.last_ns = max(self.last_ns, world.now + path.base_ns() + fate.late_ns)
            if fate.corrupted and self._breaks(packet):
                world.at(self.last_ns, self._damaged, None)
            else:
                world.at(self.last_ns, self._arrive, [fate.packet])
        if self._finishing and not self.waiting:
            self.finish()
        if self.waiting or self.unacked:
            self._arm()

    def _breaks(self, packet: bytes) -> bool:
        """Whether a flipped bit ends the flow: TLS detects any, a plain stream only one in a length."""
        if self.world.secure:
            return True
        return self.path.random.randrange(len(packet) + PREFIX) < PREFIX

    # -- arriving ------------------------------------------------------------------------------------------------

    def _arrive(self, packets: list[bytes]) -> None:
        listener = self.listener
        if not listener.open:
            self._reset()
            return
        if not self.back.faults or self._passes(self.back):
            self._acked()
        listener.host.hear_stream(listener, packets)

    def _acked(self) -> None:
        self.unacked = 0
        self._tries = 0
        self._since_ns = self.world.now
        if self.waiting and not self._stalled:
            self._pump()

    def _passes(self, path: Path) -> bool:
        """Whether a packet as small as an acknowledgement passes."""
        fate = self.world.network.fate
        path.judge(self.world.now, "tcp", self.key, b"", ACK_SIZE, fate)
        return not fate.lost

    def _damaged(self, _: None) -> None:
        what = "TLS record" if self.world.secure else "length of a packet"
        self.listener.gone(f"damaged {what}")
        self.listener.out.finish()

    def _reset(self) -> None:
        """There is no such flow here: report it, if there is a machine that can and a path that passes it."""
        if self.listener.host.powered and self._passes(self.back):
            self.world.at(self.world.now + self.back.base_ns(), self._refused, None)

    def _refused(self, _: None) -> None:
        self.waiting.clear()
        self.sender.gone("reset by peer")

    # -- repeating -----------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._armed:
            return
        self._armed = True
        if not self._tries:
            self._since_ns = self.world.now
        settings = self.settings
        wait_ns = min(settings.retry_ns << min(self._tries, 16), settings.retry_ns_max)
        if not self._tries and len(self.waiting) > FAST_AFTER:
            # Packets that arrive behind a hole make the listener request it at once.
            wait_ns = 2 * (self.path.delay_ns + self.back.delay_ns)
        self.world.at(self.world.now + wait_ns, self._repeat, None)

    def _repeat(self, _: None) -> None:
        self._armed = False
        alive = self.sender.open or self._finishing
        if not alive or not (self.waiting or self.unacked or self._finishing):
            return
        if self.world.now - self._since_ns >= self.timeout_ns:
            self._finishing = False
            self.waiting.clear()
            self.sender.gone("timed out")
            return
        self._tries += 1
        self._stalled = False
        if self.unacked and self._passes(self.path) and self._passes(self.back):
            self._acked()
        if not self._armed and not self._stalled:
            self._pump()

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing more will be sent. The listener is informed after everything in flight."""
        self._finishing = True
        if self.waiting:
            return
        if not self._passes(self.path):
            self._arm()
            return
        self._finishing = False
        self.last_ns = max(self.last_ns, self.world.now + self.path.base_ns())
        self.world.at(self.last_ns, self._finished, None)

    def _finished(self, _: None) -> None:
        if self.listener.open:
            self.listener.gone("closed by peer")
            self.listener.out.waiting.clear()
