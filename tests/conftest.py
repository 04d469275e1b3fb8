"""The same examples in every run: a test that fails here fails everywhere."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("holdfast", derandomize=True)
settings.load_profile("holdfast")
