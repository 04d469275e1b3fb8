"""A dialog store of a third party, named in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.dialog_nodes import nodes, run
from tests.unit.runtime.dialogs.own_store import MADE

from holdfast.dialog.section import StoreConfig
from holdfast.errors import ConfigError, SetupError
from holdfast.node.config import parse_config
from holdfast.runtime.dialogs.stores import make_store

SECTION = """
[[dialogs.store]]
name = "shelf"
kind = "tests.unit.runtime.dialogs.own_store:ShelfStore"
options = { colour = "blue" }
"""


def test_a_store_of_a_third_party_is_named_in_the_configuration(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben", dialogs=SECTION) as (ann, ben):
            await ben.dialogs.listen("orders")
            dialog = await ann.dialogs.open("holdfast://ben/orders")
            await dialog.send(b"on a shelf")
            _, messages = await ben.dialogs.receive_any(1, timeout_s=10)
            assert [m.body for m in messages] == [b"on a shelf"]

    run(work)
    assert MADE == [("shelf", "blue")] * 2


def test_a_store_that_cannot_be_made_says_why() -> None:
    with pytest.raises(SetupError, match="cannot be made"):
        make_store(StoreConfig(kind="no.such.module:Store"), "")
    with pytest.raises(SetupError, match="lacks open, load"):
        make_store(StoreConfig(kind="tests.unit.runtime.dialogs.own_store:NoStore"), "")


def test_a_wrong_kind_is_refused_with_the_nearest_one() -> None:
    text = """
domain = "d"
name = "n"
data = "x"
security.mode = "plain"
[[adapter]]
name = "red"
address = "127.0.0.1:7400"
[[dialogs.store]]
kind = "sqlit"
"""
    with pytest.raises(ConfigError, match="did you mean 'sqlite'"):
        parse_config(text)
