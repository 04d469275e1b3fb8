"""Scenarios of the overlay as text: steps and their expected results.

One command per line; `#` begins a comment. A `show` command is followed by lines that begin with `|`: its expected
output.

    nodes a b c            nodes of the realm `default`; `nodes/east a b` of another
    links a-b b-c          links that come up; `cut a-b`, `kill a`, `restart a` are the faults
    wait 2s                let the world run (`ms` or `s`)
    publish a role [exclusive|claim|realm]
    unpublish a role
    send a role text       ask all instances, wait until it has ended; `tell` is one-way, `start` does not wait
    name a role b text     send only to the instance on node b
    give a                 the application of a gives its role to a request with the text `give`
    mute a / answer a      the application of a stops answering / answers again
    show routes role       who each node sends to for a role, `~` where only by a reverse route
    show got text          which nodes got a message, and how often
    show end text          how the request ended: kind, who answered, what failed
    show built role        nodes on which the role is built
    show holders role      nodes that hold the role
    show count NAME        the sum of a counter over all nodes
    show events NAME       nodes that were told of an event
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.overlay_world import World

from holdfast.overlay import tree_id
from holdfast.overlay.ports import AnswerMessage, Delivered, OverlayEvent, UnpublishRole
from holdfast.types import MILLISECOND, SECOND

TREE = tree_id("tree")
UNITS = {"ms": MILLISECOND, "s": SECOND}


def duration(text: str) -> int:
    unit = "ms" if text.endswith("ms") else "s"
    return int(text.removesuffix(unit)) * UNITS[unit]


class Scenario:
    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.sent: dict[str, tuple[str, int]] = {}

    # -- commands ------------------------------------------------------------------------------------------------

    def run(self, text: str) -> tuple[str, str]:
        """(expected output, actual output), each as one text."""
        said: list[str] = []
        seen: list[str] = []
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.split("#")[0].strip()
            if line.startswith("|"):
                said.append(line)
                continue
            if not line:
                continue
            words = line.split()
            if words[0] == "show":
                header = f"line {number}: {line}"
                said.append(header)
                seen.append(header)
                seen += [f"| {row}" for row in getattr(self, f"show_{words[1]}")(*words[2:])]
            else:
                realm = words[0].partition("/")[2]
                getattr(self, "do_" + words[0].partition("/")[0])(*words[1:], **_realm(realm))
        return "\n".join(said), "\n".join(seen)

    def do_nodes(self, *names: str, realm: str = "default") -> None:
        for name in names:
            self.world.add(name, realm)

    def do_links(self, *pairs: str) -> None:
        for pair in pairs:
            self.world.link(*pair.split("-"))
        self.world.run(SECOND)

    def do_cut(self, *pairs: str) -> None:
        for pair in pairs:
            self.world.cut(*pair.split("-"))
        self.world.run(SECOND)

    def do_kill(self, *names: str) -> None:
        for name in names:
            self.world.kill(name)
        self.world.run(SECOND)

    def do_restart(self, *names: str) -> None:
        for name in names:
            self.world.restart(name)
        self.world.run(SECOND)

    def do_wait(self, time: str) -> None:
        self.world.run(duration(time))

    def do_publish(self, name: str, role: str, *how: str) -> None:
        options = {"exclusive": "exclusive", "claim": "claim", "realm": "realm_only"}
        self.world.publish(name, role, **{options[word]: True for word in how})
        self.world.run(2 * SECOND)

    def do_unpublish(self, name: str, role: str) -> None:
        host = self.world.hosts[name]
        self.world.post(host, [UnpublishRole(self.world.op(), TREE, role)])
        self.world.run(SECOND)

    def do_send(self, name: str, role: str, text: str, *how: str) -> None:
        self.do_start(name, role, text, *how)
        self.world.run(8 * SECOND)

    def do_start(self, name: str, role: str, text: str, *how: str) -> None:
        options: dict[str, Any] = {"aggregate": True}
        if "realm" in how:
            options["realm_only"] = True
        self.sent[text] = (name, self.world.send(name, text.encode(), role, **options))

    def do_name(self, name: str, role: str, holder: str, text: str) -> None:
        local = self.world.hosts[holder].machine.local.get(TREE, role)
        assert local is not None
        op = self.world.send(name, text.encode(), role, instance=local.instance)
        self.sent[text] = (name, op)
        self.world.run(3 * SECOND)

    def do_tell(self, name: str, role: str, text: str) -> None:
        self.sent[text] = (name, self.world.send(name, text.encode(), role, one_way=True))
        self.world.run(3 * SECOND)

    def do_give(self, name: str) -> None:
        def answer(item: Delivered) -> AnswerMessage:
            give = item.data == b"give"
            return AnswerMessage(item.token, name.encode(), grant=give, give_up=give)

        self.world.hosts[name].answers = answer

    def do_mute(self, name: str) -> None:
        self.world.hosts[name].answers = lambda *_: None

    def do_answer(self, name: str) -> None:
        self.world.hosts[name].answers = None

    # -- output --------------------------------------------------------------------------------------------------

    def _name(self, node: bytes) -> str:
        return next(h.name for h in self.world.hosts.values() if h.id == node)

    def show_routes(self, role: str) -> list[str]:
        rows = []
        for host in self.world.hosts.values():
            if not host.alive:
                rows.append(f"{host.name} dead")
                continue
            inspect = host.machine.inspect
            known = inspect.routes(TREE, role)
            real = dict.fromkeys(known.values(), True)
            links = [
                self._name(link) + ("" if link in real else "~")
                for link in inspect.route_links(TREE, role)
            ]
            holds = "*" if host.machine.local.get(TREE, role) else ""
            rows.append(f"{host.name}{holds} -> {' '.join(sorted(links)) or 'nothing'}")
        return rows

    def show_got(self, text: str) -> list[str]:
        got = self.world.receivers(text.encode())
        return [" ".join(n if k == 1 else f"{n}x{k}" for n, k in sorted(got.items())) or "no node"]

    def show_end(self, text: str) -> list[str]:
        name, op = self.sent[text]
        end = self.world.hosts[name].end_of(op)
        if end is None:
            return ["not ended"]
        answered = sorted(self._name(instance[:16]) for instance in end.answered)
        failed = sorted(f"{self._name(i[:16])}: {how}" for i, how in end.failed)
        row = f"{end.kind}; answered: {' '.join(answered) or 'none'}"
        row += f"; failed: {', '.join(failed)}" if failed else ""
        return [row + ("; others may be missing" if end.incomplete else "")]

    def show_built(self, role: str) -> list[str]:
        hosts = [h for h in self.world.hosts.values() if h.alive]
        built = [h.name for h in hosts if h.machine.inspect.built(TREE, role)]
        return [" ".join(built) or "no node"]

    def show_holders(self, role: str) -> list[str]:
        return [" ".join(self.world.holders(role)) or "no node"]

    def show_count(self, counter: str) -> list[str]:
        hosts = self.world.hosts.values()
        return [str(sum(h.machine.hub.counters.get(counter, 0) for h in hosts))]

    def show_events(self, event: str) -> list[str]:
        told = [
            h.name
            for h in self.world.hosts.values()
            if any(e.event == event for e in h.told(OverlayEvent))
        ]
        return [" ".join(told) or "no node"]


def _realm(realm: str) -> dict[str, str]:
    return {"realm": realm} if realm else {}


def scenario_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt"))
