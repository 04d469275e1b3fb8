"""The world: a virtual clock, one event heap, and everything driven by them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, NoReturn

from holdfast.errors import MisuseError
from holdfast.group.ports import Replica
from holdfast.sim.checkers import Checker, CheckFailed
from holdfast.sim.effects import Watcher
from holdfast.sim.facts import FactBook
from holdfast.sim.host import Host
from holdfast.sim.network import Network
from holdfast.sim.port import Boot
from holdfast.sim.profile import HostProfile
from holdfast.sim.tcp import TcpSettings
from holdfast.sim.trace import Trace
from holdfast.types import NEVER, SECOND, Nanos

Event = tuple[Nanos, int, Callable[[Any], None], Any]
"""Time, sequence number, callable, argument."""

EVENTS_MAX: Final = 1 << 40


class World:
    """Hosts, their network and the time. Everything in it follows from its seed."""

    def __init__(
        self,
        seed: int,
        *,
        secure: bool = False,
        domain: str = "sim",
        trace: Trace | None = None,
        facts: FactBook | None = None,
        tcp: TcpSettings | None = None,
        replay: str = "",
    ) -> None:
        self.seed = seed
        self.secure = secure
        self.domain = domain
        self.trace = trace
        self.facts = facts
        self.replay = replay or f"holdfast sim run --seed {seed}"
        """The command that replays this run; every failed check prints it."""
        self.now: Nanos = 0
        self.events = 0
        self.heap: list[Event] = []
        self.sequence = 0
        self.hosts: dict[str, Host] = {}
        self.checkers: list[Checker] = []
        self.watchers: dict[type, list[Watcher]] = {}
        self.turn_checks: list[Callable[[Host, Any], None]] = []
        self.network = Network(self, tcp)
        self.aliases: dict[str, Callable[[], str]] = {}
        """Hosts by current role (`@leader`), for scenarios."""
        self.burst: Callable[[str, int], None] | None = None
        """Makes a host send many messages at once; set by the owner of the senders."""
        self.ask: Callable[[str, str, str], None] | None = None
        """Sends an operator request (group, what, host) to a group; set by the owner of the groups."""

    # -- building ------------------------------------------------------------------------------------------------

    def add_host(
        self,
        name: str,
        boot: Boot,
        profile: HostProfile | None = None,
        application: Callable[[str], Replica] | None = None,
    ) -> Host:
        """A machine, not started yet. `boot` builds its core at every start, `application` that of a replica."""
        if name in self.hosts:
            raise MisuseError(f"host {name} already exists; nothing was added")
        host = Host(self, name, boot, profile or HostProfile(), application)
        self.hosts[name] = host
        return host

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            raise MisuseError(f"there is no host {name}; there are {', '.join(self.hosts)}")
        return self.hosts[name]

    def named(self, selector: str) -> list[Host]:
        """The hosts of a scenario step: by name (`n1`, `n1,n2`), all (`*`), or by role (`@leader`)."""
        if selector == "*":
            return list(self.hosts.values())
        names = selector.split(",")
        return [self.host(self.aliases[name]() if name in self.aliases else name) for name in names]

    def check(self, checker: Checker) -> None:
        """Watch an invariant. Running hosts are watched from their next start on."""
        self.checkers.append(checker)
        for kind in checker.effects:
            self.watchers.setdefault(kind, []).append(checker.effect)
        if type(checker).turn is not Checker.turn:
            self.turn_checks.append(checker.turn)

    # -- time ----------------------------------------------------------------------------------------------------

    def at(self, when: Nanos, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call `call(argument)` at a time that has not passed yet; calls at the same time in the order of
        scheduling."""
        assert when >= self.now, "events cannot be scheduled in the past"
        self.sequence += 1
        heappush(self.heap, (when, self.sequence, call, argument))

    def run(self, until: Nanos = NEVER, max_events: int = EVENTS_MAX) -> int:
        """Run all events up to and including `until`, at most `max_events`; returns their number.

        If the time is reached, the clock is `until`; if the events run out, it is the time of the last one.
        """
        heap = self.heap
        done = 0
        try:
            for done in range(max_events):  # noqa: B007  # how many happened before this one
                if not heap or heap[0][0] > until:
                    break
                self.now, _, call, argument = heappop(heap)
                call(argument)
            else:
                done = max_events
        except Exception as error:
            done += 1
            if not isinstance(error, CheckFailed):
                error.add_note(f"at {self.now} ns; replay: {self.replay}")
            raise
        finally:
            self.events += done
        if done < max_events and until != NEVER:
            self.now = until
        return done

    def run_for(self, duration: Nanos, max_events: int = EVENTS_MAX) -> int:
        return self.run(self.now + duration, max_events)

    def run_until(
        self, predicate: Callable[[], bool], limit: Nanos = 60 * SECOND, every: Nanos = 0
    ) -> bool:
        """Run until `predicate` holds, checked after each event, or after as many as happen in `every` nanoseconds;
        False if it does not within `limit`."""
        end = self.now + limit
        while not predicate():
            if not self.heap or self.heap[0][0] > end:
                self.now = end
                return predicate()
            if every:
                self.run(min(end, self.heap[0][0] + every))
            else:
                self.run(end, max_events=1)
        return True

    # -- checks --------------------------------------------------------------------------------------------------

    def fail(self, invariant: str, detail: str, cause: BaseException | None = None) -> NoReturn:
        """An invariant is violated: stop the run and print how to replay it."""
        raise CheckFailed(invariant, detail, self.now, self.replay) from cause

    def finish(self) -> None:
        """Run the final check of every checker."""
        for checker in self.checkers:
            checker.finish(self)
