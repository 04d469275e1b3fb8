"""Dialogs in the simulator: invariant 6 through crashes between any two steps, bad disks, partitions and moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.dialogs import MEMBER

from holdfast.dialog.ports import Take
from holdfast.dialog.subsystem import DialogService
from holdfast.links.ports import PeerUp
from holdfast.sim.checkers import CheckFailed
from holdfast.sim.checkers.dialogs import DialogChecks
from holdfast.sim.dialog_load import STORE, UNIT, DialogLoad
from holdfast.sim.host import Host
from holdfast.types import SECOND, NodeId

POISON: Any = PeerUp(NodeId([]), MEMBER)  # type: ignore[arg-type]  # it cannot be looked up, so the unit raises

SEEDS = (1, 3)
FOUND = (920107,)
"""An end moved whose messages shared a block with those of another dialog."""
CAMPAIGN = range(100, 400)


@pytest.mark.parametrize("seed", SEEDS)
def test_dialogs_keep_their_assurances(seed: int) -> None:
    result = DialogLoad(seed, messages=40, seconds=26).run()
    assert result["captured"] > 0
    assert result["delivered"] > 0
    assert result["starts"] > 3, "no process crashed: the run proves little"


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", CAMPAIGN[::10])
def test_campaign(first: int) -> None:
    moved = aborted = 0
    for seed in range(first, first + 10):
        result = DialogLoad(seed, messages=120, seconds=40).run()
        moved += result["moved"]
        aborted += result["aborted"]
    assert moved, "an end moved in some of the runs"
    assert aborted, "a transaction was aborted in some of the runs"


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_found_mistakes(seed: int) -> None:
    assert DialogLoad(seed, messages=60, seconds=30).run()["moved"]


def test_the_same_seed_gives_the_same_run() -> None:
    assert (
        DialogLoad(9, messages=20, seconds=26).run() == DialogLoad(9, messages=20, seconds=26).run()
    )


class TestMistakesThatAStoreRepairs:
    """What raises comes back from its store, so the assurances hold; the run must fail all the same."""

    def run(self, act: Callable[[Host], None], says: str) -> None:
        load = DialogLoad(1, messages=5, seconds=26)
        # In the time without faults.
        load.world.at(20 * SECOND, act, load.world.hosts["n1"])
        with pytest.raises(CheckFailed, match=says):
            load.run()

    def test_a_unit_that_raises(self) -> None:
        def act(host: Host) -> None:
            assert host.give(UNIT, POISON)

        self.run(act, "no unit fails.*TypeError")

    def test_a_dialog_that_raises(self) -> None:
        def act(host: Host) -> None:
            core: Any = host.core
            dialogs = core.service(DialogService).manager(STORE).core.dialogs
            dialog = next(iter(dialogs))
            received = dialogs[dialog].inc.received
            received.starts[:] = received.stops[:] = ["damaged"]
            assert host.give(UNIT, Take(token=0, dialog=dialog, count=1))

        self.run(act, "no dialog raises.*TypeError")


class TestTheCheckerFindsViolations:
    def checks(self, code: int = 7, transacted: bool = False) -> DialogChecks:
        checks = DialogChecks()
        checks.begin("d", code, transacted)
        checks.tries("d", range(10))
        checks.captures("d", range(5))
        return checks

    def test_a_message_that_was_never_sent(self) -> None:
        with pytest.raises(AssertionError, match="never sent"):
            self.checks().gets("d", 11)

    def test_a_message_twice(self) -> None:
        checks = self.checks(2)
        checks.gets("d", 1)
        with pytest.raises(AssertionError, match="twice"):
            checks.gets("d", 1)

    def test_a_message_twice_is_fine_without_at_most_once(self) -> None:
        checks = self.checks(4)
        checks.gets("d", 1)
        checks.gets("d", 1)
        assert checks.passages["d"].got == {1: 2}

    def test_a_message_processed_twice_in_transactions(self) -> None:
        checks = self.checks(4, transacted=True)
        checks.gets("d", 1)
        with pytest.raises(AssertionError, match="twice"):
            checks.gets("d", 1)

    def test_a_message_out_of_order(self) -> None:
        checks = self.checks(1)
        checks.gets("d", 2)
        with pytest.raises(AssertionError, match="came after"):
            checks.gets("d", 1)

    def test_a_trace_of_an_aborted_transaction(self) -> None:
        checks = self.checks()
        checks.aborts("d", range(7, 9))
        with pytest.raises(AssertionError, match="aborted"):
            checks.gets("d", 8)

    def test_a_captured_message_that_is_missing(self) -> None:
        checks = self.checks(4)
        for number in range(4):
            checks.gets("d", number)
        with pytest.raises(AssertionError, match="not delivered, first 4"):
            checks.complete()
