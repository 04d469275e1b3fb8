from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.transports.harness import authority_in


@pytest.fixture(scope="session")
def demo_ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority of the domain 'demo'."""
    folder = tmp_path_factory.mktemp("demo-ca")
    authority_in(folder)
    return folder
