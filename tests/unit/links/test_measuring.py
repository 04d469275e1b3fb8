"""What flows are for: which are wanted, what a peer may say of them, and that measuring is never taken for data."""

from __future__ import annotations

import pytest
from tests.unit.links.harness import World
from tests.unit.links.puppet import Puppet

from holdfast.health.frames import Heartbeat
from holdfast.links.measuring import MEASURE, accepted, carries, mss_of, uses
from holdfast.links.ports import MayFragment
from holdfast.links.subsystem import LinkService
from holdfast.types import SECOND
from holdfast.wire.frames import AdapterInfo, Hello


def adapter(**changes: object) -> AdapterInfo:
    values = {
        "name": "red",
        "subnet": "red",
        "host": "127.0.0.1",
        "port": 1,
        "transports": ("tcp", "udp"),
        "measure": MEASURE,
    }
    return AdapterInfo(**{**values, **changes})  # type: ignore[arg-type]


def test_everything_is_measured_that_both_ends_want() -> None:
    rungs = [("tcp", f"mss:{mss}") for mss in (536, 960, 1240, 1460)]
    assert uses(adapter(), adapter()) == [("udp", "alt"), ("udp", "frag"), *rungs]
    assert uses(adapter(), adapter(measure=("alt",))) == [("udp", "alt")]
    assert uses(adapter(measure=()), adapter()) == []


def test_a_transport_that_one_end_does_not_have_is_not_measured() -> None:
    assert uses(adapter(transports=("udp",)), adapter()) == [("udp", "alt"), ("udp", "frag")]
    assert {name for name, _ in uses(adapter(), adapter(transports=("tcp",)))} == {"tcp"}


@pytest.mark.parametrize(
    ("mine", "theirs", "largest"), [(1500, 1500, 1460), (9000, 1500, 1460), (9000, 9000, 8960)]
)
def test_segments_are_measured_up_to_the_smaller_mtu(mine: int, theirs: int, largest: int) -> None:
    found = uses(adapter(mtu=mine, measure=("mss",)), adapter(mtu=theirs))
    assert max(mss_of(use) for _, use in found) == largest


@pytest.mark.parametrize(
    "use", ["mss:", "mss:x", "mss:-1", "mss:999999", "mss:²", "MSS:536", "frag:1"]
)
def test_what_is_no_segment_size_is_none(use: str) -> None:
    assert mss_of(use) == 0


@pytest.mark.parametrize("use", ["", "anything", "mss:x", "FRAG", "alt " * 1000])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_use_is_taken_for_data(use: str, stream: bool) -> None:
    assert accepted(use, stream) == ""


def test_only_other_ports_carry_data_besides_the_flows_for_it() -> None:
    assert [use for use in ("", "alt", "frag", "mss:536") if carries(use)] == ["", "alt"]


# -- what a peer says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transport", "use"), [("udp", "frag"), ("tcp", "mss:536")])
def test_no_session_begins_on_a_flow_that_only_measures(transport: str, use: str) -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1", transport, use=use)
    world.run(1)
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    assert link.up_since is None
    assert not any(f.ready for f in link.flows.values())
    puppet.agree("n1")
    assert link.up_since is not None
    puppet.send(flow, puppet.answer(puppet.of(flow, Hello)[-1], use=use))
    assert {f.use for f in link.flows.values() if f.ready} == {"", use}


def test_what_a_peer_says_of_a_flow_is_believed_until_it_is_agreed_on() -> None:
    world = World(1)
    puppet = Puppet(world)
    flow = puppet.agree("n1")
    puppet.send(flow, puppet.answer(puppet.of(flow, Hello)[-1], use="mss:536"))
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    assert [f.use for f in link.flows.values() if f.ready and f.stream] == [""]


def test_the_driver_is_told_which_flows_of_a_peer_may_be_fragmented() -> None:
    world = World(1)
    puppet = Puppet(world)
    asked: list[MayFragment] = []
    effect = world.network.effect

    def watch(node: str, item: object) -> None:
        asked.extend([item] if isinstance(item, MayFragment) else [])
        effect(node, item)

    world.network.effect = watch  # type: ignore[method-assign]
    puppet.agree("n1", "udp", use="frag")
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    measuring = [f.flow for f in link.flows.values() if f.use == "frag"]
    assert len(measuring) == 1
    assert [item.flow for item in asked] == measuring


def test_a_peer_that_is_only_heard_on_what_measures_is_given_up() -> None:
    world = World(1)
    puppet = Puppet(world)
    puppet.agree("n1")
    flow = puppet.agree("n1", "tcp", use="mss:536")
    link = world.core("n1").service(LinkService).link(puppet.node)
    assert link is not None
    for n in range(40):
        assert link.up_since is not None or n > 25
        puppet.send(flow, Heartbeat(n, 0, SECOND), session=puppet.session(flow), wait=0.1)
    assert world.link_events("n1", "down") != []
