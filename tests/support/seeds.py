"""Seeds of a campaign: the first ones run in every test run, the others with `make campaigns`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def seeds(always: Iterable[int], later: Iterable[int]) -> list[Any]:
    return [*always, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in later)]
