"""The steps of the demonstration and their checks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.demo.domain import Domain, Member
from holdfast.demo.service_checks import DELIVERY_S_MAX, Finding, ServiceChecks
from holdfast.errors import HoldfastError
from holdfast.types import SECOND

BROKEN = ("n1", "n2", "red")
"""Sender, listener and subnet: large packets are dropped in this direction only."""
LIMIT = 1000
PIPELINE_S_MAX = 300.0
PAUSE_S_MAX = 1.0
"""A longer pause would be noticeable to the application."""
VICTIM = "n4"
WATCHER = "n5"


class Claim:
    """A claim that is checked."""

    def __init__(self, text: str, holds: bool, detail: str) -> None:
        self.text = text
        self.holds = holds
        self.detail = detail


class Scenario:
    """The whole demonstration."""

    def __init__(self, directory: Path, rate: int, keep: bool, pipeline: bool) -> None:
        self.console = Console(highlight=False)
        self.directory = directory
        self.rate = rate
        self.keep = keep
        self.pipeline = pipeline
        self.claims: list[Claim] = []
        self.report = ""
        self._began = _now()
        self._domain: Domain | None = None

    def run(self) -> bool:
        """Run all steps; True if every check passes. All processes are stopped in any case."""
        # A closed terminal, or `timeout`, ends us like Ctrl-C does: in order.
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGHUP, _interrupt)
        try:
            self._domain = Domain(self.directory)
            self._chapters(self._domain)
            self._summary()
            if self.keep:
                self._wait_for_ctrl_c()
        except KeyboardInterrupt:
            self.console.print("\n[yellow]Interrupted; stopping the nodes.[/]")
            return False
        except (HoldfastError, OSError) as error:
            self.console.print(f"[red]The demonstration failed: {escape(str(error))}[/]")
            return False
        finally:
            if self._domain is not None:
                self._domain.stop()
        return all(claim.holds for claim in self.claims)

    def _chapters(self, domain: Domain) -> None:
        self._start(domain)
        self._load(domain)
        self._break_path(domain)
        self._heal_path(domain)
        self._kill_and_restart(domain)
        self._compare(domain)
        if self.pipeline:
            if not self.keep:
                self._say("The nodes stop and seal their telemetry.")
                domain.stop()
            self._run_pipeline()

    # -- words ---------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self.console.print(f"[dim]{_now() - self._began:6.1f} s[/]  {text}")

    def _title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/]")

    def _claim(self, text: str, holds: bool, detail: str) -> None:
        self.claims.append(Claim(text, holds, detail))
        mark = "[green]✔[/]" if holds else "[red]✘[/]"
        self._say(f"{mark} {text}: {escape(detail)}")

    def _claim_all(self, findings: list[Finding]) -> None:
        for finding in findings:
            self._claim(*finding)

    def _until(self, what: str, limit_s: float, check: Callable[[], Any]) -> Any:
        """Wait for a condition with a spinner; None if it did not become true in time."""
        end = _now() + limit_s
        with self.console.status(what):
            while _now() < end:
                found = check()
                if found:
                    return found
                time.sleep(0.05)
        return None

    # -- chapters ------------------------------------------------------------------------------------------------

    def _start(self, domain: Domain) -> None:
        self._title("1. A domain of five nodes")
        self._say(f"All files are in {self.directory}.")
        self._say(
            "An authority and five certificates are created; five processes start, each with an "
            "adapter on the subnets red and blue. They authenticate each other (TLS 1.3) and "
            "encrypt their datagrams."
        )
        domain.start()
        members = list(domain.members.values())
        ready = self._until(
            "waiting until every node sees every other", 40, lambda: _complete(members)
        )
        paths = len(ready["paths"]) if ready else 0
        self._claim(
            "every node sees every other on both subnets", bool(ready), f"{paths} paths measured"
        )
        if not ready:
            raise HoldfastError(f"the domain did not form; the logs are in {self.directory}")
        self.console.print(f"\n    Watch it live: [bold underline]{domain.page}[/]\n")
        if sys.stdout.isatty() and self.keep:
            webbrowser.open(domain.page)

    def _load(self, domain: Domain) -> None:
        self._title("2. A replicated order book under load")
        for member in domain.members.values():
            member.ask("load", rate=self.rate)
        self._say(
            f"A trader on each node sends {self.rate} orders per second directly to all five "
            "replicas; the leader (n1) decides one order for all of them."
        )
        self._pause("trading", 8)
        book = domain[WATCHER].ask("book")
        self._claim(
            "orders are executed",
            book["orders"] > 0,
            f"{book['orders']} orders, {book['trades']} trades",
        )

    def _break_path(self, domain: Domain) -> None:
        sender, listener, subnet = BROKEN
        self._title("3. A soft error: ping works, large packets are dropped")
        self._say(
            f"From now on, packets over {LIMIT} bytes from {sender} to {listener} on {subnet} are "
            f"dropped. This needs no root: a fault layer below the sockets of {sender} drops "
            "them, as a bad cable would (streams stall)."
        )
        stall = _Stall(domain[listener])
        broken_at = _now()
        domain[sender].ask(
            "fault",
            fault=f"over {LIMIT}",
            adapter=subnet,
            host=domain[listener].hosts[subnet],
        )
        seen = self._until(
            "waiting until it is detected",
            15,
            stall.while_waiting(lambda: _path_size(domain[WATCHER], *BROKEN) == LIMIT),
        )
        took = _now() - broken_at
        self._claim(
            "the fault is detected, with its direction and its size",
            bool(seen),
            f"after {took:.1f} s, {WATCHER} knows: {sender} to {listener} on {subnet} passes {LIMIT} bytes, not more"
            if seen
            else "not within 15 s",
        )
        back = _path_size(domain[WATCHER], listener, sender, subnet)
        self._claim(
            "the other direction is not reported",
            back is not None and back > LIMIT,
            f"it passes {back} bytes",
        )
        self._pause("traffic continues over the other subnet", 6, stall.sample)
        self._claim(
            "the order book never stopped",
            stall.longest < PAUSE_S_MAX,
            f"longest pause at {listener}: {stall.longest:.2f} s",
        )
        up = [m["state"] for m in domain[WATCHER].ask("status")["members"]]
        self._claim(
            "no node was expelled",
            up.count("up") == len(up),
            f"{up.count('up')} of {len(up)} are up",
        )

    def _heal_path(self, domain: Domain) -> None:
        sender = BROKEN[0]
        self._title("4. The path is repaired")
        domain[sender].ask("heal")
        healed_at = _now()
        seen = self._until(
            "waiting until it is detected",
            20,
            lambda: (_path_size(domain[WATCHER], *BROKEN) or 0) > LIMIT,
        )
        took = _now() - healed_at
        self._claim(
            "the repair is detected", bool(seen), f"after {took:.1f} s all sizes pass again"
        )
        self._pause("trading", 4)

    def _kill_and_restart(self, domain: Domain) -> None:
        self._title("5. A node is killed")
        self._say(
            f"Every node answers for the role 'quotes', n2 sends numbered entries to {VICTIM} over a dialog, "
            "and an object has three replicas."
        )
        checks = ServiceChecks(domain, VICTIM, WATCHER)
        self._claim_all(checks.before())
        stall = _Stall(domain[WATCHER])
        domain[VICTIM].kill()
        self._say(
            f"{VICTIM} was killed with SIGKILL: it could not stop cleanly, and its state is lost."
        )
        down = self._until(
            "waiting until it is detected",
            15,
            stall.while_waiting(lambda: _state(domain[WATCHER], VICTIM) == "down"),
        )
        self._claim(
            "its failure is detected", bool(down), f"{WATCHER} reports that {VICTIM} is down"
        )
        self._pause("the others continue", 5, stall.sample)
        self._claim(
            "the others never stopped",
            stall.longest < PAUSE_S_MAX,
            f"longest pause: {stall.longest:.2f} s",
        )
        self._claim_all(checks.while_down())
        domain[VICTIM].start()
        restarted_at = _now()
        self._say(
            f"{VICTIM} starts again, as a new incarnation with an empty book, and requests the "
            "state."
        )
        caught = self._until("waiting until it has caught up", 40, lambda: _caught_up(domain))
        took = _now() - restarted_at
        self._claim("it has caught up while trading continued", bool(caught), f"after {took:.1f} s")
        self._until("its trader", 5, lambda: domain[VICTIM].try_ask("book"))
        domain[VICTIM].ask("load", rate=self.rate)
        self._pause("all five trade", 5)
        self._until("waiting for the rest of the dialog", DELIVERY_S_MAX, checks.delivered)
        self._claim_all(checks.after())

    def _compare(self, domain: Domain) -> None:
        self._title("6. The books are compared")
        for member in domain.members.values():
            member.ask("load", rate=0)
        equal = self._until("waiting until everything is delivered", 30, lambda: _equal(domain))
        books = {name: member.ask("book") for name, member in domain.members.items()}
        first = books["n1"]
        self._claim(
            "all replicas are equal",
            bool(equal),
            f"{first['orders']} orders, {first['trades']} trades, digest {first['digest']} on every node"
            if equal
            else ", ".join(f"{n}: {b['orders']}/{b['digest']}" for n, b in books.items()),
        )
        missing = {n: b["sent"] - first["last"].get(b["trader"], 0) for n, b in books.items()}
        sent = sum(book["sent"] for book in books.values())
        self._claim(
            "nothing was lost",
            not any(missing.values()),
            f"every one of the {sent} orders of the running traders was executed"
            if not any(missing.values())
            else f"missing: {missing}",
        )
        wrong = sum(book["violations"] for book in books.values())
        self._claim("nothing was duplicated or reordered", wrong == 0, f"{wrong} violations")

    def _run_pipeline(self) -> None:
        self._title("7. The telemetry becomes a report")
        out = self.directory / "pipeline"
        self._say("Spark reads the recorded telemetry (its start takes some seconds).")
        command = [sys.executable, "-m", "holdfast", "pipeline", "run"]
        command += ["--telemetry", str(self.directory), "--out", str(out)]
        with self.console.status("running the pipeline"):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=PIPELINE_S_MAX
                )
            except subprocess.TimeoutExpired:
                self._claim("the pipeline ran", False, f"not within {PIPELINE_S_MAX:.0f} s")
                return
        if done.returncode:
            self._claim("the pipeline ran", False, (done.stderr or done.stdout).strip()[-600:])
            return
        self._claim("the pipeline ran", True, "path health and the audit are published")
        from holdfast.pipeline.reader import open_tables

        tables = open_tables(out)
        rows = tables.rows("path_health")
        sender, listener, subnet = BROKEN
        hit = [
            row
            for row in rows
            if (row["sender_name"], row["listener_name"], row["subnet"])
            == (sender, listener, subnet)
            and row["transport"]
            == "udp"  # other kinds of packets may have had only a part of the time
            and row["degradations"]
        ]
        worst = hit[0]["worst_size"] if hit else None
        self._claim(
            "the pipeline found the fault in the history",
            worst == LIMIT,
            f"{sender} to {listener} on {subnet} was limited to {worst} bytes",
        )
        self.report = str(out / "report.html")
        from holdfast.demo.findings import audit_of, cause_of, incident_of

        self._claim("the incident is on record", *incident_of(tables, BROKEN))
        self._claim("its cause is located", *cause_of(tables, BROKEN))
        self._claim("the audit found no violation", *audit_of(tables))

    # -- the end -------------------------------------------------------------------------------------------------

    def _summary(self) -> None:
        self._title("Summary")
        table = Table("claim", "holds", "")
        for claim in self.claims:
            table.add_row(claim.text, "yes" if claim.holds else "[red]NO[/]", escape(claim.detail))
        self.console.print(table)
        if self.report:
            self.console.print(f"report: [bold]{escape(self.report)}[/]")
        self.console.print(
            f"everything else (configurations, logs, telemetry): {escape(str(self.directory))}"
        )

    def _pause(self, what: str, seconds: float, sample: Callable[[], Any] | None = None) -> None:
        end = _now() + seconds
        with self.console.status(what):
            while _now() < end:
                if sample is not None:
                    sample()
                time.sleep(0.05)

    def _wait_for_ctrl_c(self) -> None:
        assert self._domain is not None
        with contextlib.suppress(KeyboardInterrupt):
            self.console.print(
                f"\nThe nodes keep running: {self._domain.page}   (Ctrl-C stops them)"
            )
            signal.pause()


def _now() -> float:
    """Seconds since an arbitrary moment."""
    return time.monotonic_ns() / SECOND


class _Stall:
    """The longest time in which the book of a replica did not grow."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._orders = -1
        self._changed = _now()
        self.longest = 0.0

    def while_waiting(self, check: Callable[[], bool]) -> Callable[[], bool]:
        """The same check, after checking the book."""

        def look() -> bool:
            self.sample()
            return check()

        return look

    def sample(self) -> None:
        orders = self._member.ask("book")["orders"]
        now = _now()
        self.longest = max(self.longest, now - self._changed)
        if orders != self._orders:
            self._orders, self._changed = orders, now


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _complete(members: list[Member]) -> dict[str, Any] | None:
    """The status of the watcher when every pair of nodes is measured on every subnet and the group runs."""
    wanted = len(members) * (len(members) - 1) * 2
    status: dict[str, Any] | None = None
    for member in members:
        status = member.try_ask("status")
        if status is None:
            return None
        measured = [
            p
            for p in status["paths"]
            if p["transport"] == "udp" and p["alive"] and p["size"] == p["size_max"]
        ]
        if len(measured) < wanted or any(
            g["state"] not in ("leading", "following") for g in status["groups"]
        ):
            return None
    return status


def _path_size(watcher: Member, sender: str, listener: str, subnet: str) -> int | None:
    """The report of a third node about the path between two others."""
    for path in watcher.ask("status")["paths"]:
        key = (path["sender"], path["listener"], path["subnet"], path["transport"])
        if key == (sender, listener, subnet, "udp"):
            return int(path["size"])
    return None


def _state(watcher: Member, name: str) -> str:
    states = {m["name"]: m["state"] for m in watcher.ask("status")["members"]}
    return str(states.get(name, ""))


def _caught_up(domain: Domain) -> bool:
    there = domain[VICTIM].try_ask("status")
    if there is None:
        return False
    group = there["groups"][0]
    leader = domain["n1"].ask("status")["groups"][0]
    lag = int(leader["position"]) - int(group["position"])
    return group["state"] == "following" and int(group["position"]) > 0 and lag < 500


def _equal(domain: Domain) -> bool:
    books = [member.ask("book") for member in domain.members.values()]
    sent = {book["trader"]: book["sent"] for book in books}
    first = books[0]
    same = all((b["orders"], b["digest"]) == (first["orders"], first["digest"]) for b in books)
    return same and all(first["last"].get(trader, 0) == count for trader, count in sent.items())
