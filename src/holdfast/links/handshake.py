"""The handshake: who may talk to us, in which version, and how we say no."""

from __future__ import annotations

from holdfast.links.config import Self
from holdfast.links.ports import Identity
from holdfast.wire.codec import encode
from holdfast.wire.frames import Hello, Refuse
from holdfast.wire.packet import write_plain

NAME_MAX = 64
ADAPTERS_MAX = 32


def check_hello(me: Self, hello: Hello, identity: Identity | None, stream: bool) -> Refuse | None:
    """Why a `Hello` is not accepted, or None."""
    member = hello.member
    if hello.domain != me.domain:
        return Refuse("domain", f"this is domain {me.domain!r}, not {hello.domain!r}")
    if hello.high < me.low or hello.low > me.high:
        return Refuse(
            "version",
            f"{me.name} speaks frame versions {me.low} to {me.high}, "
            f"{member.name} speaks {hello.low} to {hello.high}: upgrade the older one",
        )
    if hello.sealed != me.sealed:
        return Refuse(
            "security", "one side is plain, the other is not: give both the same [security]"
        )
    if len(member.node) != 16 or not 0 < len(member.name) <= NAME_MAX:
        return Refuse("identity", "a node id has 16 bytes and a name at most 64 letters")
    if len(member.adapters) > ADAPTERS_MAX or member.incarnation < 1:
        return Refuse("identity", "too many adapters, or no incarnation")
    if member.node == me.node:
        return Refuse(
            "self", f"{me.name} has reached itself, or {member.name} runs on a copy of its data"
        )
    if member.name == me.name:
        return Refuse("name", f"the name {me.name!r} is taken by another node of this domain")
    if me.sealed and stream:
        if identity is None:
            return Refuse("certificate", "no certificate was shown")
        if identity.name != member.name or identity.domain != me.domain:
            return Refuse(
                "certificate",
                f"the certificate is for {identity.name!r} of {identity.domain!r}, "
                f"not for {member.name!r} of {me.domain!r}",
            )
    return None


def version_of(me: Self, hello: Hello) -> int:
    """The highest version that both speak."""
    return min(me.high, hello.high)


def bare_hello(me: Self, adapter: str) -> bytes:
    """The packet that opens a flow to somebody unknown: who we are, and please say who you are."""
    hello = Hello(
        low=me.low,
        high=me.high,
        domain=me.domain,
        sealed=me.sealed,
        member=me.member,
        adapter=adapter,
        epoch=0,
        session=0,
    )
    return write_plain(0, 0, [encode(hello)])


def refusal(refuse: Refuse) -> bytes:
    return write_plain(0, 0, [encode(refuse)])
