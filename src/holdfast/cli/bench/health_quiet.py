"""False alarms, in virtual time: a whole domain with a little loss and pauses, and nothing wrong with any path.

    python -m holdfast.cli.bench.health_quiet LOSS_PPM MINUTES SEED

prints a line of JSON for every virtual minute. A verdict counts as false unless its sender was standing still, or had
been until a moment before: whoever is silent may be called silent.
"""

from __future__ import annotations

import json
import sys
from random import Random
from typing import Any, Final

from holdfast.sim.amounts import share_text
from holdfast.sim.cluster import Cluster, node_name
from holdfast.sim.facts import FactBook
from holdfast.sim.fault_text import Words, parse_fault
from holdfast.sim.host import Host
from holdfast.sim.scenario import Break, Do, Scenario, Step
from holdfast.telemetry.facts import LinkFact, PathFact
from holdfast.types import MILLISECOND, SECOND, Nanos

NODES: Final = 8
SUBNETS: Final = ("red", "blue")
PATHS: Final = NODES * (NODES - 1) * len(SUBNETS)
START_NS: Final = 10 * SECOND
_EXCUSED_NS: Final = SECOND
_BETWEEN_NS: Final = 10 * SECOND
_PAUSE_MS: Final = (10, 2000)


class Alarms(FactBook):
    """Keeps the verdicts that say that something is wrong, and forgets everything else."""

    def __init__(self, pauses: dict[str, list[tuple[Nanos, Nanos]]]) -> None:
        super().__init__(facts_max=0)
        self._pauses = pauses
        self.false: list[str] = []
        self.true = 0
        self.downs = 0

    def record(self, host: Host, facts: list[Any]) -> None:
        now = host.world.now
        for fact in facts:
            if isinstance(fact, PathFact) and fact.event == "change" and _is_bad(fact):
                if now < START_NS or self._excused(fact.sender_name, now):
                    self.true += 1
                else:
                    self.false.append(f"{now / SECOND:.3f} s at {host.name}: {fact}")
            elif isinstance(fact, LinkFact) and fact.event == "down" and now >= START_NS:
                self.downs += 1

    def _excused(self, name: str, now: Nanos) -> bool:
        return any(start <= now <= end + _EXCUSED_NS for start, end in self._pauses.get(name, ()))


def _is_bad(fact: PathFact) -> bool:
    return bool(
        not fact.alive
        or 0 < fact.size < fact.size_max
        or getattr(fact, "holes", None)
        or getattr(fact, "bad_patterns", None)
        or getattr(fact, "flows_bad", None)
    )


def plan_pauses(seed: int, until_ns: Nanos) -> dict[str, list[tuple[Nanos, Nanos]]]:
    """When each node stands still; never two at once."""
    rng = Random(seed)
    pauses: dict[str, list[tuple[Nanos, Nanos]]] = {}
    at = START_NS
    while True:
        at += rng.randrange(_BETWEEN_NS // 2, _BETWEEN_NS * 3 // 2)
        end = at + rng.randrange(*_PAUSE_MS) * MILLISECOND
        if end >= until_ns:
            return pauses
        pauses.setdefault(node_name(rng.randrange(NODES) + 1), []).append((at, end))
        at = end


def quiet(loss_ppm: int, minutes: float, seed: int, on_minute: Any = None) -> Alarms:
    """So many virtual minutes; `on_minute(minutes so far)` is called after each."""
    until_ns = START_NS + int(minutes * 60) * SECOND
    pauses = plan_pauses(seed, until_ns)
    alarms = Alarms(pauses)
    loss = parse_fault(Words(f"* *->* loss {share_text(loss_ppm)}"))
    steps = [Step(START_NS // 2, Break(loss, "loss"))]
    for host, times in pauses.items():
        for start, end in times:
            steps += [Step(start, Do("pause", host)), Step(end, Do("resume", host))]
    steps.sort(key=lambda step: step.at_ns)
    cluster = Cluster(
        seed,
        NODES,
        SUBNETS,
        groups=(),
        scenario=Scenario("quiet", tuple(steps)),
        until_ns=until_ns,
        facts=alarms,
    )
    cluster.start()
    for minute in range(1, int(minutes) + 2):
        cluster.world.run(min(until_ns, START_NS + minute * 60 * SECOND))
        if on_minute is not None:
            on_minute(min(minute, minutes))
    return alarms


def main(loss_ppm: int, minutes: float, seed: int) -> None:
    def tell(done: float) -> None:
        print(json.dumps({"minutes": done}), flush=True)

    alarms = quiet(loss_ppm, minutes, seed, tell)
    answer = {"false": len(alarms.false), "excused": alarms.true, "downs": alarms.downs}
    print(json.dumps(answer | {"first": alarms.false[:3]}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
