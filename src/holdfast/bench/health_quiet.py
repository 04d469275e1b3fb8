"""False alarms in virtual time: domains with some loss and pauses, and no faulty path.

    python -m holdfast.bench.health_quiet LOSS_PPM MINUTES SEED

runs one domain and prints a line of JSON per virtual minute. `Quiet` runs several, each with its own seed, as many
at once as there are cores: a hundred paths in one domain would take as long and use one core. A verdict counts as false
unless its sender was paused at the time or shortly before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.faults.amounts import share_text
from holdfast.faults.text import Words, parse_fault
from holdfast.sim.cluster import Cluster, node_name
from holdfast.sim.facts import FactBook
from holdfast.sim.host import Host
from holdfast.sim.scenario import Break, Do, Scenario, Step
from holdfast.telemetry.facts import LinkFact, PathFact
from holdfast.types import MILLISECOND, SECOND, Nanos

WORLDS: Final = 9
NODES: Final = 3
SUBNETS: Final = ("red", "blue")
PATHS: Final = WORLDS * NODES * (NODES - 1) * len(SUBNETS)
START_NS: Final = 10 * SECOND
_EXCUSED_NS: Final = SECOND
_BETWEEN_NS: Final = 10 * SECOND
_PAUSE_MS: Final = (10, 2000)


class Alarms(FactBook):
    """Keeps the verdicts that report an error, and discards everything else."""

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
    """When each node is paused; never two at once."""
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
    """Run this many virtual minutes; `on_minute(minutes so far)` is called after each."""
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


class Quiet:
    """Several domains, each in a separate process."""

    def __init__(self, losses_ppm: tuple[int, ...], minutes: float, seed: int) -> None:
        self.answers: dict[int, list[dict[str, Any]]] = {ppm: [] for ppm in losses_ppm}
        """The result of each domain, by loss."""
        self._minutes = minutes
        self._tasks = [(ppm, seed + world) for world in range(WORLDS) for ppm in losses_ppm]
        self._done: dict[tuple[int, int], float] = {}
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False

    def run(self, on_minute: Callable[[float, float], None]) -> None:
        """Run all; `on_minute(virtual minutes of all domains so far, total)` is called periodically."""
        with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
            try:
                for answer in [pool.submit(self._one, *task, on_minute) for task in self._tasks]:
                    ppm, found = answer.result()
                    self.answers[ppm].append(found)
            finally:
                self._stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                for process in self._running:
                    process.kill()

    def _one(
        self, ppm: int, seed: int, on_minute: Callable[[float, float], None]
    ) -> tuple[int, dict[str, Any]]:
        if self._stopped:
            raise HoldfastError("the simulation was stopped")
        command = [sys.executable, "-m", __spec__.name, str(ppm), str(self._minutes), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self._running.append(process)
            assert process.stdout is not None
            for line in process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if "false" in answer:
                    return ppm, answer
                self._done[ppm, seed] = answer["minutes"]
                on_minute(sum(self._done.values()), self._minutes * len(self._tasks))
        raise HoldfastError(
            "the simulation of false alarms ended early; its error is above; repeat it with "
            f"python {' '.join(command[1:])}"
        )


def main(loss_ppm: int, minutes: float, seed: int) -> None:
    def tell(done: float) -> None:
        print(json.dumps({"minutes": done}), flush=True)

    alarms = quiet(loss_ppm, minutes, seed, tell)
    answer = {"false": len(alarms.false), "excused": alarms.true, "downs": alarms.downs}
    print(json.dumps(answer | {"seed": seed, "first": alarms.false[:3]}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
