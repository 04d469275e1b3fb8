"""The lab's faults as text, and as rules of the packet filter."""

from __future__ import annotations

import pytest

from holdfast.errors import MisuseError
from holdfast.lab import rules
from holdfast.lab.plan import make_plan
from holdfast.lab.words import parse_lab_fault

PLAN = make_plan("lab", 3, 2, 1500)

TEXTS = [
    "red n1->n2 over 1000",
    "* n1<->* loss 20% only udp",
    "blue *->n3 filter multicast",
    "red n1->n2 filter frag",
    "red n1->n2 blackout share 25% flap 200ms/1s",
    "red n1->n2 blackout share 25% from 50%",
    "red n1->n2 pattern 55555555",
    "red n1->n2 pattern 5555 at 100 only tcp",
    "red n1->n2 every 4",
    "red n1->n2 watch 1000 only tcp share 25%",
    "red n1->n2 packets 50 only multicast",
    "red *<->n2 mtu 800",
    "red n1->n2 slow 5ms jitter 2ms",
    "red n1->n2 rate 32000 queue 8000",
    "red n1/red->n2 corrupt 1%",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_fault_is_the_same_after_its_text_was_read_again(text: str) -> None:
    fault = parse_lab_fault(text, PLAN.hosts, PLAN.subnets)
    assert fault.text() == text
    assert parse_lab_fault(fault.text(), PLAN.hosts, PLAN.subnets) == fault


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("red n1- over 1000", "FROM->TO.*quote it"),
        ("pink n1->n2 over 1000", "no subnet 'pink'"),
        ("red n1->n9 over 1000", "no host 'n9'"),
        ("red n1->n2 melt", "'melt' is not a kind"),
        ("red n1->n2 over", "the line ends where a size"),
        ("red n1->n2 every 0", "of 1 or more"),
        ("red n1->n2 mtu 800", "both ways: write red \\*<->n2"),
        ("red *<->n2 mtu 800 only udp", "affects all"),
        ("red n1->n2 pattern xy", "not bytes in hex"),
        ("red n1->n2 pattern 55 at 300", "at most 255"),
        ("red n1->n2 blackout share 50% from 60%", "beyond the last"),
        ("red n1->n2 over 1000 now", "'now' is not understood"),
    ],
)
def test_what_is_wrong_with_a_fault_is_said(text: str, complaint: str) -> None:
    with pytest.raises(MisuseError, match=f"{complaint}.*nothing was broken"):
        parse_lab_fault(text, PLAN.hosts, PLAN.subnets)


def test_a_fault_is_a_rule_on_its_paths_and_nowhere_else() -> None:
    fault = parse_lab_fault("red n1->n2 over 1000 only udp", PLAN.hosts, PLAN.subnets)
    lines = rules.apply(PLAN, {}, {"f1": fault}).splitlines()
    start = "add rule netdev holdfast red-n2 ether saddr 02:48:46:00:00:01"
    rule = f"{start} ip protocol udp ip length > 1000 counter name f1 drop"
    assert [line for line in lines if "f1" in line and "rule" in line] == [rule]
    assert rules.served(PLAN, {"f1": fault}) == []


def test_a_fault_that_the_kernel_cannot_make_is_the_forwarders() -> None:
    fault = parse_lab_fault("red n1<->n2 over 1000 flap 1s/1s", PLAN.hosts, PLAN.subnets)
    assert rules.served(PLAN, {"f1": fault}) == [("red", "n1", "n2"), ("red", "n2", "n1")]
    assert "length" not in rules.apply(PLAN, {}, {"f1": fault})


@pytest.mark.parametrize("name", ["", "Lab", "a-b", "x" * 17, "1a", "../x"])
def test_a_name_that_could_not_be_told_apart_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match="lower-case letters"):
        make_plan(name, 3, 2, 1500)
