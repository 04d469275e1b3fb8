"""The world: a virtual clock, one heap of events, and everything that lives by them."""

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
"""When, in which order among equals, what to call with what."""

EVENTS_MAX: Final = 1 << 40


class World:
    """Hosts, their network and the time. Everything that happens in it follows from its seed."""

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
        """The command that repeats this run; every failed check prints it."""
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
        """Hosts by what they are at the moment (`@leader`), for scenarios."""
        self.burst: Callable[[str, int], None] | None = None
        """Makes a host send many messages at once; set by whoever has senders."""
        self.ask: Callable[[str, str, str], None] | None = None
        """Asks something (group, what, host) of a group, as an operator would; set by whoever has groups."""

    # -- building ------------------------------------------------------------------------------------------------

    def add_host(
        self,
        name: str,
        boot: Boot,
        profile: HostProfile | None = None,
        application: Callable[[str], Replica] | None = None,
    ) -> Host:
        """A machine, not started yet. `boot` builds its core at every start, `application` a replica's unit."""
        if name in self.hosts:
            raise MisuseError(f"host {name} exists already; nothing was added")
        host = Host(self, name, boot, profile or HostProfile(), application)
        self.hosts[name] = host
        return host

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            raise MisuseError(f"there is no host {name}; there are {', '.join(self.hosts)}")
        return self.hosts[name]

    def named(self, selector: str) -> list[Host]:
        """The hosts that a scenario means: by name (`n1`, `n1,n2`), all (`*`), or by what they are (`@leader`)."""
        if selector == "*":
            return list(self.hosts.values())
        names = selector.split(",")
        return [self.host(self.aliases[name]() if name in self.aliases else name) for name in names]

    def check(self, checker: Checker) -> None:
        """Watch an invariant. Hosts that run already are not watched until they start again."""
        self.checkers.append(checker)
        for kind in checker.effects:
            self.watchers.setdefault(kind, []).append(checker.effect)
        if type(checker).turn is not Checker.turn:
            self.turn_checks.append(checker.turn)

    # -- time ----------------------------------------------------------------------------------------------------

    def at(self, when: Nanos, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call `call(argument)` at a time that has not passed yet; those of one time in the order of asking."""
        assert when >= self.now, "the past does not happen again"
        self.sequence += 1
        heappush(self.heap, (when, self.sequence, call, argument))

    def run(self, until: Nanos = NEVER, max_events: int = EVENTS_MAX) -> int:
        """Let everything happen up to and including `until`, at most `max_events`; how many events there were.

        When the time is reached the clock stands at `until`; when the events run out it stands at the last one.
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

    def run_until(self, predicate: Callable[[], bool], limit: Nanos = 60 * SECOND) -> bool:
        """Run until `predicate` holds, looked at after each event; False when it does not within `limit`."""
        end = self.now + limit
        while not predicate():
            if not self.heap or self.heap[0][0] > end:
                self.now = end
                return predicate()
            self.run(end, max_events=1)
        return True

    # -- checks --------------------------------------------------------------------------------------------------

    def fail(self, invariant: str, detail: str, cause: BaseException | None = None) -> NoReturn:
        """An invariant does not hold: stop the run and say how to see it again."""
        raise CheckFailed(invariant, detail, self.now, self.replay) from cause

    def finish(self) -> None:
        """Ask every checker for what can only be said at the end."""
        for checker in self.checkers:
            checker.finish(self)
