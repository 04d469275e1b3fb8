"""How packets of one link are opened and closed: session numbers, keys, replay windows.

On a stream, TLS (or loopback) does the protecting. Datagrams, and streams outside TLS that measure, are sealed with
two keys, one for each direction: each side makes the key for what it wants to receive and sends it over TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.links.flow import TAG_SHIFT, FlowState
from holdfast.machine import ReplayWindow
from holdfast.wire.codec import Part, Rejected, RoomyPart
from holdfast.wire.frames import AnyFrame, Key
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
"""Datagram flows of one session that the peer may use at a time; beyond that the oldest is not heard any more."""


class Cipher:
    """The keys of one session. `renew` begins another: nothing of the old one can be read any more."""

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
        """Flows up to this one had a window that made room for newer ones: nothing of theirs is read any more."""

    def renew(self, session: int) -> None:
        self.session = session
        self._forget_windows()
        self._closer = None
        if self.sealed:
            self._key = self._entropy(KEY)
            self._opener = Seal(self._key)

    def forget_peer(self) -> None:
        """The peer began anew: its key is void until it sends another."""
        self._closer = None
        self._forget_windows()

    def key_frame(self) -> Key:
        return Key(self.session, self._key, self._multicast_key)

    def take_key(self, frame: Key) -> bool:
        """Use the peer's key; False when it does not belong to this session."""
        if len(frame.key) != KEY or frame.session != self.peer_session:
            return False
        self._closer = Seal(frame.key)
        return True

    def usable(self, flow: FlowState) -> bool:
        """Whether anything can be sent on this flow now."""
        return not (flow.own_seal and self.sealed) or self._closer is not None

    def overhead(self, flow: FlowState) -> int:
        """What a packet on this flow has around its body."""
        return HEAD + TAG if flow.own_seal and self.sealed else HEAD

    @property
    def has_key(self) -> bool:
        return not self.sealed or self._closer is not None

    def read(self, flow: FlowState, data: memoryview) -> list[AnyFrame] | Rejected:
        """The frames of a packet that may be read on this flow."""
        if not self.sealed:
            plain = read_at_once(data, self.session)
            if plain is not None:
                # A plain stream repeats nothing.
                return plain[1] if flow.stream or self._accept(plain[0]) else Rejected("replay")
        packet = read_head(data)
        if isinstance(packet, Rejected):
            return packet
        if packet.session not in (0, self.session):
            return Rejected("session", "of an earlier session")
        # A plain stream repeats nothing, and its ends number apart: only one knows at once that it measures.
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
        # After the seal: a number that somebody made up must not push out the window of a real flow.
        if not isinstance(frames, Rejected) and not self._accept(packet.number):
            return Rejected("replay")
        return frames

    def write(self, flow: FlowState, parts: Sequence[Part], clear: bool = False) -> AnyPacket:
        """A packet for this flow; the caller has asked `usable`."""
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
