"""The same examples in every run: a test that fails here fails everywhere."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# On a busy machine an example takes long, which says nothing of the code.
settings.register_profile(
    "holdfast", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")
