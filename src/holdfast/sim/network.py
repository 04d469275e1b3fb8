"""Adapters with addresses on named subnets, the paths between them, and the active faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import MisuseError
from holdfast.faults.model import ANY, Blackout, Fault, Where
from holdfast.links.measuring import FRAG
from holdfast.links.ports import FlowOpened, OpenFailed, OpenFlow
from holdfast.sim.connect import Connecting
from holdfast.sim.multicast import MulticastEnd
from holdfast.sim.path import ActiveFault, Fate, Path, Subnet
from holdfast.sim.seeds import chance
from holdfast.sim.tcp import TcpSettings
from holdfast.sim.udp import HEADS, Address, UdpEnd

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

FIRST_PORT: Final = 32_768
OFF: Final = Fault(Where(), Blackout())


class Adapter:
    """One address of one host on one subnet."""

    __slots__ = ("_port", "address", "host", "name", "subnet", "transports", "udp")

    def __init__(
        self,
        host: Host,
        name: str,
        subnet: Subnet,
        address: Address,
        transports: tuple[str, ...],
    ) -> None:
        self.host = host
        self.name = name
        self.subnet = subnet
        self.address = address
        self.transports = transports
        self.udp: dict[tuple[int, Address], UdpEnd] = {}
        """Datagram flows by local port and remote address; they end with the process."""
        self._port = FIRST_PORT

    @property
    def end(self) -> tuple[str, str]:
        return self.host.name, self.name

    def next_port(self) -> int:
        """A local port for a connection, so that every connection is a separate flow."""
        self._port += 1
        return self._port


class Network:
    """Connects the hosts of a world. Faults can be added and removed at any time, and affect what is sent from then
    on."""

    def __init__(self, world: World, tcp: TcpSettings | None = None) -> None:
        self._world = world
        self.tcp = tcp or TcpSettings()
        self.fate = Fate()
        self.subnets: dict[str, Subnet] = {}
        self.adapters: dict[Address, Adapter] = {}
        self.faults: dict[int, ActiveFault] = {}
        self._sides: dict[Address, Adapter] = {}
        """Additional sockets of an adapter: they receive only from the peer they were opened for."""
        self._groups: dict[tuple[str, Address], dict[Adapter, MulticastEnd]] = {}
        self._paths: dict[tuple[Address, Address], Path] = {}
        self._next_id = 1

    # -- building ------------------------------------------------------------------------------------------------

    def subnet(self, name: str, **settings: int) -> Subnet:
        """The subnet with this name, created with `settings` (`delay_ns`, `jitter_ns`, `mtu`) if it is new."""
        if name not in self.subnets:
            self.subnets[name] = Subnet(name, **settings)
        elif settings:
            raise MisuseError(f"subnet {name} already exists; give its settings the first time")
        return self.subnets[name]

    def attach(
        self,
        host: Host,
        name: str,
        subnet: str,
        address: Address,
        transports: tuple[str, ...] = ("tcp", "udp"),
    ) -> Adapter:
        """Give `host` an adapter. It listens whenever the process of the host runs."""
        if address in self.adapters:
            owner = self.adapters[address].host.name
            raise MisuseError(f"address {address[0]}:{address[1]} already belongs to {owner}")
        if name in host.adapters:
            raise MisuseError(f"host {host.name} already has an adapter {name}")
        adapter = Adapter(host, name, self.subnet(subnet), address, transports)
        self.adapters[address] = host.adapters[name] = adapter
        return adapter

    # -- paths and faults ----------------------------------------------------------------------------------------

    def path(self, sender: Adapter, listener: Adapter) -> Path:
        key = (sender.address, listener.address)
        path = self._paths.get(key)
        if path is None:
            names = (*sender.end, *listener.end)
            random = chance(self._world.seed, "path", *names)
            path = Path(sender.subnet, sender.end, listener.end, random)
            path.faults = self._faults_of(path)
            self._paths[key] = path
        return path

    def paths(self) -> list[Path]:
        """Every path that was used so far."""
        return list(self._paths.values())

    def add(self, fault: Fault) -> int:
        """Add a fault; the number is for `remove`."""
        number = self._next_id
        self._next_id += 1
        self.faults[number] = ActiveFault(number, fault, self._world.now)
        self._refresh()
        return number

    def remove(self, number: int) -> bool:
        """Remove a fault; False if it is not active."""
        if self.faults.pop(number, None) is None:
            return False
        self._refresh()
        return True

    def clear(self) -> None:
        """Remove all faults."""
        self.faults.clear()
        self._refresh()

    def _refresh(self) -> None:
        for path in self._paths.values():
            path.faults = self._faults_of(path)

    def _faults_of(self, path: Path) -> list[ActiveFault]:
        """The faults of one path, each with its own state; those that stay keep it."""
        before = {active.id: active for active in path.faults}
        found = []
        for active in self.faults.values():
            if active.fault.where.covers(path.subnet.name, path.sender, path.listener):
                own = before.get(active.id)
                found.append(own or ActiveFault(active.id, active.fault, active.since_ns))
        if not (self._powered(path.sender[0]) and self._powered(path.listener[0])):
            found.append(ActiveFault(0, OFF, 0))
        return found

    def _powered(self, host: str) -> bool:
        return host == ANY or self._world.hosts[host].powered

    def power_changed(self) -> None:
        """A machine was switched off or on: nothing passes from or to one that is off."""
        self._refresh()

    # -- flows ---------------------------------------------------------------------------------------------------

    def reach(self, adapter: Adapter, address: Address) -> Adapter | None:
        """The owner of this address on the subnet of the adapter."""
        found = self.adapters.get(address) or self._sides.get(address)
        return found if found is not None and found.subnet is adapter.subnet else None

    def open(self, host: Host, effect: OpenFlow) -> None:
        adapter = host.adapters.get(effect.adapter)
        place = (effect.adapter, effect.transport, effect.host, effect.port)
        known = (*adapter.transports, "multicast") if adapter is not None else ()
        if adapter is None or effect.transport not in known:
            reason = f"adapter {effect.adapter} has no {effect.transport}"
            host.tell(OpenFailed(*place, effect.unit, reason, effect.use))
            return
        if effect.transport == "tcp":
            Connecting(self._world, host, adapter, effect)
            return
        if effect.transport == "multicast":
            end: UdpEnd | MulticastEnd = self._join(adapter, (effect.host, effect.port))
        else:
            end = self._open_udp(adapter, effect)
        flow = FlowOpened(end.flow, *place, False, effect.unit, None, effect.use, HEADS)
        host.tell(flow)

    def _join(self, adapter: Adapter, group: Address) -> MulticastEnd:
        members = self._groups.setdefault((adapter.subnet.name, group), {})
        host = adapter.host
        end = MulticastEnd(self._world, host, adapter, group, members, host.next_flow())
        host.flows[end.flow] = end
        return end

    def _open_udp(self, adapter: Adapter, effect: OpenFlow) -> UdpEnd:
        """A flow of the socket of the adapter or, for measuring, of a separate socket."""
        remote = (effect.host, effect.port)
        if not effect.use:
            local = adapter.address
            return adapter.udp.get((local[1], remote)) or self._udp_end(adapter, local, remote)
        local = (adapter.address[0], adapter.next_port())
        self._sides[local] = adapter
        end = self._udp_end(adapter, local, remote)
        end.fragments = effect.use == FRAG
        return end

    def _udp_end(self, adapter: Adapter, local: Address, remote: Address) -> UdpEnd:
        target = self.reach(adapter, remote)
        if target is None:
            path = self._nowhere(adapter)
        else:
            path = self.path(adapter, target)
        host = adapter.host
        end = UdpEnd(self._world, host, adapter, local, remote, path, host.next_flow())
        adapter.udp[(local[1], remote)] = host.flows[end.flow] = end
        return end

    def forget_udp(self, end: UdpEnd) -> None:
        end.adapter.udp.pop((end.local[1], end.remote), None)
        self._sides.pop(end.local, None)

    def process_gone(self, adapter: Adapter) -> None:
        """Close all sockets of an adapter."""
        for end in adapter.udp.values():
            self._sides.pop(end.local, None)
        adapter.udp.clear()
        for (subnet, _), members in self._groups.items():
            if subnet == adapter.subnet.name:
                members.pop(adapter, None)

    def _nowhere(self, adapter: Adapter) -> Path:
        """The path to an unused address: everything is lost."""
        random = chance(self._world.seed, "nowhere")
        path = Path(adapter.subnet, adapter.end, (ANY, ANY), random)
        path.faults = [ActiveFault(0, OFF, 0)]
        return path

    def udp_peer(self, end: UdpEnd) -> UdpEnd | None:
        """The other side of a datagram flow, created by the first packet; None if no socket listens."""
        target = self.reach(end.adapter, end.remote)
        if target is None or not target.host.alive or "udp" not in target.transports:
            return None
        peer = target.udp.get((end.remote[1], end.local))
        if peer is None:
            if end.remote in self._sides:
                return None
            peer = self._udp_end(target, end.remote, end.local)
            opened = FlowOpened(peer.flow, target.name, "udp", *end.local, True, overhead=HEADS)
            target.host.tell(opened)
        return peer
