"""The handshake: who may talk to us, in which version, and how we say no."""

from __future__ import annotations

from holdfast.links.config import Self
from holdfast.links.ports import Identity
from holdfast.wire.codec import encode
from holdfast.wire.frames import Hello, MemberInfo, Refuse
from holdfast.wire.packet import write_plain

NAME_MAX = 64
HOST_MAX = 255
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
    problem = check_member(member)
    if problem:
        return Refuse("identity", problem)
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


def check_addressee(me: Self, hello: Hello) -> Refuse | None:
    """Whether a `Hello` is meant for this node. Asked by a link: whoever calls for the former owner of this address
    is turned away, but has a link here by then, and is called back."""
    if hello.to in (b"", me.node):
        return None
    return Refuse("moved", f"{me.name} has this address now")


def check_member(member: MemberInfo) -> str:
    """Why a member cannot be, or nothing. Its addresses reach the sockets of this node, so they must make sense."""
    if len(member.node) != 16 or not 0 < len(member.name) <= NAME_MAX:
        return "a node id has 16 bytes and a name at most 64 letters"
    if len(member.adapters) > ADAPTERS_MAX or member.incarnation < 1:
        return "too many adapters, or no incarnation"
    for adapter in member.adapters:
        if max(len(adapter.name), len(adapter.subnet)) > NAME_MAX or len(adapter.transports) > 8:
            return "an adapter's name and subnet have at most 64 letters"
        if not 0 < len(adapter.host) <= HOST_MAX or not adapter.host.isprintable():
            return "an adapter's host is not one"
        if not 0 <= adapter.port < 1 << 16:
            return "an adapter's port is not one"
        if not 0 <= adapter.mtu < 1 << 16 or len(adapter.measure) > 8:
            return "an adapter's mtu is not one, or it measures too much"
        if len(adapter.multicast) > HOST_MAX + 6 or max(map(len, adapter.measure), default=0) > 16:
            return "an adapter's multicast group or what it measures is not one"
    return ""


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
