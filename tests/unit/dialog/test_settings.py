"""Settings: direct before profile before default; a profile raises a minimum and never lowers it."""

from __future__ import annotations

import pytest

from holdfast.dialog.config import (
    DEFAULTS,
    NONE,
    Assurances,
    Settings,
    assurances_of,
    merged,
    read_profile,
)
from holdfast.errors import ConfigError, MisuseError


def test_defaults_are_exactly_once_in_order() -> None:
    assert merged() == DEFAULTS
    assert DEFAULTS.assurances.code == 7


@pytest.mark.parametrize("minimum", range(8))
@pytest.mark.parametrize("raised", range(8))
def test_a_profile_raises_a_minimum_and_never_lowers_it(minimum: int, raised: int) -> None:
    wanted = assurances_of(raised)
    table = {
        "at_least_once": wanted.at_least_once,
        "at_most_once": wanted.at_most_once,
        "in_order": wanted.in_order,
    }
    settings = merged(profile=read_profile("p", table), minimum=assurances_of(minimum))
    assert settings.assurances.code == (minimum | raised)


def test_what_code_sets_directly_wins() -> None:
    profile = read_profile("p", {"quota_messages": 7, "priority": 9, "at_most_once": True})
    settings = merged({"quota_messages": 3, "at_most_once": False}, profile)
    assert settings.quota_messages == 3
    assert settings.priority == 9
    assert not settings.at_most_once


def test_an_unknown_setting_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="quota_messages"):
        read_profile("p", {"quota_mesages": 3})
    with pytest.raises(MisuseError, match="did you mean 'priority'"):
        merged({"prioritty": 3})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("priority", 10, "priority"),
        ("quota_messages", 0, "quota_messages"),
        ("quota_bytes", 10, "quota_bytes"),
        ("simplex", "both", "simplex"),
        ("hours", ((5, 3),), "hours"),
        ("session_ttl_ns", -1, "negative"),
        ("quota_reserved", 5000, "quota_reserved"),
        ("session_ttl_ns", "5", "session_ttl_ns.*Expected `int`"),
        ("hours", "25-99", "hours.*Expected `array`"),
        ("partner_silent_ns", -1, "negative"),
        ("idle_ns", 10**30, "idle_ns must be at most ten years"),
        ("message_ttl_ns", 10**18, "message_ttl_ns must be at most ten years"),
        ("rate_per_s", 1 << 60, "rate_per_s must be at most"),
    ],
)
def test_settings_that_cannot_be_are_refused(key: str, value: object, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        merged({key: value})


def test_a_setting_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="profile 'p'"):
        read_profile("p", {"priority": "high"})


def test_assurances_combine() -> None:
    assert assurances_of(4).raised(assurances_of(1)).code == 5
    assert assurances_of(7).covers(assurances_of(2))
    assert not assurances_of(5).covers(assurances_of(2))
    assert [assurances_of(code).code for code in range(8)] == list(range(8))
    assert Assurances() == assurances_of(7)
    assert NONE.code == 0
    assert isinstance(DEFAULTS, Settings)
