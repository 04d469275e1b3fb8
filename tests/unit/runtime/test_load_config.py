"""Paths in a configuration file are relative to the file, in every section (docs/reference/configuration.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.dialog.section import DIALOGS
from holdfast.errors import ConfigError
from holdfast.health.subsystem import ADVICE
from holdfast.runtime.parts import load_config
from holdfast.subsystem import NodeConfig

MINIMAL = """
domain = "d"
name = "ann"
security.mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:7400"
"""


def load(directory: Path, text: str) -> NodeConfig:
    file = directory / "node.toml"
    file.write_text(MINIMAL + text)
    return load_config(file)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the file, which is not that of the process."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


def test_the_directory_of_advice_is_relative_to_the_file(elsewhere: Path) -> None:
    config = load(elsewhere, '[advice]\ndirectory = "advice"\n')
    assert ADVICE.of(config).directory == str(elsewhere / "advice")


def test_results_of_the_page_are_relative_to_the_file(elsewhere: Path) -> None:
    config = load(elsewhere, '[web]\nresults = "history"\n')
    assert config.web.results == str(elsewhere / "history")


def test_the_files_of_dialog_stores_are_relative_to_the_file(elsewhere: Path) -> None:
    stores = """
[[dialogs.store]]
name = "file"
path = "dialogs.sqlite"
[[dialogs.store]]
name = "daemon"
kind = "express"
path = "run/express.sock"
[[dialogs.store]]
name = "memory"
kind = "memory"
"""
    paths = [store.path for store in DIALOGS.of(load(elsewhere, stores)).store]
    assert paths == [str(elsewhere / "dialogs.sqlite"), str(elsewhere / "run/express.sock"), ""]


def test_an_absolute_path_stays_as_it_is(elsewhere: Path) -> None:
    absolute = os.fspath(elsewhere / "other" / "d.sqlite")
    config = load(elsewhere, f'[[dialogs.store]]\npath = "{absolute}"\n')
    assert DIALOGS.of(config).store[0].path == absolute


def test_a_section_that_the_file_leaves_out_is_not_added(elsewhere: Path) -> None:
    assert load(elsewhere, "").sections == {}


def test_an_error_in_a_section_names_the_file(elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.toml: \[advice\] every_s must be from"):
        load(elsewhere, "[advice]\nevery_s = 0.0\n")
