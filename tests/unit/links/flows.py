"""Flows and ciphers of a link without a network."""

from __future__ import annotations

from random import Random

from holdfast.links.cipher import Cipher
from holdfast.links.flow import FlowState
from holdfast.links.ports import FlowOpened, Identity
from holdfast.types import FlowId, NodeId

PEER = NodeId(b"p" * 16)


def flow_of(transport: str = "udp", number: int = 1, sealed: bool = False) -> FlowState:
    identity = Identity(b"", "p", "d") if sealed and transport == "tcp" else None
    info = FlowOpened(FlowId(number), "red", transport, "127.0.0.1", 1, False, "", identity)
    flow = FlowState(info, number)
    flow.ready = True
    return flow


def ciphers(sealed: bool) -> tuple[Cipher, Cipher]:
    """The two ends of a session."""
    near, far = (Cipher(sealed, Random(seed).randbytes) for seed in (1, 2))
    near.renew(11)
    far.renew(22)
    near.peer_session, far.peer_session = 22, 11
    if sealed:
        assert near.take_key(far.key_frame())
        assert far.take_key(near.key_frame())
    return near, far
