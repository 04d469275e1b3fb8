"""One incident for each cause: the place that explains the failing paths (H15)."""

from __future__ import annotations

import pytest

from holdfast.health.causes import Names, causes_of
from holdfast.health.classify import SoftError
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.values import Alarm

NODES = ("n1", "n2", "n3", "n4")
SUBNETS = ("red", "blue")
NAMES = Names(lambda node: node.decode(), lambda _, adapter: adapter)


def path(sender: str, listener: str, subnet: str = "red") -> PathKey:
    return sender.encode(), subnet, listener.encode(), subnet


KNOWN = [path(a, b, subnet) for subnet in SUBNETS for a in NODES for b in NODES if a != b]


def places(
    failing: list[PathKey], error_class: str = "size", known: list[PathKey] = KNOWN
) -> list[str]:
    alarms = {
        one: {(error_class, "udp"): Alarm(one, SoftError(error_class, "udp"), 0)} for one in failing
    }
    return [" ".join(cause.place) for cause in causes_of(alarms, known, NAMES)]


@pytest.mark.parametrize(
    ("failing", "place"),
    [
        ([path("n1", "n2")], "path n1/red to n2/red"),
        ([path("n1", "n2"), path("n2", "n1")], "pair n1/red and n2/red"),
        ([path("n1", other) for other in NODES[1:]], "sent by n1/red"),
        ([path(other, "n1") for other in NODES[1:]], "received by n1/red"),
        ([one for one in KNOWN if b"n1" in (one[0], one[2]) and one[1] == "red"], "adapter n1/red"),
        ([one for one in KNOWN if one[1] == "red"], "subnet red"),
        (KNOWN, "all subnets "),
    ],
)
def test_the_place_that_explains_all_failing_paths_is_named_once(
    failing: list[PathKey], place: str
) -> None:
    assert places(failing) == [place]


def test_a_node_that_no_listener_hears_is_one_incident() -> None:
    """Its own rows are out of date, so only the paths from it are known."""
    known = [one for one in KNOWN if one[2] != b"n1"]
    failing = [one for one in known if one[0] == b"n1"]
    assert places(failing, "dead", known) == ["node n1"]


def test_a_place_is_not_named_while_one_of_its_paths_passes() -> None:
    failing = [path("n1", "n2"), path("n1", "n3")]
    assert places(failing) == ["path n1/red to n2/red", "path n1/red to n3/red"]


def test_two_causes_are_two_incidents() -> None:
    sent = [path("n1", other) for other in NODES[1:]]
    assert places([*sent, path("n3", "n4", "blue")]) == [
        "sent by n1/red",
        "path n3/blue to n4/blue",
    ]


def test_with_two_nodes_nothing_smaller_than_the_pair_is_claimed() -> None:
    known = [path("n1", "n2"), path("n2", "n1")]
    assert places(known, "size", known) == ["pair n1/red and n2/red"]


def test_several_kinds_of_packets_are_one_incident() -> None:
    one = path("n1", "n2")
    alarms = {
        one: {("size", kind): Alarm(one, SoftError("size", kind), 0) for kind in ("tcp", "udp")}
    }
    (cause,) = causes_of(alarms, KNOWN, NAMES)
    assert cause.kinds == ("tcp", "udp")
    assert cause.alarm.error.kind == "udp"


def test_a_filter_of_tcp_is_one_incident_while_the_ways_back_fall_silent_one_by_one() -> None:
    """`holdfast sim health --seeds 2003..2003`: a filter in what n1 sends was shown twice, as that and as a path."""
    sent = [path("n1", other) for other in NODES[1:]]
    alarms = {
        one: {("protocol", "tcp"): Alarm(one, SoftError("protocol", "tcp"), 0)}
        for one in [*sent, path("n2", "n1")]
    }
    assert [" ".join(cause.place) for cause in causes_of(alarms, KNOWN, NAMES)] == [
        "adapter n1/red"
    ]


def test_multicast_and_fragments_that_are_among_the_bad_flows_are_no_incident_of_their_own() -> (
    None
):
    """`holdfast sim health --seeds 2022..2022`: multicast hit in both directions, another flow in one."""
    there, back = path("n1", "n2"), path("n2", "n1")
    cast = SoftError("size", "multicast", 576, one_way=False)
    flows = SoftError("flows", "udp", 1, ("2",), one_way=True)
    alarms = {
        there: {("size", "multicast"): Alarm(there, cast, 0)},
        back: {
            ("size", "multicast"): Alarm(back, cast, 0),
            ("flows", "udp"): Alarm(back, flows, 5),
        },
    }
    (cause,) = causes_of(alarms, KNOWN, NAMES)
    assert cause.place == ("pair", "n1/red and n2/red")
    assert (cause.alarm.error.error_class, cause.alarm.error.one_way) == ("flows", False)


def test_all_flows_of_one_direction_and_some_of_the_other_are_one_incident() -> None:
    """`holdfast sim health --seeds 3001..3001 --family flows`."""
    there, back = path("n1", "n2"), path("n2", "n1")
    alarms = {
        there: {("size", "udp"): Alarm(there, SoftError("size", "udp", 576), 0)},
        back: {("flows", "udp"): Alarm(back, SoftError("flows", "udp", 1, ("2",)), 5)},
    }
    (cause,) = causes_of(alarms, KNOWN, NAMES)
    assert (cause.place[0], cause.alarm.error.error_class) == ("pair", "flows")


def test_a_size_limit_of_datagrams_beside_bad_flows_is_an_incident_of_its_own() -> None:
    one = path("n1", "n2")
    alarms = {
        one: {
            ("size", "udp"): Alarm(one, SoftError("size", "udp", 1000), 0),
            ("flows", "udp"): Alarm(one, SoftError("flows", "udp", 1, ("2",)), 0),
        }
    }
    assert len(causes_of(alarms, KNOWN, NAMES)) == 2


def test_datagrams_of_one_direction_and_multicast_of_the_other_are_one_incident() -> None:
    """`holdfast sim health --seeds 3009..3009 --family flows`: all flows of one direction are bad, so no other flow
    shows that some pass."""
    there, back = path("n1", "n2"), path("n2", "n1")
    alarms = {
        there: {("protocol", "udp"): Alarm(there, SoftError("protocol", "udp", one_way=True), 0)},
        back: {
            ("multicast", "multicast"): Alarm(back, SoftError("multicast", "multicast"), 5),
            ("protocol", "frag"): Alarm(back, SoftError("protocol", "frag", one_way=True), 7),
        },
    }
    (cause,) = causes_of(alarms, KNOWN, NAMES)
    assert cause.place == ("pair", "n1/red and n2/red")
    assert cause.kinds == ("frag", "multicast", "udp")
    error = cause.alarm.error
    assert (error.error_class, error.kind, error.one_way) == ("protocol", "udp", False)


def test_multicast_that_fails_at_a_whole_adapter_is_an_incident_of_its_own() -> None:
    cast = [path("n1", other) for other in NODES[1:]]
    alarms = {
        one: {("multicast", "multicast"): Alarm(one, SoftError("multicast", "multicast"), 0)}
        for one in cast
    }
    filtered = SoftError("protocol", "udp")
    alarms[path("n2", "n1")] = {("protocol", "udp"): Alarm(path("n2", "n1"), filtered, 5)}
    assert [" ".join(cause.place) for cause in causes_of(alarms, KNOWN, NAMES)] == [
        "sent by n1/red",
        "path n2/red to n1/red",
    ]
