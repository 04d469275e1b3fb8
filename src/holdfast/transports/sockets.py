"""Making the sockets that listen, with errors that a person can act on."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, Final

from holdfast.errors import AddressInUse, SetupError

SockAddr = tuple[Any, ...]
"""As the kernel gives it: (host, port), and two numbers more for IPv6."""

_KINDS: Final = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


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
            # Or a restart fails while connections of the last run are in TIME_WAIT. On UDP it would let two
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
    """Family and address of a host. An address written as numbers is never looked up."""
    kind = _KINDS[transport]
    try:
        found = socket.getaddrinfo(host, port, family, kind, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, family=family, type=kind)
        except UnicodeError:  # not possible as a name, says Python, before it asks anybody
            raise OSError(errno.EINVAL, f"{host!r} is not a host name") from None
    return found[0][0], found[0][4]


def why(error: BaseException) -> str:
    """What went wrong with a socket, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "the peer reset the connection: its process ended, or it gave this connection up"
    return _text(error)


def _cannot(where: str, port: int, error: OSError) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{where}: another process has this port. Stop it (`ss -lntup 'sport = :{port}'` names it) "
            "or give the adapter another port. Nothing was started."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "this machine has no such address; `ip address` shows those it has"
    elif error.errno == errno.EACCES:
        hint = "not allowed; ports below 1024 need a privilege, take a higher one"
    else:
        hint = _text(error)
    return SetupError(f"{where}: {hint}. Nothing was started.")


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
