"""Breaking cycles and removing stale routes (seed: 'Handling Cycles', 'Removing Stale Routes'; rules 8 and 10).

A message that arrives twice has gone round in a circle, over an edge A-B that is one too many. Both ends take out their
routes over it for the role, and put in reverse routes instead: along the way that the message came, back to its sender.
That way leads to the other end, because the message reached it. Other roles on the edge are not built any more.

The paper lets B only forget its routes; its role would be unbuilt and the recovery would make the same edge
again. So here both ends do the same.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.overlay.builder import Builder
from holdfast.overlay.frames import Break, Message, Reverse
from holdfast.overlay.hub import Hub
from holdfast.overlay.ids import is_node, is_numbered, is_role, is_tree
from holdfast.overlay.records import Trace, record_key
from holdfast.overlay.seen import Seen
from holdfast.overlay.trees import TreeCache
from holdfast.types import SECOND, Nanos, NodeId

BROKEN_NS = 5 * SECOND
"""How long a removed edge makes other reverse routes over it suspicious."""
BROKEN_MAX = 10_000


class Cycles:
    def __init__(self, hub: Hub, cache: TreeCache, builder: Builder, seen: Seen[Trace]) -> None:
        self._hub = hub
        self._cache = cache
        self._builder = builder
        self._seen = seen
        self._broken: dict[tuple[bytes, bytes], Nanos] = {}
        """Edges (tree, peer) that were removed a short time ago."""
        self.unbuild: Callable[[bytes, bytes, str, bytes], None] = lambda *_: None
        """Tell a node that a role is not built there: something beyond `other` may be cut off."""

    # -- a message came back -------------------------------------------------------------------------------------

    def duplicate(self, peer: NodeId, message: Message, trace: Trace) -> None:
        """End B: the copy from `peer` closed a circle."""
        hub = self._hub
        # rule: O-10e
        if message.late or trace.late or message.direct or message.one or message.instance:
            return  # sent on a route that was found behind it, or on trial: breaks nothing
        if not hub.config.break_cycles or trace.sent.get(peer):
            return
        # rule: O-cycle-10a
        if hub.inside(peer) and message.entry != trace.entry:
            return  # the circle leaves the realm: only a link between realms may be broken
        hub.count("cycles")
        hub.fact("cycle", message.tree, message.role, peer=peer.hex())
        if trace.incoming == peer:
            return
        self._reroute(message.tree, message.role, message.request, message.attempt, peer, trace)
        # The other end removes the edge by force when it has put its own reverse routes in.
        # rule: O-cycle-4a
        hub.send(peer, Break(message.tree, message.role, message.request, message.attempt, False))

    def broken(self, peer: NodeId, frame: Break) -> None:
        """End A: what we sent over this link had been there already, or led nowhere."""
        if not is_tree(frame.tree) or not is_role(frame.role) or not is_numbered(frame.request):
            self._hub.count("bad_break")
            return
        trace = self._seen.get(record_key(frame.request, frame.attempt), self._hub.now)
        # rule: O-10b
        if trace is None or peer not in trace.sent:
            self._hub.count("break_without_message")
            return
        if frame.stale:
            self._remove_stale(peer, frame)
        elif not trace.sent[peer]:
            self._reroute(frame.tree, frame.role, frame.request, frame.attempt, peer, trace)
            tree = self._cache.peek(frame.tree)
            if tree is not None:
                # rule: O-cycle-9b
                self._builder.edges.force(tree, peer)

    def _reroute(
        self, tree_id: bytes, role: str, request: bytes, attempt: int, peer: NodeId, trace: Trace
    ) -> None:
        """Take the edge to `peer` out of the tree; reverse routes replace those that went over it for this role."""
        hub, tree = self._hub, self._cache.get(tree_id)
        if tree is None:
            return
        for name, state in tree.roles.items():
            # rule: O-cycle-8a
            if state.remove_over(peer) and name != role:
                state.mark_lost(peer)
        # rule: O-cycle-9a
        tree.edges.pop(peer, None)
        self._note_broken(tree_id, peer)
        if trace.incoming is None:
            return  # the sender itself: its other routes led to the other end
        frame = Reverse(tree_id, role, request, attempt, (hub.me, peer))
        # rule: O-cycle-7a
        self._reverse(frame, trace)

    def _note_broken(self, tree: bytes, peer: bytes) -> None:
        now = self._hub.now
        if len(self._broken) >= BROKEN_MAX:
            self._broken = {key: until for key, until in self._broken.items() if until > now}
        if len(self._broken) < BROKEN_MAX:
            self._broken[tree, peer] = now + BROKEN_NS

    # -- reverse routes ------------------------------------------------------------------------------------------

    def reversed(self, peer: NodeId, frame: Reverse) -> None:
        if (
            not is_tree(frame.tree)
            or not is_role(frame.role)
            or not is_numbered(frame.request)
            or not all(is_node(end) for end in frame.broke)
        ):
            self._hub.count("bad_reverse")
            return
        trace = self._seen.get(record_key(frame.request, frame.attempt), self._hub.now)
        if trace is None or peer not in trace.sent:
            # rule: O-10a
            self._suspicious(frame)
            return
        if trace.incoming is not None:
            # rule: O-cycle-7d
            self._reverse(frame, trace)

    def _reverse(self, frame: Reverse, trace: Trace) -> None:
        """Steps 7b and 7c: a dummy route over the link that the message came over, and on along it."""
        hub, incoming = self._hub, trace.incoming
        assert incoming is not None
        # rule: O-10c
        gone = self._broken.get((frame.tree, incoming), 0) > hub.now
        # rule: O-10d
        if gone or not hub.is_open(incoming):
            self._suspicious(frame)
            return
        if self._builder.add_dummy(frame.tree, frame.role, incoming):
            hub.send(incoming, frame)

    def _suspicious(self, frame: Reverse) -> None:
        """The way back is not there: both ends of the removed edge must ask before they send again (rule 10)."""
        self._hub.count("suspicious_breaks")
        first, second = frame.broke
        self.unbuild(first, frame.tree, frame.role, second)
        self.unbuild(second, frame.tree, frame.role, first)

    # -- stale routes --------------------------------------------------------------------------------------------

    def stale(self, peer: NodeId, message: Message) -> None:
        """End B: nothing is reached from here."""
        self._hub.send(
            peer, Break(message.tree, message.role, message.request, message.attempt, True)
        )

    def _remove_stale(self, peer: NodeId, frame: Break) -> None:
        """End A: only A has routes over A-B, so A removes them (the paper's step 6 names B's builder by mistake)."""
        tree = self._cache.get(frame.tree)
        state = tree.roles.get(frame.role) if tree is not None else None
        if tree is None or state is None:
            return
        # rule: O-stale-6a
        if state.remove_over(peer):
            self._hub.count("stale_removed")
            self._hub.fact("stale", frame.tree, frame.role, peer=peer.hex())
        # rule: O-stale-6b
        self._builder.edges.tidy(tree)
