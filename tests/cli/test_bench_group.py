"""`holdfast bench group`: which runs count."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.bench.group_loss import POLICIES, _check, _setting
from holdfast.bench.group_steps import rate_of, unknown
from holdfast.bench.group_telemetry import SETTINGS, cpu_per_delivery_us
from holdfast.errors import HoldfastError
from holdfast.types import SECOND

SENT = [{"sent": 60, "urgent": 6}, {"sent": 40, "urgent": 4}]


def answers(**changed: Any) -> list[dict[str, Any]]:
    plain = {"count": 100, "digest": 7, "doubled": 0, "urgent": 10, "nacks": 3, "last_ns": SECOND}
    return [plain, plain | changed]


def test_a_run_counts_when_all_is_delivered_and_something_was_lost_on_the_way() -> None:
    _check(SENT, answers(), "recover", 5)
    _check(SENT, [one | {"count": 90} for one in answers()], "drop", 5)


@pytest.mark.parametrize(
    ("policy", "changed", "complaint"),
    [
        ("recover", {"count": 99}, "100 messages were sent"),
        ("drop", {"urgent": 9}, "10 urgent messages were sent"),
        ("drop", {"digest": 8}, "different orders"),
        ("ignore", {"doubled": 1}, "were applied"),
    ],
)
def test_a_run_does_not_count_when_something_is_missing_that_must_not_be(
    policy: str, changed: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(HoldfastError, match=complaint):
        _check(SENT, answers(**changed), policy, 5)


def test_a_run_does_not_count_when_nothing_was_lost() -> None:
    calm = [one | {"nacks": 0} for one in answers()]
    _check(SENT, calm, "recover", 0)
    with pytest.raises(HoldfastError, match="nothing was lost"):
        _check(SENT, calm, "recover", 1)


def test_this_version_knows_every_setting_under_which_loss_is_measured() -> None:
    assert [unknown(_setting(policy)) for policy in POLICIES] == ["", "", ""]


def test_a_rate_is_that_of_each_member_to_its_own_last_message() -> None:
    assert rate_of(answers(last_ns=2 * SECOND), 0) == 75


def test_the_cost_of_a_delivery_is_the_time_of_all_members_over_the_deliveries_of_all() -> None:
    sent = [{"sent": 60, "cpu_s": 0.5}, {"sent": 40, "cpu_s": 1.5}]
    assert cpu_per_delivery_us(sent, answers()) == 2e6 / 200
    assert [unknown(setting) for setting in SETTINGS.values()] == ["", ""]
