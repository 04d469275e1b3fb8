"""`holdfast.Node` as applications meet it: what it gives, what it refuses, and how it says so."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.worlds import free_port
from tests.support.machines import Bug, fail
from tests.unit.runtime.pairs import PATIENCE_S, config, eventually, pair

from holdfast.errors import (
    ChannelEnded,
    MisuseError,
    NodeStopped,
    NotAccepted,
    PeerUnknown,
    StoreFull,
)
from holdfast.health.ports import PATH_GOSSIP
from holdfast.links.channel_in import MESSAGE_MAX
from holdfast.links.datagrams import BOUNDS
from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import SendChannel, SessionEnded, link_unit
from holdfast.links.subsystem import LinkService
from holdfast.node.config import LabConfig
from holdfast.runtime.driver import CROWD_BYTES
from holdfast.runtime.handles import Channel, Datagrams
from holdfast.runtime.links import PORTS_MAX
from holdfast.runtime.node import Node
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.types import DATA, NodeId

PORT = 20


def test_messages_of_any_size_arrive_once_and_in_order() -> None:
    async def run() -> None:
        got: list[bytes] = []
        sizes = [0, 1, 100, 65_536, 3_000_000, 7, 0, 1_400]
        async with pair() as (ann, ben):
            ben.listen(PORT, lambda _, messages: got.extend(map(bytes, messages)))
            channel = ann.channel("ben", PORT)
            for number, size in enumerate(sizes):
                await channel.send(bytes([number]) * size)
            await eventually(lambda: len(got) == len(sizes))
        assert got == [bytes([number]) * size for number, size in enumerate(sizes)]

    asyncio.run(run())


def test_datagrams_arrive() -> None:
    async def run() -> None:
        got: list[bytes] = []
        async with pair() as (ann, ben):
            ben.listen(PORT, lambda _, messages: got.extend(map(bytes, messages)), channel=False)
            datagrams = ann.datagrams("ben", PORT)

            def some() -> bool:
                datagrams.try_send(b"a datagram")
                return bool(got)

            await eventually(some)
        assert set(got) == {b"a datagram"}

    asyncio.run(run())


def test_on_the_loopback_of_ipv6_everything_passes_as_well() -> None:
    """TCP, UDP, fragments, and every size of segments; channels and datagrams."""

    async def run() -> None:
        got: dict[bool, list[bytes]] = {True: [], False: []}
        ports = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])
        async with (
            Node(config("ann", ports[0], host="[::1]")) as ann,
            Node(config("ben", ports[1], ports[0], host="[::1]")) as ben,
        ):
            await ann.until_up("ben", timeout_s=PATIENCE_S)
            await ben.until_up("ann", timeout_s=PATIENCE_S)
            for kind, heard in got.items():
                ben.listen(PORT, lambda _, m, into=heard: into.extend(map(bytes, m)), channel=kind)
            await ann.channel("ben", PORT).send(bytes(100_000))
            datagrams = ann.datagrams("ben", PORT)

            def both() -> bool:
                datagrams.try_send(b"a datagram")
                return bool(got[True] and got[False])

            def measured() -> bool:
                rows = {row.transport: row.size for row in ann.health.table() if row.alive}
                return rows == {"udp": 1500, "tcp": 1500, "frag": 9000}

            await eventually(both)
            await eventually(measured)
            assert ann.health.incidents() == []
        assert got[True] == [bytes(100_000)]

    asyncio.run(run())


def test_a_full_queue_refuses_and_then_takes_again() -> None:
    """docs/design/architecture.md, invariant 9: when a queue is full the sender is told, nothing vanishes."""

    async def run() -> None:
        got = 0

        def take(_: bytes, messages: list[memoryview]) -> None:
            nonlocal got
            got += len(messages)

        async with pair() as (ann, ben):
            ben.listen(PORT, take)
            channel = ann.channel("ben", PORT)
            accepted = 0
            while channel.try_send(bytes(10_000)):
                accepted += 1
            assert 100 < accepted < 2_000
            await channel.writable()
            assert channel.try_send(b"one more")
            await eventually(lambda: got == accepted + 1)

    asyncio.run(run())


def test_a_channel_takes_many_times_its_bound_bit_by_bit() -> None:
    """What was handed over counts as waiting until the link says otherwise, also when nothing ever waits there."""

    async def run() -> None:
        got = 0

        def take(_: bytes, messages: list[memoryview]) -> None:
            nonlocal got
            got += len(messages)

        async with pair() as (ann, ben), asyncio.timeout(PATIENCE_S):
            ben.listen(PORT, take)
            channel = ann.channel("ben", PORT)
            for number in range(1, 301):
                await channel.send(bytes(100_000))
                await eventually(lambda number=number: got == number)  # type: ignore[misc]

    asyncio.run(run())


def test_a_channel_to_a_peer_that_stops_ends_loudly() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            channel = ann.channel("ben", PORT)
            await channel.send(b"fine")
            await ben.stop()
            await eventually(lambda: ann.status()["links"][0]["state"] == "down")
            with pytest.raises(ChannelEnded, match="may not have arrived"):
                await channel.send(b"too late")
            with pytest.raises(NotAccepted, match="no session"):
                ann.channel("ben", PORT)

    asyncio.run(run())


def test_a_channel_that_ends_counts_accepted_messages_that_were_not_seen() -> None:
    """Whoever is told that nothing is missing does not send it again."""

    async def run() -> None:
        async with pair() as (ann, ben):
            channel = ann.channel("ben", PORT)
            for message in (b"first", b"second"):
                await eventually(lambda: not channel.pending)
                await channel.send(message)
            ann._links._session_ended(SessionEnded(ben.id, "the peer left", 0))
            with pytest.raises(ChannelEnded, match="up to 10 bytes may not have arrived"):
                await channel.send(b"third")

    asyncio.run(run())


def test_a_node_that_stopped_refuses_to_send() -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            channel = ann.channel("ben", PORT)
            await ann.stop()
            with pytest.raises(NodeStopped, match="nothing was sent"):
                await channel.send(b"too late")

    asyncio.run(run())


def test_what_cannot_be_is_refused_with_a_reason() -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            with pytest.raises(PeerUnknown, match="carl"):
                ann.channel("carl", PORT)
            with pytest.raises(MisuseError, match="reserved for Holdfast"):
                ann.channel("ben", 3)
            with pytest.raises(MisuseError, match="at most"):
                ann.channel("ben", PORT).try_send(bytes(MESSAGE_MAX + 1))
            for port in range(PORT, PORT + PORTS_MAX):
                ann.channel("ben", port)
            with pytest.raises(MisuseError, match="which is the maximum"):
                ann.channel("ben", PORT + PORTS_MAX)
            with pytest.raises(MisuseError, match="no group"):
                ann.group("nothing")

    asyncio.run(run())


@pytest.mark.parametrize("port", [-1, 15, 1 << 20, 1 << 70, 20.5, "20", None, True])
def test_a_port_that_applications_do_not_have_is_refused(port: Any) -> None:
    """On the wire it would be something else, or nothing: the peer, or the link itself, would break off."""
    node = Node(config("ann", 1))
    for use in (
        partial(node.listen, port, print),
        *(partial(kind, NodeId(b"n" * 16), port) for kind in (node.channel, node.datagrams)),
    ):
        with pytest.raises(MisuseError, match=r"integers 16 to 1048575.*nothing was opened"):
            use()


def test_a_value_of_the_wrong_type_is_refused_and_harmless() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            got: list[bytes] = []
            ben.listen(PORT, lambda _, messages: got.extend(map(bytes, messages)))
            channel = ann.channel("ben", PORT)
            for wrong in ("text", None, 7, [b"x"]):
                with pytest.raises(MisuseError, match="a message must be bytes, not"):
                    channel.try_send(wrong)  # type: ignore[arg-type]
            for right in (b"bytes", bytearray(b"more"), memoryview(b"as well")):
                assert channel.try_send(right)  # type: ignore[arg-type]
            await eventually(lambda: got == [b"bytes", b"more", b"as well"])

    asyncio.run(run())


def test_a_callback_that_fails_costs_nothing_else() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            got: list[bytes] = []

            def fail(_: object, messages: list[memoryview]) -> None:
                raise ValueError(f"a bug in the application, with {len(messages)} messages")

            ben.listen(PORT, fail)
            ben.listen(PORT + 1, lambda _, messages: got.extend(map(bytes, messages)))
            bad, good = ann.channel("ben", PORT), ann.channel("ben", PORT + 1)
            for number in range(200):
                await bad.send(b"x")
                await good.send(b"%d" % number)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await eventually(lambda: len(got) == 200)
            assert got == [b"%d" % number for number in range(200)]

    asyncio.run(run())


def test_a_coroutine_function_cannot_listen(caplog: pytest.LogCaptureFixture) -> None:
    """Messages would be thrown away."""
    got: list[bytes] = []

    async def late(_: NodeId, messages: list[memoryview]) -> None:
        got.extend(map(bytes, messages))

    async def run() -> None:
        async with pair() as (ann, ben):
            with pytest.raises(
                MisuseError, match=r"must not be a coroutine function; it was not registered"
            ):
                ben.listen(PORT, late)
            ben.listen(PORT, lambda peer, _: late(peer, []))
            await ann.channel("ben", PORT).send(b"one")
            await eventually(lambda: "that is not awaited" in caplog.text)
            ben.listen(PORT, lambda _, messages: got.extend(map(bytes, messages)))
            await ann.channel("ben", PORT).send(b"two")
            await eventually(lambda: got == [b"two"])

    asyncio.run(run())


def test_a_large_message_waits_for_its_room_and_all_senders_make_progress() -> None:
    async def run() -> None:
        async with pair() as (ann, ben):
            got: list[int] = []
            ben.listen(PORT, lambda _, messages: got.extend(map(len, messages)))
            channel = ann.channel("ben", PORT)
            channel.queued(3 << 20, 0)
            assert not channel.try_send(bytes(6 << 20))
            waits = asyncio.create_task(channel.writable(6 << 20))
            await asyncio.sleep(0)
            assert not waits.done()
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            assert not channel._waiters, "who went away is forgotten"
            sends = asyncio.create_task(channel.send(bytes(6 << 20)))
            await asyncio.sleep(0)
            channel.queued(2 << 20, 0)
            await sends
            await eventually(lambda: got == [6 << 20])

    asyncio.run(run())


def test_a_node_that_has_stopped_can_start_again() -> None:
    async def run() -> None:
        first, second = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])
        got: list[bytes] = []
        async with Node(config("ben", second)) as ben:
            ben.listen(PORT, lambda _, messages: got.extend(map(bytes, messages)))
            ann = Node(config("ann", first, second))
            for life in (b"first", b"second"):
                await ann.start()
                await ann.until_up("ben", timeout_s=PATIENCE_S)
                channel = ann.channel("ben", PORT)
                await channel.send(life)
                await eventually(lambda life=life: got[-1:] == [life])
                await ann.stop()
                with pytest.raises(NodeStopped, match="nothing was sent"):
                    channel.try_send(b"too late")
            assert got == [b"first", b"second"]

    asyncio.run(run())


def test_datagrams_to_a_port_are_one_handle() -> None:
    async def run() -> None:
        async with pair() as (ann, _):
            assert ann.datagrams("ben", PORT) is ann.datagrams("ben", PORT)
            assert ann.datagrams("ben", PORT) is not ann.datagrams("ben", PORT + 1)

    asyncio.run(run())


def test_floods_of_datagrams_are_held_back_where_they_come_from_and_all_get_their_share() -> None:
    """The queue in front of the node is bounded, whoever sends."""

    async def run() -> None:
        async with pair() as (ann, _):
            handles = [ann.datagrams("ben", PORT + k) for k in range(8)]
            driver = ann._driver
            assert driver is not None
            senders = [asyncio.create_task(flood(handle)) for handle in handles]
            room = driver.intake.bound[DATA]
            for _ in range(100):
                await asyncio.sleep(0)  # a turn, or nearly one
                room = min(room, driver.intake.room(DATA))
            assert driver.intake.bound[DATA] - room < CROWD_BYTES + 2 * BOUNDS[DATA]
            shares = [handle._handed for handle in handles]
            assert min(shares) > max(shares) // 4 > 0
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    asyncio.run(run())


class SmallDisk(Node):
    """A node whose store has room for its identity and for nothing else."""

    def _open_store(self) -> Store:
        return MemoryStore(max_bytes=80)


def test_a_write_that_fails_stops_the_node_and_says_why() -> None:
    """docs/design/architecture.md: a failed write stops the node."""

    async def run() -> None:
        first, second = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])
        async with SmallDisk(config("ann", first)) as ann, Node(config("ben", second, first)):
            with pytest.raises(StoreFull):
                async with asyncio.timeout(PATIENCE_S):
                    await ann.wait_stopped()
            assert ann.status()["node"]["stopped"]
            with pytest.raises(NodeStopped, match=r"stopped: .*nothing was sent"):
                ann.datagrams(ann.id, PORT)

    asyncio.run(run())


def test_a_unit_that_raises_is_rebuilt_and_its_inputs_are_dumped(tmp_path: Path) -> None:
    """docs/design/architecture.md: a machine that raises takes down its own unit, not the node."""

    async def run() -> None:
        async with pair(tmp_path) as (ann, ben):
            core = ann._core
            assert core is not None
            held = ann.channel("ben", PORT)
            link = core.service(LinkService).link(ben.id)
            core.turns.post(link_unit(ben.id), SendChannel(PORT, Bug("a bug in the link")))
            await eventually(lambda: core.service(LinkService).link(ben.id) is not link)
            with pytest.raises(ChannelEnded, match="its link failed"):
                await held.send(b"whoever holds a channel is told")
            await ann.until_up("ben", timeout_s=PATIENCE_S)
            failures = tmp_path / "ann" / "failures"
            await eventually(lambda: any(dump.stat().st_size for dump in failures.glob("*")))
            (dump,) = failures.iterdir()
            assert "a bug in the link" in dump.read_text()
            assert core.turns.stopped == {}
            got: list[bytes] = []
            ben.listen(PORT, lambda _, messages: got.extend(map(bytes, messages)))
            await ann.channel("ben", PORT).send(b"as before")
            await eventually(lambda: got == [b"as before"])

    asyncio.run(run())


def test_a_link_that_fails_again_and_is_stopped_ends_what_used_it() -> None:
    """Whoever sends is told, and the peer is not said to be up."""

    async def run() -> None:
        async with pair() as (ann, ben):
            core = ann._core
            assert core is not None
            for _ in range(2):
                await ann.until_up("ben", timeout_s=PATIENCE_S)
                channel = ann.channel("ben", PORT)
                core.turns.post(link_unit(ben.id), SendChannel(PORT, Bug()))
                with pytest.raises(ChannelEnded, match="its link failed"):
                    async with asyncio.timeout(PATIENCE_S):
                        await flood(channel)
            assert ann.status()["node"]["stopped_units"] == [link_unit(ben.id)]
            await eventually(lambda: ann.status()["members"][1]["state"] != "up")
            with pytest.raises(NotAccepted, match="no session"):
                ann.channel("ben", PORT)
            datagrams = ann.datagrams("ben", PORT)
            await datagrams.send(b"nobody takes it")
            await eventually(lambda: datagrams.refused == 1)
            assert "there is no link" in datagrams.refusal

    asyncio.run(run())


@pytest.mark.parametrize("unit", [DIRECTORY, PATH_GOSSIP])
def test_a_part_that_has_stopped_hides_nothing_and_blocks_no_call(unit: str) -> None:
    """Whoever looks must see what has stopped, and whoever sends to a peer that goes must be told."""

    async def run() -> None:
        async with pair() as (ann, ben):
            core, channel = ann._core, ann.channel("ben", PORT)
            assert core is not None
            while unit not in core.turns.stopped:
                fail(core.turns, unit)
                ann._groups._answer_outputs(unit, object())  # type: ignore[arg-type]
                await asyncio.sleep(0.005)
            assert ann.status()["node"]["stopped_units"] == [unit]
            assert [member["name"] for member in ann.status()["members"]] == ["ann", "ben"]
            sends = asyncio.create_task(flood(channel))
            await ben.stop()
            with pytest.raises(ChannelEnded, match="the channel to ben"):
                async with asyncio.timeout(PATIENCE_S):
                    await sends

    asyncio.run(run())


async def flood(handle: Channel | Datagrams) -> None:
    while True:
        await handle.send(bytes(1000))


@pytest.mark.parametrize(
    ("do", "request_", "says"),
    [
        ("fault", {"fault": "over 1000", "port": "70"}, "not a fault: Expected `int"),
        ("fault", {"fault": "loss 1%", "speed": 3}, "not a fault: .*speed"),
        ("heal", {"id": "first"}, "a number, not 'first'"),
        ("heal", {"id": None}, "a number, not None"),
    ],
)
def test_faults_of_a_lab_have_their_types(do: str, request_: dict[str, Any], says: str) -> None:
    """With a size that is a text nothing would be sent any more."""
    lab = msgspec.structs.replace(config("ann", 1), lab=LabConfig(faults=True))
    with pytest.raises(MisuseError, match=f"{says}.*nothing was changed"):
        Node(lab)._handlers()[do](request_)


def test_a_fault_names_an_adapter_of_the_node() -> None:
    """A fault on an adapter that does not exist would never match a packet."""

    async def run() -> None:
        lab = msgspec.structs.replace(config("ann", 1), lab=LabConfig(faults=True))
        async with Node(lab) as node:
            add = node._handlers()["fault"]
            with pytest.raises(
                MisuseError, match=r"no adapter 'green'; it has .*nothing was changed"
            ):
                add({"fault": "over 1000", "adapter": "green"})
            name = lab.adapter[0].name
            assert add({"fault": "over 1000", "adapter": name})["faults"] == [  # type: ignore[index]
                f"1: over 1000, from {name} to any host: hit 0 times"
            ]

    asyncio.run(run())
