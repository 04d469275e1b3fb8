"""What really crosses a cable: packets of just the size that was asked for, with just the bytes that were asked for.

A tap between two namespaces looks at every packet, so nothing here relies on what Holdfast thinks that it sends.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns

import pytest
from tests.netns.namespaces import Loop, Seen, Tap, cable, possible

from holdfast.health.frames import Probe
from holdfast.links.multicast import MulticastMachine
from holdfast.links.ports import SendFrame, link_unit, multicast_unit
from holdfast.links.subsystem import LinkService
from holdfast.node.config import AdapterConfig, NodeConfig, SecurityConfig
from holdfast.runtime.node import Node
from holdfast.transports.authority import issue, load_authority, make_authority, write_pair
from holdfast.types import SECOND, SYNC, FlowId

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not possible(), reason="needs root and `ip` to make network namespaces"),
]

NAMES = ("ann", "ben")
TCP, UDP = 6, 17
MARK = bytes.fromhex("a55ac33c")
GROUP = "239.255.77.1:7401"


class Pair:
    """Two sealed nodes, each in its own namespace."""

    def __init__(self, directory: Path, mtu: int) -> None:
        self.mtu = mtu
        self._stack = ExitStack()
        names = self.names = self._stack.enter_context(cable(mtu))
        self.tap = Tap(names[0])
        self._stack.callback(self.tap.close)
        home = directory / "ca"
        write_pair(home, "ca", make_authority("netns", 1), force=False)
        self.loops: dict[str, Loop] = {}
        self.nodes: dict[str, Node] = {}
        for number, (name, namespace) in enumerate(zip(NAMES, names, strict=True), 1):
            certificate, key = write_pair(
                home, name, issue(load_authority(home), name, 1), force=False
            )
            config = NodeConfig(
                domain="netns",
                name=name,
                join=("10.77.0.1:7400",),
                adapter=(AdapterConfig("red", f"10.77.0.{number}:7400", mtu=mtu, multicast=GROUP),),
                security=SecurityConfig("tls", str(home / "ca.pem"), str(certificate), str(key)),
            )
            loop = self.loops[name] = Loop(namespace)
            self._stack.callback(loop.close)
            self.nodes[name] = loop.do(_started(config))
            self._stack.callback(loop.do, self.nodes[name].stop())

    def close(self) -> None:
        self._stack.close()

    def flows(self, name: str) -> dict[str, FlowId]:
        """The agreed flows of a node to the other one, by what they are for."""

        async def look() -> dict[str, FlowId]:
            core = self.nodes[name]._core
            assert core is not None
            other = next(n for n in NAMES if n != name)
            link = core.service(LinkService).link(self.nodes[other].id)
            if link is None:
                return {}
            return {
                f"{f.info.transport} {f.use}".strip(): f.flow
                for f in link.flows.values()
                if f.ready and not f.closing and f.close_at > 1 << 62
            }

        return self.loops[name].do(look())

    def shares_group(self, name: str) -> bool:
        async def look() -> bool:
            core = self.nodes[name]._core
            assert core is not None
            group = core.turns.machine(multicast_unit("red"))
            assert isinstance(group, MulticastMachine)
            return any(peer.flow is not None for peer in group._peers.values())

        return self.loops[name].do(look())

    def rest(self, seconds: float) -> None:
        """Real kernels keep real time."""
        self.loops["ann"].do(asyncio.sleep(seconds))

    def until(self, condition: Callable[[], bool], seconds: float) -> float:
        begin = monotonic_ns()
        while not condition():
            assert monotonic_ns() - begin < seconds * SECOND, f"not within {seconds} s"
            self.rest(0.02)
        return (monotonic_ns() - begin) / SECOND

    def settle(self, uses: set[str]) -> None:
        self.until(
            lambda: all(uses <= self.flows(n).keys() and self.shares_group(n) for n in NAMES), 15
        )

    def probe(
        self, name: str, flow: FlowId | None, size: int, fragments: bool = False
    ) -> list[Seen]:
        """Send one probe; the packets that crossed with its fill, or all fragments of such."""

        async def send() -> None:
            node = self.nodes[name]
            core, driver = node._core, node._driver
            assert core is not None
            assert driver is not None
            other = self.nodes[next(n for n in NAMES if n != name)]
            request = SendFrame(Probe(1, size, 1, 0, memoryview(MARK)), SYNC, flow, size)
            unit = multicast_unit("red") if flow is None else link_unit(other.id)
            core.turns._carry_down.append((unit, request))
            driver.wake()
            await asyncio.sleep(0.05)

        self.tap.seen()
        self.loops[name].do(send())
        seen = self.tap.seen()
        marked = [p for p in seen if MARK * 8 in p.body]
        if not fragments:
            return marked
        ours = {(p.source[0], p.number) for p in marked}
        return [p for p in seen if p.fragment and (p.source[0], p.number) in ours]


async def _started(config: NodeConfig) -> Node:
    node = Node(config)
    await node.start()
    return node


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("netns"), 1500)
    try:
        made.settle({"udp", "tcp", "udp alt", "udp frag", *RUNGS})
        yield made
    finally:
        made.close()


RUNGS = {f"tcp mss:{mss}": mss for mss in (536, 960, 1240, 1460)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use", ["udp", "udp alt"])
@pytest.mark.parametrize("size", [300, 576, 1001, 1500])
def test_a_probe_by_datagram_is_one_packet_of_just_that_size_that_may_not_be_fragmented(
    pair: Pair, name: str, use: str, size: int
) -> None:
    (packet,) = pair.probe(name, pair.flows(name)[use], size)
    assert (packet.size, packet.protocol, packet.df) == (size, UDP, True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mss", list(RUNGS.values()))
def test_a_probe_by_tcp_is_one_segment_of_just_that_size_in_both_directions(
    pair: Pair, name: str, mss: int
) -> None:
    """Outside TLS although the domain is sealed: the fill is what crosses the cable."""
    (packet,) = pair.probe(name, pair.flows(name)[f"tcp mss:{mss}"], mss + 40)
    assert (packet.size, packet.protocol) == (mss + 40, TCP)
    assert packet.tcp_head == 32, "timestamps take twelve bytes of the segment"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mss", list(RUNGS.values()))
def test_segments_of_a_rung_are_never_larger_than_it_says(pair: Pair, name: str, mss: int) -> None:
    packets = pair.probe(name, pair.flows(name)[f"tcp mss:{mss}"], 3 * mss)
    assert [packet.size for packet in packets[:2]] == [mss + 40, mss + 40]
    assert sum(packet.size - 52 for packet in packets) == 3 * mss - 52


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1501, 4000, 9000])
def test_a_probe_above_the_mtu_crosses_in_fragments(pair: Pair, name: str, size: int) -> None:
    packets = pair.probe(name, pair.flows(name)["udp frag"], size, fragments=True)
    assert [packet.size for packet in packets[:-1]] == [1500] * (len(packets) - 1)
    assert sum(packet.size - 20 for packet in packets) == size - 20


@pytest.mark.parametrize("name", NAMES)
def test_a_datagram_above_the_mtu_never_leaves_a_socket_that_may_not_fragment(
    pair: Pair, name: str
) -> None:
    assert pair.probe(name, pair.flows(name)["udp"], 1501) == []


def test_the_other_port_is_another_port(pair: Pair) -> None:
    ports = {
        use: pair.probe("ann", pair.flows("ann")[use], 600)[0].body[:4]
        for use in ("udp", "udp alt", "udp frag")
    }
    assert len(set(ports.values())) == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [576, 1500])
def test_a_probe_to_the_group_is_one_packet_that_stays_on_the_cable(
    pair: Pair, name: str, size: int
) -> None:
    (packet,) = pair.probe(name, None, size)
    assert (packet.size, packet.protocol, packet.df, packet.ttl) == (size, UDP, True, 1)


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft to break the cable")
def test_a_connection_whose_segments_do_not_pass_is_replaced_until_they_do(pair: Pair) -> None:
    use = "tcp mss:1460"
    stalled = pair.flows("ann")[use]
    nft(pair.names[1], "add table netdev hole")
    nft(pair.names[1], HOLE)
    nft(pair.names[1], "add rule netdev hole in meta length > 1400 drop")
    pair.probe("ann", stalled, 1500)
    took = pair.until(lambda: pair.flows("ann").get(use) != stalled, 6)
    assert took < 4, "twice the time for which nothing was acknowledged"
    assert pair.probe("ann", pair.flows("ann")["tcp mss:1240"], 1280)
    pair.until(lambda: use in pair.flows("ann"), 10)
    again = pair.flows("ann")[use]
    pair.probe("ann", again, 1500)
    pair.until(lambda: pair.flows("ann").get(use) != again, 6)
    nft(pair.names[1], "delete table netdev hole")
    pair.until(lambda: all(use in pair.flows(name) for name in NAMES), 10)
    sound = pair.flows("ann")[use]
    assert pair.probe("ann", sound, 1500)
    pair.rest(3)
    assert pair.flows("ann")[use] == sound


HOLE = "add chain netdev hole in { type filter hook ingress device c0 priority 0; }"


def nft(namespace: str, command: str) -> None:
    subprocess.run(["ip", "netns", "exec", namespace, "nft", command], check=True)
