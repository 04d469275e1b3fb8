"""Trains: several datagrams to one address in one system call (Linux: UDP segmentation offload).

The kernel cuts a train into datagrams of one size, the last of which may be shorter, or passes it on whole to a device
that cuts it. On the wire they are separate datagrams: each has its own checksum and packet number, and is lost alone.
A receiver that accepts trains (`UDP_GRO`) obtains datagrams that arrived together in one call, with their size.

A virtual network may pass a train on whole, and a rule in it that drops packets then drops all of it. The lab switches
that off on its devices.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

from holdfast.wire.packet import AnyPacket

_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_SEND_SIZE: Final = struct.Struct("=H")
_RECEIVED_SIZE: Final = struct.Struct("=i")
NOTES_BYTES: Final = 64
"""Room for what the kernel states about a train."""
DATAGRAMS_MAX: Final = 64
"""In one train; older kernels accept no more."""
TRAIN_BYTES_MAX: Final = 65_000
"""A train is one IP packet to the kernel."""
_NEVER: Final = (errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors that show that the socket cannot send trains: some devices compute no checksums for them."""

Note = tuple[int, int, bytes]


def can_send(sock: socket.socket) -> bool:
    """Whether the kernel can cut trains that this socket sends."""
    return _accepts(sock, _UDP_SEGMENT, 0)


def accept(sock: socket.socket) -> bool:
    """Let the kernel pass on several datagrams at once; False if it cannot. `recvmsg` then states their size."""
    return _accepts(sock, _UDP_GRO, 1)


def _accepts(sock: socket.socket, option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(_SOL_UDP, option, value)
    except OSError:
        return False
    return True


def length(packets: Sequence[AnyPacket], at: int) -> int:
    """How many packets from `at` on form a train: they have the same size, except for a shorter last one."""
    size = total = len(packets[at])
    stop = min(len(packets), at + DATAGRAMS_MAX)
    for end in range(at + 1, stop):
        next_size = len(packets[end])
        total += next_size
        if next_size > size or not next_size or total > TRAIN_BYTES_MAX:
            return end - at
        if next_size < size:
            return end + 1 - at
    return stop - at


def send(sock: socket.socket, packets: Sequence[AnyPacket], address: tuple[object, ...]) -> None:
    """Send a train, all of it or nothing. Raises what `sendto` raises, and `OSError` if it cannot be cut."""
    size = _SEND_SIZE.pack(len(packets[0]))
    sock.sendmsg(packets, [(_SOL_UDP, _UDP_SEGMENT, size)], 0, address)  # type: ignore[arg-type]  # bytes


def never_again(error: OSError) -> bool:
    """Whether this error of `send` affects every train of the socket."""
    return error.errno in _NEVER


def cut(data: bytes, notes: Sequence[Note]) -> list[memoryview]:
    """The datagrams in what `recvmsg` returned."""
    view = memoryview(data)
    for level, kind, value in notes:
        if level == _SOL_UDP and kind == _UDP_GRO and len(value) == _RECEIVED_SIZE.size:
            [size] = _RECEIVED_SIZE.unpack(value)
            if 0 < size < len(data):
                return [view[begin : begin + size] for begin in range(0, len(data), size)]
    return [view]
