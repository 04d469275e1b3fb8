"""Judging flows by the needs of what could use them.

For every flow towards a peer this says what it is worth to each kind of traffic: it fits, it does not and why, or it
fits again but is not trusted yet. A path that failed some traffic must be sound for a while before that traffic comes
back, and for twice as long after each relapse, so a path that flaps loses its traffic a few times and then no more.
The link acts on it (`links.lanes`); what is measured comes from the rows of the path's listener.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from holdfast.health.needs import DEFAULTS, ERRORS, Needs, SetNeeds
from holdfast.links.ports import (
    BARRED,
    FIT,
    HELD,
    UNFIT,
    Fitness,
    FlowReady,
    FlowVerdict,
)
from holdfast.types import MILLISECOND, NEVER, SECOND, FlowId, Nanos, NodeId
from holdfast.wire.frames import PathRow

NEEDS_MAX: Final = 512
PATHS_MAX: Final = 65_536
RELAPSE_NS: Final = 600 * SECOND
"""A path that fails again within this time (or twice what it was last held for) has relapsed."""
HOLD_NS_MAX: Final = 3600 * SECOND
HOLD_NS_MIN: Final = 1 * SECOND
"""What the first relapse costs where a path is used again at once."""

DOUBT_NS: Final = 30 * SECOND
"""How long a limit of datagrams counts for the segments of a stream that were measured before it."""

PathKey = tuple[NodeId, str, str, str]
"""Peer, own adapter, the peer's adapter, transport and use: flows of other ports are trusted for themselves."""


class History(Protocol):
    """What is remembered of paths."""

    def last_error_ns(
        self, path: tuple[bytes, str, bytes, str], error_class: str, now_ns: Nanos = 0
    ) -> Nanos | None:
        """When the path (sender, its adapter, listener, its adapter) last had an error of this class, by the wall
        clock: `now_ns` while it has it, None when it never had."""


class _Trust:
    """How far traffic trusts a path that has failed it."""

    __slots__ = ("failing", "held_ns", "relapses", "sound_since")

    def __init__(self) -> None:
        self.failing = True
        self.sound_since: Nanos = 0
        self.relapses = 0
        self.held_ns: Nanos = 0


class _Path:
    """What the rows say of one flow's path, arranged for judging."""

    __slots__ = ("kinds", "own", "ready", "sizes")

    def __init__(self, ready: FlowReady, rows: list[PathRow]) -> None:
        self.ready = ready
        self.kinds = {row.transport: row for row in rows}
        self.own = self.kinds.get(ready.transport)
        self.sizes = self.own
        """The row that says which sizes pass. Where segments were not measured, what datagrams show holds for them."""
        if ready.transport == "tcp" and (self.own is None or not self.own.size_max):
            self.sizes = self.kinds.get("udp")

    @property
    def alive(self) -> bool:
        return self.own is None or self.own.alive

    @property
    def limit(self) -> int:
        """The largest size that passes where not all do; 0 where all do, or where nothing is known."""
        return _limit(self.sizes) if self.sizes is not None else 0

    @property
    def bad_patterns(self) -> tuple[str, ...]:
        return self.own.bad_patterns if self.own is not None else ()

    @property
    def loss_ppm(self) -> int:
        """What is lost on the path. A stream shows none, its kernels send again; but it stalls."""
        rows = [self.own, self.kinds.get("udp") if self.ready.transport == "tcp" else None]
        return max((row.loss_ppm for row in rows if row is not None and row.alive), default=0)

    @property
    def degraded(self) -> bool:
        """Whether datagrams or segments show a soft error, whomever it hurts."""
        rows = [self.kinds.get("udp"), self.kinds.get("tcp")]
        return self.alive and any(row.alive and _soft(row) for row in rows if row is not None)


def _limit(row: PathRow) -> int:
    if not row.size or not row.size_max:
        return 0
    if row.holes:
        return max(1, min(row.size, min(row.holes) - 1))
    return row.size if row.size < row.size_max else 0


def _soft(row: PathRow) -> bool:
    # Not `flows_bad`: which of the path's flows it is, each flow's own row says.
    return bool(_limit(row) or row.bad_patterns)


class Placement:
    """The needs of a node's traffic, and what each flow is worth to it."""

    def __init__(
        self,
        me: NodeId,
        sealed: bool,
        history: History | None = None,
    ) -> None:
        self.history = history
        self.names: dict[NodeId, str] = {}
        """What peers are called; whoever learns of a peer fills it in before its flows are judged."""
        self.wall_offset_ns = 0
        """The wall clock, by which history is told, minus the node's own."""
        self._me = me
        self._sealed = sealed
        self._needs: dict[tuple[str, NodeId | str | None, int], Needs] = {
            ("holdfast", None, traffic): needs for traffic, needs in DEFAULTS.items()
        }
        self._trust: dict[tuple[PathKey, int], _Trust] = {}
        self._due: dict[FlowId, Nanos] = {}
        self._doubts: dict[PathKey, tuple[int, Nanos]] = {}
        """Streams whose segments are in doubt: the limit that datagrams have shown, and until when it counts."""

    # -- needs ---------------------------------------------------------------------------------------------------

    def set(self, item: SetNeeds) -> bool:
        """Take or take back a need; False when there are too many, and then nothing changed."""
        key = (item.owner, item.peer, item.traffic)
        if item.needs is None:
            self._needs.pop(key, None)
        elif key not in self._needs and len(self._needs) >= NEEDS_MAX:
            return False
        else:
            self._needs[key] = item.needs
        return True

    def needs_of(self, peer: NodeId) -> dict[int, list[Needs]]:
        """By traffic, all that must hold on the way to `peer`. Who says nothing has the need of its kind."""
        found: dict[int, list[Needs]] = {}
        for (_, whom, traffic), needs in self._needs.items():
            if whom is None or whom == peer or whom == self.names.get(peer):
                found.setdefault(traffic, []).append(needs)
        return found

    def wanted_values(
        self, peer: NodeId
    ) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
        """Sizes, patterns and protocols that the needs towards `peer` add to what is probed."""
        every = [needs for group in self.needs_of(peer).values() for needs in group]
        sizes = sorted({needs.size for needs in every if needs.size})
        patterns = sorted({needs.pattern for needs in every if needs.pattern})
        protocols = sorted({needs.protocol for needs in every if needs.protocol})
        return tuple(sizes), tuple(patterns), tuple(protocols)

    # -- judging -------------------------------------------------------------------------------------------------

    def verdict(self, now: Nanos, ready: FlowReady, rows: list[PathRow]) -> FlowVerdict:
        """What a flow is good for, by the rows (one for each protocol) of its path."""
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
        """Datagrams show a limit sooner than segments do, and it seldom hits them alone: until the segments have had
        their time to be measured, the limit holds for them as well."""
        key, datagrams = _key(path.ready), path.kinds.get("udp")
        limited = datagrams is not None and datagrams.alive and _limit(datagrams)
        if path.limit or not limited or not path.alive:
            self._doubts.pop(key, None)
            return
        known = self._doubts.get(key)
        if known is None or known[0] != limited:
            if len(self._doubts) >= PATHS_MAX:
                del self._doubts[next(iter(self._doubts))]
            known = self._doubts[key] = (limited, now + DOUBT_NS)
        if now < known[1]:
            path.sizes = datagrams
            self._look_again(path.ready.flow, known[1])

    @property
    def deadline(self) -> Nanos:
        """When `due` has something to say."""
        return min(self._due.values(), default=NEVER)

    def due(self, now: Nanos) -> list[FlowId]:
        """Flows that are to be judged again although no row changed: some time is over."""
        due = [flow for flow, when in self._due.items() if when <= now]
        for flow in due:
            del self._due[flow]
        return due

    def forget(self, flow: FlowId) -> None:
        """The flow is gone. What is known of its path stays: another flow takes its place."""
        self._due.pop(flow, None)

    def reset(self, peer: NodeId, adapter: str, remote_adapter: str) -> None:
        """An operator vouches for a path: it is trusted as if it had never failed."""
        for key in [k for k in self._trust if k[0][:3] == (peer, adapter, remote_adapter)]:
            del self._trust[key]

    def _fitness(self, now: Nanos, path: _Path, traffic: int, group: list[Needs]) -> Fitness:
        """The worst that any of these needs makes of the path."""
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
            failing = failing or _fails(path, needs, self._sealed, strict)
        trust = self._trusted(now, path.ready, traffic, failing, move_back_ns)
        if trust.state > worst.state:
            worst = trust
        return Fitness(traffic, worst.state, worst.reason, rank, size)

    def _misses_choice(self, ready: FlowReady, needs: Needs) -> str:
        """What was chosen and is not this flow."""
        for what, wanted, got in (
            ("adapter", needs.adapter, ready.adapter),
            ("subnet", needs.subnet, ready.subnet),
            ("node", needs.node, self.names.get(ready.peer)),
        ):
            if wanted and wanted != got:
                return f"not by {what} {wanted}"
        return ""

    def _against(self, now: Nanos, path: _Path, needs: Needs) -> str:
        """What speaks against a flow however well its path works now."""
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
        """When the path last had such an error, by this node's own clock."""
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
        """Whether traffic may come back to a path that has failed it."""
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
    """The packets that a datagram flow is used with: below every limit and every hole."""
    return path.limit or (path.own.size if path.own is not None else 0)


def _fails(path: _Path, needs: Needs, sealed: bool, strict: bool) -> str:
    """What is wrong with the path now, for whoever has this need. `strict` when it was failing already: it must be
    clearly better before it counts as sound."""
    if not path.alive:
        return "nothing arrives"
    return next(_faults(path, needs, sealed, strict), "")


def _faults(path: _Path, needs: Needs, sealed: bool, strict: bool) -> Iterator[str]:
    limit, row = path.limit, path.own
    if path.ready.transport == "tcp":
        if limit:
            # The kernel cuts the segments, and joins small writes when it sends again.
            yield f"segments over {limit} bytes do not pass"
    elif needs.size and limit and limit < needs.size:
        yield f"packets over {limit} bytes do not pass, {needs.size} are needed"
    elif needs.size and row is not None and 0 < row.size_max < needs.size:
        yield f"packets over {row.size_max} bytes are not carried whole, {needs.size} are needed"
    if needs.pattern in path.bad_patterns:
        yield f"packets with the pattern {needs.pattern} do not pass"
    elif not needs.pattern and path.bad_patterns and not sealed:
        # Where everything is sealed the cable carries no payload's pattern, only noise.
        yield f"packets with the pattern {path.bad_patterns[0]} do not pass"
    if needs.protocol == "multicast":
        multicast = path.kinds.get("multicast")
        if multicast is not None and not multicast.alive:
            yield "multicast does not pass"
    if path.loss_ppm > (needs.loss_ppm_max // 2 if strict else needs.loss_ppm_max):
        yield f"more than {needs.loss_ppm_max / 10_000:g} % is lost"
    latency_us = needs.latency_us * 3 // 4 if strict else needs.latency_us
    if latency_us and row is not None and row.rtt_us > 2 * latency_us:
        yield f"it takes longer than {needs.latency_us} us"


def _rank(path: _Path) -> int:
    """Coarse, so that noise does not decide: how lossy, how far. What it decides is only where traffic begins."""
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
