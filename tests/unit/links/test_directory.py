"""The directory: who is believed about whom, and how much of it is kept."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.links.harness import World, connected
from tests.unit.links.puppet import Puppet

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
    assert world.core("n1").directory.members[b"y" * 16].name == "y"  # type: ignore[index]
    assert world.core("n1").link(b"y" * 16) is not None


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
    assert list(world.core("n1").directory.members) == [puppet.node]


def test_nobody_is_told_who_it_is_itself() -> None:
    world = World(1)
    me = world.core("n1").me
    told(world, Puppet(world), MemberInfo(me.node, "impostor", 99, (FAR,)))
    assert me.node not in world.core("n1").directory.members
    assert world.core("n1").directory.name_of(me.node) == "n1"


def test_a_record_is_replaced_only_by_a_later_life() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")

    def tell(incarnation: int, name: str) -> str:
        member = MemberInfo(b"y" * 16, name, incarnation, (FAR,))
        puppet.send(flow, Members((member,)), session=puppet.session(flow))
        return world.core("n1").directory.name_of(b"y" * 16)

    assert [tell(5, "a"), tell(4, "b"), tell(5, "c"), tell(6, "d")] == ["a", "a", "a", "d"]


def test_a_full_directory_takes_nobody_new_and_still_hears_of_those_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 9."""
    monkeypatch.setattr("holdfast.links.directory.MEMBERS_MAX", 3)
    world = World(1)
    members = [MemberInfo(bytes([k]) * 16, f"m{k}", 1, (FAR,)) for k in range(65, 75)]
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    puppet.send(flow, Members(tuple(members)), session=puppet.session(flow))
    known = world.core("n1").directory.members
    assert len(known) == 3
    newer = MemberInfo(members[0].node, "m65", 2, (FAR,))
    puppet.send(flow, Members((newer,)), session=puppet.session(flow))
    assert {m.name: m.incarnation for m in known.values()} == {"x": 1, "m65": 2, "m66": 1}


def test_a_member_that_comes_back_is_known_to_those_who_never_met_it() -> None:
    world = connected(3)
    world.restart("n2")
    world.run(3)
    state: dict[str, Any] = {
        row["name"]: (row["incarnation"], row["state"])
        for row in world.core("n3").directory.status(world.now)
    }
    assert state == {"n1": (1, "up"), "n2": (2, "up"), "n3": (1, "up")}


def test_a_node_finds_the_domain_again_when_nobody_is_left_at_its_join_address() -> None:
    """The directory is durable."""
    world = connected(3)
    for name in world.nodes:
        world.kill(name)
    world.start("n2")
    world.start("n3")
    assert world.run_until(world.settled) < 5
