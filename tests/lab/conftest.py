"""A lab for tests. Everything here needs root, and says so where it is skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.labs import a_lab
from tests.lab.wire import Wire

from holdfast.lab.lab import Lab

WHY_NOT = "a lab needs root and the programs ip, nft and ethtool"


def possible() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "nft", "ethtool")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("root") and not possible():
            item.add_marker(pytest.mark.skip(reason=WHY_NOT))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three hosts, two subnets; one for each file, and gone after it."""
    with a_lab(tmp_path_factory.mktemp("labs")) as made:
        yield made


@pytest.fixture
def wire(lab: Lab) -> Iterator[Wire]:
    """Sockets in the lab; nothing is broken before and after."""
    lab.heal()
    with Wire(lab) as made:
        yield made
    lab.heal()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "labs"
