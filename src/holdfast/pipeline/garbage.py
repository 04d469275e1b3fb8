"""Removing files that no snapshot names any more.

A file goes when none of the kept snapshots names its attempt and the attempt is older than `KEEP_US`: a younger one
may belong to a run that has not published yet. The age is in the attempt's name, so no clock of the store matters.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from holdfast.pipeline.snapshot import Parts, Snapshots, TableDamaged
from holdfast.pipeline.storage.port import Missing, Store, join

KEEP_US: Final = 6 * 3600 * 1_000_000
"""How long files of unpublished attempts and old snapshots stay: longer than any run or reader takes."""
SNAPSHOTS_KEPT: Final = 12

_ATTEMPT: Final = re.compile(r"a(\d{16})-[0-9a-f]{8}")


def new_attempt(now_us: int) -> str:
    """A name that no other run has."""
    return f"a{now_us:016d}-{secrets.token_hex(4)}"


def collect_garbage(store: Store, snapshots: Snapshots, now_us: int, keep_us: int = KEEP_US) -> int:
    """Remove old snapshots, then attempts that nothing names. Gives how many directories went."""
    numbers = snapshots.numbers()
    named: set[str] = set()
    kept: list[int] = []
    for place, number in enumerate(reversed(numbers)):
        try:
            snapshot = snapshots.load(number)
        except (Missing, TableDamaged):
            continue
        if place < SNAPSHOTS_KEPT or snapshot.created_us > now_us - keep_us:
            kept.append(number)
            named.update(_attempts(snapshot.tables))
    if not kept:
        return 0
    for number in numbers:
        if number < min(kept):
            snapshots.remove(number)
    return _remove_unnamed(store, snapshots.root, named, now_us - keep_us)


def discard(store: Store, root: str, attempt: str) -> None:
    """Remove what an attempt wrote; it was not published."""
    for folder in _folders_with_attempts(store, root):
        store.remove(join(folder, attempt))


def _attempts(tables: dict[str, Parts]) -> list[str]:
    return [
        found[0]
        for parts in tables.values()
        for part in parts.values()
        for file in part.files
        if (found := _ATTEMPT.search(file.name))
    ]


def _remove_unnamed(store: Store, root: str, named: set[str], before_us: int) -> int:
    removed = 0
    for folder in _folders_with_attempts(store, root):
        for name in store.folders(folder):
            match = _ATTEMPT.fullmatch(name)
            if match and name not in named and int(match[1]) < before_us:
                store.remove(join(folder, name))
                removed += 1
    return removed


def _folders_with_attempts(store: Store, root: str) -> list[str]:
    folders: list[str] = []
    for layer in ("facts", "tables", "ledger"):
        base = join(root, layer)
        folders.append(base)
        folders += [
            join(base, name) for name in store.folders(base) if not _ATTEMPT.fullmatch(name)
        ]
    return folders
