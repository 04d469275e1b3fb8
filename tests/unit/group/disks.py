"""Durable groups and what their stores hold."""

from __future__ import annotations

from typing import Any

from tests.unit.group.harness import GROUP, World
from tests.unit.group.talking import started

from holdfast.group.log.journal import tables
from holdfast.stores.memory import MemoryStore

VOTE, LOG, MESSAGES, STATE = tables(GROUP)


def durable(*args: Any, **settings: Any) -> World:
    return started(*args, durability="durable", **settings)


def rows(world: World, name: str, table: str) -> list[tuple[bytes, bytes]]:
    return MemoryStore(world.disks[name]).load(table)
