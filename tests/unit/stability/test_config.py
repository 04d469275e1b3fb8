"""Settings: what is refused, and which protocol a view gets."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.stability import PROTOCOLS, StabilityConfig


def test_an_unknown_protocol_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"'cubes' is not known.*did you mean 'cube'"):
        StabilityConfig(protocol="cubes")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("period_ns", 0),
        ("held_bytes", -1),
        ("repeat_ns", 0),
        ("cube_from", 0),
        ("gap_ns", -1),
        ("ride_ns", -1),
        ("calm_bytes", -1),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, value: int) -> None:
    with pytest.raises(ConfigError, match=setting):
        StabilityConfig(**{setting: value})


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("gap_ns", "period_ns"),
        ("period_ns", "period_max_ns"),
        ("calm_ns", "period_max_ns"),
        ("repeat_ns", "repeat_max_ns"),
    ],
)
def test_a_wait_must_not_exceed_its_upper_limit(low: str, high: str) -> None:
    limit = getattr(StabilityConfig(), high)
    with pytest.raises(ConfigError, match=f"{low} is .* must not exceed {high}"):
        StabilityConfig(**{low: limit + 1})


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="periods_ns"):
        msgspec.convert({"periods_ns": 5}, StabilityConfig)


def test_the_period_grows_with_the_number_of_members_up_to_its_limit() -> None:
    config = StabilityConfig()
    periods_ms = [config.period_of(size) // 1_000_000 for size in (3, 250, 300, 1000, 100_000)]
    assert periods_ms == [50, 50, 60, 200, 1000]


def test_the_default_is_the_coordinator_up_to_128_members_and_the_cube_above() -> None:
    """Rule 10."""
    config = StabilityConfig()
    assert [config.chosen(size) for size in (1, 9, 128, 129, 1000)] == [
        "coord",
        "coord",
        "coord",
        "cube",
        "cube",
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_that_was_chosen_holds_at_every_size(protocol: str) -> None:
    config = StabilityConfig(protocol=protocol)
    assert {config.chosen(size) for size in (1, 128, 129, 5000)} == {protocol}
