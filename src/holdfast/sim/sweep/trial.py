"""One trial: a domain of three nodes and two subnets, first without a fault, then with one, then healed."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from holdfast.faults.text import Words, parse_fault
from holdfast.health.classify import DEAD, FLAPPING, PROTOCOL
from holdfast.sim.checkers import NoFailures
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.facts import FactBook
from holdfast.sim.ledger import Load
from holdfast.sim.sweep.draw import NODES, SUBNETS, Case, Path, draw
from holdfast.sim.sweep.watch import Claim, Opinions, Traffic, core_of, gossip_of
from holdfast.telemetry.facts import DeliveryFact, Fact, GroupFact, LinkFact
from holdfast.types import MILLISECOND, SECOND, Nanos

WARM_NS: Final = 4 * SECOND
CALM_NS: Final = 1 * SECOND
FAULT_NS: Final = 3 * SECOND
HEAL_NS: Final = 4 * SECOND
LOAD: Final = Load(every_ns=100 * MILLISECOND, batch_max=1, size_max=1200)
LATE_MS: Final = 500
LOSS_TOLERANCE: Final = 40
"""The allowed error of a loss estimate, in percent of it; five percentage points are always allowed."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a trial. Lists name wrong results; empty ones are good."""

    seed: int
    family: str
    fault: str
    verdict_ms: int | None
    """When all affected paths were reported with class, direction and limit; None: not in time."""
    missed: list[str]
    false: list[str]
    """Reports that were never true, at any time."""
    history: list[str]
    """Wrong error classes in the history of a path."""
    incidents: int
    """The number of incidents shown to a user, on the node that shows most."""
    shown: list[str]
    """Those incidents, each with its place."""
    place: bool
    """Whether one of them names the place."""
    stall_ms: int
    group_stall_ms: int
    datagrams_lost: int
    worse_moves: list[str]
    leaders: int
    """Changes of leadership."""
    clean_left: bool
    lingering: list[str]
    """Errors that are still reported four seconds after the fault ended."""
    afterwards: list[str]
    """Errors that were first reported half a second or more after the fault had ended."""
    calm_bytes: int
    """Bytes per second and path before the fault, for measuring alone."""
    replay: str


def run_trial(seed: int, family: str = "", secure: bool = False) -> Outcome:
    """One random fault, determined by the seed."""
    case = draw(Random(seed), family)
    return _Trial(seed, case, family, secure).run()


def run_case(case: Case, seed: int = 1, secure: bool = False) -> Outcome:
    """One given fault."""
    return _Trial(seed, case, case.family, secure).run()


class _Trial:
    def __init__(self, seed: int, case: Case, family: str, secure: bool) -> None:
        self._case = case
        self._seed = seed
        self._replay = f"holdfast sim health --seeds {seed}..{seed}"
        self._replay += f" --family {family}" if family else ""
        self._facts = FactBook()
        until = WARM_NS + CALM_NS + FAULT_NS + 4 * HEAL_NS
        group = GroupPlan(voters=len(NODES), load=LOAD)
        self._cluster = Cluster(
            seed,
            len(NODES),
            SUBNETS,
            groups=(group,),
            secure=secure,
            until_ns=until + 60 * SECOND,
            facts=self._facts,
            replay=self._replay,
            multicast=True,
            mtu=case.mtu,
        )
        self._world = self._cluster.world
        # They check groups, which takes most of the time.
        self._world.checkers.clear()
        self._world.turn_checks.clear()
        self._world.watchers.clear()
        self._world.check(NoFailures())
        self._opinions = Opinions(self._world)
        self._traffic = Traffic(self._world)
        self._verdict_ms: int | None = None
        self._missed: list[str] = []
        self._seen_leaders = 0

    def run(self) -> Outcome:
        self._cluster.start()
        self._world.run_for(WARM_NS)
        calm_bytes = self._calm()
        self._traffic.begin(self._pairs())
        self._world.run_for(CALM_NS)
        began = self._world.now
        number = self._begin()
        self._wait_for_verdict()
        self._world.run_for(max(0, began + FAULT_NS - self._world.now))
        self._opinions.look_at_incidents(self._world.now)
        self._check_loss()
        ended = self._world.now
        if number:
            self._world.network.remove(number)
        self._world.run_for(HEAL_NS)
        self._traffic.finish(self._case.killed)
        return self._outcome(calm_bytes, began, ended)

    def _pairs(self) -> list[tuple[str, str]]:
        """The ends of the first affected path, in both directions: traffic is measured there."""
        one, two, _ = self._case.hit[0]
        if self._case.killed:
            one = next(name for name in NODES if name not in (one, two))
        return [(one, two), (two, one)]

    def _calm(self) -> int:
        """The cost of measuring without faults; the load of the group is not counted."""
        paths = self._world.network.paths()
        before = sum(path.wire_bytes["udp"] + path.wire_bytes["frag"] for path in paths)
        self._world.run_for(CALM_NS)
        after = sum(path.wire_bytes["udp"] + path.wire_bytes["frag"] for path in paths)
        return (after - before) * SECOND // CALM_NS // max(1, len(paths))

    def _where_traffic_is(self) -> Case:
        """The case, on the subnet that the measured datagrams use now, or on the other one."""
        case = self._case
        one, two, drawn = case.hit[0]
        used = self._traffic.subnet_of(one, two) or drawn
        if case.off_traffic:
            used = next(subnet for subnet in SUBNETS if subnet != used)
        hit = tuple((a, b, used) for a, b, _ in case.hit)
        fault = used + case.fault.removeprefix(drawn)
        place = case.place.replace(f"/{drawn}", f"/{used}")
        return msgspec.structs.replace(case, hit=hit, fault=fault, place=place)

    def _begin(self) -> int:
        if self._case.on_traffic or self._case.off_traffic:
            self._case = self._where_traffic_is()
        self._opinions.begin()
        self._traffic.counts = True
        if self._case.killed:
            host = self._world.hosts[self._case.killed]
            if self._case.power:
                host.power_off()
            else:
                host.crash()
            return 0
        return self._world.network.add(parse_fault(Words(self._case.fault)))

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _wait_for_verdict(self) -> None:
        case = self._case
        if not case.classes:
            return
        step = 50 * MILLISECOND
        while self._opinions.age_ms < max(case.within_ms, FAULT_NS // MILLISECOND):
            self._world.run_for(step)
            if not self._lacking():
                self._verdict_ms = self._opinions.age_ms
                break
            if self._opinions.age_ms == case.within_ms:
                self._missed = self._lacking()

    def _lacking(self) -> list[str]:
        """What the listeners of the affected paths have not reported yet, or report wrongly."""
        return [text for path in self._case.hit for text in self._lacks(path)]

    def _lacks(self, path: Path) -> list[str]:
        case = self._case
        claims = [claim for claim in self._opinions.now(path[1]) if claim.path == path]
        lacking = []
        for wanted in case.classes:
            fitting = [claim for claim in claims if claim.error_class == wanted]
            if not fitting:
                lacking.append(f"{wanted} of {_text(path)} is not claimed ({_said(claims)})")
            elif case.one_way is not None and any(c.one_way != case.one_way for c in fitting):
                lacking.append(f"{wanted} of {_text(path)} has the wrong direction")
            elif case.limit and any(c.value != case.limit for c in fitting if c.kind != "frag"):
                values = sorted({c.value for c in fitting})
                lacking.append(f"limit of {_text(path)} is {values}, not {case.limit}")
        return lacking

    def _check_loss(self) -> None:
        case = self._case
        for path in case.hit if case.loss_ppm else ():
            for claim in self._opinions.now(path[1]):
                if claim.path == path and claim.error_class == "loss" and claim.kind == "udp":
                    wrong = abs(claim.value - case.loss_ppm)
                    if wrong > max(50_000, case.loss_ppm * LOSS_TOLERANCE // 100):
                        self._missed.append(
                            f"loss of {_text(path)} is {claim.value / 10_000:.1f} %"
                        )

    def _is_true(self, claim: Claim) -> bool:
        case = self._case
        if (claim.path, claim.error_class) in case.aside:
            return not case.kinds or not claim.kind or claim.kind in case.kinds
        if claim.path not in case.hit:
            return False
        if claim.error_class not in (*case.classes, *case.allowed):
            return False
        return not case.kinds or not claim.kind or claim.kind in case.kinds

    def _false(self) -> list[str]:
        found = {
            f"{claim.error_class} {claim.kind} of {_text(claim.path)} at {seen.first_ms} ms"
            for claims in self._opinions.claims.values()
            for claim, seen in claims.items()
            if not self._is_true(claim)
        }
        return sorted(found)

    def _afterwards(self, since_ms: int) -> list[str]:
        """Claims that were made only when nothing was wrong any more. A path that was dead for a moment may be called
        flapping when it comes back."""
        if self._case.killed:
            return []
        first: dict[tuple[Path, str, str], int] = {}
        for claims in self._opinions.claims.values():
            for claim, seen in claims.items():
                key = (claim.path, claim.error_class, claim.kind)
                first[key] = min(first.get(key, seen.first_ms), seen.first_ms)
        return sorted(
            f"{name} {kind} of {_text(path)} at {at} ms"
            for (path, name, kind), at in first.items()
            if at >= since_ms and name != FLAPPING
        )

    def _history(self) -> list[str]:
        wrong: dict[str, bool] = {}
        ids = self._opinions.ids
        for host in self._world.hosts.values():
            if not host.alive:
                continue
            history = gossip_of(core_of(host)).history
            for key in history.paths():
                path = (ids[key[0]], ids[key[2]], key[1])
                for name in history.errors_of(key, 0):
                    if not self._is_true(Claim(path, name, "", None, 0)):
                        wrong[f"{name} of {_text(path)}"] = True
        return sorted(wrong)

    # -- traffic -------------------------------------------------------------------------------------------------

    def _worse_moves(self, began: Nanos, ended: Nanos) -> list[str]:
        """Moves from a healthy path to an affected one. A flapping path is healthy some of the time, and traffic
        without any path may use any."""
        case, found = self._case, []
        hit = dict.fromkeys(case.hit, True)
        if DEAD in case.classes or ("tcp" in case.kinds and PROTOCOL in case.classes):
            hit |= {(b, a, subnet): True for a, b, subnet in case.hit}  # TCP needs both directions
        if not case.classes or case.family == "flapping":
            return []
        for host in self._world.hosts:
            for fact in self._facts.of(LinkFact, host):
                if fact.event != "moved" or not began <= self._at(host, fact) < ended:
                    continue
                if not fact.path_before:
                    continue
                pair = (host, fact.peer_name)
                old, new = ((*pair, text.partition("/")[0]) in hit for text in _paths(fact))
                if new and not old:
                    found.append(f"{host} to {fact.peer_name}: {fact.path_before} -> {fact.path}")
        return found

    def _group_stall(self, began: Nanos, ended: Nanos) -> int:
        """The longest time without a delivery at a running node."""
        longest = 0
        for host in self._world.hosts:
            if host == self._case.killed:
                continue
            times = [
                at
                for fact in self._facts.of(DeliveryFact, host)
                if began <= (at := self._at(host, fact)) < ended
            ]
            gaps = (b - a for a, b in zip([began, *times], [*times, ended], strict=True))
            longest = max(longest, *gaps)
        return longest // MILLISECOND

    def _leaders(self, began: Nanos) -> int:
        return sum(
            fact.event == "leads" and self._at(host, fact) >= began
            for host in self._world.hosts
            for fact in self._facts.of(GroupFact, host)
        )

    def _at(self, host: str, fact: Fact) -> Nanos:
        """When a fact was recorded, by the clock of the world: each host has its own clock."""
        return fact.now_ns - (self._world.hosts[host].now - self._world.now)

    def _outcome(self, calm_bytes: int, began: Nanos, ended: Nanos) -> Outcome:
        case, opinions = self._case, self._opinions
        shown = opinions.incidents
        still = {
            f"{claim.error_class} of {_text(claim.path)}"
            for name in NODES
            for claim in opinions.now(name)
            if claim.error_class
            != FLAPPING  # it is reported until the path has been stable for a minute
        }
        return Outcome(
            seed=self._seed,
            family=case.family,
            fault=case.fault or f"kill {case.killed}",
            verdict_ms=self._verdict_ms,
            missed=self._missed,
            false=self._false(),
            history=self._history(),
            incidents=max((len(found) for found in shown.values()), default=0),
            shown=[
                f"{one.error_class} ({one.place})"
                for one in max(shown.values(), key=len, default=[])
            ],
            place=all(
                any(one.place.startswith(case.place) for one in found) for found in shown.values()
            ),
            stall_ms=max(self._traffic.stall_ns.values(), default=0) // MILLISECOND,
            group_stall_ms=self._group_stall(began, ended),
            datagrams_lost=self._traffic.lost(),
            worse_moves=self._worse_moves(began, ended),
            leaders=self._leaders(began),
            clean_left=case.clean_left and not case.killed,
            lingering=sorted(still) if not case.killed else [],
            afterwards=self._afterwards((ended - began) // MILLISECOND + LATE_MS),
            calm_bytes=calm_bytes,
            replay=self._replay,
        )


def _text(path: Path) -> str:
    return f"{path[0]}->{path[1]} ({path[2]})"


def _said(claims: list[Claim]) -> str:
    return ", ".join(f"{claim.error_class} {claim.kind}" for claim in claims) or "nothing"


def _paths(fact: Any) -> tuple[str, str]:
    return fact.path_before, fact.path
