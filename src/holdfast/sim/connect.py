"""Opening a connection: the first packets go back and forth, with retries until the time is up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.links.measuring import mss_of
from holdfast.links.ports import FlowOpened, Identity, OpenFailed, OpenFlow
from holdfast.sim.tcp import HEADS, PREFIX, Pipe, TcpEnd
from holdfast.types import MILLISECOND, Nanos

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.network import Adapter
    from holdfast.sim.path import Path
    from holdfast.sim.world import World

SYN_SIZE: Final = 60
AGAIN_NS: Final = 500 * MILLISECOND
BUSY_NS: Final = 50 * MILLISECOND


class Connecting:
    """One attempt of one host; ends in `FlowOpened` or `OpenFailed`, or with the host."""

    __slots__ = ("_adapter", "_begun_ns", "_boots", "_effect", "_host", "_port", "_world")

    def __init__(self, world: World, host: Host, adapter: Adapter, effect: OpenFlow) -> None:
        self._world = world
        self._host = host
        self._boots = host.boots
        self._adapter = adapter
        self._effect = effect
        self._begun_ns = world.now
        self._port = adapter.next_port()
        self._try(None)

    def _try(self, _: None) -> None:
        world, effect = self._world, self._effect
        if not self._current():
            return
        target = world.network.reach(self._adapter, (effect.host, effect.port))
        if target is None:
            self._fail("no route")
            return
        if world.now - self._begun_ns >= world.network.tcp.connect_timeout_ns:
            self._fail("timed out")
            return
        out = world.network.path(self._adapter, target)
        back = world.network.path(target, self._adapter)
        there_ns, again_ns = self._cross(out), self._cross(back)
        if there_ns is None or again_ns is None:
            world.at(world.now + AGAIN_NS, self._try, None)
        elif world.secure and target.host.paused:
            # A paused process cannot take part in a TLS handshake; its kernel only accepts the connection.
            world.at(world.now + BUSY_NS, self._try, None)
        else:
            world.at(world.now + there_ns + again_ns, self._made, target)

    def _cross(self, path: Path) -> Nanos | None:
        """How long the first packet takes on this path; None if it is lost."""
        fate = self._world.network.fate
        path.judge(self._world.now, "tcp", self._key(), b"", SYN_SIZE, fate)
        return None if fate.lost else path.base_ns() + fate.late_ns

    def _key(self) -> bytes:
        effect = self._effect
        local = self._adapter.address[0]
        return f"tcp {local}:{self._port} {effect.host}:{effect.port}".encode()

    def _current(self) -> bool:
        return self._host.alive and self._host.boots == self._boots

    def _fail(self, reason: str) -> None:
        effect = self._effect
        self._host.tell(
            OpenFailed(
                effect.adapter,
                effect.transport,
                effect.host,
                effect.port,
                effect.unit,
                reason,
                effect.use,
            )
        )

    def _made(self, target: Adapter) -> None:
        if not self._current():
            return
        server = target.host
        if not server.alive or "tcp" not in target.transports:
            self._fail("connection refused")
            return
        world, effect, adapter = self._world, self._effect, self._adapter
        local = (adapter.address[0], self._port)
        near = TcpEnd(self._host, adapter, target.address, self._host.next_flow())
        far = TcpEnd(server, target, local, server.next_flow())
        out, back = world.network.path(adapter, target), world.network.path(target, adapter)
        measured = mss_of(effect.use)
        mss, measures = measured or effect.segment, bool(measured)
        near.out = far.into = Pipe(world, near, far, out, back, self._key(), mss, measures)
        back_key = f"tcp {effect.host}:{effect.port} {local[0]}:{local[1]}".encode()
        far.out = near.into = Pipe(world, far, near, back, out, back_key, mss, measures)
        self._host.flows[near.flow] = near
        server.flows[far.flow] = far
        self._host.tell(
            FlowOpened(
                near.flow, adapter.name, "tcp", effect.host, effect.port, inbound=False,
                unit=effect.unit, identity=self._identity(server), use=effect.use,
                overhead=HEADS + PREFIX,
            )
        )  # fmt: skip
        near.out.last_ns = world.now + out.base_ns()
        world.at(near.out.last_ns, self._accepted, far)

    def _accepted(self, far: TcpEnd) -> None:
        """The last packet of the handshake arrived: the server process learns of the flow."""
        if far.open:
            host, port = far.remote
            far.host.tell(
                FlowOpened(
                    far.flow, far.adapter.name, "tcp", host, port, inbound=True,
                    identity=self._identity(self._host), use=self._effect.use,
                    overhead=HEADS + PREFIX,
                )
            )  # fmt: skip

    def _identity(self, host: Host) -> Identity | None:
        """The identity in the certificate of `host`. TLS itself is not simulated; measuring flows do not use it."""
        if self._effect.use or not self._world.secure:
            return None
        return Identity(b"", host.name, self._world.domain)
