"""The section `objects` of the configuration file."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.subsystem import NodeConfig, Section
from holdfast.types import MILLISECOND, SECOND

SMALL_MAX: Final = 16 << 10
"""Bytes of a content that a replica takes together with a version, and keeps in the node's store."""


class ObjectsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    root: tuple[str, ...] = ()
    """The nodes that decide the first version of the root directory; the same on all nodes. Empty: no tree of names is
    created from this node."""
    store: bool = True
    """Whether this node holds replicas. It needs `data`."""
    replicas: int = 3
    """Replicas of a new object that names no number."""
    replace_after_s: float = 30.0
    """How long a replica may be unreachable before another one takes its place."""
    repair_mb_per_s: int = 64
    """The rate at which this node copies content to restore replicas."""
    repair_domain_mb_per_s: int = 256
    """The rate at which all nodes of the domain together copy content; the same on all nodes."""
    space_reserve_mb: int = 64
    """Space on the disk that is left free."""
    policy: bool = False
    """Move replicas away from nodes whose paths have, or are likely to have, soft errors."""
    policy_after_s: float = 60.0
    """How long a node's paths must have soft errors before the policy acts."""


class ObjectsConfig(msgspec.Struct, frozen=True):
    """The settings of the machine."""

    domain: str = "holdfast"
    root: tuple[str, ...] = ()
    store: bool = True
    replicas: int = 3
    replace_after_ns: int = 30 * SECOND
    repair_bytes_per_s: int = 64 << 20
    repair_domain_bytes_per_s: int = 256 << 20
    call_ns: int = 5 * SECOND
    """How long a replica may take to answer."""
    write_ns: int = 20 * SECOND
    """How long an operation tries before it gives up."""
    chunk_ns: int = 20 * SECOND
    """How long a replica may take to store a chunk."""
    scan_ns: int = 1 * SECOND
    """Interval between checks of the replicas of this node."""
    settle_ns: int = 2 * SECOND
    """How long a pending entry is left to the node that made it."""
    keep_old_ns: int = 10 * SECOND
    """How long the content of an overwritten version is kept for readers."""
    stage_ns: int = 600 * SECOND
    """How long an unfinished stage is kept for a writer that may resume."""
    backoff_ns: int = 20 * MILLISECOND
    window: int = 8
    """Chunks in flight to one replica, or from it."""
    small: int = SMALL_MAX
    """Bytes up to which a write brings its content together with the version."""
    small_total: int = 16 << 20
    """Bytes of small contents in the store of a node; the oldest ones are moved to files."""


OPERATIONS_MAX: Final = 512
"""Operations of applications on one node at a time; more are refused."""
STAGES_MAX: Final = 256
WATCHERS_MAX: Final = 1024
SIBLINGS_MAX: Final = 8
"""Concurrent versions of one loose object; the next write is refused until they are merged."""
REPLICAS_MAX: Final = 9
OBJECT_BYTES_MAX: Final = 1 << 40
PATCH_MAX: Final = 1 << 20
DIRECTORY_MAX: Final = 4 << 20
"""Bytes of a directory: some ten thousand names."""
REPAIRS_MAX: Final = 4
"""Repairs of one node at a time."""

OBJECTS: Final = Section[ObjectsSection]("objects", ObjectsSection, ObjectsSection())


def settings_of(section: ObjectsSection, domain: str, data: str) -> ObjectsConfig:
    return ObjectsConfig(
        domain=domain,
        root=section.root,
        store=section.store and bool(data),
        replicas=section.replicas,
        replace_after_ns=int(section.replace_after_s * SECOND),
        repair_bytes_per_s=section.repair_mb_per_s << 20,
        repair_domain_bytes_per_s=section.repair_domain_mb_per_s << 20,
    )


def check_objects(config: NodeConfig, source: str) -> None:
    """What types cannot say. Raises `ConfigError`."""
    section = OBJECTS.of(config)
    where = f"{source}: [objects]"
    if not 1 <= section.replicas <= REPLICAS_MAX:
        raise ConfigError(f"{where} replicas is a number from 1 to {REPLICAS_MAX}")
    if len(set(section.root)) != len(section.root):
        raise ConfigError(f"{where} root names a node twice")
    if len(section.root) > REPLICAS_MAX:
        raise ConfigError(f"{where} root has at most {REPLICAS_MAX} nodes")
    for key in (
        "replace_after_s",
        "repair_mb_per_s",
        "repair_domain_mb_per_s",
        "policy_after_s",
    ):
        if getattr(section, key) <= 0:
            raise ConfigError(f"{where} {key} must be above 0")
