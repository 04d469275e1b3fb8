"""Access to the web page: any user of this machine and, from other machines, clients with the token."""

from __future__ import annotations

import ipaddress
from hmac import compare_digest

import msgspec


def is_loopback(address: str) -> bool:
    """Whether `address` (a literal, or `localhost`) is reachable from this machine only. Other names are not
    trusted."""
    if address.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_sendable(token: str) -> bool:
    """Whether `token` can be sent in a header."""
    return bool(token) and all("!" <= letter <= "~" for letter in token)


def host_of(header: str) -> str:
    """The host in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


class Access(msgspec.Struct, frozen=True):
    """The access rule of one server. Without a token it serves loopback only, and then checks the `Host` header."""

    token: str | None

    def host_is_ours(self, host_header: str | None) -> bool:
        """False for a foreign page whose name was made to resolve to this machine (DNS rebinding).

        With a token this check is not needed, because such a page does not know it.
        """
        if self.token is not None:
            return True
        return host_header is not None and is_loopback(host_of(host_header))

    def token_is_right(self, in_query: str | None, authorization: str | None) -> bool:
        """Whether the token was sent, as `?token=` or as `Authorization: Bearer`. The comparison takes constant
        time."""
        if self.token is None:
            return True
        given = in_query or ""
        scheme, _, credentials = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            given = credentials.strip()
        return compare_digest(_plain(given), _plain(self.token))


def _plain(token: str) -> bytes:
    # Input from the network may contain text that cannot be encoded.
    return token.encode("utf-8", "surrogatepass")
