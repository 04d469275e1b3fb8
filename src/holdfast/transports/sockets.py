"""Listening sockets, with actionable errors."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from typing import Any, Final

from holdfast.errors import AddressInUse, SetupError
from holdfast.types import MILLISECOND

SockAddr = tuple[Any, ...]
"""A kernel socket address: (host, port), plus two numbers for IPv6."""

_KINDS: Final = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}

MSS_MIN: Final = 88
MSS_MAX: Final = 65_495
"""Segment sizes that the kernel accepts."""
UDP_HEADS: Final = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Size of the IP and UDP headers."""
TLS_RECORD: Final = 22
LENGTH: Final = 4
_TCP_HEADS: Final = {socket.AF_INET: 40, socket.AF_INET6: 60}
_TIMESTAMPS: Final = 12
_INFO_OPTIONS: Final = 5
"""Offset of the options in `struct tcp_info` of Linux; the lowest bit is for timestamps."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))


def stream_heads(sock: socket.socket, secure: bool) -> int:
    """Overhead of IP, TCP with options, TLS and the length prefix for a packet that is written alone."""
    heads = _TCP_HEADS.get(sock.family, 40) + LENGTH + (TLS_RECORD if secure else 0)
    if hasattr(socket, "TCP_INFO") and sock.family in _TCP_HEADS:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_OPTIONS + 1)
        heads += _TIMESTAMPS if len(info) > _INFO_OPTIONS and info[_INFO_OPTIONS] & 1 else 0
    return heads


def watch_closely(sock: socket.socket, limit_ns: int) -> None:
    """Close a stalled connection soon, whether or not data is being sent. Reset it when it is closed, because an
    orderly end would wait behind the stuck data."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ns // MILLISECOND)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


async def bind(adapter: str, transport: str, host: str, port: int) -> socket.socket:
    """A non-blocking socket bound to the address of an adapter."""
    where = f"adapter {adapter}: cannot listen on {host}:{port} ({transport})"
    try:
        found = await resolve(host, port, transport)
    except OSError as error:
        raise SetupError(
            f"{where}: {_text(error)}; give an address of this machine. Nothing was started."
        ) from None
    family, address = found
    sock = socket.socket(family, _KINDS[transport])
    try:
        sock.setblocking(False)
        if transport == "tcp":
            # Otherwise a restart fails while connections of the last run are in TIME_WAIT. On UDP it would let two
            # processes share the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot(where, port, error) from None
    return sock


async def resolve(
    host: str, port: int, transport: str, family: int = socket.AF_UNSPEC
) -> tuple[int, SockAddr]:
    """Family and address of a host. A numeric address is never looked up."""
    kind = _KINDS[transport]
    try:
        found = socket.getaddrinfo(host, port, family, kind, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, family=family, type=kind)
        except UnicodeError:  # Python rejects the name without asking a resolver
            raise OSError(errno.EINVAL, f"{host!r} is not a host name") from None
    return found[0][0], found[0][4]


def why(error: BaseException) -> str:
    """The reason for a socket error, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "no process listens there"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "the peer reset the connection: its process ended, or it closed this connection"
    return _text(error)


def _cannot(where: str, port: int, error: OSError) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{where}: another process uses this port. Stop it (`ss -lntup 'sport = :{port}'` "
            "shows it) or give the adapter another port. Nothing was started."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "this machine has no such address; `ip address` lists its addresses"
    elif error.errno == errno.EACCES:
        hint = "not permitted; ports below 1024 need a privilege, use a higher one"
    else:
        hint = _text(error)
    return SetupError(f"{where}: {hint}. Nothing was started.")


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
