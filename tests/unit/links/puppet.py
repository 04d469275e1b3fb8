"""A peer that a test plays itself: it says what no real node would say."""

from __future__ import annotations

from typing import Any

from tests.unit.links.harness import DOMAIN, World

from holdfast.links.ports import Arrived, FlowClosed, FlowOpened, Identity, OpenFlow, Transmit
from holdfast.types import FlowId
from holdfast.wire.codec import encode
from holdfast.wire.frames import AdapterInfo, Frame, Hello, MemberInfo
from holdfast.wire.packet import Packet, read_head, read_plain, write_plain

NODE = b"x" * 16


class Puppet:
    """Somebody at 127.0.1.99 who speaks plainly, and well, unless told otherwise."""

    def __init__(
        self, world: World, name: str = "x", node: bytes = NODE, incarnation: int = 1
    ) -> None:
        self.world = world
        self.name = name
        self.log: list[Any] = []
        self.address = ("127.0.1.99", 7400)
        self.node = node
        self.incarnation = incarnation
        self._number = 0
        world.puppets[name] = self.log
        world.network.adapters[self.address] = (name, "red")
        world.network.addresses[(name, "red")] = self.address
        if world.sealed:
            world.network.identities[name] = Identity(b"", name, DOMAIN)

    def member(self, **changes: Any) -> MemberInfo:
        adapter = AdapterInfo("red", "red", *self.address, ("tcp", "udp"))
        values = {
            "node": self.node,
            "name": self.name,
            "incarnation": self.incarnation,
            "adapters": (adapter,),
        }
        return MemberInfo(**{**values, **changes})

    def hello(self, **changes: Any) -> Hello:
        values: dict[str, Any] = {
            "low": 1,
            "high": 1,
            "domain": DOMAIN,
            "sealed": self.world.sealed,
            "member": self.member(),
            "adapter": "red",
            "epoch": 1,
            "session": 4711,
        }
        return Hello(**{**values, **changes})

    def answer(self, hello: Hello, **changes: Any) -> Hello:
        """A `Hello` that echoes one of the node's."""
        echo = {"echo_incarnation": hello.member.incarnation, "echo_epoch": hello.epoch}
        return self.hello(**{**echo, "ask": False, **changes})

    def connect(self, to: str, transport: str = "tcp") -> FlowId:
        host, port = self.world.network.addresses[(to, "red")]
        known = len(self.opened())
        self.world.network.effect(self.name, OpenFlow("red", transport, host, port, "puppet"))
        self.world.run(0.001)
        return self.opened()[known].flow

    def send(self, flow: FlowId, *frames: Frame, session: int = 0, wait: float = 0.001) -> None:
        self._number += 1
        packet = write_plain(session, 1 << 48 | self._number, [encode(frame) for frame in frames])
        self.send_bytes(flow, packet, wait)

    def send_bytes(self, flow: FlowId, packet: bytes, wait: float = 0.001) -> None:
        self.world.network.effect(self.name, Transmit(flow, [packet]))
        self.world.run(wait)

    def opened(self) -> list[FlowOpened]:
        return [item for item in self.log if isinstance(item, FlowOpened)]

    def closed(self, flow: FlowId) -> bool:
        return any(isinstance(item, FlowClosed) and item.flow == flow for item in self.log)

    def heard(self, flow: FlowId) -> list[Frame]:
        """The frames that came in on a flow."""
        frames: list[Frame] = []
        for item in self.log:
            if isinstance(item, Arrived) and item.flow == flow:
                for data in item.packets:
                    packet = read_head(data)
                    assert isinstance(packet, Packet)
                    found = read_plain(packet, authenticated=True)
                    assert isinstance(found, list)
                    frames += found
        return frames

    def of(self, flow: FlowId, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.heard(flow) if isinstance(frame, kind)]

    def agree(self, to: str, transport: str = "tcp", **changes: Any) -> FlowId:
        """A flow on which a session with a node has begun."""
        flow = self.connect(to, transport)
        self.send(flow, self.hello(**changes))
        self.send(flow, self.answer(self.of(flow, Hello)[-1], **changes))
        return flow

    def session(self, flow: FlowId) -> int:
        """The number that packets to the node must carry."""
        return int(self.of(flow, Hello)[-1].session)
