"""Sessions: when they end, that everybody is told, that they come back, and that nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.machines import Bug, fail, watch
from tests.unit.links.harness import World, connected
from tests.unit.links.puppet import Puppet

from holdfast.health.frames import Heartbeat
from holdfast.health.ports import PATH_GOSSIP
from holdfast.health.subsystem import HealthService
from holdfast.links.ports import Arrived, FlowOpened, Rest, SendChannel, link_unit
from holdfast.links.session import FLOWS_MAX
from holdfast.links.subsystem import LinkService
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, SECOND, FlowId, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Chunk, Hello, Key, Members, RawBatch
from holdfast.wire.packet import SEALED, write_plain

both_modes = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
DEAD_S = 3


def cut(world: World, sender: str, listener: str, on: bool = True) -> None:
    """One direction between two nodes, on all their adapters."""
    for adapter in ("red", "blue"):
        world.path(sender, listener, adapter).cut(on)


def downs(world: World, name: str) -> list[str]:
    return [fact.reason for fact in world.link_events(name, "down")]


def talks(world: World, a: str = "n1", b: str = "n2") -> bool:
    """Whether a message passes in each direction, within half a second."""
    mark = f"{world.now}".encode()
    world.send(a, b, [mark])
    world.send(b, a, [mark])
    world.run(0.5)
    return mark in world.messages(b, a) and mark in world.messages(a, b)


# -- the end, and the beginning after it ---------------------------------------------------------------------------


@both_modes
def test_a_restart_of_the_peer_ends_the_session_loudly_and_begins_another(sealed: bool) -> None:
    """Links: a channel ends when the peer is a new incarnation, and then loudly; the next starts from zero."""
    world = connected(3, sealed=sealed)
    world.send("n1", "n2", [b"one"])
    world.run(0.1)
    world.restart("n2")
    assert world.run_until(world.settled) < 5
    assert [reason.split(";")[0] for reason in downs(world, "n1")] == ["the peer restarted"]
    assert [ended.peer for ended in world.nodes["n1"].ended] == [world.nodes["n2"].id]
    assert len(world.link_events("n1", "up")) == 3
    world.send("n1", "n2", [b"two"])
    world.run(0.1)
    assert world.messages("n2", "n1") == [b"one", b"two"]
    assert not downs(world, "n3")[1:]


@both_modes
def test_what_was_not_acknowledged_is_named_when_the_session_ends(sealed: bool) -> None:
    """ChannelEnded: says what may not have arrived."""
    world = connected(sealed=sealed)
    cut(world, "n1", "n2")
    cut(world, "n2", "n1")
    world.send("n1", "n2", [bytes(10_000)])
    world.run(DEAD_S + 1)
    (ended,) = world.nodes["n1"].ended
    assert 10_000 <= ended.unacked < 20_000
    assert "nothing heard" in ended.reason


@both_modes
def test_silence_on_every_path_ends_the_session_on_both_sides_and_it_comes_back(
    sealed: bool,
) -> None:
    """Links: ended only when all paths are dead. Both give up at the same time."""
    world = connected(sealed=sealed)
    cut(world, "n1", "n2")
    cut(world, "n2", "n1")
    world.run(DEAD_S + 0.2)
    assert not world.up("n1", "n2")
    assert not world.up("n2", "n1")
    cut(world, "n1", "n2", False)
    cut(world, "n2", "n1", False)
    assert world.run_until(world.settled) < 8
    assert talks(world)
    assert len(downs(world, "n1")) == len(downs(world, "n2")) == 1


@both_modes
def test_a_session_that_one_side_gives_up_is_given_up_by_both(sealed: bool) -> None:
    """Links: n2 hears n1, n1 hears nobody. A session takes two, so n2 must not believe that there is one."""
    world = connected(sealed=sealed)
    cut(world, "n2", "n1")
    world.run(2 * DEAD_S + 1)
    assert not world.up("n1", "n2")
    assert not world.up("n2", "n1")
    world.run(20)
    assert len(downs(world, "n1")) == len(downs(world, "n2")) == 1, "and it does not flap"
    cut(world, "n2", "n1", False)
    assert world.run_until(world.settled) < 8
    assert talks(world)


@both_modes
def test_one_path_keeps_the_session_whatever_happens_to_the_others(sealed: bool) -> None:
    """Invariant 7: with one clean path between every pair, traffic goes on."""
    world = connected(sealed=sealed)
    for path in ("red", "blue"):
        for a, b in (("n1", "n2"), ("n2", "n1")):
            world.path(a, b, path).cut_tcp = True
            world.path(a, b, path).cut_udp = path == "red"
    for _ in range(10):
        world.run(1)
        assert talks(world)
    assert not downs(world, "n1")


@both_modes
def test_channels_restart_in_order_after_every_kind_of_end(sealed: bool) -> None:
    """Links: both ends die and come back, in turn and together."""
    world = connected(sealed=sealed)
    for victims in (["n1"], ["n2"], ["n1", "n2"]):
        for name in victims:
            world.kill(name)
        world.run(1)
        for name in victims:
            world.start(name)
        world.run_until(world.settled, 20)
        batch = [f"{victims}{number}".encode() for number in range(50)]
        world.send("n1", "n2", batch)
        world.run(0.2)
        assert world.messages("n2", "n1")[-50:] == batch


def test_a_peer_that_leaves_is_not_missed_and_may_come_back() -> None:
    world = connected()
    node = world.nodes["n2"]
    assert node.core is not None
    world._done(node, node.core.stop(world.now))
    world.run(0.001)
    world.kill("n2")
    world.run(1)
    assert downs(world, "n1") == ["the peer left; 0 bytes not acknowledged"]
    assert world.core("n1").service(LinkService).directory.state[node.id][0] == "left"
    world.start("n2")
    assert world.run_until(world.settled) < 8
    assert talks(world)


@both_modes
def test_a_node_that_lost_its_memory_takes_the_place_of_the_old_one(sealed: bool) -> None:
    """A new id at an old address: links to the old id must not stand in the way of the new one, now or later."""
    world = connected(3, sealed=sealed)
    world.kill("n2")
    world.run(0.1)
    new = NodeId(bytes([7]) * 16)
    world.start("n2", node_id=new)
    world.run(10)
    assert world.settled()
    for _ in range(10):
        world.run(3)
        assert talks(world)
        assert talks(world, "n2", "n3")
    assert world.settled()
    for name in ("n1", "n3"):
        events = [f.event for f in world.nodes[name].facts if getattr(f, "peer", "") == new.hex()]
        assert (events.count("up"), events.count("down")) == (1, 0), "it does not flap"
    (old,) = [m for m in world.core("n2").status(world.now)["links"] if m["peer"] == "n2"]
    assert old["refused"] == "", "it does not look for its old self at its own address"


def test_two_nodes_that_change_their_addresses_find_each_other() -> None:
    """A link must not stay with an address that has gone to somebody else."""
    world = connected(3)
    for name in ("n2", "n3"):
        world.kill(name)
    text2, text3 = world.nodes["n2"].text, world.nodes["n3"].text
    for name, text, old, new in (("n2", text2, ".2:", ".3:"), ("n3", text3, ".3:", ".2:")):
        world.nodes[name].text = text.replace(old, new)
    world.start("n2")
    world.start("n3")
    world.run(12)
    assert world.settled()
    assert talks(world, "n2", "n3")


def test_datagrams_are_back_as_soon_as_the_new_key_has_come() -> None:
    """Sealed flows wait for the key of the new session, not for the next time that they would have tried."""
    world = connected(sealed=True)
    link = world.link("n1", "n2")
    link.inspect().session.end(world.now, "a test", Outbox())
    world.turn("n1", [(link.unit, "anything")])
    assert world.run_until(world.settled) < 0.05


def test_a_peer_that_comes_back_with_fewer_adapters_is_not_looked_for_on_the_others() -> None:
    world = connected()
    world.kill("n2")
    world.add("n2", 2, adapters=("red",), start=False).incarnation = 1
    world.start("n2")
    world.run(10)
    assert sorted(world.link("n1", "n2").inspect().session.wanted._wanted) == [
        ("red", "red", "tcp", ""),
        ("red", "red", "udp", ""),
    ]
    assert world.up("n1", "n2")


def test_a_peer_that_takes_nothing_loses_the_session_before_memory_runs_out() -> None:
    """Invariant 9: queues never exceed their bounds, and the sender is told."""
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    link.queue_max = 1 << 20
    unit = link_unit(puppet.node)
    for number in range(100):
        world.turn("n1", [(unit, SendChannel(0, [bytes(100_000)]))])
        puppet.send(flow, Heartbeat(number, 0, SECOND), session=puppet.session(flow))
        if world.nodes["n1"].ended:
            break
    (ended,) = world.nodes["n1"].ended
    assert ended.reason == "channel 0 is full"
    assert ended.unacked < 8 << 20


# -- time ----------------------------------------------------------------------------------------------------------


def test_an_own_pause_is_not_held_against_the_peer() -> None:
    """Health: a node credits its own lag before it accuses anybody. n1 stands still, and when it goes on its timers
    come before what has come for it meanwhile."""
    world = connected()
    cut(world, "n2", "n1")
    world.run(0.3)
    cut(world, "n2", "n1", False)
    world.pause("n1", 2_800 * MILLISECOND)
    world.run(2.799)
    node = world.nodes["n1"]
    assert node.core is not None
    assert world.now - world.link("n1", "n2").inspect().session.heard_at > DEAD_S * SECOND
    world._done(node, node.core.turn(world.now, []))
    world.run(2)
    assert not downs(world, "n1")
    assert not downs(world, "n2")


def test_an_idle_link_wakes_rarely() -> None:
    """No busy timers: with nothing to send but a digest of the table each second, a link wakes four times in the time
    after which the peer is dead, and once each to acknowledge a digest and to look whether its own was."""
    world = connected()
    link = world.link("n1", "n2")
    wakes: list[str] = []

    def count(call: str, _inputs: list[Any]) -> None:
        if call == "wake":
            wakes.append(call)

    watch(world.core("n1").turns, link.unit, count)
    world.run(60)
    assert 0 < len(wakes) < 200


@both_modes
def test_a_node_whose_peers_are_gone_does_not_spin(sealed: bool) -> None:
    """Timers never lie in the past: with unsent data, a dead peer and no path, nothing happens but attempts."""
    world = connected(3, sealed=sealed)
    world.send("n1", "n2", [bytes(100_000)])
    for name in ("n2", "n3"):
        world.kill(name, silent=True)
    world.run(5)
    before = world.nodes["n1"].turns
    world.run(60)
    assert world.nodes["n1"].turns - before < 600


def test_a_stream_on_which_nothing_comes_back_is_replaced() -> None:
    """A firewall that has forgotten one connection must not keep a path without streams for ever."""
    world = connected(adapters=("red",))
    for end in world.network.stream_ends("n1", "n2"):
        end.stalled = end.other.stalled = True
    world.run(2 * DEAD_S + 2)
    assert world.settled()
    assert not downs(world, "n1")
    assert not any(end.stalled for end in world.network.stream_ends("n1", "n2"))


def test_a_stream_whose_hello_is_never_answered_is_closed_and_another_one_is_tried() -> None:
    world = World(1)
    puppet = Puppet(world)
    puppet.send(puppet.connect("n1"), puppet.hello(), wait=60)
    called = [item.flow for item in puppet.opened() if item.inbound and item.transport == "tcp"]
    assert len(called) > 3
    assert all(puppet.closed(flow) for flow in called[:-1])


# -- what must not be believed -------------------------------------------------------------------------------------


def test_packets_of_an_earlier_session_fall_on_deaf_ears() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1", "udp")
    old = puppet.session(flow)
    puppet.send(flow, RawBatch(16, memoryview(b"\x09\0\0\0\1\0\0\0\1\0\0\0a")), session=old)
    puppet.send(flow, puppet.answer(puppet.of(flow, Hello)[-1], epoch=2, ask=True))
    puppet.send(flow, puppet.answer(puppet.of(flow, Hello)[-1], epoch=2))
    assert world.core("n1").service(LinkService).link(puppet.node).up_since is not None  # type: ignore[union-attr]
    puppet.send(flow, RawBatch(16, memoryview(b"\x09\0\0\0\1\0\0\0\1\0\0\0b")), session=old)
    assert [message for _, _, message in world.nodes["n1"].datagrams] == [b"a"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same address", "another address"])
def test_a_sealed_datagram_that_is_played_again_is_ignored(elsewhere: bool) -> None:
    """Links: replay windows."""
    world = connected(sealed=True)
    captured = world.network.capture()
    world.send_raw("n1", "n2", [b"pay 10"])
    world.run(0.05)
    assert [m for _, _, m in world.nodes["n2"].datagrams] == [b"pay 10"]
    source = ("127.0.1.66", 6666) if elsewhere else world.network.addresses[("n1", "red")]
    for _, (listener, adapter), packet in captured:
        if listener == "n2":
            world.network.inject(("n2", adapter), source, packet)
    world.run(0.05)
    assert [m for _, _, m in world.nodes["n2"].datagrams] == [b"pay 10"]
    assert world.link("n2", "n1").rejected["replay"] > 0


def test_a_flood_of_made_up_numbers_does_not_open_the_way_for_a_replay() -> None:
    """Replay windows are kept for those who hold the key, or anybody could push them out."""
    world = connected(sealed=True)
    captured = world.network.capture()
    world.send_raw("n1", "n2", [b"pay 10"])
    world.run(0.05)
    session = world.link("n2", "n1").status()["session"]
    source = world.network.addresses[("n1", "red")]
    for tag in range(2000):
        forged = (
            bytes([1, 1]) + session.to_bytes(4, "little") + (tag << 48 | 1).to_bytes(8, "little")
        )
        world.network.inject(("n2", "red"), source, forged + bytes(40))
    for _, (listener, adapter), packet in captured:
        if listener == "n2":
            world.network.inject(("n2", adapter), source, packet)
    world.run(0.1)
    assert [m for _, _, m in world.nodes["n2"].datagrams] == [b"pay 10"]
    world.send_raw("n1", "n2", [b"pay 20"])
    world.run(0.1)
    assert [m for _, _, m in world.nodes["n2"].datagrams] == [b"pay 10", b"pay 20"]


def test_a_sender_that_knows_only_the_session_number_gets_no_answer() -> None:
    """The number stands in the head of every datagram. An attacker that reads along must not be able to use up the
    flows of a link, or the numbers (nonces) of its seal."""
    world = connected(sealed=True)
    link = world.link("n2", "n1")
    session, tags = link.status()["session"], link.inspect().session.tags
    for port in range(300):
        forged = bytes([1, 1]) + session.to_bytes(4, "little") + (port + 1).to_bytes(8, "little")
        world.network.inject(("n2", "red"), ("127.0.1.66", 2000 + port), forged + bytes(40))
    world.run(0.001)
    assert world.settled()
    assert world.network.lost_to == []
    assert len(world.core("n2").service(LinkService).session_table.owners) < 20
    assert link.inspect().session.tags - tags <= 300, "numbers that were never used"


def test_a_key_is_taken_over_streams_only() -> None:
    """Links: keys are agreed over TLS."""
    world = connected(sealed=True)
    n1, n2 = world.link("n1", "n2"), world.link("n2", "n1")
    before = n1.inspect().cipher._closer
    datagrams = next(f for f in n2.flows.values() if not f.stream and f.adapter == "red")
    key = encode(Key(n2.inspect().cipher.session, bytes(32)))
    packet = n2.inspect().cipher.write(datagrams, [key])
    world.network.inject(("n1", "red"), world.network.addresses[("n2", "red")], packet)
    world.run(0.001)
    assert n1.inspect().cipher._closer is before
    assert n1.rejected["unexpected"] == 1


def test_a_key_for_another_session_or_of_another_length_is_not_taken() -> None:
    world = connected(sealed=True)
    cipher = world.link("n1", "n2").inspect().cipher
    assert not cipher.take_key(Key(cipher.peer_session + 1, bytes(32)))
    assert not cipher.take_key(Key(cipher.peer_session, bytes(31)))
    assert cipher.take_key(Key(cipher.peer_session, bytes(32)))


def test_a_sealed_link_sends_no_refusal_in_plain_text() -> None:
    """Links: nothing leaves unsealed by datagram."""
    world = connected(sealed=True)
    n2 = world.link("n2", "n1")
    datagrams = next(f for f in n2.flows.values() if not f.stream and f.adapter == "red")
    foreign = Hello(1, 1, "other", True, n2.inspect().session.me.member, "red", 9, 9)
    packet = n2.inspect().cipher.write(datagrams, [encode(foreign)])
    captured = world.network.capture()
    world.network.inject(("n1", "red"), world.network.addresses[("n2", "red")], packet)
    world.run(0.5)
    assert any(
        "this is domain" in f.detail for f in world.nodes["n1"].facts if hasattr(f, "detail")
    )
    assert all(packet[9] & SEALED for _, _, packet in captured)


def test_frames_on_a_flow_that_is_not_agreed_on_are_not_handed_up() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello())
    member = puppet.member(node=b"y" * 16, name="y")
    puppet.send(flow, Members((member,)), Heartbeat(1, 2, 3), Chunk(16, 0, memoryview(b"abc")))
    assert b"y" * 16 not in world.core("n1").service(LinkService).directory.members
    assert not world.core("n1").service(HealthService).health.table.rows


@pytest.mark.parametrize(
    "frame",
    [
        Chunk(16, 0, memoryview(b"\xff" * 12)),
        Chunk(-1, 0, memoryview(b"a")),
        Chunk(16, 1 << 50, memoryview(b"a")),
        RawBatch(-5, memoryview(b"nonsense")),
        Key(1, b"x" * 32),
    ],
    ids=["block", "channel", "offset", "batch", "key"],
)
def test_a_frame_that_makes_no_sense_never_raises(frame: Any) -> None:
    """Invariant 10; the channel that cannot be read on ends its session, and the next one works."""
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    puppet.send(flow, frame, session=puppet.session(flow))
    puppet.send(flow, puppet.answer(puppet.of(flow, Hello)[-1]))
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    assert link.up_since is not None


def test_channels_of_one_peer_are_bounded() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    for channel in range(16, 200):
        puppet.send(flow, Chunk(channel, 0, memoryview(b"a")), session=puppet.session(flow))
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    assert len(link.inspect().receiver._channels) == 64
    assert link.rejected["channel"] == 184 - 64


# -- flows that belong to nobody, and to somebody else -------------------------------------------------------------


def test_a_flow_that_its_link_does_not_know_is_closed_so_that_it_begins_again() -> None:
    world = connected()
    link = world.link("n1", "n2")
    flow = next(f.flow for f in link.flows.values() if f.stream)
    del link.flows[flow]
    world.run(DEAD_S / 2)
    assert world.settled()


def test_a_link_takes_a_bounded_number_of_flows() -> None:
    world = connected()
    link = world.link("n1", "n2")
    for number in range(FLOWS_MAX + 10):
        opened = FlowOpened(FlowId(10_000 + number), "red", "tcp", "127.0.1.2", 1, False, link.unit)
        world.turn("n1", [("acceptor", opened)])
    assert len(link.flows) == FLOWS_MAX


def test_a_datagram_flow_that_one_link_uses_is_not_taken_away_by_another() -> None:
    world = connected(3)
    link = world.link("n1", "n2")
    flow = next(f for f in link.flows.values() if not f.stream and f.adapter == "red")
    thief = link_unit(world.nodes["n3"].id)
    opened = FlowOpened(flow.flow, "red", "udp", flow.info.host, flow.info.port, False, thief)
    world.turn("n1", [("acceptor", opened)])
    world.run(2)
    assert world.core("n1").service(LinkService).session_table.owners[flow.flow] == link.unit
    assert flow.ready
    assert flow.heard_at > world.now - SECOND


# -- damage, and machines that raise -------------------------------------------------------------------------------


@both_modes
def test_a_damaged_packet_closes_its_stream_and_the_channel_goes_on_elsewhere(sealed: bool) -> None:
    """Links: what was lost with the stream is sent again; nothing is doubled."""
    world = connected(sealed=sealed)
    sent = [number.to_bytes(2, "big") * 500 for number in range(400)]
    world.send("n1", "n2", sent[:100])
    for adapter in ("red", "blue"):
        world.path("n1", "n2", adapter).damage = 1
    for start in range(100, 400, 20):
        world.send("n1", "n2", sent[start : start + 20])
        world.run(0.005)
    world.run(1)
    assert world.messages("n2", "n1") == sent
    assert not downs(world, "n2")
    if not sealed:  # inside TLS a flipped bit never gets as far as this
        assert any("damaged" in f.reason for f in world.link_events("n2", "flow_lost"))


@both_modes
def test_a_link_that_raises_is_rebuilt_and_all_subscribers_are_notified(sealed: bool) -> None:
    """A machine that raises: seen from outside it is a unit that restarted."""
    world = connected(3, sealed=sealed)
    world.strict = False
    link = world.link("n1", "n2")
    world.turn("n1", [(link.unit, SendChannel(16, Bug()))])
    world.run(0.2)
    (failure,) = world.nodes["n1"].failures
    assert failure.unit == link.unit
    assert not failure.stopped
    assert world.run_until(world.settled) < 8
    assert len(downs(world, "n2")) == 1
    state, since = world.core("n1").service(LinkService).directory.state[world.nodes["n2"].id]
    assert (state, since > failure.at) == ("up", True)
    assert talks(world)
    assert not downs(world, "n3")


def test_what_units_share_is_repaired_when_one_of_them_raises() -> None:
    """The table of paths outlives the unit that was in the middle of an update."""
    world = connected()
    world.strict = False
    table = world.core("n1").service(HealthService).table
    mine = table.listeners[table.me]
    assert mine.whole
    mine.digest ^= 1
    fail(world.core("n1").turns, PATH_GOSSIP)
    world.turn("n1", [(PATH_GOSSIP, "anything")])
    world.run(0.2)
    assert mine.whole
    assert [failure.unit for failure in world.nodes["n1"].failures] == [PATH_GOSSIP]


def test_a_unit_above_that_raises_is_told_again_what_there_is() -> None:
    world = connected()
    world.strict = False
    for unit in ("health", "directory"):
        fail(world.core("n1").turns, unit)
        world.turn("n1", [(unit, "anything")])
        world.run(1)
    assert [failure.unit for failure in world.nodes["n1"].failures] == ["health", "directory"]
    assert world.core("n1").service(LinkService).directory.state[world.nodes["n2"].id][0] == "up"
    row = world.row("n2", "n2", "n1")
    assert row is not None
    assert row.alive
    assert world.settled()


# -- nothing is left behind ----------------------------------------------------------------------------------------


@both_modes
def test_hundreds_of_sessions_leave_nothing_behind(sealed: bool) -> None:
    """Links flap; memory must not grow with it."""
    world = connected(sealed=sealed, adapters=("red",))
    core, link = world.core("n1"), world.link("n1", "n2")
    bad = encode(Chunk(16, 0, memoryview(b"\xff" * 12)))
    for number in range(300):
        world.send("n2", "n1", [b"x"], port=17 + number)
        world.run(0.001)
        flow = next(f for f in link.flows.values() if f.stream and f.ready)
        packet = memoryview(write_plain(link.inspect().cipher.session, 1, [bad]))
        world.turn("n1", [("acceptor", Arrived(flow.flow, [packet], world.now))])
        world.run_until(world.settled, 10)
    assert len(world.nodes["n1"].messages) == 300
    assert len(world.nodes["n1"].ended) == len(world.nodes["n2"].ended) == 300
    sizes = {
        "flows": len(link.flows),
        "owners": len(core.service(LinkService).session_table.owners),
        "sessions": len(core.service(LinkService).session_table._units),
        "windows": len(link.inspect().cipher._windows),
        "in": len(link.inspect().receiver._channels),
        "received": len(link.inspect().receiver.received),
        "out": len(link.inspect().sender.channels),
        "watched": len(core.service(HealthService).health._flows),
        "rows": len(core.service(HealthService).health.table.rows),
        "wanted": len(link.inspect().session.wanted),
        "streams": len(world.network.streams),
    }
    assert all(size <= 8 for size in sizes.values()), sizes


def test_an_acceptor_that_raises_is_rebuilt_and_the_links_live_on() -> None:
    world = connected()
    world.strict = False
    fail(world.core("n1").turns, "acceptor")
    world.add("n3", 3)
    world.run(3)
    assert [failure.unit for failure in world.nodes["n1"].failures] == ["acceptor"]
    assert world.settled()
    assert not downs(world, "n1")
    assert talks(world)


def test_the_same_seed_gives_the_same_run() -> None:
    """One seed determines everything."""

    def run(seed: int) -> list[Any]:
        world = World(3, sealed=True, seed=seed)
        for path in world.all_paths():
            path.loss, path.jitter_ns = 0.1, 5 * MILLISECOND
        world.run(3)
        world.restart("n2")
        world.run(3)
        return [fact for node in world.nodes.values() for fact in node.facts]

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_a_link_does_not_rest_while_messages_wait_for_their_acknowledgement() -> None:
    """Rule 19 of the overlay: the session would end and take them with it."""
    world = World(2)
    world.run_until(world.settled)
    unit = link_unit(world.nodes["n2"].id)
    world.turn("n1", [(unit, SendChannel(16, [b"one"])), (unit, Rest(agreed=True))])
    world.run(1)
    assert world.up("n1", "n2")
    assert world.messages("n2", "n1") == [b"one"]
    world.run_until(lambda: not world.link("n1", "n2").unacked)
    world.turn("n1", [(unit, Rest(agreed=True))])
    assert not world.up("n1", "n2")
