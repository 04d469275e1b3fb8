"""A virtual network and a model of a replicated log, for stability detectors.

The log is an oracle: it has entries, some of which are views. Hosts apply it at their own pace, enter a view when they
apply its entry, and report (held, applied). One seed determines delays, loss, duplication and pace. After every step
the world checks the safety rule: no detector reports an index as stable that a member of the committed view does not
have.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from tests.support.virtual_network import VirtualNetwork

from holdfast.stability import Detector, Member, StabilityConfig, View
from holdfast.stability.frames import StabilityFrame
from holdfast.stability.placement import seat_members
from holdfast.stability.riding import Posts
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, Nanos, NodeId

EPOCH = 7
FAST = StabilityConfig(
    period_ns=5 * MILLISECOND,
    period_max_ns=40 * MILLISECOND,
    gap_ns=1 * MILLISECOND,
    repeat_ns=4 * MILLISECOND,
    repeat_max_ns=32 * MILLISECOND,
)


def node_id(name: str) -> NodeId:
    return NodeId(name.encode().ljust(16, b"\0"))


def with_protocol(protocol: str, config: StabilityConfig = FAST, **changes: Any) -> StabilityConfig:
    return msgspec.structs.replace(config, protocol=protocol, **changes)


class Host:
    """One member: its detector and its progress in the log."""

    def __init__(self, name: str, life: int) -> None:
        self.name = name
        self.node = node_id(name)
        self.life = life
        self.incarnation = life
        self.alive = True
        self.stuck = False
        """Its application makes no progress."""
        self.held = 0
        self.applied = 0
        self.detector: Detector | None = None
        self.planned: Nanos = NEVER
        self.version = 0

    @property
    def member(self) -> Member:
        return Member(self.name, self.node, self.life)


class World(VirtualNetwork):
    """Hosts, the network between them and the log."""

    def __init__(
        self,
        size: int,
        config: StabilityConfig,
        seed: int = 0,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        delay_us: tuple[int, int] = (50, 150),
        pace_us: tuple[int, int] = (500, 2500),
    ) -> None:
        super().__init__(Random(seed), loss=loss, double=duplicate, delay_us=delay_us)
        self.config = config
        self.seed = seed
        self.pace_us = pace_us
        self.hosts: dict[str, Host] = {}
        self.by_node: dict[NodeId, Host] = {}
        self.log: list[View | None] = [None]
        """Entry i is at index i; index 0 is no entry."""
        self.view: View = View(EPOCH, 0, ())
        self.sent: dict[str, int] = {}
        """Frames sent by kind, counted per receiver."""
        self.frames = 0
        self.spy: Callable[[Host, Host, StabilityFrame], bool] | None = None
        """Called with every frame before it is delivered; False drops it."""
        for k in range(size):
            self.add_host(f"m{k}")
        self.commit_view([f"m{k}" for k in range(size)])
        for host in self.hosts.values():
            self._take_state(host)

    # -- the log -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        return len(self.log) - 1

    def order(self, count: int = 1) -> None:
        """Entries are committed."""
        self.log += [None] * count

    def commit_view(self, names: list[str]) -> View:
        """A view entry is committed. A new life of a name is another member."""
        members = seat_members(self.view.members, [self.hosts[name].member for name in names])
        return self.commit(members)

    def commit(self, members: tuple[Member, ...]) -> View:
        self.view = View(EPOCH, self.head + 1, members)
        self.log.append(self.view)
        return self.view

    # -- hosts ---------------------------------------------------------------------------------------------------

    def add_host(self, name: str, life: int = 1) -> Host:
        host = Host(name, life)
        host.detector = Detector(self.config, "g", host.node, life, host.incarnation)
        self.hosts[name] = self.by_node[host.node] = host
        self._plan_tick(host)
        return host

    def _take_state(self, host: Host) -> None:
        """A host that joins installs a snapshot at or after the entry of its view (rule 5)."""
        index = self.rng.randint(self.view.index, self.head)
        host.held = host.applied = index
        self._enter(host, self._view_at(index))

    def join(self, host: Host) -> None:
        """The view contains the host. It receives a snapshot a little later."""
        when = self.now + self.rng.randint(1, 4) * MILLISECOND
        self.at(when, lambda: self._take_state(host) if self._is_current(host) else None)

    def _is_current(self, host: Host) -> bool:
        return host.alive and self.hosts[host.name] is host

    def crash(self, name: str) -> None:
        self.hosts[name].alive = False
        self.hosts[name].detector = None

    def restart(self, name: str) -> Host:
        """Restart without its state: another life. It is in no view until one is committed that contains it."""
        return self.add_host(name, self.hosts[name].life + 1)

    def restart_durable(self, name: str) -> None:
        """Restart with its state: the same life, but its detector starts empty."""
        host = self.hosts[name]
        host.incarnation += 1
        host.detector = Detector(self.config, "g", host.node, host.life, host.incarnation)
        host.alive, host.version, host.planned = True, 0, NEVER
        self._enter(host, self._view_at(host.applied))
        self._plan_tick(host)

    def _view_at(self, index: int) -> View:
        while (view := self.log[index]) is None:
            index -= 1
        return view

    def _enter(self, host: Host, view: View) -> None:
        out: Posts = []
        assert host.detector is not None
        host.detector.enter(view, self.now, out)
        host.detector.report((host.held, host.applied), 0, self.now, out)
        self._after(host, out)

    def suspect(self, name: str, gone: list[str]) -> None:
        host, out = self.hosts[name], []  # type: tuple[Host, Posts]
        if host.detector is not None:
            host.detector.suspect([node_id(other) for other in gone], self.now, out)
            self._after(host, out)

    def cut(self, one: str, other: str) -> None:
        self.set_cut(one, other)

    def heal(self) -> None:
        for pair in self.cut_pairs:
            self.set_cut(*pair, cut=False)
        self.loss = self.double = 0.0

    # -- time ----------------------------------------------------------------------------------------------------

    def _plan_tick(self, host: Host) -> None:
        when = self.now + self.rng.randint(*self.pace_us) * MICROSECOND
        self.at(when, lambda: self._tick(host))

    def run(self, duration: Nanos, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; True as soon as `until` holds, False when it did not hold in time."""
        return self.pass_time(duration, until)

    def _deliver(self, sender: Host, receiver: Host, frame: StabilityFrame) -> None:
        if not receiver.alive or receiver.detector is None:
            return
        if self.hosts[receiver.name] is not receiver:
            return
        out: Posts = []
        receiver.detector.take(sender.node, frame, self.now, out)
        self._after(receiver, out)

    def _wake(self, host: Host) -> None:
        detector = host.detector
        if detector is None or detector.deadline > self.now:
            host.planned = NEVER
            self._plan(host)
            return
        out: Posts = []
        host.planned = NEVER
        detector.wake(self.now, out)
        self._after(host, out)

    def _tick(self, host: Host) -> None:
        """The host advances in the log."""
        if not host.alive or self.hosts[host.name] is not host or host.detector is None:
            return
        self._plan_tick(host)
        if host.detector.view is None:
            return
        host.held = self.rng.randint(host.held, self.head)
        if host.stuck:
            goal = host.applied
        else:
            goal = (
                host.held if self.rng.randint(0, 3) else self.rng.randint(host.applied, host.held)
            )
        while host.applied < goal:
            host.applied += 1
            view = self.log[host.applied]
            if view is not None:
                self._enter(host, view)
        out: Posts = []
        host.detector.report((host.held, host.applied), 0, self.now, out)
        self._after(host, out)

    # -- the network ---------------------------------------------------------------------------------------------

    def _after(self, host: Host, out: Posts) -> None:
        for nodes, frame in out:
            for node in nodes:
                self._send(host, self.by_node[node], frame)
        self._plan(host)
        detector = host.detector
        if detector is not None and detector.version != host.version:
            host.version = detector.version
            self.check(host)

    def _plan(self, host: Host) -> None:
        if host.detector is not None and host.detector.deadline < host.planned:
            host.planned = host.detector.deadline
            self.at(max(host.planned, self.now), lambda: self._wake(host))

    def _send(self, sender: Host, receiver: Host, frame: StabilityFrame) -> None:
        kind = type(frame).__name__
        self.sent[kind] = self.sent.get(kind, 0) + 1
        self.frames += 1
        if self.spy is not None and not self.spy(sender, receiver, frame):
            return
        self.transmit(
            sender.name, receiver.name, "", lambda: self._deliver(sender, receiver, frame)
        )

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self, host: Host) -> None:
        """Safety: every member of the committed view, in the life that the view names, has what `host` reports as
        stable."""
        assert host.detector is not None
        held, applied = (int(number) for number in host.detector.stable)
        for member in self.view.members:
            other = self.hosts[member.name]
            if other.life != member.life:
                continue
            if other.detector is not None and other.detector.view is None:
                continue  # It installs a snapshot at or after the entry of its view, and needs nothing before that.
            if other.held < held or other.applied < applied:
                raise AssertionError(
                    f"seed {self.seed} at {self.now} ns: {host.name} calls ({held}, {applied}) stable, "
                    f"{other.name} has ({other.held}, {other.applied})"
                )

    def is_settled(self) -> bool:
        """Every member of the view has applied everything, and knows that all have."""
        want = (self.head, self.head)
        for member in self.view.members:
            host = self.hosts[member.name]
            if host.detector is None or host.detector.view != self.view:
                return False
            if tuple(int(number) for number in host.detector.stable) != want:
                return False
        return True

    def status(self, name: str) -> Any:
        detector = self.hosts[name].detector
        assert detector is not None
        return detector.status(self.now)
