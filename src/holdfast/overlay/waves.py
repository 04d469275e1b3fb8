"""Waves: builder messages that end by counting (rule 6).

A node that forwards a wave over some links owes its sender one answer, and is owed one by each of those links. It
answers when it has all of theirs. A link that fails counts as an answer `failed`; a node that has seen the wave
answers `seen`. So the node that began knows when every node that was reached has finished, without waiting for a
time-out. A time-out exists for nodes that never answer; it reports the wave as failed.

A wave with a target is routed to that node first, hop by hop, and only there acted upon. Answers take the same way
back, and leave routes to the instances that they name at every node they pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.overlay.checks import sound_answer, sound_wave
from holdfast.overlay.frames import (
    DONE,
    FAILED,
    PUBLISH,
    RECOVER,
    SEEN,
    Entry,
    Found,
    Wave,
    WaveAnswer,
)
from holdfast.overlay.hoptimes import HopTimes
from holdfast.overlay.hub import Hub, Timer
from holdfast.overlay.ids import node_of
from holdfast.overlay.seen import Seen
from holdfast.overlay.topology import Topology
from holdfast.types import MILLISECOND, Nanos, NodeId

HOPS_MAX: Final = 64
FOUND_MAX: Final = 1024

Sends = list[tuple[NodeId, Wave]]


class Result:
    """What came of a wave so far."""

    __slots__ = ("accepted", "beaten", "entry", "failed", "found", "met", "met_over", "seen")

    def __init__(self) -> None:
        self.failed = False
        self.seen = False
        self.found: dict[bytes, Found] = {}
        self.met: dict[bytes, bool] = {}
        self.met_over: dict[bytes, bool] = {}
        """Links over which a publish met another instance."""
        self.beaten: tuple[int, bytes] | None = None
        self.entry: Entry | None = None
        self.accepted = False


class WaveState:
    __slots__ = (
        "done",
        "frame",
        "inside",
        "on_done",
        "orphan",
        "parent",
        "result",
        "started",
        "timer",
        "waiting",
    )

    def __init__(self, frame: Wave, parent: NodeId | None, now: Nanos) -> None:
        self.frame = frame
        self.parent = parent
        """The neighbour that is owed an answer; None where the wave began."""
        self.waiting: dict[tuple[bytes, NodeId], bool] = {}
        self.result = Result()
        self.started = now
        self.timer: Timer | None = None
        self.on_done: list[Callable[[Result], None]] = []
        self.orphan = False
        self.done = False
        self.inside = frame.realm_only


class Waves:
    def __init__(self, hub: Hub, topology: Topology, times: HopTimes) -> None:
        self._hub = hub
        self._topology = topology
        self.times = times
        self._owed: dict[tuple[bytes, NodeId], WaveState] = {}
        self._seen: Seen[bool] = Seen(hub.config.seen_max)
        """Roots that were processed here, and whether they came from inside the realm."""
        self.act: dict[int, Callable[[WaveState], Sends]] = {}
        """What a node does with a wave of each kind: fills in the result and says where it goes on."""
        self.learn: Callable[[WaveState, Found, NodeId], None] = lambda *_: None
        """An answer names an instance beyond a link."""
        self.passing: Callable[[WaveState], Sends | None] = lambda *_: []
        """A wave for another node passes: where it goes besides; None stops it here."""

    # -- beginning -----------------------------------------------------------------------------------------------

    def wave(self, kind: int, tree: bytes, role: str, **fields: object) -> Wave:
        """A new wave of this node."""
        made = self._hub.new_id()
        timeout = self.times.timeout(bool(fields.get("realm_only")), self._topology.size())
        given: dict[str, Any] = {"ttl_ms": timeout // MILLISECOND, "hop_us": self.times.local_us()}
        given.update(fields)
        return Wave(made, made, kind, tree, role, **given)

    def leg(self, frame: Wave, **fields: object) -> Wave:
        """A wave of its own under the same root."""
        return msgspec.structs.replace(frame, wave=self._hub.new_id(), **fields)

    def begin(
        self, frame: Wave, sends: Sends, done: Callable[[Result], None], acts: bool = False
    ) -> None:
        """Send the first copies. `acts`: this node forwards by the rules, as any other does."""
        state = WaveState(frame, None, self._hub.now)
        state.on_done.append(done)
        self._seen.put(frame.root, True, self._hub.now, self._until(frame))
        if acts:
            sends = sends + self.act[frame.kind](state)
        self._start(state, sends)

    def directed(self, frame: Wave, target: bytes, then: bytes = b"") -> Sends:
        """A leg to a node, through the neighbour that is next on the way; empty when there is none."""
        hop = self._topology.next_hop(target, frame.realm_only)
        if hop is None or not self._hub.is_open(hop):
            return []
        return [(hop, self.leg(frame, target=target, then=then, hops=frame.hops + 1))]

    def crossing(self, frame: Wave, far: bytes) -> Sends:
        """A leg to the far end of a healed cut. If that link is gone again, the far end is asked in any way there
        is; if it cannot be reached, there is nothing to recover from. What stays in the realm does not cross a link to
        another one."""
        # rule: O-partition-1c
        if self._hub.is_open(far) and (not frame.realm_only or self._hub.inside(far)):
            return [(NodeId(far), self.leg(frame, target=b"", then=b"", hops=frame.hops + 1))]
        return self.directed(frame, far)

    def _until(self, frame: Wave) -> Nanos:
        return self._hub.now + 2 * frame.ttl_ms * MILLISECOND

    def _start(self, state: WaveState, sends: Sends) -> None:
        hub = self._hub
        for peer, frame in sends:
            key = (frame.wave, peer)
            if not hub.is_open(peer):
                state.result.failed = True
                continue
            if key in self._owed:
                # It came again, from inside the realm, and is on its way over this link: the peer would have seen it.
                state.result.seen = True
                continue
            self._owed[key] = state
            state.waiting[key] = True
            hub.send(peer, frame)
        if state.waiting:
            state.timer = hub.after(
                state.frame.ttl_ms * MILLISECOND, lambda: self._timed_out(state)
            )
        else:
            self._finish(state)

    # -- arrival -------------------------------------------------------------------------------------------------

    def received(self, peer: NodeId, frame: Wave) -> None:
        hub = self._hub
        if not sound_wave(frame):
            hub.count("bad_wave")
            return
        neighbour = hub.neighbours[peer]
        self.times.heard(frame.hop_us)
        if neighbour.waves >= hub.config.waves_per_peer_max or frame.hops > HOPS_MAX:
            hub.count("wave_refused")
            self._answer(peer, frame.wave, FAILED)
            return
        neighbour.waves += 1
        state = WaveState(frame, peer, hub.now)
        if frame.target and frame.target != hub.me:
            self._pass_on(state)
        elif frame.then:
            self._start(state, self.crossing(frame, frame.then))
        else:
            self._act(state)

    def _pass_on(self, state: WaveState) -> None:
        frame = state.frame
        hop = self._topology.next_hop(frame.target, frame.realm_only)
        if hop is None or hop == state.parent or not self._hub.is_open(hop):
            self._hub.count("wave_unroutable")
            state.result.failed = True
            self._finish(state)
            return
        besides = self.passing(state)
        if besides is None:
            self._finish(state)
            return
        on = [(hop, self._onward(frame))]
        self._start(state, on + [(peer, copy) for peer, copy in besides if peer != hop])

    def _onward(self, frame: Wave) -> Wave:
        left = max(frame.ttl_ms * 9 // 10, 1)
        return msgspec.structs.replace(
            frame, hops=frame.hops + 1, ttl_ms=left, hop_us=self.times.local_us()
        )

    def _act(self, state: WaveState) -> None:
        """Rule 1: each root once; again only if it first came from outside the realm and now from inside."""
        hub, frame = self._hub, state.frame
        assert state.parent is not None
        inside = hub.inside(state.parent)
        before = self._seen.get(frame.root, hub.now)
        # rule: O-publish-1a
        if before is not None and (before or not inside):
            state.result.seen = True
            self._finish(state)
            return
        if not self._seen.put(frame.root, inside, hub.now, self._until(frame)):
            hub.count("seen_full")
            state.result.failed = True
            self._finish(state)
            return
        act = self.act.get(frame.kind)
        if act is None:
            hub.count("bad_wave")
            state.result.failed = True
            self._finish(state)
            return
        self._start(state, act(state))

    def onward(self, state: WaveState, links: list[NodeId], **fields: object) -> Sends:
        """The same wave over these links; no further than its extent."""
        frame = state.frame
        if 0 <= frame.extent <= frame.hops:
            return []
        changed = msgspec.structs.replace(self._onward(frame), target=b"", then=b"", **fields)
        return [(link, changed) for link in links]

    # -- answers -------------------------------------------------------------------------------------------------

    def answered(self, peer: NodeId, answer: WaveAnswer) -> None:
        hub = self._hub
        if not sound_answer(answer):
            hub.count("bad_wave_answer")
            return
        state = self._owed.pop((answer.wave, peer), None)
        if state is None:
            hub.count("wave_answer_without_wave")
            return
        self.times.heard(answer.hop_us)
        state.waiting.pop((answer.wave, peer), None)
        result = state.result
        result.failed |= answer.status == FAILED
        result.seen |= answer.status == SEEN
        for found in answer.found:
            here = msgspec.structs.replace(found, hops=found.hops + 1)
            if state.frame.kind in (RECOVER, PUBLISH):
                self.learn(state, here, peer)
            known = result.found.get(here.instance)
            if known is None or (here.seq, -here.hops) > (known.seq, -known.hops):
                result.found[here.instance] = here
        for met in answer.met:
            result.met[met] = result.met_over[peer] = True
        if answer.beaten_by:
            beaten = (answer.beaten_epoch, answer.beaten_by)
            result.beaten = max(result.beaten or beaten, beaten)
        if answer.entry is not None:
            result.entry = answer.entry
        result.accepted |= answer.accepted
        if not state.waiting:
            self._finish(state)

    def _timed_out(self, state: WaveState) -> None:
        if state.done:
            return
        self._hub.count("wave_timeout")
        for key in state.waiting:
            self._owed.pop(key, None)
        state.waiting.clear()
        # rule: O-6b
        state.result.failed = True
        self._finish(state)

    def _finish(self, state: WaveState) -> None:
        assert not state.done
        state.done = True
        if state.timer is not None:
            state.timer.cancel()
        result, frame = state.result, state.frame
        for done in state.on_done:
            done(result)
        if state.parent is None:
            if not result.failed and self._hub.now > state.started:
                self.times.round_trip(state.inside, self._hub.now - state.started)
            return
        if state.orphan:
            return
        self._hub.neighbours[state.parent].waves -= 1
        status = FAILED if result.failed else SEEN if result.seen and not result.found else DONE
        self._answer(state.parent, frame.wave, status, result)

    def _answer(self, peer: NodeId, wave: bytes, status: int, result: Result | None = None) -> None:
        if not self._hub.is_open(peer):
            return
        hop_us = self.times.local_us()
        if result is None:
            self._hub.send(peer, WaveAnswer(wave, status, hop_us))
            return
        found = tuple(result.found.values())
        if len(found) > FOUND_MAX:
            self._hub.count("found_truncated")
            found = found[:FOUND_MAX]
        epoch, by = result.beaten or (0, b"")
        self._hub.send(
            peer,
            WaveAnswer(
                wave,
                status,
                hop_us,
                found,
                tuple(result.met)[:FOUND_MAX],
                epoch,
                by,
                result.entry,
                result.accepted,
            ),
        )

    # -- links ---------------------------------------------------------------------------------------------------

    def link_down(self, peer: NodeId) -> None:
        """What was sent over the link is answered as failed; what came over it has lost its way back."""
        failed: dict[int, WaveState] = {}
        for key in [key for key in self._owed if key[1] == peer]:
            state = self._owed.pop(key)
            state.waiting.pop(key, None)
            state.result.failed = True
            failed[id(state)] = state
        for state in failed.values():
            if state.parent == peer:
                state.orphan = True
            # rule: O-6a
            if not state.waiting and not state.done:
                self._finish(state)
        seen: dict[int, bool] = {}
        for state in self._owed.values():
            if state.parent == peer and id(state) not in seen:
                seen[id(state)] = state.orphan = True

    def open_waves(self) -> int:
        return len(self._owed)

    def origin(self, frame: Wave) -> bytes:
        return node_of(frame.wave)

    def sweep(self) -> None:
        self._seen.sweep(self._hub.now)
