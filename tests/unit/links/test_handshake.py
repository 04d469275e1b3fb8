"""The handshake: who gets in, who does not and is told why, and which flows are left at the end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.links.harness import World, connected
from tests.unit.links.puppet import Puppet

from holdfast.links.acceptor import STRANGERS_MAX
from holdfast.links.ports import Identity, OpenFlow
from holdfast.links.subsystem import LinkService
from holdfast.types import SECOND
from holdfast.wire.codec import encode
from holdfast.wire.frames import AdapterInfo, Hello, Refuse
from holdfast.wire.packet import Packet, read_head, read_plain, write_plain

both_modes = pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])


def refusals(puppet: Puppet, flow: Any) -> list[str]:
    return [frame.code for frame in puppet.of(flow, Refuse)]


# -- getting in ----------------------------------------------------------------------------------------------------


@both_modes
def test_all_nodes_find_each_other_by_one_address(sealed: bool) -> None:
    """O1: joining needs one address of any member."""
    world = World(4, sealed=sealed)
    assert world.run_until(world.settled) < 1
    names = [
        member["name"]
        for member in world.core("n4").service(LinkService).directory.status(world.now)
    ]
    assert names == ["n1", "n2", "n3", "n4"]


@both_modes
def test_a_node_that_starts_before_its_join_address_keeps_trying(sealed: bool) -> None:
    world = World(1, sealed=sealed)
    world.kill("n1")
    world.add("n2", 2)
    world.run(20)
    world.start("n1")
    assert world.run_until(world.settled) < 5


@both_modes
@pytest.mark.parametrize("seed", range(6))
def test_one_stream_is_left_for_each_pair_of_adapters_when_both_connect_at_once(
    sealed: bool, seed: int
) -> None:
    """Links: both connect at once; the stream that the node with the smaller id opened survives."""
    world = World(1, sealed=sealed, seed=seed)
    world.kill("n1")
    world.add("n2", 2, join="127.0.1.1:7400", start=False)
    world.nodes["n1"].text = world.nodes["n1"].text.replace("127.0.1.1:7400", "127.0.1.2:7400", 1)
    for sender, listener in (("n1", "n2"), ("n2", "n1")):
        for adapter in ("red", "blue"):
            world.path(sender, listener, adapter).delay_ns = world.spread(SECOND // 10)
    world.start("n1")
    world.start("n2")
    world.run(8)
    assert world.settled()
    assert all(not flow.inbound for flow in world.link("n1", "n2").flows.values() if flow.stream)


@both_modes
def test_the_stream_of_the_larger_id_goes_also_when_it_is_agreed_last(sealed: bool) -> None:
    """One stream for each pair of adapters, whichever came first: two would answer for one path in the table."""
    world = connected(sealed=sealed, adapters=("red",))
    link = world.link("n2", "n1")
    assert len([f for f in link.flows.values() if f.stream]) == 1
    before = next(f.flow for f in link.flows.values() if f.stream)
    world.network.effect("n2", OpenFlow("red", "tcp", "127.0.1.1", 7400, link.unit))
    world.run(1)
    assert world.settled()
    assert before in link.flows
    assert not next(f for f in world.link("n1", "n2").flows.values() if f.stream).inbound


def test_a_path_that_works_one_way_only_is_not_agreed_on() -> None:
    """Links: `FlowReady` means that both ends have agreed on this flow, not just that they know each other."""
    world = World(2)
    world.path("n1", "n2", "blue").cut_udp = True
    world.run(5)
    for a, b in (("n1", "n2"), ("n2", "n1")):
        states = {f.path: f.ready for f in world.link(a, b).flows.values()}
        assert states.pop("blue/blue/udp", False) is False or "blue/?/udp" in states
        assert all(ready for path, ready in states.items() if path != "blue/?/udp")
    world.path("n1", "n2", "blue").cut_udp = False
    assert world.run_until(world.settled) < 3


# -- being turned away ---------------------------------------------------------------------------------------------


def test_another_domain_is_told_so_and_kept_out() -> None:
    world = World(1)
    world.add("n2", 2, domain="other")
    world.run(5)
    assert world.core("n1").service(LinkService).link(world.nodes["n2"].id) is None
    acceptor: Any = world.core("n2").turns.machine("acceptor")
    assert acceptor.last_refusal == "this is domain 'lab', not 'other'"


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("domain", {"domain": "other"}),
        ("version", {"low": 2, "high": 9}),
        ("version", {"low": -5, "high": 0}),
        ("security", {"sealed": True}),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_a_reason(
    code: str, changes: dict[str, Any]
) -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello(**changes))
    assert refusals(puppet, flow) == [code]
    assert puppet.closed(flow)
    assert world.core("n1").service(LinkService).link(puppet.node) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"node": b""},
        {"node": b"x" * 17},
        {"name": ""},
        {"name": "x" * 65},
        {"incarnation": 0},
        {"incarnation": -1},
        {"adapters": (AdapterInfo("a", "a", "127.0.0.1", 1, ("tcp",)),) * 33},
        {"adapters": (AdapterInfo("a", "red", "127.0.0.1", -1, ("tcp",)),)},
        {"adapters": (AdapterInfo("a", "red", "127.0.0.1", 1 << 60, ("tcp",)),)},
        {"adapters": (AdapterInfo("a", "red", "127.0.0.1\0", 1, ("tcp",)),)},
        {"adapters": (AdapterInfo("a", "red", "h" * 300, 1, ("tcp",)),)},
        {"adapters": (AdapterInfo("a" * 65, "red", "127.0.0.1", 1, ("tcp",)),)},
    ],
    ids=str,
)
def test_a_member_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    """Invariant 10: what a stranger says of itself reaches the sockets of this node; it must make sense."""
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello(member=puppet.member(**changes)))
    assert refusals(puppet, flow) == ["identity"]
    assert not [unit for unit in world.core("n1").turns.units() if unit.startswith("link/")]


def test_a_name_that_is_taken_is_refused() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello(member=puppet.member(name="n1")))
    assert refusals(puppet, flow) == ["name"]


def test_a_node_that_reaches_itself_notices_and_stops_knocking() -> None:
    world = World(1)
    world.kill("n1")
    alias = ("127.0.8.8", 7400)
    world.nodes["n1"].text = world.nodes["n1"].text.replace("127.0.1.1:7400", "127.0.8.8:7400", 1)
    world.start("n1")
    world.network.adapters[alias] = ("n1", "red")
    world.run(5)
    flows = world.network._next_flow()
    world.run(60)
    assert world.network._next_flow() == flows + 1, "no more attempts"
    assert "reached itself" in world.core("n1").turns.machine("acceptor").last_refusal  # type: ignore[union-attr]


def test_a_certificate_for_another_name_is_refused() -> None:
    """Links: both sides are authenticated; the certificate names node and domain."""
    world = World(1, sealed=True)
    world.add("n2", 2, start=False)
    world.network.identities["n2"] = Identity(b"", "n3", "lab")
    world.start("n2")
    world.run(3)
    assert not world.up("n1", "n2")
    acceptor: Any = world.core("n2").turns.machine("acceptor")
    assert "the certificate is for 'n3'" in acceptor.last_refusal


def test_a_certificate_of_another_domain_is_refused() -> None:
    world = World(1, sealed=True)
    world.add("n2", 2, start=False)
    world.network.identities["n2"] = Identity(b"", "n2", "other")
    world.start("n2")
    world.run(3)
    assert not world.up("n1", "n2")


def test_a_sealed_node_admits_no_peer_without_a_certificate() -> None:
    world = World(1, sealed=True)
    puppet = Puppet(world)
    del world.network.identities["x"]
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello())
    assert refusals(puppet, flow) == ["certificate"]


def test_the_holder_of_one_certificate_cannot_speak_for_another_node() -> None:
    """Links: the certificate names the node. Who holds n9's must not end the session with n2."""
    world = connected(sealed=True)
    puppet = Puppet(world, "n9", node=world.nodes["n2"].id, incarnation=99)
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello(), wait=1)
    assert refusals(puppet, flow) == ["identity"]
    assert world.up("n1", "n2")
    assert not world.link_events("n1", "down")


def test_a_plain_datagram_to_a_sealed_node_gets_no_answer() -> None:
    world = World(1, sealed=True)
    puppet = Puppet(world)
    flow = puppet.connect("n1", "udp")
    puppet.send(flow, puppet.hello())
    assert puppet.heard(flow) == []
    assert world.core("n1").service(LinkService).link(puppet.node) is None


def test_a_first_packet_that_is_no_hello_closes_the_flow() -> None:
    world = World(1)
    puppet = Puppet(world)
    for packet in (b"", b"GET / HTTP/1.1\r\n\r\n", write_plain(0, 0, []), write_plain(9, 0, [])):
        flow = puppet.connect("n1")
        puppet.send_bytes(flow, packet)
        assert puppet.closed(flow)
    flow = puppet.connect("n1")
    puppet.send(flow, Refuse("no", "no"), wait=0.01)
    assert puppet.closed(flow)


def test_another_packet_format_is_answered_with_the_version_that_is_read() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.connect("n1")
    packet = write_plain(0, 0, [encode(puppet.hello())])
    puppet.send_bytes(flow, packet[:8] + b"\x09" + packet[9:])
    assert refusals(puppet, flow) == ["version"]


def test_strangers_are_bounded_in_number_and_in_time() -> None:
    """Invariant 9; the oldest goes when there are more, and all go who say nothing."""
    world = World(1)
    puppet = Puppet(world)
    flows = [puppet.connect("n1") for _ in range(STRANGERS_MAX + 44)]
    acceptor: Any = world.core("n1").turns.machine("acceptor")
    assert len(acceptor._strangers) == STRANGERS_MAX
    assert [puppet.closed(flow) for flow in flows] == [True] * 44 + [False] * STRANGERS_MAX
    world.run(6)
    assert not acceptor._strangers
    assert all(puppet.closed(flow) for flow in flows)


# -- hellos that must not count ------------------------------------------------------------------------------------


def test_a_hello_of_an_earlier_incarnation_changes_nothing() -> None:
    """Links: a hello that is played again must not end a session."""
    world = World(1)
    puppet = Puppet(world, incarnation=5)
    puppet.agree("n1")
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    assert link.up_since is not None
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello(member=puppet.member(incarnation=4), epoch=9, session=1))
    assert (link.inspect().session.peer_incarnation, link.inspect().session.peer_epoch) == (5, 1)
    assert not world.link_events("n1", "down")
    assert puppet.of(flow, Hello), "it is told who is there"


def test_a_hello_of_an_earlier_epoch_does_not_bring_back_its_session_number() -> None:
    """Plain mode: a datagram that was held up must not turn a session into a black hole."""
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1", epoch=2, session=2000)
    puppet.send(flow, puppet.hello(epoch=1, session=1000))
    world.run(0.2)
    last = [item for item in puppet.log if hasattr(item, "packets")][-1].packets[-1]
    assert int.from_bytes(last[10:14], "little") in (0, 2000)


def test_a_session_that_begins_again_has_a_new_epoch_on_both_sides() -> None:
    """Links: a session is the pair of both nodes' epochs. If only one side's changed, a late hello of the other
    could not be told from a new one, and a node that nobody hears would take the session for agreed."""
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    before = puppet.of(flow, Hello)[-1]
    puppet.send(flow, puppet.answer(before, epoch=2, ask=True))
    after = puppet.of(flow, Hello)[-1]
    assert after.epoch > before.epoch
    assert after.session != before.session
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    assert link.up_since is None, "the echo was of the old epoch"
    puppet.send(flow, puppet.answer(after, epoch=2))
    assert link.up_since is not None


def test_a_hello_that_is_meant_for_another_node_is_refused_but_not_forgotten() -> None:
    """An address can get a new owner: who calls for the old one learns of it, and is called back."""
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.connect("n1")
    puppet.send(flow, puppet.hello(to=b"o" * 16), wait=0.1)
    assert refusals(puppet, flow) == ["moved"]
    assert world.core("n1").service(LinkService).link(puppet.node) is not None
    assert any(item.inbound for item in puppet.opened())


# -- both ends want the same ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_hellos_do_not_breed(seed: int) -> None:
    """No storm: with loss, duplicates and delay, a handshake takes a few hellos for each flow."""
    world = World(3, seed=seed)
    for path in world.all_paths():
        path.loss, path.duplicate, path.jitter_ns = 0.2, 0.3, SECOND // 20
    captured = world.network.capture()
    world.run(6)
    assert world.settled()
    hellos = 0
    for _, _, data in captured:
        packet = read_head(data)
        assert isinstance(packet, Packet)
        frames = read_plain(packet)
        assert isinstance(frames, list)
        hellos += sum(isinstance(frame, Hello) for frame in frames)
    flows = 3 * 2 * 2
    assert hellos < 12 * flows


# -- subnets -------------------------------------------------------------------------------------------------------


@both_modes
def test_a_node_that_joins_by_another_subnet_is_introduced_and_then_uses_its_own(
    sealed: bool,
) -> None:
    """Adapters of one subnet reach each other; a join address only says where to ask."""
    world = connected(sealed=sealed)
    world.add("n3", 3, adapters=("blue",))
    world.run(3)
    for a, b in (("n1", "n3"), ("n3", "n1"), ("n2", "n3"), ("n3", "n2")):
        assert world.up(a, b)
        paths = sorted(flow.path for flow in world.link(a, b).flows.values() if flow.ready)
        assert paths == ["blue/blue/tcp", "blue/blue/udp"]


def test_nodes_without_a_subnet_in_common_are_told_so() -> None:
    world = World(1)
    world.add("n2", 2, adapters=("green",))
    world.run(5)
    assert not world.up("n2", "n1")
    assert "no adapter of n2 is on a subnet of n1" in world.link("n2", "n1").status()["refused"]
