"""Sessions with neighbouring overlay units.

Each session begins with a hello that carries this unit's epoch and echoes the neighbour's. Frames count only after the
neighbour has echoed our epoch: what was sent to an earlier unit is not meant for this one. A new epoch of the
neighbour is a link failure (rule 15), because its unit was rebuilt and has forgotten our messages.

The two channels of a link have no common order. The hello that echoes an epoch is sent on both, ahead of all else.
"""

from __future__ import annotations

import msgspec

from holdfast.overlay.builder import Builder
from holdfast.overlay.direct import Direct
from holdfast.overlay.flow import Flow
from holdfast.overlay.frames import HopPing, OverlayHello
from holdfast.overlay.hub import Hub, Neighbour
from holdfast.overlay.ids import REALM_BYTES_MAX
from holdfast.overlay.joining import Joining
from holdfast.overlay.partition import Partition
from holdfast.overlay.router import Router
from holdfast.overlay.topology import Topology
from holdfast.overlay.waves import Waves
from holdfast.types import DATA, SYNC, NodeId


class Sessions:
    def __init__(
        self,
        hub: Hub,
        topology: Topology,
        partition: Partition,
        builder: Builder,
        waves: Waves,
        router: Router,
        flow: Flow,
        joining: Joining,
        direct: Direct,
    ) -> None:
        self._hub = hub
        self._topology = topology
        self._partition = partition
        self._builder = builder
        self._waves = waves
        self._router = router
        self._flow = flow
        self._joining = joining
        self._direct = direct

    def _say_hello(self, neighbour: Neighbour) -> None:
        hub = self._hub
        hello = OverlayHello(
            hub.epoch,
            neighbour.epoch,
            hub.realm,
            hub.incarnation,
            self._partition.colour,
            self._partition.clock,
            self._partition.settled,
        )
        hub.send(neighbour.peer, hello, SYNC)
        if hello.echo:
            hub.send(neighbour.peer, msgspec.structs.replace(hello, copy=True), DATA)

    def up(self, peer: NodeId) -> None:
        # rule: O-14b
        if peer in self._hub.neighbours:
            self.down(peer)
        neighbour = self._hub.neighbours[peer] = Neighbour(
            peer, self._hub.config.credit, self._hub.now
        )
        self._hub.changed_at = self._hub.now
        self._say_hello(neighbour)

    def down(self, peer: NodeId) -> None:
        neighbour = self._hub.neighbours.pop(peer, None)
        if neighbour is not None:
            self._closed(neighbour)

    def _closed(self, neighbour: Neighbour) -> None:
        """The session is over: routes, waves and messages over it end, in this order."""
        hub, peer = self._hub, neighbour.peer
        hub.drop_frames_to(peer)
        self._flow.link_down(neighbour)
        if peer not in hub.open_peers:
            return
        hub.open_peers = tuple(p for p in hub.open_peers if p != peer)
        self._builder.link_down(peer, neighbour.realm != hub.realm)
        self._topology.link_down(peer)
        self._partition.link_down(peer)
        self._waves.link_down(peer)
        self._router.link_down(peer)

    def hello(self, peer: NodeId, hello: OverlayHello) -> None:
        hub = self._hub
        if not 0 < hello.epoch < 1 << 31 or not 0 < len(hello.realm.encode()) <= REALM_BYTES_MAX:
            hub.count("bad_hello")
            return
        neighbour = hub.neighbours[peer]
        said = msgspec.structs.replace(hello, copy=False)
        if said == neighbour.hello or (hello.copy and hello.epoch < neighbour.epoch):
            return  # the other one came first
        # rule: O-15a
        if neighbour.epoch not in (0, hello.epoch):
            hub.count("epochs_changed")
            self._closed(neighbour)
            self._topology.forgot(peer)
            neighbour = hub.neighbours[peer] = Neighbour(peer, hub.config.credit, hub.now)
        known = neighbour.epoch == hello.epoch
        neighbour.epoch = hello.epoch
        neighbour.realm = hello.realm
        neighbour.incarnation = hello.incarnation
        if not known or hello.echo != hub.epoch:
            self._say_hello(neighbour)
        if hello.echo == hub.epoch:
            neighbour.hello = said
        if hello.echo == hub.epoch and not neighbour.echoed:
            neighbour.echoed = True
            self._opened(neighbour, hello)
        elif neighbour.open and hello.echo == hub.epoch:
            self._partition.link_up(peer, hello, self._partition.settled)

    def _opened(self, neighbour: Neighbour, hello: OverlayHello) -> None:
        hub, peer = self._hub, neighbour.peer
        hub.changed_at = hub.now
        was_settled = self._partition.settled
        first = not hub.open_peers
        hub.open_peers = tuple(sorted((*hub.open_peers, peer)))
        self._topology.link_up(peer)
        self._partition.link_up(peer, hello, was_settled)
        if self._partition.settled and not was_settled:
            # Neighbours whose session is not open yet were told otherwise.
            for other in hub.neighbours.values():
                if not other.open and other.epoch:
                    self._say_hello(other)
        if first:
            self._joining.ask(peer)
        hub.send(peer, HopPing(hub.now))
        self._direct.link_up(peer)
