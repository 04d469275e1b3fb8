"""Partition colours and un-partition events (seed: 'Handling Network Partitioning', 'Detecting Un-Partitioning').

Every node has a colour from boot (rule 4). It yields it silently only while no role exists on its side of the
network; the first role that is published settles the whole side, and that spreads with the colour. A node that loses
a link, and after a settling time cannot reach the other end in any way, makes a new colour and spreads it; the
highest (clock, colour) wins. All neighbours of a node that dies see that at about the same time: each waits for a
random time, and makes no colour if another one arrives meanwhile. When a link comes up between two colours, a
partition has healed: each end tells its own side, and every role remembers which of these events it has recovered
from. Recovery goes to the near end of the new link, over it, and on from there.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.overlay.checks import sound_cut
from holdfast.overlay.frames import Colour, CutHealed, OverlayHello, Unpartition
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import is_node
from holdfast.overlay.seen import Seen
from holdfast.overlay.topology import Topology
from holdfast.overlay.trees import RoleState, TreeCache
from holdfast.types import SECOND, SYNC, NodeId

COLOUR_BYTES = 16
CLOCK_MAX = 1 << 62
GONE_MAX = 16
PER_SIDE = 3
SEEN_MAX = 10_000
SEEN_NS = 600 * SECOND


class Cuts:
    """The healed partitions that this node knows of, numbered as they came, with a bound."""

    def __init__(self, hub: Hub, topology: Topology, cache: TreeCache) -> None:
        self._hub = hub
        self._topology = topology
        self._cache = cache
        self._events: list[CutHealed] = []
        self._seen: Seen[bool] = Seen(SEEN_MAX)
        self._dropped = 0

    @property
    def count(self) -> int:
        return self._dropped + len(self._events)

    def add(self, event: CutHealed) -> bool:
        """False when it is known."""
        hub = self._hub
        key = event.near + event.number.to_bytes(8, "big")
        if self._seen.get(key, hub.now) or not self._seen.put(
            key, True, hub.now, hub.now + SEEN_NS
        ):
            return False
        self._events.append(event)
        if len(self._events) > hub.config.events_max:
            self._events.pop(0)
            self._dropped += 1
            hub.count("unpartition_dropped")
        self._cache.cuts = self.count
        return True

    def enough(self, colours: tuple[bytes, bytes]) -> bool:
        """Whether as many links as are needed are known to join these two sides."""
        sides = sorted(colours)
        return sum(sorted(event.colours) == sides for event in self._events) >= PER_SIDE

    def open_for(self, state: RoleState | None, realm_only: bool) -> bool:
        return state is not None and _done(state, realm_only) < self.count

    def missed(self, state: RoleState | None, realm_only: bool) -> bool:
        """Whether events that this role has not recovered from have left the list."""
        # rule: O-20e
        return state is not None and _done(state, realm_only) < self._dropped

    def legs(self, state: RoleState, realm_only: bool) -> list[tuple[bytes, bytes]]:
        """(near, far) of the links to cross; those that are gone, or inside what we reach anyway, are skipped."""
        # rule: O-partition-1a
        missed = self._events[max(_done(state, realm_only) - self._dropped, 0) :]
        return [(e.near, e.far) for e in missed if self._topology.reaches(e.near)]


def _done(state: RoleState, realm_only: bool) -> int:
    return state.cuts_done_inside if realm_only else state.cuts_done


class Partition:
    def __init__(self, hub: Hub, topology: Topology, cuts: Cuts) -> None:
        self._hub = hub
        self._topology = topology
        self._cuts = cuts
        self.clock = 1
        self.colour = hub.rng.randbytes(COLOUR_BYTES)
        self.settled = False
        """There is a role on this side of the network, so there is something to recover when a partition heals."""
        self._number = 0
        self._lost: dict[NodeId, bool] = {}
        self._settling = False
        self._gone: list[NodeId] = []
        """Peers that could not be reached after the settling time, until a new colour is made or arrives."""
        self.healed: Callable[[], None] = lambda: None
        """To the registrar: holders and firsts recover now (rule 5)."""

    # -- hello ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """A role exists on our side."""
        if not self.settled:
            self.settled = True
            self._spread_colour(None)

    def link_up(self, peer: NodeId, hello: OverlayHello, was_settled: bool) -> None:
        """The session with a neighbour opened; `was_settled`: so were we, before it did."""
        self._lost.pop(peer, None)
        theirs = (hello.clock, hello.colour)
        mine = (self.clock, self.colour)
        if len(hello.colour) != COLOUR_BYTES or not 0 <= hello.clock < CLOCK_MAX:
            self._hub.count("bad_colour")
            return
        if theirs == mine:
            if hello.settled:
                self.settle()
            return
        # rule: O-4a
        if hello.settled and was_settled:
            self._heal(peer, (self.colour, hello.colour))
        if hello.settled == was_settled:
            takes = theirs > mine
        else:
            takes = hello.settled  # a fresh node takes the colour of the domain that it joins
        if takes:
            self.settled |= hello.settled
            self._take(hello.clock, hello.colour, peer)

    def _heal(self, peer: NodeId, colours: tuple[bytes, bytes]) -> None:
        """Tell our side, unless others have told it enough by then: many links may come back at once."""

        def tell() -> None:
            hub = self._hub
            if self._cuts.enough(colours) or not hub.is_open(peer):
                return
            self._number += 1
            number = hub.epoch << 32 | self._number
            self._spread_event(CutHealed(hub.me, hub.realm, peer, number, colours), peer)

        self._hub.after(self._hub.rng.randrange(self._hub.config.settle_ns // 4), tell)

    def _spread_event(self, event: CutHealed, source: NodeId) -> None:
        if not self._cuts.add(event):
            return
        hub = self._hub
        hub.count("unpartitions")
        hub.fact("unpartition", peer=event.far.hex())
        hub.event("unpartition", nodes=(event.near, event.far), detail=event.realm)
        for peer in hub.open_peers:
            # rule: O-partition-1b
            if peer not in (source, event.far):
                hub.send(peer, Unpartition(event), SYNC)
        # rule: O-5a
        self.healed()

    def received_event(self, peer: NodeId, frame: Unpartition) -> None:
        if not sound_cut(frame.event):
            self._hub.count("bad_unpartition")
            return
        self._spread_event(frame.event, peer)

    # -- colours -------------------------------------------------------------------------------------------------

    def received_colour(self, peer: NodeId, frame: Colour) -> None:
        if (
            len(frame.colour) != COLOUR_BYTES
            or not 0 <= frame.clock < CLOCK_MAX
            or len(frame.gone) > GONE_MAX
            or not all(is_node(node) for node in frame.gone)
        ):
            self._hub.count("bad_colour")
            return
        theirs, mine = (frame.clock, frame.colour), (self.clock, self.colour)
        if frame.settled and not self.settled:
            self.settled = True
            self._take(max(theirs, mine)[0], max(theirs, mine)[1], None)
        elif theirs > mine:
            if frame.gone:
                self._gone = []
                self._hub.event("partition", nodes=frame.gone)
            self._take(frame.clock, frame.colour, peer, frame.gone)

    def _take(
        self, clock: int, colour: bytes, source: NodeId | None, gone: tuple[bytes, ...] = ()
    ) -> None:
        self.clock = clock
        self.colour = colour
        self._spread_colour(source, gone)

    def _spread_colour(self, source: NodeId | None, gone: tuple[bytes, ...] = ()) -> None:
        frame = Colour(self.colour, self.clock, self.settled, gone)
        for peer in self._hub.open_peers:
            if peer != source:
                self._hub.send(peer, frame, SYNC)

    def link_down(self, peer: NodeId) -> None:
        self._lost[peer] = True
        self._wait()

    def _wait(self) -> None:
        if self._lost and not self._settling:
            self._settling = True
            self._hub.after(self._hub.config.settle_ns, self._confirm)

    def _confirm(self) -> None:
        """The settling time is over: is the other end reached in another way?"""
        self._settling = False
        lost, self._lost = self._lost, {}
        # rule: O-partition-2a
        gone = [peer for peer in lost if not self._topology.reaches(peer)]
        if not gone:
            return
        if not self._gone:
            self._hub.after(self._hub.rng.randrange(self._hub.config.settle_ns), self._separate)
        self._gone += gone

    def _separate(self) -> None:
        """Make a new colour for our side, unless another node has."""
        # rule: O-partition-2b
        gone, self._gone = [p for p in self._gone if not self._topology.reaches(p)], []
        if not gone:
            return
        hub = self._hub
        hub.count("partitions")
        hub.event("partition", nodes=tuple(gone))
        hub.fact("partition", peer=gone[0].hex(), count=len(gone))
        colour = hub.rng.randbytes(COLOUR_BYTES)
        self._take(self.clock + 1, colour, None, tuple(gone[:GONE_MAX]))

    def status(self) -> dict[str, object]:
        return {
            "colour": self.colour.hex(),
            "clock": self.clock,
            "unpartitions": self._cuts.count,
        }
