"""Judges flows by the needs of the traffic that could use them.

For every flow towards a peer, this gives its fitness for each kind of traffic: it fits, it does not fit and why, or it
fits again but is not trusted yet. A path that failed some traffic must be healthy for a while before that traffic
returns, and for twice as long after each relapse, so a flapping path loses its traffic only a few times. The link acts
on it (`links.lanes`); measurements come from the rows of the listener of the path.
"""

from __future__ import annotations

from typing import Final, Protocol

from holdfast.health.frames import PathRow
from holdfast.health.placement.advised import Advised
from holdfast.health.placement.needs import DEFAULTS, ERRORS, Needs, SetNeeds
from holdfast.health.verdict import path_loss_ppm, unmet, usable_size, vector_of
from holdfast.links.ports import (
    AVOIDED,
    BARRED,
    FIT,
    HELD,
    UNFIT,
    Fitness,
    FlowReady,
    FlowVerdict,
)
from holdfast.types import MILLISECOND, NEVER, SECOND, FlowId, Nanos, NodeId

NEEDS_MAX: Final = 512
PATHS_MAX: Final = 65_536
RELAPSE_NS: Final = 600 * SECOND
"""A path that fails again within this time (or twice its last waiting time) has relapsed."""
HOLD_NS_MAX: Final = 3600 * SECOND
HOLD_NS_MIN: Final = 1 * SECOND
"""The waiting time after the first relapse if the path is used again at once."""

DOUBT_NS: Final = 30 * SECOND
"""How long a limit seen in datagrams applies to segments that were measured before it."""

PathKey = tuple[NodeId, str, str, str]
"""Peer, local adapter, remote adapter, transport and use: flows of other ports are trusted separately."""


class ErrorHistory(Protocol):
    """What is known about the past of paths."""

    def last_error_ns(
        self, path: tuple[bytes, str, bytes, str], error_class: str, now_ns: Nanos = 0
    ) -> Nanos | None:
        """When the path (sender, its adapter, listener, its adapter) last had an error of this class, in wall-clock
        time: `now_ns` while it has it, None if it never had."""


class _Trust:
    """How far traffic trusts a path that has failed it."""

    __slots__ = ("failing", "held_ns", "relapses", "sound_since")

    def __init__(self) -> None:
        self.failing = True
        self.sound_since: Nanos = 0
        self.relapses = 0
        self.held_ns: Nanos = 0


class _Path:
    """The rows of the path of one flow, arranged for judging."""

    __slots__ = ("kinds", "limit", "own", "ready")

    def __init__(self, ready: FlowReady, rows: list[PathRow]) -> None:
        self.ready = ready
        self.kinds = {row.transport: vector_of(row) for row in rows}
        self.own = self.kinds.get(ready.transport)
        self.limit = usable_size(self.kinds, ready.transport)
        """The largest size that passes where not all do; 0 where all do, or where nothing is known."""

    @property
    def alive(self) -> bool:
        return self.own is None or self.own.alive

    @property
    def loss_ppm(self) -> int:
        return path_loss_ppm(self.kinds, self.ready.transport)

    @property
    def degraded(self) -> bool:
        """Whether datagrams or segments show a soft error, whatever traffic it hurts."""
        # Not `flows_bad`: the row of each flow tells which of the path's flows is bad.
        rows = [self.kinds.get("udp"), self.kinds.get("tcp")]
        soft = (row.limit or row.bad_patterns for row in rows if row is not None and row.alive)
        return self.alive and any(map(bool, soft))

    def unmet(self, needs: Needs, sealed: bool, strict: bool) -> str:
        """What the path lacks for a need."""
        kinds = self.kinds.values()
        transport, limit = self.ready.transport, self.limit
        return unmet(kinds, transport, needs, sealed=sealed, strict=strict, limit=limit)


class Placement:
    """The needs of the traffic of a node, and the fitness of each flow for it."""

    def __init__(
        self,
        me: NodeId,
        sealed: bool,
        history: ErrorHistory | None = None,
    ) -> None:
        self.history = history
        self.advised = Advised(me)
        """Advice of the pipeline about paths that this node sends on."""
        self.names: dict[NodeId, str] = {}
        """Names of peers; filled in before their flows are judged."""
        self.wall_offset_ns = 0
        """Offset from the monotonic clock to the wall clock, which the history uses."""
        self._me = me
        self._sealed = sealed
        self._needs: dict[tuple[str, NodeId | str | None, int], Needs] = {
            ("holdfast", None, traffic): needs for traffic, needs in DEFAULTS.items()
        }
        self._trust: dict[tuple[PathKey, int], _Trust] = {}
        self._due: dict[FlowId, Nanos] = {}
        self._doubts: dict[PathKey, tuple[int, Nanos]] = {}
        """Streams with a suspected limit: the limit that datagrams have shown, and until when it applies."""

    # -- needs ---------------------------------------------------------------------------------------------------

    def set(self, item: SetNeeds) -> bool:
        """Set or withdraw a need; False if there are too many, and nothing changed then."""
        key = (item.owner, item.peer, item.traffic)
        if item.needs is None:
            self._needs.pop(key, None)
        elif key not in self._needs and len(self._needs) >= NEEDS_MAX:
            return False
        else:
            self._needs[key] = item.needs
        return True

    def needs_of(self, peer: NodeId) -> dict[int, list[Needs]]:
        """By traffic, everything that must hold on the way to `peer`. Traffic without needs has those of its kind."""
        found: dict[int, list[Needs]] = {}
        for (_, whom, traffic), needs in self._needs.items():
            if whom is None or whom == peer or whom == self.names.get(peer):
                found.setdefault(traffic, []).append(needs)
        return found

    def wanted_values(
        self, peer: NodeId
    ) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
        """Sizes, patterns and protocols that the needs towards `peer` add to the probed values."""
        every = [needs for group in self.needs_of(peer).values() for needs in group]
        sizes = sorted({needs.size for needs in every if needs.size})
        patterns = sorted({needs.pattern for needs in every if needs.pattern})
        protocols = sorted({needs.protocol for needs in every if needs.protocol})
        return tuple(sizes), tuple(patterns), tuple(protocols)

    # -- judging -------------------------------------------------------------------------------------------------

    def verdict(self, now: Nanos, ready: FlowReady, rows: list[PathRow]) -> FlowVerdict:
        """The fitness of a flow, from the rows (one per protocol) of its path."""
        path = _Path(ready, rows)
        self._due.pop(ready.flow, None)
        if ready.transport == "tcp":
            self._doubt(now, path)
        size = path.limit if ready.transport == "tcp" else _usable_size(path)
        fitness = tuple(
            self._fitness(now, path, traffic, group)
            for traffic, group in sorted(self.needs_of(ready.peer).items())
        )
        return FlowVerdict(ready.flow, path.alive, size, path.degraded, _rank(path), fitness)

    def _doubt(self, now: Nanos, path: _Path) -> None:
        """Datagrams show a limit sooner than segments, and it rarely affects only them: until the segments have been
        measured, the limit applies to them as well."""
        key, datagrams = _key(path.ready), path.kinds.get("udp")
        limited = datagrams.limit if datagrams is not None and datagrams.alive else 0
        if path.limit or not limited or not path.alive:
            self._doubts.pop(key, None)
            return
        known = self._doubts.get(key)
        if known is None or known[0] != limited:
            if len(self._doubts) >= PATHS_MAX:
                del self._doubts[next(iter(self._doubts))]
            known = self._doubts[key] = (limited, now + DOUBT_NS)
        if now < known[1]:
            path.limit = limited
            self._look_again(path.ready.flow, known[1])

    @property
    def deadline(self) -> Nanos:
        """When `due` has something to return."""
        return min(self._due.values(), default=NEVER)

    def due(self, now: Nanos) -> list[FlowId]:
        """Flows to be judged again although no row changed, because a time has passed."""
        due = [flow for flow, when in self._due.items() if when <= now]
        for flow in due:
            del self._due[flow]
        return due

    def forget(self, flow: FlowId) -> None:
        """The flow is gone. The state of its path stays, for the flow that replaces it."""
        self._due.pop(flow, None)

    def reset(self, peer: NodeId, adapter: str, remote_adapter: str) -> None:
        """An operator reset a path: it is trusted as if it had never failed."""
        for key in [k for k in self._trust if k[0][:3] == (peer, adapter, remote_adapter)]:
            del self._trust[key]

    def _fitness(self, now: Nanos, path: _Path, traffic: int, group: list[Needs]) -> Fitness:
        """The worst judgement of the path by any of these needs."""
        worst = Fitness(traffic, FIT)
        rank = 0
        failing = ""
        move_back_ns = max(needs.move_back_ns for needs in group)
        size = max(needs.size for needs in group)
        strict = self._is_failing(path.ready, traffic)
        for needs in group:
            chosen = self._misses_choice(path.ready, needs)
            rank += bool(chosen)
            if chosen and needs.choice == "require":
                return Fitness(traffic, BARRED, chosen, 0, size)
            reason = self._against(now, path, needs)
            if reason:
                worst = Fitness(traffic, UNFIT, reason)
            failing = failing or path.unmet(needs, self._sealed, strict)
        trust = self._trusted(now, path.ready, traffic, failing, move_back_ns)
        if trust.state > worst.state:
            worst = trust
        advised = self.advised.reason(path.ready) if worst.state < AVOIDED else ""
        if advised:
            worst = Fitness(traffic, AVOIDED, advised)
        return Fitness(traffic, worst.state, worst.reason, rank, size)

    def _misses_choice(self, ready: FlowReady, needs: Needs) -> str:
        """The chosen adapter, subnet or node that does not match this flow."""
        for what, wanted, got in (
            ("adapter", needs.adapter, ready.adapter),
            ("subnet", needs.subnet, ready.subnet),
            ("node", needs.node, self.names.get(ready.peer)),
        ):
            if wanted and wanted != got:
                return f"not by {what} {wanted}"
        return ""

    def _against(self, now: Nanos, path: _Path, needs: Needs) -> str:
        """What speaks against a flow, however well its path works now."""
        ready = path.ready
        if needs.protocol in ("udp", "tcp") and needs.protocol != ready.transport:
            return f"not by {needs.protocol}"
        last = self._last_error(now, ready, needs.clean) if needs.clean else None
        if last is None or last + needs.clean_ns <= now:
            return ""
        self._look_again(ready.flow, last + needs.clean_ns)
        kind = "an error" if needs.clean == "any" else f"a {needs.clean} error"
        return f"it had {kind} within {_duration(needs.clean_ns)}"

    def _last_error(self, now: Nanos, ready: FlowReady, error_class: str) -> Nanos | None:
        """When the path last had such an error, on the clock of this node."""
        if self.history is None:
            return None
        where = (self._me, ready.adapter, ready.peer, ready.remote_adapter)
        classes = ERRORS[2:] if error_class == "any" else (error_class,)
        wall = now + self.wall_offset_ns
        times = [self.history.last_error_ns(where, each, wall) for each in classes]
        return max((at - self.wall_offset_ns for at in times if at is not None), default=None)

    # -- trust ---------------------------------------------------------------------------------------------------

    def _is_failing(self, ready: FlowReady, traffic: int) -> bool:
        trust = self._trust.get((_key(ready), traffic))
        return trust is not None and trust.failing

    def _trusted(
        self, now: Nanos, ready: FlowReady, traffic: int, failing: str, move_back_ns: Nanos
    ) -> Fitness:
        """Whether traffic may return to a path that has failed it."""
        key = (_key(ready), traffic)
        trust = self._trust.get(key)
        if failing:
            if trust is None:
                if len(self._trust) >= PATHS_MAX:
                    del self._trust[next(iter(self._trust))]
                self._trust[key] = _Trust()
            elif not trust.failing:
                trust.failing = True
                within = max(RELAPSE_NS, 2 * trust.held_ns)
                trust.relapses = trust.relapses + 1 if now - trust.sound_since < within else 0
            return Fitness(traffic, UNFIT, failing)
        if trust is None:
            return Fitness(traffic, FIT)
        if trust.failing:
            trust.failing = False
            trust.sound_since = now
            trust.held_ns = _hold_ns(move_back_ns, trust.relapses)
        if move_back_ns == NEVER:
            return Fitness(traffic, HELD, "it failed before, and is not used again")
        until = trust.sound_since + trust.held_ns
        if now < until:
            self._look_again(ready.flow, until)
            reason = f"it failed before; used again after {_duration(trust.held_ns)} without error"
            return Fitness(traffic, HELD, reason)
        return Fitness(traffic, FIT)

    def _look_again(self, flow: FlowId, when: Nanos) -> None:
        self._due[flow] = min(self._due.get(flow, NEVER), when)


def _key(ready: FlowReady) -> PathKey:
    return ready.peer, ready.adapter, ready.remote_adapter, f"{ready.transport}{ready.use}"


def _hold_ns(move_back_ns: Nanos, relapses: int) -> Nanos:
    if not relapses:
        return min(move_back_ns, HOLD_NS_MAX)
    return min(max(move_back_ns, HOLD_NS_MIN) << min(relapses, 20), HOLD_NS_MAX)


def _usable_size(path: _Path) -> int:
    """The packet size for a datagram flow: below every limit and every hole."""
    return path.limit or (path.own.size if path.own is not None else 0)


def _rank(path: _Path) -> int:
    """Coarse, so that noise does not decide: loss and distance. It only decides where traffic starts."""
    row = path.own
    if row is None:
        return 0
    alternative = bool(path.ready.use) + bool(row.flows_bad)
    return alternative << 16 | (path.loss_ppm // 50_000) << 8 | (row.rtt_us // 1000).bit_length()


def _duration(nanos: Nanos) -> str:
    for unit, name in ((86_400 * SECOND, "d"), (3600 * SECOND, "h"), (60 * SECOND, "min")):
        if nanos >= unit and nanos % unit == 0:
            return f"{nanos // unit} {name}"
    return f"{nanos / SECOND:g} s" if nanos >= SECOND else f"{nanos / MILLISECOND:g} ms"
