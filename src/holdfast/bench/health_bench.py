"""Time to detection of faults, time until traffic moves, cost of measuring, and false alarms.

In the lab (root): faults under a message flow, and the cost of measuring in an idle domain. In virtual time, reported
separately: false alarms. Results of other systems with the same faults were measured elsewhere and are quoted as text.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import Final

from holdfast.bench.report import Report, new_report
from holdfast.errors import HoldfastError, SetupError
from holdfast.lab.lab import Lab
from holdfast.lab.state import load
from holdfast.lab.tools import need_root
from holdfast.lab.trial import ANY_CHANNEL, CLASSES, FLOWS, WAYS, Outcome, Trial
from holdfast.types import SECOND

STALL_MS_AIM: Final = 1000.0
BYTES_AIM: Final = 64_000
CPU_AIM: Final = 2.0
LOSSES_PPM: Final = (1_000, 10_000)
COST_HOSTS: Final = 5
COST_MTU: Final = 9000
_SETTLE_S: Final = 8.0

OTHERS: Final = (
    "corosync 3.1 with knet, 3 nodes, 2 links, 1200 bytes every 50 ms. Packets over 1000 bytes dropped on one link: a "
    "node isolates itself after 3.3 s, service is back after 44 s. Packets with 0x55 bytes dropped: never noticed, a "
    "node expelled after 3.1 s, stalled until the fault was removed. 20 % loss: the median of 0.8 ms becomes 680 to "
    "1295 ms. Serf and BFD notice neither a size limit nor 20 % loss."
)
"""Measured separately on another machine: for comparison, not figures of this run."""

Say = Callable[[str], None]


def bench_health(
    say: Say,
    classes: tuple[str, ...],
    seconds: float,
    cost_seconds: float,
    minutes: float,
    seed: int = 1,
    random: int = 0,
) -> Report:
    """All parts; a part with 0 seconds or minutes is skipped, and the report says so."""
    report = new_report("health")
    report.env["others"] = OTHERS
    report.env["not_measured"] = missing = []
    try:
        need_root()
    except SetupError as error:
        missing.append(f"everything in the lab: {error}")
    else:
        if seconds > 0:
            _trials(report, say, classes, seconds)
        else:
            missing.append("faults in the lab: left out (--seconds 0)")
        if random > 0 and seconds > 0:
            _random(report, say, random, seconds, seed)
        else:
            missing.append("random faults in the lab: left out (--random 0 or --seconds 0)")
        if cost_seconds > 0:
            _cost(report, say, cost_seconds)
        else:
            missing.append("cost in the lab: left out (--cost-seconds 0)")
    if minutes > 0:
        _quiet(report, say, minutes, seed)
    else:
        missing.append("false alarms in virtual time: left out (--minutes 0)")
    return report


# -- faults ------------------------------------------------------------------------------------------------------


def _trials(report: Report, say: Say, classes: tuple[str, ...], seconds: float) -> None:
    with _lab(3, 1500) as lab:
        lab.start_nodes(plain=True)
        trial = Trial(lab)
        trial.start_flow()
        say("in the lab: no fault")
        undisturbed = trial.run("watch 65000", seconds=seconds)
        report.figures["lab_undisturbed_longest_ms"] = undisturbed.stall_ms
        report.figures["lab_undisturbed_alarms"] = float(undisturbed.alarm_ms >= 0)
        expelled, accused = undisturbed.expelled, len(undisturbed.accused)
        for name in classes:
            say(f"in the lab: {name.replace('_', ' ')}")
            flow = FLOWS.get(name, ANY_CHANNEL)
            outcome = trial.run(CLASSES[name], WAYS.get(name, "->"), seconds, flow)
            report.env[f"lab_{name}_flow"] = flow.text
            report.env[f"lab_{name}_errors"] = [" ".join(error) for error in outcome.errors]
            expelled += outcome.expelled
            accused += len(outcome.accused)
            _figures(report, name, outcome, undisturbed)
    report.figures["lab_expelled"] = expelled
    report.figures["lab_sound_paths_accused"] = accused
    report.aim_below("lab_no_member_expelled", expelled, 0)


def _random(report: Report, say: Say, count: int, seconds: float, seed: int) -> None:
    from holdfast.bench.health_random import random_faults

    with _lab(3, 1500) as lab:
        lab.start_nodes(plain=True, group=True)
        random_faults(report, say, lab, count, seconds, seed)


def _figures(report: Report, name: str, outcome: Outcome, undisturbed: Outcome) -> None:
    report.figures[f"lab_{name}_alarm_ms"] = outcome.alarm_ms
    report.figures[f"lab_{name}_moved_ms"] = outcome.moved_ms
    report.figures[f"lab_{name}_stall_ms"] = outcome.stall_ms
    report.figures[f"lab_{name}_missing"] = outcome.missing
    report.figures[f"lab_{name}_flow_packets_per_s_before"] = outcome.packets_per_s
    base = max(undisturbed.stall_ms, 0.1)
    report.ratios[f"{name}_stall_vs_undisturbed_longest"] = round(outcome.stall_ms / base, 2)
    report.aim_below(f"lab_{name}_stall_ms", outcome.stall_ms, STALL_MS_AIM)
    report.aim(f"lab_{name}_noticed", float(outcome.alarm_ms >= 0), 1)


# -- cost --------------------------------------------------------------------------------------------------------


def _cost(report: Report, say: Say, seconds: float) -> None:
    say(f"in the lab: cost with {COST_HOSTS} nodes, sizes up to {COST_MTU}")
    with _lab(COST_HOSTS, COST_MTU) as lab:
        lab.start_nodes()
        time.sleep(_SETTLE_S)
        pids = {host: one.pid for host, one in load(lab.directory).nodes.items()}
        before, used, began = lab.traffic(), _cpu_s(pids), monotonic_ns()
        time.sleep(seconds)
        after, used_after = lab.traffic(), _cpu_s(pids)
        took_s = (monotonic_ns() - began) / SECOND
    rates = [(after[path][1] - before[path][1]) / took_s for path in after]
    packets = [(after[path][0] - before[path][0]) / took_s for path in after]
    shares = [100 * (used_after[host] - used[host]) / took_s for host in pids]
    report.figures |= {
        "lab_cost_nodes": COST_HOSTS,
        "lab_cost_paths": len(rates),
        "lab_bytes_per_s_and_path_mean": round(sum(rates) / len(rates)),
        "lab_bytes_per_s_and_path_max": round(max(rates)),
        "lab_packets_per_s_and_path_mean": round(sum(packets) / len(packets), 1),
        "lab_cpu_percent_of_a_core_per_node_mean": round(sum(shares) / len(shares), 2),
        "lab_cpu_percent_of_a_core_per_node_max": round(max(shares), 2),
    }
    report.aim_below("lab_bytes_per_s_and_path", round(max(rates)), BYTES_AIM)
    report.aim_below("lab_cpu_percent_per_node", round(sum(shares) / len(shares), 2), CPU_AIM)


def _cpu_s(pids: dict[str, int]) -> dict[str, float]:
    """CPU time used by each node."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = {}
    for host, pid in pids.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            raise HoldfastError(f"node {host} ended during the measurement") from None
        used[host] = (int(fields[11]) + int(fields[12])) / ticks
    return used


@contextmanager
def _lab(hosts: int, mtu: int) -> Iterator[Lab]:
    name = f"b{os.getpid()}"
    with TemporaryDirectory(prefix="holdfast-bench-") as directory:
        lab = Lab.up(name, hosts, 2, mtu, Path(directory))
        try:
            yield lab
        finally:
            Lab.down(name, Path(directory))


# -- false alarms ------------------------------------------------------------------------------------------------


def _quiet(report: Report, say: Say, minutes: float, seed: int) -> None:
    """Domains with only loss and pauses, one process each."""
    from holdfast.bench.health_quiet import PATHS, WORLDS, Quiet

    quiet = Quiet(LOSSES_PPM, minutes, seed)
    quiet.run(
        lambda done, of: say(f"in virtual time: {done:g} of {of:g} minutes of {WORLDS} domains")
    )
    report.figures |= {"virtual_minutes": minutes, "virtual_paths": PATHS, "virtual_seed": seed}
    total = 0
    for ppm, answers in quiet.answers.items():
        name = f"virtual_loss_{ppm / 10_000:g}_percent"
        report.figures[f"{name}_false_alarms"] = found = sum(one["false"] for one in answers)
        report.figures[f"{name}_sessions_lost"] = sum(one["downs"] for one in answers)
        first = [f"seed {one['seed']}: {text}" for one in answers for text in one["first"]]
        if first:
            report.env[f"{name}_first_false_alarms"] = first[:3]
        total += found
    report.aim_below("virtual_false_alarms", total, 0)
