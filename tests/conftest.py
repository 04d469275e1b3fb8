"""The same examples in every run: a test that fails here fails everywhere."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine an example takes long, which says nothing of the code.
settings.register_profile(
    "holdfast", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first: one that starts last would keep a single worker busy while the others have nothing to do."""
    slow = {
        item.path
        for item in items
        if item.get_closest_marker("slow") or item.get_closest_marker("spark")
    }
    items.sort(key=lambda item: item.path not in slow)
