"""What traffic may ask for, in code and in the configuration."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import ConfigError, MisuseError
from holdfast.group.section import needs_of_groups
from holdfast.health.placement.needs import NEVER, Needs, SetNeeds
from holdfast.health.subsystem import needs_of
from holdfast.links.ports import DATAGRAMS
from holdfast.node.config import parse_config
from holdfast.types import DATA, SECOND, SYNC

DAY = 86_400 * SECOND

BASE = """
domain = "lab"
name = "n1"
[security]
mode = "plain"
[[adapter]]
name = "red"
address = "127.0.0.1:7400"
subnet = "lan"
"""


def test_needs_are_part_of_the_public_names() -> None:
    assert holdfast.Needs is Needs


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": -1}, "size must be from 0 to 65535"),
        ({"size": 70_000}, "size must be from 0 to 65535"),
        ({"protocol": "sctp"}, "protocol must be one of 'udp', 'tcp', 'multicast', not 'sctp'"),
        ({"pattern": "5"}, "in hexadecimal"),
        ({"pattern": "xy"}, "in hexadecimal"),
        ({"pattern": "55" * 65}, "in hexadecimal"),
        ({"latency_us": -1}, "a time must not be negative"),
        ({"loss_ppm_max": 1_000_001}, "loss_ppm_max must be from 0 to 1000000"),
        ({"clean": "size"}, "clean and clean_ns must be given together"),
        ({"clean_ns": 5}, "clean and clean_ns must be given together"),
        ({"clean": "ugly", "clean_ns": 5}, "clean must be one of"),
        ({"choice": "demand"}, "choice must be one of 'prefer', 'require'"),
        ({"choice": "require"}, "require needs an adapter, a subnet or a node"),
        ({"move_back_ns": -1}, "a time must not be negative"),
    ],
)
def test_needs_that_cannot_be_are_refused_with_what_to_write(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(MisuseError) as refused:
        Needs(**wrong)
    assert words in str(refused.value)


def test_a_configuration_says_needs_in_units_of_people() -> None:
    """H11: requirements by configuration."""
    config = parse_config(
        BASE
        + """
[[needs]]
port = 20
size = 1200
latency_ms = 2.5
loss_percent = 1
clean = "size 30 d"
subnet = "lan"
choice = "require"
move_back = "never"
[[needs]]
port = 21
traffic = "datagrams"
peer = "n2"
pattern = "55AA"
move_back = "at once"
"""
    )
    first = Needs(
        size=1200,
        latency_us=2500,
        loss_ppm_max=10_000,
        clean="size",
        clean_ns=30 * DAY,
        subnet="lan",
        choice="require",
        move_back_ns=NEVER,
    )
    second = Needs(pattern="55aa", move_back_ns=0)
    assert needs_of(config) == [
        SetNeeds("configuration", 20, first, None),
        SetNeeds("configuration", DATAGRAMS + 21, second, "n2"),
    ]


def test_a_group_may_carry_needs_for_its_order_and_its_messages() -> None:
    config = parse_config(
        BASE
        + """
[[group]]
name = "orders"
voters = ["n1"]
leader = "n1"
needs = { size = 1200, move_back = "500 ms" }
"""
    )
    needs = Needs(size=1200, move_back_ns=SECOND // 2)
    assert needs_of_groups(config) == [
        SetNeeds("group orders", SYNC, needs),
        SetNeeds("group orders", DATA, needs),
    ]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("[[needs]]\nport = 20\nsizes = 5", "unknown key 'sizes'; did you mean 'size'?"),
        ("[[needs]]\nport = 3", "[[needs]] of port 3: application ports are from 16"),
        ("[[needs]]\nport = 20\nmove_back = 'soon'", "'soon' is not a duration"),
        ("[[needs]]\nport = 20\nclean = 'size'", "'' is not a duration"),
        ("[[needs]]\nport = 20\nclean = 'size 3 weeks'", "'3 weeks' is not a duration"),
        ("[[needs]]\nport = 20\nprotocol = 'ip'", "of port 20: needs: protocol must be one of"),
        ("[[needs]]\nport = 20\nadapter = 'blue'", "no adapter has adapter 'blue'; known: red"),
        ("[[needs]]\nport = 20\nsubnet = 'red'", "no adapter has subnet 'red'; known: lan"),
        ("[[needs]]\nport = 20\ntraffic = 'stream'", "Invalid enum value 'stream'"),
        (
            "[[group]]\nname='g'\nvoters=['n1']\nleader='n1'\nneeds={siz = 4}",
            "unknown key 'siz'; did you mean 'size'?",
        ),
        (
            "[[group]]\nname='g'\nvoters=['n1']\nleader='n1'\nneeds={adapter = 'no'}",
            "group 'g': needs: no adapter has adapter 'no'",
        ),
    ],
)
def test_a_wrong_need_in_a_configuration_is_refused_with_its_place(
    section: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(BASE + section)
    assert words in str(refused.value)
