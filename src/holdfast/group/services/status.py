"""Locks and barriers, for display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.group.services.tables import ServiceTables
from holdfast.group.services.values import Party
from holdfast.types import SECOND, NodeId


def tables_status(tables: ServiceTables, names: Mapping[NodeId, str]) -> dict[str, Any]:
    """The locks that are held and the barriers that are waited at, with names of nodes where they are known."""

    def name_of(party: Party) -> str:
        return names.get(NodeId(party[0]), party[0].hex()[:8])

    locks = []
    for lock in tables.locks.values():
        node, _, number = lock.holder
        lease_ns = dict(tables.lives[node].requests)[number].lease_ns
        locks.append(
            {
                "name": lock.name,
                "holder": name_of(lock.holder),
                "token": lock.token,
                "lease_s": lease_ns / SECOND,
                "waiting": [name_of(waiter) for waiter in lock.waiters],
            }
        )
    barriers = [
        {
            "name": barrier.name,
            "generation": barrier.generation,
            "parties": barrier.parties,
            "phase": barrier.phase,
            "phases": barrier.phases,
            "arrived": [name_of(party) for party in barrier.arrived],
        }
        for barrier in tables.barriers.values()
    ]
    return {"locks": locks, "barriers": barriers}
