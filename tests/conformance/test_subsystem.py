"""A subsystem that is declared in test code alone runs under both drivers (docs/design/subsystems.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from tests.conformance.echo import ECHO, TABLE, EchoEdge, EchoFact, EchoService
from tests.conformance.worlds import free_port

from holdfast.errors import ConfigError, MisuseError
from holdfast.node.config import parse_config
from holdfast.node.core import NodeCore
from holdfast.node.subsystems import SUBSYSTEMS, fact_types
from holdfast.runtime.control import ask
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node
from holdfast.sim.cluster import make_core
from holdfast.sim.facts import FactBook
from holdfast.sim.world import World
from holdfast.subsystem import NodeConfig
from holdfast.types import SECOND
from holdfast.web.metrics import metrics_text
from holdfast.wire.codec import learn
from holdfast.wire.frames import Frame

WITH_ECHO = (*SUBSYSTEMS, ECHO)


def config_of(name: str, address: str, join: str, data: str) -> NodeConfig:
    text = f"""
domain = "echo"
name = "{name}"
data = "{data}"
join = ["{join}"]
security.mode = "plain"
[[adapter]]
name = "red"
address = "{address}"
[echo]
prefix = "{name}: "
"""
    return parse_config(text, subsystems=WITH_ECHO)


class EchoWorld(Protocol):
    """Two nodes, ann and ben, with the echo subsystem."""

    def edge(self, name: str) -> EchoEdge: ...
    def core(self, name: str) -> NodeCore: ...
    def until(self, predicate: object) -> bool: ...
    def restart(self, name: str) -> None: ...
    def facts(self) -> list[str]: ...
    def close(self) -> None: ...


class Simulated:
    def __init__(self, _directory: Path) -> None:
        self._book = FactBook()
        self._world = World(1, facts=self._book)
        self._world.network.subnet("red", mtu=1500)
        for number, name in enumerate(("ann", "ben"), 1):
            config = config_of(name, f"127.1.0.{number}:7400", "127.1.0.1:7400", "disk")
            boot = partial(make_core, config=config, subsystems=WITH_ECHO)
            host = self._world.add_host(name, boot)
            self._world.network.attach(host, "red", "red", (f"127.1.0.{number}", 7400))
            host.start()

    def edge(self, name: str) -> EchoEdge:
        return next(e for e in self._world.host(name).edges if isinstance(e, EchoEdge))

    def core(self, name: str) -> NodeCore:
        core = self._world.host(name).core
        assert isinstance(core, NodeCore)
        return core

    def until(self, predicate: object) -> bool:
        assert callable(predicate)
        return self._world.run_until(predicate, 20 * SECOND)

    def restart(self, name: str) -> None:
        self._world.host(name).stop()
        self._world.host(name).start()

    def facts(self) -> list[str]:
        return [fact.text for fact in self._book.of(EchoFact)]

    def close(self) -> None:
        self._world.finish()


class Sockets:
    def __init__(self, directory: Path) -> None:
        self._loop = loop_factory()()
        port = free_port(["127.0.31.1", "127.0.31.2"])
        join = f"127.0.31.1:{port}"
        self._configs = {
            name: config_of(name, f"127.0.31.{number}:{port}", join, str(directory / name))
            for number, name in enumerate(("ann", "ben"), 1)
        }
        self._nodes: dict[str, Node] = {}
        self.recorded: list[str] = []
        for name in self._configs:
            self._start(name)

    def _start(self, name: str) -> None:
        node = self._nodes[name] = Node(self._configs[name], subsystems=WITH_ECHO)
        self._loop.run_until_complete(node.start())

    def edge(self, name: str) -> EchoEdge:
        edge = self._nodes[name].echo  # type: ignore[attr-defined]  # the name of its edge
        assert isinstance(edge, EchoEdge)
        return edge

    def core(self, name: str) -> NodeCore:
        core = self._nodes[name]._core
        assert core is not None
        return core

    def until(self, predicate: object) -> bool:
        assert callable(predicate)

        async def wait() -> bool:
            try:
                async with asyncio.timeout(20):
                    while not predicate():  # noqa: ASYNC110 any predicate will do, so there is no event
                        await asyncio.sleep(0.005)
            except TimeoutError:
                return False
            return True

        return bool(self._loop.run_until_complete(wait()))

    def restart(self, name: str) -> None:
        self._loop.run_until_complete(self._nodes[name].stop())
        self._start(name)

    def facts(self) -> list[str]:
        """Telemetry is sealed when a node stops."""
        import pyarrow.parquet as pq

        self._loop.run_until_complete(self._nodes["ben"].stop())
        landing = Path(self._configs["ben"].data) / "telemetry"
        files = sorted(landing.rglob("echo/**/*.parquet"))
        return [text for file in files for text in pq.read_table(file)["text"].to_pylist()]

    def asked(self, name: str) -> object:
        path = Path(self._configs[name].data) / "control.sock"
        call = self._loop.run_in_executor(None, lambda: ask(path, {"do": "echo"}))
        return self._loop.run_until_complete(call)

    def close(self) -> None:
        for node in self._nodes.values():
            self._loop.run_until_complete(node.stop())
        self._loop.close()


@pytest.fixture(params=[Simulated, Sockets], ids=["simulator", "sockets"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EchoWorld]:
    made = request.param(tmp_path)
    yield made
    made.close()


def linked(world: EchoWorld) -> bool:
    return all(world.core(name).service(EchoService).machine.up_peers for name in ("ann", "ben"))


def say(world: EchoWorld, text: str) -> None:
    world.edge("ann").say(world.core("ben").me.node, text)


def test_an_echo_subsystem_declared_in_test_code_runs_under_both_drivers(world: EchoWorld) -> None:
    assert world.until(lambda: linked(world)), "it hears the link events that it subscribed to"
    say(world, "hello")
    assert world.until(lambda: world.edge("ann").heard == ["ben: hello"])
    status = world.core("ben").status(0)
    assert status["echo"] == {"repeated": 1}
    assert "holdfast_echo_repeated_total 1" in metrics_text(status, WITH_ECHO)
    for name in ("ann", "ben"):
        unexpected = world.core(name).service(EchoService).machine.unexpected
        assert unexpected == [], "links announce only the events that a unit subscribed to"
    if isinstance(world, Sockets):
        assert world.asked("ann") == {"heard": ["ben: hello"]}
    assert world.facts() == ["hello"]


def test_its_table_survives_a_restart_and_is_given_to_a_unit_that_is_rebuilt(
    world: EchoWorld,
) -> None:
    assert world.until(lambda: linked(world))
    say(world, "hello")
    assert world.until(lambda: bool(world.edge("ann").heard))
    before = world.edge("ben")
    world.restart("ben")
    assert "has stopped" in before.ended or isinstance(world, Simulated)
    assert world.core("ben").service(EchoService).machine.repeated == ["hello"]
    assert world.until(lambda: linked(world))
    say(world, "crash")
    machine = world.core("ben").service(EchoService).machine
    assert world.until(lambda: world.core("ben").service(EchoService).machine is not machine)
    assert world.core("ben").service(EchoService).machine.repeated == ["hello"]
    say(world, "again")
    assert world.until(lambda: world.edge("ann").heard[-1:] == ["ben: again"])


def test_its_section_is_checked_with_the_rest_of_the_file() -> None:
    text = 'domain = "d"\nname = "n"\nsecurity.mode = "plain"\n[[adapter]]\nname = "a"\naddress = "127.0.0.1:1"\n'
    with pytest.raises(ConfigError, match=r"unknown key 'prefx'; did you mean 'prefix'"):
        parse_config(text + '[echo]\nprefx = "x"', subsystems=WITH_ECHO)
    with pytest.raises(ConfigError, match=r"at most 8 letters"):
        parse_config(text + '[echo]\nprefix = "123456789"', subsystems=WITH_ECHO)
    with pytest.raises(ConfigError, match=r"Expected `str`, got `int` - at `\$\.echo\.prefix`"):
        parse_config(text + "[echo]\nprefix = 1", subsystems=WITH_ECHO)
    with pytest.raises(ConfigError, match="unknown key 'echo'"):
        parse_config(text + "[echo]\n")


def test_the_one_list_gives_tables_facts_and_frames() -> None:
    config = config_of("ann", "127.1.0.1:7400", "127.1.0.2:7400", "d")
    assert TABLE in NodeCore.tables(config, WITH_ECHO)
    assert TABLE not in NodeCore.tables(config)
    assert EchoFact in fact_types(WITH_ECHO)
    kinds = [fact.kind for fact in fact_types(WITH_ECHO)]
    assert len(dict.fromkeys(kinds)) == len(kinds)


def test_two_frames_cannot_have_one_tag() -> None:
    class Other(Frame, frozen=True, gc=False, array_like=True, tag=200):
        text: str

    with pytest.raises(MisuseError, match="both have tag 200"):
        learn([Other])
