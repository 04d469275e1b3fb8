"""Roles that this node holds. They are never evicted; their number is bounded."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.overlay.frames import Entry, Found
from holdfast.overlay.ids import role_key
from holdfast.types import Nanos

Key = tuple[bytes, str]
"""(tree, role)"""


class LocalRole:
    """One instance on this node."""

    __slots__ = (
        "anchor",
        "busy",
        "claim",
        "epoch",
        "exclusive",
        "extent",
        "first",
        "instance",
        "joinable",
        "key",
        "linked",
        "moving_to",
        "op",
        "outrank_waits",
        "outranks_at",
        "owners",
        "realm_only",
        "relink",
        "role",
        "seq",
        "tree",
        "tries",
        "waiters",
    )

    def __init__(self, tree: bytes, role: str, instance: bytes, exclusive: bool) -> None:
        self.tree = tree
        self.role = role
        self.key = role_key(tree, role)
        self.instance = instance
        self.exclusive = exclusive
        self.epoch = 0
        self.seq = 1
        """Counts what this node has said of the instance: a higher number replaces routes made by a lower one."""
        self.realm_only = False
        self.extent = -1
        self.claim = False
        self.op = 0
        """The operation that is answered when the instance is linked."""
        self.linked = False
        """It reaches all other instances, and they reach it."""
        self.anchor: Entry | None = None
        """The registered first instance that it is linked to; itself, or another."""
        self.first = False
        """Registered as the first of its realm or of the domain."""
        self.owners: tuple[bytes, ...] = ()
        """The nodes with which it was registered."""
        self.busy = False
        self.relink = False
        """Publish again, although the first instance is the same."""
        self.tries = 0
        self.waiters: list[Callable[[bool], None]] = []
        self.moving_to = b""
        """Granted to this instance, which has not confirmed yet (rule 11)."""
        self.joinable = True
        self.outranks_at: Nanos = 0
        """When it may publish again because another node has unpublished it."""
        self.outrank_waits = False

    @property
    def is_anchor(self) -> bool:
        """Whether the others link to this one. The first of a realm links to the first of the domain."""
        return self.anchor is None or self.anchor.instance == self.instance

    def entry(self, realm: str) -> Entry:
        return Entry(self.tree, self.role, self.instance, self.epoch, self.exclusive, realm)

    def answer(self) -> Found:
        """This instance as an answer to a wave names it."""
        self.seq += 1
        return Found(self.instance, self.epoch, self.exclusive, self.seq, 0)


class LocalRoles:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._roles: dict[Key, LocalRole] = {}
        self._trees: dict[bytes, dict[str, bool]] = {}

    def __len__(self) -> int:
        return len(self._roles)

    def get(self, tree: bytes, role: str) -> LocalRole | None:
        return self._roles.get((tree, role))

    def add(self, role: LocalRole) -> bool:
        """False when there are too many."""
        if len(self._roles) >= self._limit:
            return False
        self._roles[role.tree, role.role] = role
        self._trees.setdefault(role.tree, {})[role.role] = True
        return True

    def remove(self, role: LocalRole) -> None:
        if self._roles.get((role.tree, role.role)) is not role:
            return
        del self._roles[role.tree, role.role]
        names = self._trees[role.tree]
        del names[role.role]
        if not names:
            del self._trees[role.tree]

    def is_current(self, role: LocalRole) -> bool:
        return self._roles.get((role.tree, role.role)) is role

    def all(self) -> list[LocalRole]:
        return list(self._roles.values())

    def on_tree(self, tree: bytes) -> list[LocalRole]:
        return [self._roles[tree, name] for name in self._trees.get(tree, ())]

    def trees(self) -> dict[bytes, bool]:
        return dict.fromkeys(self._trees, True)


def backoff(base: Nanos, longest: Nanos, tries: int) -> Nanos:
    return min(base << min(tries, 10), longest)
