"""P3: greedy cover over risk groups, scored by noisy-OR likelihood on failing and passing paths."""

from __future__ import annotations

import pytest
from tests.pipeline.path_grid import grid, match

from holdfast.errors import MisuseError
from holdfast.pipeline.transforms.cover import CoverSettings, explain
from holdfast.pipeline.transforms.risk_groups import InventoryRow, RiskGroup, parse_inventory

SEND = {"sender": "c", "sender_adapter": "eth0"}
RECEIVE = {"listener": "c", "listener_adapter": "eth0"}


def names(found) -> list[tuple[str, str]]:
    return [(fault.groups[0].kind, fault.groups[0].name) for fault in found.faults]


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ([SEND], ("adapter_send", "c/eth0")),
        ([RECEIVE], ("adapter_receive", "c/eth0")),
        ([SEND, RECEIVE], ("adapter", "c/eth0")),
        ([{"sender": "c"}, {"listener": "c"}], ("node", "c")),
        ([{"subnet": "lan1"}], ("subnet", "lan1")),
        (
            [
                {"sender_switch": "sw-east-eth0", "sender_port": "1"},
                {"listener_switch": "sw-east-eth0", "listener_port": "1"},
            ],
            ("port", "sw-east-eth0/1"),
        ),
        ([{"sender_realm": "east", "listener_realm": "west"}], ("direction", "east>west")),
        ([{"sender_realm": "west"}, {"listener_realm": "west"}], ("realm", "west")),
        ([SEND | {"listener": "f"}], ("pair", "c/eth0>f/eth0")),
    ],
)
def test_each_kind_of_fault_is_the_best_explanation_of_its_own_paths(failing, expected) -> None:
    paths = grid()
    for wanted in failing:
        paths["failing"] |= match(paths, wanted)
    found = explain(paths)
    assert names(found) == [expected]
    assert found.unexplained == 0


def test_two_faults_at_once_are_both_located() -> None:
    paths = grid(SEND)
    paths["failing"] |= match(paths, {"listener": "g", "listener_adapter": "eth1"})
    found = explain(paths)
    assert sorted(names(found)) == [("adapter_receive", "g/eth1"), ("adapter_send", "c/eth0")]
    assert all(fault.confidence > 0.99 for fault in found.faults)


def test_a_node_with_one_adapter_cannot_be_told_from_it() -> None:
    paths = grid()
    paths = paths[
        ((paths["sender"] != "c") | (paths["sender_adapter"] == "eth0"))
        & ((paths["listener"] != "c") | (paths["listener_adapter"] == "eth0"))
    ].reset_index(drop=True)
    paths["failing"] = match(paths, {"sender": "c"}) | match(paths, {"listener": "c"})
    (fault,) = explain(paths).faults
    assert fault.groups == (RiskGroup("adapter", "c/eth0"), RiskGroup("node", "c"))


def test_passing_paths_speak_against_a_group() -> None:
    """SCORE's cover alone would blame the subnet: it has every failing path in it."""
    paths = grid(SEND)
    paths["failing"] |= match(paths, {"sender": "f", "sender_adapter": "eth0"})
    assert sorted(names(explain(paths))) == [("adapter_send", "c/eth0"), ("adapter_send", "f/eth0")]


def test_one_failing_path_of_an_adapter_that_works_is_not_blamed_on_the_adapter() -> None:
    paths = grid(SEND | {"listener": "f"})
    (fault,) = explain(paths).faults
    assert fault.groups[0].kind == "pair"
    assert fault.confidence < 0.9


def test_a_fault_that_hits_most_paths_of_an_adapter_is_still_blamed_on_it() -> None:
    paths = grid(SEND)
    paths.loc[match(paths, SEND | {"listener": "a"}), "failing"] = False
    found = explain(paths)
    assert names(found) == [("adapter_send", "c/eth0")]
    assert found.faults[0].passing == 1


def test_confidence_is_the_margin_over_the_runner_up() -> None:
    """With every other observation gone, send and receive of the two ends explain the one path equally well."""
    sure = explain(grid(SEND)).faults[0]
    paths = grid(SEND)
    few = paths[match(paths, SEND | {"listener": "f"})].reset_index(drop=True)
    (unsure,) = explain(few).faults
    assert sure.confidence > 0.999
    assert sure.runner_up is not None
    assert len(unsure.groups) > 3
    assert unsure.margin < sure.margin


def test_noise_is_left_unexplained_when_a_path_is_likely_to_fail_by_itself() -> None:
    paths = grid(SEND | {"listener": "f"})
    found = explain(paths, CoverSettings(leak=0.05))
    assert found.faults == ()
    assert found.unexplained == 1


def test_several_narrow_faults_are_not_taken_for_a_wide_one() -> None:
    """Greedy choice alone begins with the switch, which has all failing paths and only some passing ones."""
    paths = grid()
    for node in "abcd":
        paths["failing"] |= match(paths, {"sender": node, "sender_adapter": "eth0"})
    assert sorted(names(explain(paths))) == [("adapter_send", f"{node}/eth0") for node in "abcd"]


def test_a_fault_of_thousands_of_paths_is_one_fault() -> None:
    """Each failing path leaves a little to explain; in a large domain that must not add up to a second fault."""
    import pandas as pd

    copies = []
    for number in range(60):
        paths = grid({"subnet": "lan0"})
        for column in ("sender", "listener"):
            paths[column] += str(number)
        copies.append(paths)
    paths = pd.concat(copies, ignore_index=True)
    assert paths["failing"].sum() > 3_000
    assert names(explain(paths)) == [("subnet", "lan0")]


def test_no_more_faults_than_configured() -> None:
    paths = grid()
    for node, adapter in (("a", "eth0"), ("e", "eth0"), ("c", "eth1")):
        paths["failing"] |= match(paths, {"sender": node, "sender_adapter": adapter})
    assert len(explain(paths).faults) == 3
    assert len(explain(paths, CoverSettings(faults_max=2)).faults) == 2


def test_an_inventory_names_nodes_by_name_or_id() -> None:
    lines = ["node,adapter,switch,port", "cork,eth0,sw1,7", "0a0b,eth0,sw1,8"]
    assert parse_inventory(lines, {"cork": "0c0d"}) == [
        InventoryRow("0c0d", "eth0", "", "sw1", "7"),
        InventoryRow("0a0b", "eth0", "", "sw1", "8"),
    ]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "needs node and adapter"),
        (["node,adapter,rack"], "may have realm, switch and port"),
        (["node,adapter", "a,eth0", "a,eth0"], "lines 2 and 3"),
    ],
)
def test_a_wrong_inventory_is_refused_with_what_is_wrong(lines, says) -> None:
    with pytest.raises(MisuseError, match=says):
        parse_inventory(lines, {})
