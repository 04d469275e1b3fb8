"""Adapters with addresses of IPv6, on a cable between two namespaces: all kinds are measured, and faults are found."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.netns.namespaces import Loop, cable, possible

from holdfast.health.classify import FLAPPING
from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig
from holdfast.runtime.health import PathState
from holdfast.runtime.node import Node

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not possible(), reason="needs root and `ip` to make network namespaces"),
]

NAMES = ("ann", "ben")
PATIENCE_S = 30
SOUND = {"udp": 1500, "tcp": 1500, "frag": 9000, "multicast": 1500}


class Pair:
    """Two plain nodes, each in its own namespace: what crosses the cable stays on this machine."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.namespaces = self._stack.enter_context(cable(1500))
        self.loops: dict[str, Loop] = {}
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(NAMES, 1):
            loop = self.loops[name] = Loop(self.namespaces[number - 1])
            self._stack.callback(loop.close)
            config = NodeConfig(
                domain="six",
                name=name,
                join=("[fd77::1]:7400",),
                adapter=(
                    AdapterConfig("c", f"[fd77::{number}]:7400", multicast="[ff02::7400]:7401"),
                ),
                security=SecurityConfig(mode="plain"),
            )
            self.nodes[name] = loop.do(self._start(config))
            self._stack.callback(lambda loop=loop, name=name: loop.do(self.nodes[name].stop()))

    @staticmethod
    async def _start(config: NodeConfig) -> Node:
        node = Node(config)
        await node.start()
        return node

    def close(self) -> None:
        self._stack.close()

    def rows(self) -> dict[str, PathState]:
        """What ben says of what comes from ann."""

        async def look() -> list[PathState]:
            return self.nodes["ben"].health.table()

        found = self.loops["ben"].do(look())
        return {row.transport: row for row in found if row.sender == "ann"}

    def classes(self) -> set[tuple[str, str]]:
        """Errors of that path, and the kinds of packets that show them."""

        async def look() -> set[tuple[str, str]]:
            found = self.nodes["ben"].health.incidents()
            # One fault after the other is a path that flaps, too.
            mine = [one for one in found if one.sender == "ann" and one.error_class != FLAPPING]
            return {
                (one.error_class, kind) for one in mine for kind in one.kinds or (one.transport,)
            }

        return self.loops["ben"].do(look())

    def until(self, check: Callable[[], bool]) -> None:
        async def wait() -> None:
            await asyncio.sleep(0.05)

        for _ in range(PATIENCE_S * 20):
            if check():
                return
            self.loops["ben"].do(wait())
        raise AssertionError(f"{self.rows()}, {self.classes()}")

    def filter(self, rule: str) -> None:
        """Drop packets where they arrive at ben's adapter."""
        script = (
            "add table netdev t\n"
            'add chain netdev t c { type filter hook ingress device "c0" priority 0; }\n'
            f"add rule netdev t c {rule} drop\n"
        )
        self._nft(script)

    def heal(self) -> None:
        self._nft("delete table netdev t\n")

    def _nft(self, script: str) -> None:
        command = ["ip", "netns", "exec", self.namespaces[1], "nft", "-f", "-"]
        subprocess.run(command, input=script.encode(), check=True, capture_output=True)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    try:
        yield made
    finally:
        made.close()


def sound(pair: Pair) -> bool:
    return {kind: row.size for kind, row in pair.rows().items() if row.alive} == SOUND


def test_every_kind_is_measured_up_to_its_largest_size(pair: Pair) -> None:
    pair.until(lambda: sound(pair))
    assert pair.classes() == set()


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft")
@pytest.mark.parametrize(
    ("rule", "found"),
    [
        # The length of IPv6 does not count its own head of 40 bytes.
        ("ip6 length > 960 meta l4proto udp", {("size", "udp")}),
        ("ip6 daddr ff02::7400", {("multicast", "multicast")}),
        ("meta l4proto tcp", {("protocol", "tcp")}),
    ],
)
def test_a_fault_has_its_name(pair: Pair, rule: str, found: set[tuple[str, str]]) -> None:
    pair.until(lambda: sound(pair) and not pair.classes())
    pair.filter(rule)
    try:
        pair.until(lambda: found <= pair.classes())
        if ("size", "udp") in found:
            assert pair.rows()["udp"].size == 1000
    finally:
        pair.heal()
    pair.until(lambda: sound(pair))
