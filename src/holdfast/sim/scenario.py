"""The faults of a run and their times, as reviewable text.

    # One direction of one link drops large packets; then a node crashes and restarts.
    at 1.5s break red n1->n2 over 1000 as hole
    at 3s crash n3
    at 4s start n3
    at 5s heal hole
    at 6s disk n2 slow 50ms
    at 7s application n2 slow 20ms
    at 8s burst n4 2000
    at 9s crash @leader
    at 9s break * n1,n2<->n3 blackout as split
    at 10s heal all
    at 10s start *
    at 11s group book remove n2
    at 12s group book add n2

The host steps are `start`, `stop`, `crash`, `crash-in-turn`, `power-off`, `pause` and `resume`. `n1,n2` names several
hosts, `*` all hosts, and `@leader` the current leader of the first group. `heal` takes the name of a fault, a place
(`red n1->n2`: all faults of exactly that place) or `all`. `faults` defines the text after `break`. The group steps are
operator requests: `add` and `remove` a host, `hand-over` to one, and `refound` after the loss of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.faults.amounts import parse_count, parse_time, time_text
from holdfast.faults.model import ANY, Fault, Where
from holdfast.faults.text import Words, parse_fault, parse_where
from holdfast.sim.host import Host
from holdfast.sim.world import World
from holdfast.types import Nanos

VERBS: Final[dict[str, Callable[[Host], None]]] = {
    "start": Host.start_again,
    "stop": Host.stop,
    "crash": Host.crash,
    "crash-in-turn": Host.crash_in_turn,
    "power-off": Host.power_off,
    "pause": Host.pause,
    "resume": Host.resume,
}
"""Events of a host. An event that does not fit its state (crashing one that is down) has no effect."""


class Break(msgspec.Struct, frozen=True, tag=True):
    """Add a fault; with a name it can be healed separately."""

    fault: Fault
    name: str = ""

    def text(self) -> str:
        return f"break {self.fault.text()}" + (f" as {self.name}" if self.name else "")


class Heal(msgspec.Struct, frozen=True, tag=True):
    """Remove faults: one by name, those of one place, or all."""

    name: str = ""
    where: Where | None = None

    def text(self) -> str:
        return "heal " + (self.where.text() if self.where else self.name or "all")


class Do(msgspec.Struct, frozen=True, tag=True):
    """An event of a host."""

    verb: str
    host: str

    def text(self) -> str:
        return f"{self.verb} {self.host}"


class SetDisk(msgspec.Struct, frozen=True, tag=True):
    """The disk of a host becomes slow, full, or normal again."""

    host: str
    slow_ns: Nanos = 0
    full: bool = False

    def text(self) -> str:
        if self.full:
            return f"disk {self.host} full"
        return f"disk {self.host} " + (f"slow {time_text(self.slow_ns)}" if self.slow_ns else "ok")


class SetApplication(msgspec.Struct, frozen=True, tag=True):
    """The applications of a host become slow, or normal again."""

    host: str
    slow_ns: Nanos = 0

    def text(self) -> str:
        how = f"slow {time_text(self.slow_ns)}" if self.slow_ns else "ok"
        return f"application {self.host} {how}"


class Burst(msgspec.Struct, frozen=True, tag=True):
    """A host sends this many messages to every group at once."""

    host: str
    count: int

    def text(self) -> str:
        return f"burst {self.host} {self.count}"


class Ask(msgspec.Struct, frozen=True, tag=True):
    """An operator request to a group."""

    group: str
    verb: str
    host: str = ""

    def text(self) -> str:
        return f"group {self.group} {self.verb} {self.host}".rstrip()


ASKED: Final = ("add", "remove", "hand-over", "refound")
"""Operator requests; only `refound` names no host."""

Action = Break | Heal | Do | SetDisk | SetApplication | Burst | Ask


class Step(msgspec.Struct, frozen=True):
    at_ns: Nanos
    action: Action

    def text(self) -> str:
        return f"at {time_text(self.at_ns)} {self.action.text()}"


class Scenario(msgspec.Struct, frozen=True):
    """A list of steps. Steps with the same time run in list order."""

    name: str
    steps: tuple[Step, ...] = ()

    def text(self) -> str:
        return "".join(step.text() + "\n" for step in self.steps)

    def last_ns(self) -> Nanos:
        return max((step.at_ns for step in self.steps), default=0)

    def schedule(self, world: World) -> None:
        """Run it in a world, counted from now. Unknown names are refused first."""
        for step in self.steps:
            _check_names(world, step)
        player = _Player(world)
        for step in self.steps:
            world.at(world.now + step.at_ns, player.play, step.action)


# -- running -----------------------------------------------------------------------------------------------------


class _Player:
    """Runs the steps of one scenario, and knows which faults it added."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults: dict[int, Break] = {}

    def play(self, action: Action) -> None:
        world = self._world
        if world.trace is not None:
            world.trace.line(world.now, "-", action.text())
        match action:
            case Break(fault):
                self._faults[world.network.add(_resolved(world, fault))] = action
            case Heal():
                self._heal(action)
            case Do(verb, host):
                for one in world.named(host):
                    VERBS[verb](one)
            case SetDisk(host, slow_ns, full):
                for one in world.named(host):
                    one.disk.slow_ns, one.disk.full = slow_ns, full
            case SetApplication(host, slow_ns):
                for one in world.named(host):
                    one.application_slow_ns = slow_ns
            case Burst(host, count):
                assert world.burst is not None, "checked before anything happened"
                for one in world.named(host):
                    world.burst(one.name, count)
            case Ask(group, verb, host):
                assert world.ask is not None, "checked before anything happened"
                world.ask(group, verb, host)

    def _heal(self, heal: Heal) -> None:
        for number, broken in list(self._faults.items()):
            if heal.where is not None:
                healed = broken.fault.where == heal.where
            else:
                healed = heal.name in ("", broken.name)
            if healed:
                self._world.network.remove(number)
                del self._faults[number]


def _resolved(world: World, fault: Fault) -> Fault:
    """The fault with the current hosts in place of their roles."""
    where = fault.where
    ends = [
        ",".join(world.aliases[one]() if one in world.aliases else one for one in end.split(","))
        for end in (where.sender, where.listener)
    ]
    if ends == [where.sender, where.listener]:
        return fault
    where = msgspec.structs.replace(where, sender=ends[0], listener=ends[1])
    return msgspec.structs.replace(fault, where=where)


def _check_names(world: World, step: Step) -> None:
    action = step.action
    if isinstance(action, (Do, SetDisk, SetApplication, Burst)):
        for name in action.host.split(","):
            if name != ANY and name not in world.aliases:
                world.host(name)
        if isinstance(action, Burst) and world.burst is None:
            raise MisuseError(f"{step.text()!r}: no sender of this world sends bursts")
        return
    if isinstance(action, Ask):
        if world.ask is None:
            raise MisuseError(f"{step.text()!r}: there are no groups in this world")
        if action.host:
            world.host(action.host)
        return
    where = action.fault.where if isinstance(action, Break) else action.where
    if where is None:
        return
    if where.subnet != ANY and where.subnet not in world.network.subnets:
        known = ", ".join(world.network.subnets)
        raise MisuseError(f"{step.text()!r}: there is no subnet {where.subnet}; there are {known}")
    for selector in (*where.sender.split(","), *where.listener.split(",")):
        host, _, adapter = selector.partition("/")
        if host in world.aliases:
            continue
        if host != ANY and adapter not in ("", *world.host(host).adapters):
            raise MisuseError(f"{step.text()!r}: {host} has no adapter {adapter}")


# -- text --------------------------------------------------------------------------------------------------------


def parse_scenario(text: str, name: str = "scenario") -> Scenario:
    """Steps from text, one per line; `#` starts a comment. Errors name the line."""
    steps = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        try:
            steps.append(_parse_step(Words(bare)))
        except MisuseError as error:
            raise MisuseError(f"{name}, line {number} ({bare!r}): {error}") from None
    return Scenario(name, tuple(steps))


def _parse_step(words: Words) -> Step:
    words.need("at")
    at_ns = parse_time(words.next("a time"))
    action = _parse_action(words)
    words.end()
    return Step(at_ns, action)


def _parse_action(words: Words) -> Action:
    verb = words.next("break, heal, disk, application, burst, group or an event of a host")
    if verb == "break":
        fault = parse_fault(words)
        return Break(fault, words.next("a name") if words.take("as") else "")
    if verb == "heal":
        return _parse_heal(words)
    if verb == "disk":
        return _parse_disk(words)
    if verb == "application":
        return _parse_application(words)
    if verb == "burst":
        return Burst(words.next("a host"), parse_count(words.next("a number of messages")))
    if verb == "group":
        return _parse_ask(words)
    if verb in VERBS:
        return Do(verb, words.next("a host"))
    known = ", ".join(("break", "heal", "disk", "application", "burst", "group", *VERBS))
    raise MisuseError(f"unknown verb {verb!r}: {known}")


def _parse_heal(words: Words) -> Heal:
    if words.take("all"):
        return Heal()
    if words.left() == 1:
        return Heal(words.next("a name"))
    return Heal(where=parse_where(words))


def _parse_disk(words: Words) -> SetDisk:
    host = words.next("a host")
    match words.next("slow, full or ok"):
        case "slow":
            return SetDisk(host, slow_ns=parse_time(words.next("a time")))
        case "full":
            return SetDisk(host, full=True)
        case "ok":
            return SetDisk(host)
        case other:
            raise MisuseError(f"{other!r} is not a state of a disk: slow TIME, full or ok")


def _parse_application(words: Words) -> SetApplication:
    host = words.next("a host")
    match words.next("slow or ok"):
        case "slow":
            return SetApplication(host, slow_ns=parse_time(words.next("a time")))
        case "ok":
            return SetApplication(host)
        case other:
            raise MisuseError(f"{other!r} is not a state of an application: slow TIME or ok")


def _parse_ask(words: Words) -> Ask:
    group, verb = words.next("a group"), words.next(", ".join(ASKED))
    if verb not in ASKED:
        raise MisuseError(f"unknown request {verb!r} to a group: {', '.join(ASKED)}")
    return Ask(group, verb, "" if verb == "refound" else words.next("a host"))


def scenario_names() -> list[str]:
    """The scenarios included in Holdfast."""
    folder = resources.files("holdfast.sim") / "scenarios"
    return sorted(entry.name.removesuffix(".txt") for entry in folder.iterdir())


def load_scenario(name: str) -> Scenario:
    """A scenario that is included in Holdfast, by name, or any other, by file."""
    if name in scenario_names():
        file = resources.files("holdfast.sim") / "scenarios" / f"{name}.txt"
        return parse_scenario(file.read_text("utf-8"), name)
    path = Path(name)
    if not path.is_file():
        known = ", ".join(scenario_names())
        raise MisuseError(f"there is no scenario {name!r}: give a file, or one of {known}")
    return parse_scenario(path.read_text("utf-8"), name)
