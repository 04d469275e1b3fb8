"""The handshake: which peers are accepted, in which version, and refusals."""

from __future__ import annotations

from holdfast.links.ports import Identity
from holdfast.subsystem import LocalNode
from holdfast.wire.codec import encode
from holdfast.wire.frames import Hello, MemberInfo, Refuse
from holdfast.wire.packet import write_plain

NAME_MAX = 64
HOST_MAX = 255
ADAPTERS_MAX = 32


def check_hello(
    me: LocalNode, hello: Hello, identity: Identity | None, stream: bool
) -> Refuse | None:
    """Why a `Hello` is not accepted, or None."""
    member = hello.member
    if hello.domain != me.domain:
        return Refuse("domain", f"this is domain {me.domain!r}, not {hello.domain!r}")
    if hello.high < me.low or hello.low > me.high:
        return Refuse(
            "version",
            f"{me.name} supports frame versions {me.low} to {me.high}, {member.name} supports "
            f"{hello.low} to {hello.high}: upgrade the older one",
        )
    if hello.sealed != me.sealed:
        return Refuse(
            "security",
            "one side uses plain mode, the other does not: use the same [security] for both",
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
            return Refuse("certificate", "no certificate was presented")
        if identity.name != member.name or identity.domain != me.domain:
            return Refuse(
                "certificate",
                f"the certificate is for {identity.name!r} of {identity.domain!r}, "
                f"not for {member.name!r} of {me.domain!r}",
            )
    return None


def check_addressee(me: LocalNode, hello: Hello) -> Refuse | None:
    """Whether a `Hello` is meant for this node. Checked by a link: a node that calls the former owner of this address
    is refused, but has a link here by then, and is called back."""
    if hello.to in (b"", me.node):
        return None
    return Refuse("moved", f"{me.name} has this address now")


def check_member(member: MemberInfo) -> str:
    """Why a member record is invalid, or an empty string. Its addresses are passed to sockets, so they must be
    valid."""
    if len(member.node) != 16 or not 0 < len(member.name) <= NAME_MAX:
        return "a node id has 16 bytes and a name at most 64 letters"
    if len(member.adapters) > ADAPTERS_MAX or member.incarnation < 1:
        return "too many adapters, or no incarnation"
    for adapter in member.adapters:
        if max(len(adapter.name), len(adapter.subnet)) > NAME_MAX or len(adapter.transports) > 8:
            return "an adapter's name and subnet have at most 64 letters"
        if not 0 < len(adapter.host) <= HOST_MAX or not adapter.host.isprintable():
            return "the host of an adapter is invalid"
        if not 0 <= adapter.port < 1 << 16:
            return "the port of an adapter is invalid"
        if not 0 <= adapter.mtu < 1 << 16 or len(adapter.measure) > 8:
            return "the mtu of an adapter is invalid, or it measures too much"
        if len(adapter.multicast) > HOST_MAX + 6 or max(map(len, adapter.measure), default=0) > 16:
            return "the multicast group or the measurements of an adapter are invalid"
    return ""


def version_of(me: LocalNode, hello: Hello) -> int:
    """The highest version that both support."""
    return min(me.high, hello.high)


def bare_hello(me: LocalNode, adapter: str) -> bytes:
    """The first packet to an unknown peer: our identity, and a request for its own."""
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
