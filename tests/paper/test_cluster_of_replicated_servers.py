"""What the document 'Selective message loss handling in a cluster of replicated servers' states about the cluster
itself. The docstrings cite it by the words of the paragraph that makes the claim."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.group.harness import World, ready, settle
from tests.unit.group.losing import (
    ALL,
    FAST,
    answer,
    delivered,
    leader,
    losing,
    lossy,
    numbers,
    only_from_source,
    send,
)

from holdfast.group.frames import Append, Nack, Payload
from holdfast.group.log.journal import journal_tables
from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.loss.rule import Rule
from holdfast.group.ports import AddReplica, RemoveReplica
from holdfast.group.replica import ReplicaMachine
from holdfast.group.streams.message_log import log_tables
from holdfast.stores.memory import MemoryStore
from holdfast.telemetry.facts import DeliveryFact
from holdfast.types import MILLISECOND, SECOND


def replica_of(world: World, name: str) -> ReplicaMachine:
    replica = world.hosts[name].replica
    assert replica is not None
    return replica


def deliveries(world: World, name: str) -> list[DeliveryFact]:
    return [fact for host, fact in world.facts if host == name and isinstance(fact, DeliveryFact)]


def members(world: World) -> list[str]:
    view = replica_of(world, leader(world)).status()["view"]
    assert isinstance(view, list)
    return [member["name"] for member in view]


def leads(world: World, name: str) -> bool:
    return bool(world.hosts[name].status["state"] == "leading")


# -- the servers ---------------------------------------------------------------------------------------------------


def test_all_servers_maintain_the_same_state_and_produce_the_same_output() -> None:
    """'All the servers run the same application, process the same input, maintain the same state, and produce the same
    output.'"""
    world = lossy(sources=2)
    for name in ALL:
        world.hosts[name].says = lambda message: [("till", b"re: " + message[:5])]
        world.hosts[name].takes_outputs = False
    answer(world, DROP)
    losing(world, range(2, 4), "n1")
    for k in range(1, 6):
        send(world, 1, "s1", start=k)
        send(world, 1, "s2", start=k)
    settle(world, 8)
    states = [world.hosts[name].app.snapshot() for name in ALL]
    assert states[0] == states[1] == states[2]
    kept = [
        list(replica_of(world, name).inspect().delivery.output_buffer.queues["till"])
        for name in ALL
    ]
    assert len(kept[0]) == 8
    assert kept[0] == kept[1] == kept[2]


def test_the_application_is_available_as_long_as_one_server_is() -> None:
    """'If one of the servers fails, the application remains available as long as at least one server remains
    functional.'"""
    world = lossy(mode="availability")
    send(world, 1)
    delivered(world, [1])
    for number, name in enumerate(("n1", "n2"), 2):
        world.kill(name)
        send(world, 1, start=number)
        delivered(world, list(range(1, number + 1)))
    assert leader(world) == "n3"


def test_a_server_that_failed_reboots_and_joins_with_the_state_of_the_others() -> None:
    """'After failing, a server may reboot and join the cluster. Joining the cluster may require synchronizing the state
    of the application to that of the cluster', 'without processing (by the backup server) all the messages that were
    processed.'"""
    world = lossy()
    send(world, 5)
    delivered(world, [1, 2, 3, 4, 5])
    world.kill("n3")
    send(world, 5, start=6)
    delivered(world, list(range(1, 11)))
    world.run(2 * SECOND)
    applied = len(deliveries(world, "n3"))
    world.start("n3")
    ready(world)
    send(world, 1, start=11)
    delivered(world, list(range(1, 12)))
    assert [fact.first for fact in deliveries(world, "n3")[applied:]] == [11]


def test_servers_join_and_leave_while_the_cluster_operates() -> None:
    """'The number of servers may change dynamically by new servers joining cluster, by servers suspending from
    cluster.'"""
    world = World(voters=3, joiners=1, sources=1, payload_bytes=1000, **FAST)
    world.start()
    ready(world)
    send(world, 5)
    world.inject("n1", AddReplica("j1"))
    send(world, 5, start=6)
    world.run_until(lambda: "j1" in members(world), 5 * SECOND)
    world.inject("n1", RemoveReplica("n2"))
    send(world, 5, start=11)
    world.run_until(lambda: sorted(members(world)) == ["j1", "n1", "n3"], 5 * SECOND)
    world.kill("n2")
    delivered(world, list(range(1, 16)))


def test_a_backup_processes_only_what_the_leader_has_ordered() -> None:
    """'A backup server processes received messages only after receiving permission from the leader to do so (e.g., in
    the form of a total order comprising identifiers of the received messages).'"""
    world = lossy()
    world.drop = lambda _, to, frame: (
        to == "n3" and isinstance(frame, Append) and bool(frame.entries)
    )
    send(world, 3)
    world.run_until(lambda: numbers(world, "n2") == [1, 2, 3], SECOND)
    world.run(50 * MILLISECOND)
    assert (
        sum(stream.bytes for stream in replica_of(world, "n3").inspect().streams.streams.values())
        > 1800
    )
    assert numbers(world, "n3") == []
    world.drop = None
    delivered(world, [1, 2, 3])


def test_the_order_of_a_single_source_is_that_of_its_stream() -> None:
    """'In case that a single source is available, the total order may be the order of the message stream.'"""
    world = lossy(reorder=True)
    send(world, 30)
    delivered(world, list(range(1, 31)))


@pytest.mark.parametrize("transport", ["channel", "datagram"])
def test_messages_are_broadcast_to_all_servers(transport: str) -> None:
    """'Message sources may broadcast message streams to all servers of cluster. [...] a reliable
    multicast may be utilized [...] Other communication protocols may be utilized to broadcast the data.'"""
    world = lossy(transport=transport)
    reached: dict[str, list[int]] = {name: [] for name in ALL}

    def see(sender: str, target: str, frame: Any) -> bool:
        if isinstance(frame, Payload):
            assert sender == "s1", "no server has to pass it on"
            reached[target].append(frame.first)
        return False

    world.drop = see
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert reached == {name: [1, 2, 3] for name in ALL}


# -- who leads -----------------------------------------------------------------------------------------------------


def test_an_election_begins_as_soon_as_the_leader_says_that_it_suspends_itself() -> None:
    """'Leader election may initiate after the leader explicitly notifies the cluster that it suspends itself.'"""
    world = lossy()
    answer(world, SUSPEND)
    losing(world, range(2, 3), "n1")
    only_from_source(world)
    send(world, 3)
    world.run_until(lambda: bool(world.hosts["n1"].asked), SECOND)
    asked_ns = world.now
    world.run_until(lambda: leader(world) in ("n2", "n3"), SECOND)
    assert world.now - asked_ns < world.config.election_ns // 4
    delivered(world, [1, 2, 3])


@pytest.mark.parametrize("how", ["dies", "has made no progress"])
def test_an_election_begins_when_the_leader_ceases_to_instruct_the_cluster(how: str) -> None:
    """'Leader election may initiate after the cluster is implicitly notified of the suspension, such as when the leader
    seizes to provide instructions to the cluster for a predetermined timeframe.'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), *ALL)
    world.hosts["n1"].frozen = True
    send(world, 3)
    world.run(100 * MILLISECOND)
    assert numbers(world, "n2") == [1]
    gone_ns = world.now
    if how == "dies":
        world.kill("n1")
    else:
        world.pause("n1")
    world.run_until(lambda: any(leads(world, name) for name in ("n2", "n3")), 2 * SECOND)
    assert world.now - gone_ns > world.config.election_ns // 2
    world.run_until(lambda: numbers(world, "n2") == numbers(world, "n3") == [1, 3], 2 * SECOND)


def test_where_no_server_received_the_lost_messages_the_next_leader_determines_again() -> None:
    """'The responsive action may be to suspend the leader from the cluster and allow a different server that received
    the lost messages, to become the leader': if none did, the new one asks its own application."""
    world = lossy()
    for name in ALL:
        world.hosts[name].on_loss = lambda _, name=name: SUSPEND if name == "n1" else DROP  # type: ignore[misc]
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    new = leader(world)
    assert new != "n1"
    assert [info.lost for info in world.hosts[new].asked] == [((2, 2),)]


# -- what it is good for -------------------------------------------------------------------------------------------


def test_consistency_is_maintained_without_persisting_or_logging_messages() -> None:
    """'High throughput low latency message delivery may be supported as consistency can be maintained without being
    forced to persist or log messages.'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    delivered(world, [1, 3])
    tables = [*journal_tables(world.config), *log_tables(world.config.name)]
    for name in ALL:
        disk = MemoryStore(world.disks[name])
        assert not any(disk.load(table) for table in tables)


@pytest.mark.parametrize(
    "settings", [{"durability": "durable"}, {"message_log_bytes": 1 << 20}], ids=["durable", "log"]
)
def test_it_is_combined_with_guaranteed_messaging_or_message_logging(settings: Any) -> None:
    """'The disclosed subject matter can be combined with any of the other message loss handling mechanism (e.g.
    guaranteed messaging, message logging, or the like).'"""
    world = lossy(**settings)
    answer(world, lambda info: DROP if info.count == 1 else RECOVER)
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    losing(world, range(4, 6), "n1")
    only_from_source(world)
    send(world, 3, start=4)
    delivered(world, [1, 3, 4, 5, 6])


def test_some_messages_are_dropped_without_any_attempt_to_recover_them() -> None:
    """'Reduced overhead associated with message loss handling, as some messages are allowed to be dropped without
    recovery attempts.'"""
    rules = (Rule("drop", priority=1, at_once=True),)
    world = lossy(priorities=2, policy=rules, transport="datagram")
    nacks: list[str] = []
    losing(world, range(2, 3), "n1")
    drop = world.drop
    assert drop is not None

    def watch(sender: str, to: str, frame: Any) -> bool:
        if isinstance(frame, Nack):
            nacks.append(sender)
        return drop(sender, to, frame)

    world.drop = watch
    send(world, 3)
    delivered(world, [1, 3])
    assert not nacks
    assert not world.hosts["n1"].asked


def test_each_loss_gets_the_action_that_fits_it() -> None:
    """'Different actions may be taken for different message losses that are detected.' 'Based on a determination that
    messages are often lost from a certain message stream, the message stream may be ignored in the future.'"""
    world = lossy(priorities=2)
    losses: list[int] = []

    def think(info: LossInfo) -> Action:
        if info.priorities.highest == 0:
            world.drop = None
            return RECOVER
        losses.append(info.count)
        return DROP if len(losses) < 3 else IGNORE(("stream",))

    answer(world, think)
    for question, first in enumerate((1, 4, 7, 10), 1):
        losing(world, range(first + 1, first + 2), *ALL)
        send(world, 3, start=first, priority=0 if first == 4 else 1)
        world.run_until(lambda count=question: len(world.hosts["n1"].asked) == count, 5 * SECOND)  # type: ignore[misc]
        world.run(50 * MILLISECOND)
    world.drop = None
    send(world, 2, start=13)
    world.run(100 * MILLISECOND)
    delivered(world, [1, 3, 4, 5, 6, 7, 9, 10])
