"""The directory: who is believed about whom, and how much of it is kept."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.links.harness import World, connected
from tests.unit.links.puppet import Puppet

from holdfast.links.directory import DirectoryMachine
from holdfast.links.ports import LinkImpossible, NeedLink, ReleaseLink
from holdfast.links.subsystem import LinkService
from holdfast.machine import Outbox
from holdfast.types import NodeId
from holdfast.wire.frames import AdapterInfo, MemberInfo, Members

FAR = AdapterInfo("red", "red", "127.0.1.77", 7400, ("tcp", "udp"))


def told(world: World, puppet: Puppet, *members: MemberInfo) -> None:
    """The puppet tells n1 of members, over an agreed flow."""
    flow = puppet.agree("n1")
    puppet.send(flow, Members(members), session=puppet.session(flow))


def test_a_member_that_is_told_of_gets_a_link() -> None:
    """O1: every member tells what it knows."""
    world = World(1)
    told(world, Puppet(world), MemberInfo(b"y" * 16, "y", 1, (FAR,)))
    assert world.core("n1").service(LinkService).directory.members[b"y" * 16].name == "y"  # type: ignore[index]
    assert world.core("n1").service(LinkService).link(b"y" * 16) is not None


@pytest.mark.parametrize(
    "member",
    [
        MemberInfo(b"", "y", 1, ()),
        MemberInfo(b"y" * 16, "", 1, ()),
        MemberInfo(b"y" * 16, "y" * 65, 1, ()),
        MemberInfo(b"y" * 16, "y", 0, ()),
        MemberInfo(b"y" * 16, "y", 1, (FAR,) * 33),
        MemberInfo(b"y" * 16, "y", 1, (AdapterInfo("a", "red", "127.0.1.77", -1, ("tcp",)),)),
        MemberInfo(b"y" * 16, "y", 1, (AdapterInfo("a", "red", "127.0.1.77\0", 1, ("tcp",)),)),
        MemberInfo(b"y" * 16, "y", 1, (AdapterInfo("a", "red", "", 1, ("tcp",)),)),
    ],
    ids=str,
)
def test_a_member_that_cannot_be_is_not_believed_by_hearsay_either(member: MemberInfo) -> None:
    """Invariant 10: its addresses would reach the sockets of this node."""
    world = World(1)
    puppet = Puppet(world)
    told(world, puppet, member)
    assert list(world.core("n1").service(LinkService).directory.members) == [puppet.node]


def test_a_node_ignores_a_record_about_itself() -> None:
    world = World(1)
    me = world.core("n1").me
    told(world, Puppet(world), MemberInfo(me.node, "impostor", 99, (FAR,)))
    assert me.node not in world.core("n1").service(LinkService).directory.members
    assert world.core("n1").service(LinkService).directory.name_of(me.node) == "n1"


def test_a_record_is_replaced_only_by_a_later_life() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")

    def tell(incarnation: int, name: str) -> str:
        member = MemberInfo(b"y" * 16, name, incarnation, (FAR,))
        puppet.send(flow, Members((member,)), session=puppet.session(flow))
        return world.core("n1").service(LinkService).directory.name_of(b"y" * 16)

    assert [tell(5, "a"), tell(4, "b"), tell(5, "c"), tell(6, "d")] == ["a", "a", "a", "d"]


def test_a_full_directory_admits_no_new_member_and_still_updates_known_ones() -> None:
    """Invariant 9."""
    world = World(1)
    world.core("n1").service(LinkService).directory.members_max = 3
    members = [MemberInfo(bytes([k]) * 16, f"m{k}", 1, (FAR,)) for k in range(65, 75)]
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    puppet.send(flow, Members(tuple(members)), session=puppet.session(flow))
    known = world.core("n1").service(LinkService).directory.members
    assert len(known) == 3
    newer = MemberInfo(members[0].node, "m65", 2, (FAR,))
    puppet.send(flow, Members((newer,)), session=puppet.session(flow))
    assert {m.name: m.incarnation for m in known.values()} == {"x": 1, "m65": 2, "m66": 1}


def test_a_member_that_comes_back_is_known_to_nodes_without_a_link_to_it() -> None:
    world = connected(3)
    world.restart("n2")
    world.run(3)
    state: dict[str, Any] = {
        row["name"]: (row["incarnation"], row["state"])
        for row in world.core("n3").service(LinkService).directory.status(world.now)
    }
    assert state == {"n1": (1, "up"), "n2": (2, "up"), "n3": (1, "up")}


def test_a_node_finds_the_domain_again_when_no_member_is_left_at_its_join_address() -> None:
    """The directory is durable."""
    world = connected(3)
    for name in world.nodes:
        world.kill(name)
    world.start("n2")
    world.start("n3")
    assert world.run_until(world.settled) < 5


def directory_with(*members: MemberInfo) -> DirectoryMachine:
    """A directory on its own, without a mesh."""
    directory = DirectoryMachine(World(1).core("n1").me, lambda *_: True, [], 0)
    directory.members.update({NodeId(member.node): member for member in members})
    return directory


def test_each_holder_has_a_lease_of_its_own_on_a_link() -> None:
    """Rule 19 of the overlay: a link that one subsystem releases stays for the others."""
    peer = NodeId(b"y" * 16)
    directory, out = directory_with(MemberInfo(peer, "y", 1, (FAR,))), Outbox()
    directory.up(0, [NeedLink(peer, "overlay"), NeedLink(peer, "dialogs/default")], out)
    directory.up(0, [ReleaseLink(peer, "overlay")], out)
    assert directory.needed == {peer: {"dialogs/default": True}}
    directory.up(0, [ReleaseLink(peer, "dialogs/default"), ReleaseLink(peer, "overlay")], out)
    assert directory.needed == {}
    assert out.ups == []


def test_the_holder_of_a_lease_learns_that_there_can_be_no_link() -> None:
    stranger, remote = NodeId(b"s" * 16), NodeId(b"r" * 16)
    blue = AdapterInfo("blue", "another", "127.0.2.77", 7400, ("tcp",))
    directory, out = directory_with(MemberInfo(remote, "r", 1, (blue,))), Outbox()
    directory.up(0, [NeedLink(stranger, "overlay"), NeedLink(remote, "overlay")], out)
    assert out.ups == [
        ("overlay", LinkImpossible(stranger, "it is not a member of the domain")),
        ("overlay", LinkImpossible(remote, "there is no common subnet")),
    ]
