"""Sizes above 1500: adapters of 9000 bytes, and limits below, at and above the sizes that networks are built for."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic_ns, sleep

import pytest
from tests.lab.labs import a_lab

from holdfast.health.classify import FLAPPING
from holdfast.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.alone]

PATIENCE_NS = 20_000_000_000
MTU = 9000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_lab(tmp_path_factory.mktemp("labs"), hosts=2, subnets=2, mtu=MTU) as made:
        made.start_nodes()
        yield made


@pytest.fixture(autouse=True)
def sound(lab: Lab) -> Iterator[None]:
    """Everything passes in whole packets of 9000 bytes, in both directions."""
    until(lab, lambda: all(sizes(lab, *ends) == WHOLE for ends in (("n1", "n2"), ("n2", "n1"))))
    yield
    lab.heal()


WHOLE = {"udp": MTU, "tcp": MTU, "multicast": MTU}


def until(lab: Lab, condition: object) -> None:
    assert callable(condition)
    deadline = monotonic_ns() + PATIENCE_NS
    while not condition():
        assert monotonic_ns() < deadline, [sizes(lab, "n1", "n2"), errors(lab, "n1", "n2")]
        sleep(0.05)


def sizes(lab: Lab, sender: str, listener: str) -> dict[str, int]:
    """The largest size of each kind that passes on the red subnet, as the listener says."""
    rows = lab.ask(listener, "status")["paths"]
    mine = [
        r for r in rows if (r["sender"], r["listener"], r["subnet"]) == (sender, listener, "red")
    ]
    return {row["transport"]: row["size"] for row in mine if row["alive"]}


def whole_sizes(lab: Lab, sender: str, listener: str) -> tuple[int, int]:
    found = sizes(lab, sender, listener)
    return found.get("udp", 0), found.get("tcp", 0)


def errors(lab: Lab, sender: str, listener: str) -> set[tuple[str, str, str, str]]:
    """Class, kind, direction and band of each error of that path."""
    found = lab.ask(listener, "health", what="incidents")["incidents"]
    return {
        (one["error_class"], kind, one["direction"], one["band"])
        for one in found
        if f"{sender}/red -> {listener}/red" in one["paths"] and one["error_class"] != FLAPPING
        for kind in one["kinds"] or (one["transport"],)
    }


@pytest.mark.parametrize(
    ("sender", "listener"), [("n1", "n2"), pytest.param("n2", "n1", marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize(
    ("fault", "passes", "band"),
    [
        ("over 8000", 4000, "above 1500"),
        ("over 1500", 1500, "at 1500"),
        ("over 1400", 1280, "below 1500"),
    ],
)
def test_a_limit_is_found_and_its_place_among_the_usual_sizes_is_said(
    lab: Lab, fault: str, passes: int, band: str, sender: str, listener: str
) -> None:
    """H15: size limit below, at or above 1500 bytes; in one direction."""
    lab.break_(f"red {sender}->{listener} {fault}")
    expected = {("size", kind, "one way", band) for kind in ("udp", "tcp")}
    until(lab, lambda: expected <= errors(lab, sender, listener))
    # Both kinds are one incident with one limit, so that of streams may still be on its way down.
    until(lab, lambda: whole_sizes(lab, sender, listener) == (passes, passes))
    assert {error[0] for error in errors(lab, sender, listener)} == {"size"}
    assert errors(lab, listener, sender) == set()
