"""Campaigns against groups: each seed draws a group, a load, and a fault generator with an emphasis.

A campaign also counts what its runs have exercised, and fails if an event is too rare: runs without elections prove
nothing about elections.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from holdfast.group.loss.rule import Rule
from holdfast.sim.checkers.groups import REST
from holdfast.sim.cluster import Cluster, GroupPlan, node_name
from holdfast.sim.facts import FactBook
from holdfast.sim.ledger import AGREED, DELIVERED, Load
from holdfast.sim.nemesis import Budget, plan
from holdfast.sim.scenario import Scenario
from holdfast.sim.seeds import chance
from holdfast.sim.trace import Trace
from holdfast.stability import PROTOCOLS
from holdfast.types import MILLISECOND, SECOND, Nanos

GROUP: Final = "book"
SUBNETS: Final = ("red", "blue")
SECONDS: Final = 12
"""Virtual time of a run."""
REST_NS: Final = 5 * SECOND
"""How long groups may take to recover after the last fault: lost outputs, for example, are repeated after a second. A
run with less time than this cannot show that they do not."""
RECOVERY: Final = (REST, AGREED, DELIVERED)
"""The invariants that hold only after that time."""
COVERED_RUNS_MIN: Final = 100
"""Smaller campaigns have no minimum counts."""

MOODS: Final[dict[str, tuple[str, ...]]] = {
    "soft": ("break", "break", "pause", "burst"),
    "crashes": ("down", "down", "leader", "burst", "break"),
    "all-down": ("all-down", "down", "break", "burst"),
    "leader": ("leader", "leader", "leader", "pause", "burst"),
    "split": ("split", "split", "leader", "down"),
    "slow": ("slow-application", "slow-application", "pause", "burst", "disk", "leader"),
    "full": ("full-disk", "disk", "down", "burst"),
    "sources": ("source", "source", "burst", "break", "leader"),
    "losses": ("holes", "holes", "orphan", "orphan", "break", "leader"),
    "members": ("member", "member", "hand-over", "leader", "down", "burst"),
    "everything": (
        "break", "down", "pause", "disk", "leader", "split", "slow-application", "full-disk",
        "burst", "source", "orphan", "holes", "member", "hand-over",
    ),
}  # fmt: skip
"""The emphasis of a fault generator; each run has one."""


TABLES: Final[tuple[tuple[Rule, ...], ...]] = (
    (),
    (),
    (Rule("drop", priority=2, at_once=True),),
    (Rule("recover else suspend", attempt_min=1, within_s=0.3), Rule("drop", attempt_min=2)),
    (Rule("recover else drop", within_s=0.3), Rule("ignore", ignore_s=0.2)),
    (Rule("drop and ignore", source_gone=True, ignore_by=("source",), ignore_s=0.3),),
    (Rule("drop", count_max=3, recoverable=False), Rule("suspend", attempt_min=2)),
)
"""Loss rules of groups."""


class GroupRun(msgspec.Struct, frozen=True):
    """One run, drawn from its seed."""

    seed: int
    mood: str
    nodes: int
    voters: int
    learners: int
    durability: Literal["memory", "durable"]
    transport: Literal["channel", "datagram"]
    answers: bool
    load: Load
    run_ns: Nanos
    delivery: Literal["safe", "fast"] = "safe"
    mode: Literal["majority", "availability"] = "majority"
    outputs: bool = False
    message_log: bool = False
    rules: tuple[Rule, ...] = ()
    gone_s: float = 30.0
    never_lead: tuple[str, ...] = ()
    services: bool = False
    protocol: str = ""
    """The protocol of stability detection; empty: by the seed."""

    @property
    def quiet_ns(self) -> Nanos:
        """The time after the last fault in which everything must recover: five seconds of twelve."""
        return self.run_ns * 5 // 12

    def text(self) -> str:
        """One line, for display."""
        more = {
            self.delivery: self.delivery != "safe",
            self.mode: self.mode != "majority",
            f"stability by {self.stability}": self.stability != "auto",
            "outputs": self.outputs,
            "notes": self.load.priorities > 1,
            "message log": self.message_log,
            "answers": self.answers,
            f"table {', '.join(rule.action for rule in self.rules)}": bool(self.rules),
        }
        return (
            f"mood {self.mood}, {self.durability}, by {self.transport}, {self.voters} voters and "
            f"{self.learners} learners of {self.nodes} nodes"
            + "".join(f", {text}" for text, is_so in more.items() if is_so)
        )

    @property
    def stability(self) -> str:
        """Each protocol in turn, without a draw: seeds keep their faults."""
        by_seed = PROTOCOLS[self.seed % len(PROTOCOLS)]
        return "auto" if self.mode == "availability" else self.protocol or by_seed

    def scenario(self) -> Scenario:
        hosts = [node_name(number) for number in range(1, self.nodes + 1)]
        budget = Budget(
            down_max=max(1, (self.voters - 1) // 2),
            settle_ns=2_500 * MILLISECOND,
            pause_ns=600 * MILLISECOND,
            tricks=MOODS[self.mood],
            sources=tuple(hosts[self.voters + self.learners :]),
            group=GROUP,
            voters=tuple(hosts[: self.voters]),
        )
        return plan(self.seed, hosts, list(SUBNETS), self.run_ns, self.quiet_ns, budget)

    def group(self) -> GroupPlan:
        return GroupPlan(
            GROUP,
            self.voters,
            self.load,
            self.learners,
            self.durability,
            self.delivery,
            self.mode,
            self.transport,
            answers=self.answers,
            rules=self.rules,
            gone_s=self.gone_s,
            message_log_mb=1 if self.message_log else 0,
            outputs=self.outputs,
            never_lead=self.never_lead,
            stability=self.stability,
            services=self.services and self.mode == "majority",
        )

    def cluster(
        self,
        scenario: Scenario,
        trace: Trace | None = None,
        replay: str = "",
        facts: FactBook | None = None,
    ) -> Cluster:
        return Cluster(
            self.seed,
            self.nodes,
            SUBNETS,
            (self.group(),),
            scenario=scenario,
            until_ns=self.run_ns,
            quiet_ns=self.quiet_ns,
            trace=trace,
            facts=facts,
            replay=replay or f"holdfast sim groups --seed {self.seed}",
        )


def draw(seed: int, seconds: int = SECONDS, services: bool = False, protocol: str = "") -> GroupRun:
    """The run of a seed. `services`: nodes also use locks and a barrier; `protocol` detects stability. Neither changes
    a draw."""
    random = chance(seed, "campaign")
    mood = random.choice(list(MOODS))
    voters = random.choice((1, 3, 3, 3, 3, 5))
    learners = random.choice((0, 0, 0, 1))
    nodes = max(voters + learners, 2) + random.choice((0, 1, 1, 2))
    if mood in ("sources", "losses"):
        nodes = voters + learners + random.randint(1, 2)
    durability: Literal["memory", "durable"] = random.choice(("memory", "durable"))
    transport: Literal["channel", "datagram"] = random.choice(("channel", "channel", "datagram"))
    if mood == "losses":
        transport = "datagram"
    answers = bool(random.getrandbits(1)) or mood == "losses"
    load = Load(
        every_ns=random.choice((20, 40, 80)) * MILLISECOND,
        batch_max=random.choice((1, 8, 30)),
        size_max=random.choice((20, 300, 1_500)),
    )
    priorities = random.choice((1, 4))
    return GroupRun(
        seed, mood, nodes, voters, learners, durability, transport, answers,
        msgspec.structs.replace(load, priorities=priorities), seconds * SECOND,
        random.choice(("safe", "safe", "safe", "fast")),
        random.choice(("majority", "majority", "majority", "availability")),
        outputs=bool(random.getrandbits(1)),
        message_log=bool(random.getrandbits(1)) or mood == "losses",
        rules=tuple(_known(rule, priorities) for rule in random.choice(TABLES)),
        gone_s=random.choice((30.0, 30.0, 0.5)),
        never_lead=(node_name(voters),) if voters > 1 and random.randrange(6) == 0 else (),
        services=services,
        protocol=protocol,
    )  # fmt: skip


def _known(rule: Rule, priorities: int) -> Rule:
    """The rule in a group with this number of priorities."""
    is_known = rule.priority is None or rule.priority < priorities
    return rule if is_known else msgspec.structs.replace(rule, priority=None)


# -- required coverage -------------------------------------------------------------------------------------------

AT_LEAST: Final[dict[str, int]] = {
    "elections": 500,
    "step-downs": 300,
    "stalls": 10,
    "truncations": 50,
    "restarts": 500,
    "view entries": 300,
    "state transfers": 200,
    "snapshots": 150,
    "suspensions": 5,
    "deliveries rolled back": 8,
    "outputs to nodes": 10_000,
    "outputs to others": 10_000,
    "gaps": 5_000,
    "recoveries": 5_000,
    "recovered from source": 50_000,
    "recovered from replica": 20_000,
    "recovered from log": 3_000,
    "questions about losses": 250,
    "second questions": 3,
    "recoveries that failed": 10,
    "leaders that suspended themselves": 10,
    "suspensions refused": 10,
    "skip entries": 2_000,
    "resume entries": 60,
    "close entries": 300,
    "decided: drop": 12,
    "decided: suspend": 10,
    "decided: recover": 8,
    "decided: recover else drop": 12,
    "decided: recover else suspend": 7,
    "decided: drop and ignore": 60,
    "decided: recover and ignore": 8,
    "decided: recover else drop and ignore": 7,
    "decided: recover else suspend and ignore": 3,
    "ignored by stream": 40,
    "ignored by source": 15,
    "ignored by topic": 15,
    "ignored by priority": 8,
    "ignored for s": 30,
    "ignored for messages": 20,
    "ignored for s or until a resync": 10,
}
"""Minimum counts in a campaign of a thousand seeds, scaled for smaller ones: a quarter of what 153 runs had, or less
where a few runs had most of it, so that chance alone fails no campaign. Per thousand runs there were 1700 elections,
1500 view entries, 820 state transfers, 200 truncations, 65 rolled-back deliveries, 1800 loss questions, 52 failed
recoveries, 13 to 370 decisions of each combination (970 plain `drop`), and 700 000, 310 000 and 190 000 messages
recovered from sources, replicas and logs."""


def add_coverage(total: dict[str, int], counts: dict[str, int]) -> None:
    for event, count in counts.items():
        total[event] = total.get(event, 0) + count


def not_exercised(total: dict[str, int], runs: int) -> list[str]:
    """The events that were too rare in a campaign of this many runs."""
    missing: list[str] = []
    if runs < COVERED_RUNS_MIN:
        return missing
    for event, per_thousand in AT_LEAST.items():
        needed = per_thousand * runs // 1_000
        if total.get(event, 0) < needed:
            missing.append(f"{event}: {total.get(event, 0)}, at least {needed} expected")
    return missing


# -- shrinking ---------------------------------------------------------------------------------------------------


def shrink(run: GroupRun, scenario: Scenario, attempts_max: int = 200) -> tuple[Scenario, int]:
    """Remove steps of a scenario while the run violates the same invariant; also returns the number of runs.

    Steps are removed in ever smaller pieces; those of the fault-free time, which heal everything, stay.
    """
    broken = failure(run, scenario)
    if broken is None:
        return scenario, 1
    end_ns = min(scenario.last_ns(), run.run_ns - run.quiet_ns)
    steps = [step for step in scenario.steps if step.at_ns < end_ns]
    ending = tuple(step for step in scenario.steps if step.at_ns >= end_ns)
    attempts, piece = 1, max(1, len(steps) // 2)
    while attempts < attempts_max:
        at, smaller = 0, False
        while at < len(steps) and attempts < attempts_max:
            rest = steps[:at] + steps[at + piece :]
            attempts += 1
            if failure(run, Scenario(scenario.name, (*rest, *ending))) == broken:
                steps, smaller = rest, True
            else:
                at += piece
        if piece == 1 and not smaller:
            break
        piece = max(1, piece // 2)
    return Scenario(scenario.name, (*steps, *ending)), attempts


def failure(run: GroupRun, scenario: Scenario) -> str | None:
    """The invariant that a run violates, or the type of its exception; None if the run succeeded."""
    try:
        run.cluster(scenario).run()
    except Exception as error:  # noqa: BLE001  # whatever it is, the smaller run must raise it too
        return str(getattr(error, "invariant", type(error).__name__))
    return None


def simulate(
    run: GroupRun,
    scenario: Scenario,
    trace: Trace | None,
    replay: str,
    facts: FactBook | None = None,
) -> dict[str, Any]:
    """One run and its result, with the text of a failed check in `error`. `too_short`: the only failure is that groups
    had not recovered at the end, and the run was too short to expect that."""
    cluster = run.cluster(scenario, trace, replay, facts)
    error = None
    too_short = False
    try:
        cluster.run()
    except Exception as problem:  # noqa: BLE001  # a campaign continues with the next seed
        notes = getattr(problem, "__notes__", [])
        error = "\n".join([f"{problem}" or repr(problem), *notes])
        too_short = run.quiet_ns < REST_NS and getattr(problem, "invariant", "") in RECOVERY
        if not hasattr(problem, "invariant"):
            error = f"{type(problem).__name__}: {error}\nreplay: {replay}"
    outcome = {"run": run.text(), "mood": run.mood, "error": error, "too_short": too_short}
    return cluster.summary() | outcome
