"""Encryption of the packets of one link: session numbers, keys, replay windows.

On a stream, TLS (or loopback) protects the data. Datagrams, and measuring streams outside TLS, are sealed with two
keys, one per direction: each side creates the key for what it receives and sends it over TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.links.flow import TAG_SHIFT, FlowState
from holdfast.machine import ReplayWindow
from holdfast.wire.codec import Part, Rejected, RoomyPart
from holdfast.wire.frames import Frame, Key
from holdfast.wire.packet import (
    HEAD,
    SEALED,
    AnyPacket,
    read_at_once,
    read_head,
    read_plain,
    read_sealed,
    write_in_place,
    write_plain,
    write_sealed,
)
from holdfast.wire.seal import KEY, TAG, Seal

WINDOWS_MAX: Final = 1024
"""Concurrent datagram flows of one session that the peer may use; beyond that, the oldest is ignored."""


class Cipher:
    """The keys of one session. `renew` starts another one; packets of the old one can no longer be read."""

    def __init__(
        self, sealed: bool, entropy: Callable[[int], bytes], multicast_key: bytes = b""
    ) -> None:
        self.sealed = sealed
        self._multicast_key = multicast_key
        self.session = 0
        """The number that the peer puts into packets to us."""
        self.peer_session = 0
        self._entropy = entropy
        self._key = b""
        self._opener: Seal | None = None
        self._closer: Seal | None = None
        self._windows: dict[int, ReplayWindow] = {}
        self._dropped_tag = -1
        """Flows up to this one lost their window to newer ones: their packets are no longer read."""

    def renew(self, session: int) -> None:
        self.session = session
        self._forget_windows()
        self._closer = None
        if self.sealed:
            self._key = self._entropy(KEY)
            self._opener = Seal(self._key)

    def forget_peer(self) -> None:
        """The peer started a new session: its key is void until it sends another."""
        self._closer = None
        self._forget_windows()

    def key_frame(self) -> Key:
        return Key(self.session, self._key, self._multicast_key)

    def take_key(self, frame: Key) -> bool:
        """Use the key of the peer; False if it does not belong to this session."""
        if len(frame.key) != KEY or frame.session != self.peer_session:
            return False
        self._closer = Seal(frame.key)
        return True

    def usable(self, flow: FlowState) -> bool:
        """Whether this flow can send now."""
        return not (flow.own_seal and self.sealed) or self._closer is not None

    def overhead(self, flow: FlowState) -> int:
        """The overhead of a packet on this flow."""
        return HEAD + TAG if flow.own_seal and self.sealed else HEAD

    @property
    def has_key(self) -> bool:
        return not self.sealed or self._closer is not None

    def read(self, flow: FlowState, data: memoryview) -> list[Frame] | Rejected:
        """The frames of a packet that may be read on this flow."""
        if not self.sealed:
            plain = read_at_once(data, self.session)
            if plain is not None:
                # A plain stream does not repeat packets.
                return plain[1] if flow.stream or self._accept(plain[0]) else Rejected("replay")
        packet = read_head(data)
        if isinstance(packet, Rejected):
            return packet
        if packet.session not in (0, self.session):
            return Rejected("session", "of an earlier session")
        # A plain stream does not repeat packets, and its ends number differently: only one knows at once that it
        # measures.
        if not flow.own_seal or (flow.stream and not self.sealed):
            return read_plain(packet, flow.authenticated)
        if not self.sealed:
            frames = read_plain(packet)
            # After the checksum: a damaged number must not move the window.
            if packet.session and not isinstance(frames, Rejected):
                return frames if self._accept(packet.number) else Rejected("replay")
            return frames
        if not packet.flags & SEALED or not packet.session or self._opener is None:
            return Rejected("seal", "a plain packet on a sealed link")
        window = self._windows.get(packet.number >> TAG_SHIFT)
        if window is not None and not window.fresh(packet.number):
            return Rejected("replay")
        frames = read_sealed(packet, self._opener)
        # After the seal: a forged number must not displace the window of a real flow.
        if not isinstance(frames, Rejected) and not self._accept(packet.number):
            return Rejected("replay")
        return frames

    def write(self, flow: FlowState, parts: Sequence[Part], clear: bool = False) -> AnyPacket:
        """A packet for this flow; the caller has checked `usable`."""
        if not flow.own_seal or not self.sealed:
            session = self.peer_session if flow.ready else 0
            if len(parts) == 1 and isinstance(part := parts[0], RoomyPart):
                return write_in_place(session, flow.number(), part, flow.authenticated)
            return write_plain(session, flow.number(), parts, flow.authenticated)
        assert self._closer is not None
        return write_sealed(self.peer_session, flow.number(), parts, self._closer, clear)

    def _accept(self, number: int) -> bool:
        """Whether this number is seen for the first time."""
        tag = number >> TAG_SHIFT
        window = self._windows.get(tag)
        if window is None:
            if tag <= self._dropped_tag:
                return False
            if len(self._windows) >= WINDOWS_MAX:
                oldest = min(self._windows)
                del self._windows[oldest]
                self._dropped_tag = oldest
            window = self._windows[tag] = ReplayWindow(top=tag << TAG_SHIFT)
        return window.accept(number)

    def _forget_windows(self) -> None:
        self._windows.clear()
        self._dropped_tag = -1
