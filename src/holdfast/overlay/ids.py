"""Names on the overlay: trees, roles, instances, requests, realms, and which node owns a key.

An instance id contains the node and the incarnation that published it (rule 14), so a newer incarnation of the node
can delete the routes of an older one without asking, and a message for a named instance can be routed to its node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final, NewType

TreeId = NewType("TreeId", bytes)
InstanceId = NewType("InstanceId", bytes)
"""Node (16 bytes), incarnation (8), counter (8). Sorts by node, then by age."""
RequestId = NewType("RequestId", bytes)
"""Same layout: the node that asked, its incarnation, a counter."""

NODE_SIZE: Final = 16
NODE_SIZES: Final = frozenset((NODE_SIZE,))
TREE_SIZE: Final = 16
NUMBERED_SIZE: Final = 32
ROLE_BYTES_MAX: Final = 255
ROLE_PLAIN_MAX: Final = 63
"""Characters that always fit, because one has at most four bytes."""
REALM_BYTES_MAX: Final = 63

_NUMBERS: Final = Struct(">QQ")


def numbered(node: bytes, incarnation: int, counter: int) -> bytes:
    """An id that no other node, and no other life of this node, makes."""
    return node + _NUMBERS.pack(incarnation, counter)


def node_of(numbered_id: bytes) -> bytes:
    return numbered_id[:NODE_SIZE]


def incarnation_of(numbered_id: bytes) -> int:
    return int.from_bytes(numbered_id[NODE_SIZE : NODE_SIZE + 8], "big")


def digest(*parts: bytes) -> bytes:
    """128 bits that stand for these parts."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(4, "big"))
        made.update(part)
    return made.digest()


@lru_cache(maxsize=4096)
def tree_id(name: str) -> TreeId:
    """The id of a tree that people call by a name."""
    return TreeId(digest(b"tree", name.encode()))


@lru_cache(maxsize=8192)
def role_key(tree: bytes, role: str) -> bytes:
    """Where the first instance of a role is registered: the key of the search."""
    return digest(b"role", tree, role.encode())


@lru_cache(maxsize=1024)
def realm_id(realm: str) -> bytes:
    return digest(b"realm", realm.encode())


def swapped(key: bytes) -> bytes:
    """The key with its halves exchanged, so that the choice of a realm says nothing about the choice of a node."""
    return key[8:] + key[:8]


def owner_of(key: bytes, ordered: Sequence[bytes]) -> bytes | None:
    """The highest id below the key, or the highest of all. `ordered` is sorted."""
    if not ordered:
        return None
    return ordered[bisect_left(ordered, key) - 1]


def owners_of(key: bytes, ordered: Sequence[bytes], count: int) -> list[bytes]:
    """The owner and those that follow it downwards, each once."""
    place = bisect_left(ordered, key) - 1
    return [ordered[(place - k) % len(ordered)] for k in range(min(count, len(ordered)))]


def is_tree(value: bytes) -> bool:
    return len(value) == TREE_SIZE


def is_role(value: str) -> bool:
    if value.isascii():
        return 0 < len(value) <= ROLE_BYTES_MAX
    try:
        return len(value.encode()) <= ROLE_BYTES_MAX
    except UnicodeEncodeError:
        return False  # half of a surrogate pair, as `os.fsdecode` makes them


def is_numbered(value: bytes) -> bool:
    return len(value) == NUMBERED_SIZE


def is_node(value: bytes) -> bool:
    return len(value) == NODE_SIZE


def are_nodes(values: tuple[bytes, ...]) -> bool:
    return frozenset(map(len, values)) <= NODE_SIZES
