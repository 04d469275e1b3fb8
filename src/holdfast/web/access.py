"""Who may see the page: anybody on this machine, and from elsewhere only who knows the token."""

from __future__ import annotations

import ipaddress
from hmac import compare_digest

import msgspec


def is_loopback(address: str) -> bool:
    """Whether `address` (a literal, or `localhost`) can be reached from this machine only. A name cannot be trusted."""
    if address.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_sendable(token: str) -> bool:
    """Whether a browser can send `token` in a header."""
    return bool(token) and all("!" <= letter <= "~" for letter in token)


def host_of(header: str) -> str:
    """The host in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


class Access(msgspec.Struct, frozen=True):
    """The rule of one server. Without a token it serves loopback only, and then it looks at the `Host` header."""

    token: str | None

    def host_is_ours(self, host_header: str | None) -> bool:
        """False for a page of somebody else's whose name was made to point at this machine (DNS rebinding).

        With a token this need not be asked: such a page does not know it.
        """
        if self.token is not None:
            return True
        return host_header is not None and is_loopback(host_of(host_header))

    def token_is_right(self, in_query: str | None, authorization: str | None) -> bool:
        """Whether the token came, as `?token=` or as `Authorization: Bearer`. Takes as long for any wrong one."""
        if self.token is None:
            return True
        given = in_query or ""
        scheme, _, credentials = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            given = credentials.strip()
        return compare_digest(_plain(given), _plain(self.token))


def _plain(token: str) -> bytes:
    # What came over the network need not be text that can be encoded.
    return token.encode("utf-8", "surrogatepass")
