"""A small subsystem in test code: a peer is asked to repeat a text. It touches nothing outside of this file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.errors import ConfigError, HoldfastError, NodeStopped
from holdfast.links.ports import PeerDown, PeerUp, Received, SendChannel, link_unit
from holdfast.machine import Machine, Outbox, Put
from holdfast.subsystem import (
    Assembly,
    Control,
    Edge,
    EffectHandler,
    Family,
    NodeConfig,
    Port,
    Section,
    Service,
    Subsystem,
    Table,
)
from holdfast.telemetry.facts import Fact
from holdfast.types import DATA, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Frame

UNIT = "echo"
TABLE = "echoes"


class Shout(Frame, frozen=True, gc=False, array_like=True, tag=200):
    """A question, or its answer."""

    text: str
    answer: bool = False


class EchoFact(Fact, frozen=True, gc=False):
    kind: ClassVar[str] = "echo"
    text: str


class EchoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str = ""


class Say(msgspec.Struct, frozen=True):
    """Input: ask a peer to repeat a text."""

    peer: NodeId
    text: str


class Heard(msgspec.Struct, frozen=True):
    """Effect: a peer has repeated a text."""

    text: str


SECTION = Section[EchoConfig]("echo", EchoConfig, EchoConfig())


class EchoMachine(Machine):
    layer: ClassVar[str] = "echo"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown)

    def __init__(self, prefix: str, stored: Iterable[tuple[bytes, bytes]]) -> None:
        self.prefix = prefix
        self.up_peers: list[NodeId] = []
        self.repeated = [value.decode() for _, value in stored]
        self.unexpected: list[object] = []
        """Inputs that this unit did not subscribe to."""

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, PeerUp):
                self.up_peers.append(item.peer)
            elif isinstance(item, PeerDown):
                self.up_peers.remove(item.peer)
            elif isinstance(item, Say):
                self._send(item.peer, Shout(item.text), out)
            elif isinstance(item, Received):
                for frame in item.frames:
                    self._frame(now, item.peer, frame, out)
            else:
                self.unexpected.append(item)

    def _frame(self, now: Nanos, peer: NodeId, frame: Any, out: Outbox) -> None:
        if frame.answer:
            out.effect(Heard(frame.text))
            return
        if frame.text == "crash":
            raise RuntimeError("asked to")
        out.write(Put(TABLE, len(self.repeated).to_bytes(8, "big"), frame.text.encode()))
        self.repeated.append(frame.text)
        out.fact(EchoFact(now, frame.text))
        self._send(peer, Shout(self.prefix + frame.text, answer=True), out)

    def _send(self, peer: NodeId, frame: Shout, out: Outbox) -> None:
        out.down(link_unit(peer), SendChannel(DATA, [encode(frame)]))


class EchoService(Service):
    def __init__(self, node: Assembly) -> None:
        self._node = node
        self.machine: EchoMachine

    def units(self) -> Iterable[str]:
        return (UNIT,)

    def build(self, unit: str) -> Machine | None:
        if unit != UNIT:
            return None
        prefix = SECTION.of(self._node.config).prefix
        self.machine = EchoMachine(prefix, self._node.stored(TABLE))
        return self.machine

    def status(self, now: Nanos) -> Mapping[str, Any]:
        return {"echo": {"repeated": len(self.machine.repeated)}}


class EchoEdge(Edge):
    """`node.echo`: runs under both drivers, because it uses only its port."""

    name: ClassVar[str] = "echo"

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended = ""
        self._port: Port | None = None

    def attach(self, port: Port) -> None:
        self._port = port

    def effects(self) -> Mapping[type, EffectHandler]:
        return {Heard: lambda effect: self.heard.append(effect.text)}

    def control(self) -> Mapping[str, Control]:
        return {"echo": lambda _: {"heard": self.heard}}

    def halt(self, error: HoldfastError) -> None:
        self._port, self.ended = None, str(error)

    def say(self, peer: NodeId, text: str) -> None:
        if self._port is None:
            raise NodeStopped("the node has stopped; nothing was said")
        self._port.offer(UNIT, Say(peer, text))


def _check(config: NodeConfig, source: str) -> None:
    if len(SECTION.of(config).prefix) > 8:
        raise ConfigError(f"{source}: [echo] prefix has at most 8 letters")


def _metrics(status: Mapping[str, Any]) -> Iterable[Family]:
    repeated = status.get("echo", {}).get("repeated", 0)
    return [("holdfast_echo_repeated_total", "counter", "Texts repeated.", [({}, repeated)])]


ECHO = Subsystem(
    name="echo",
    service=EchoService,
    layers=("echo",),
    sections=(SECTION,),
    check=_check,
    frames={Shout: lambda _: (UNIT,)},
    facts=(EchoFact,),
    tables=lambda _: (Table(TABLE, kept=True),),
    metrics=_metrics,
    edge=EchoEdge,
)
