"""The section `dialogs` of the configuration file: stores, profiles, routes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

import msgspec

from holdfast.dialog.config import Profile, read_profile
from holdfast.errors import ConfigError
from holdfast.subsystem import NodeConfig, Section
from holdfast.subsystem.config import Anchor

KINDS: Final = ("memory", "sqlite", "postgres", "express")


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where dialogs keep their state."""

    name: str = "default"
    kind: str = "sqlite"
    """`memory`, `sqlite`, `postgres`, `express`, or `package.module:Class` for a third-party store."""
    path: str = ""
    """`sqlite`: the file, `<data>/dialogs-<name>.sqlite` when left out. `express`: the socket of the daemon."""
    dsn: str = ""
    """`postgres`: the database, as `postgresql://user@host/name`."""
    budget_mb: int = 4096
    """Memory that all dialogs of the store may reserve (`quota_reserved` times `message_bytes_max`)."""
    transaction_limit_s: float = 10.0
    """`sqlite`: how long an application's transaction may hold the file."""
    options: dict[str, Any] = {}
    """Keyword arguments of a third-party store."""


class PartitionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a service, and its instances."""

    nodes: tuple[str, ...] = ()
    first: str = ""
    """Keys from this one on, in the order of their bytes; empty in all partitions: by hash."""
    role: str = ""
    """The role that its instances publish, instead of their names."""


class RouteConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a service is: on one node, on any of several (a farm), or divided by key."""

    service: str
    nodes: tuple[str, ...] = ()
    partition: tuple[PartitionConfig, ...] = ()
    role: str = ""
    """A farm whose instances publish this role, instead of a list of names."""


class ServiceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service that is taken even while no application is connected."""

    name: str
    profile: str = ""


class DialogsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: tuple[StoreConfig, ...] = ()
    profile: dict[str, dict[str, Any]] = {}
    route: tuple[RouteConfig, ...] = ()
    redirect: dict[str, tuple[str, ...]] = {}
    """This node as an intermediary: services whose dialogs it sends to other nodes; none: it refuses them."""
    roles: bool = True
    """Services without a route are found by the role `dialog/SERVICE`, which every node that listens publishes."""
    serve: bool = True
    """Host dialogs for applications that connect through the socket `dialogs.sock` in the data directory."""
    service: tuple[ServiceConfig, ...] = ()
    """Services that the node listens to for applications that come and go."""
    abandoned_after_s: float = 30 * 86_400.0
    """A dialog without any change for this long is collected; 0: never."""

    @property
    def profiles(self) -> dict[str, Profile]:
        return {name: read_profile(name, table) for name, table in self.profile.items()}


def anchor_dialogs(dialogs: DialogsConfig, anchor: Anchor) -> DialogsConfig:
    replace = msgspec.structs.replace
    stores = tuple(replace(store, path=anchor(store.path)) for store in dialogs.store)
    return replace(dialogs, store=stores)


DIALOGS: Final = Section[DialogsConfig]("dialogs", DialogsConfig, DialogsConfig(), anchor_dialogs)


def check_dialogs(config: NodeConfig, source: str) -> None:
    """What types cannot say. Raises `ConfigError`."""
    dialogs = DIALOGS.of(config)
    names = [store.name for store in dialogs.store]
    for store in dialogs.store:
        check_kind(store, source)
        where = f"{source}: dialogs.store {store.name!r}"
        if names.count(store.name) > 1 or not store.name:
            raise ConfigError(f"{where}: each store needs a name of its own")
        if store.kind == "postgres" and not store.dsn:
            raise ConfigError(f"{where}: a postgres store needs `dsn`")
        if store.kind == "express" and not store.path:
            raise ConfigError(f"{where}: an express store needs `path`, the socket of its daemon")
        if store.kind == "sqlite" and not store.path and not config.data:
            raise ConfigError(f"{where}: a sqlite store needs `path`, or the node needs `data`")
    for name, table in dialogs.profile.items():
        try:
            profile = read_profile(name, table)
        except ConfigError as error:
            raise ConfigError(f"{source}: dialogs.{error}") from error
        wanted = profile.values.get("store")
        if wanted is not None and wanted not in names:
            raise ConfigError(f"{source}: dialogs.profile {name!r}: there is no store {wanted!r}")
    for service in dialogs.service:
        if service.profile and service.profile not in dialogs.profile:
            raise ConfigError(
                f"{source}: dialogs.service {service.name!r}: there is no profile {service.profile!r}"
            )
    for route in dialogs.route:
        where = f"{source}: dialogs.route {route.service!r}"
        if [bool(route.nodes), bool(route.role), bool(route.partition)].count(True) != 1:
            raise ConfigError(f"{where}: give either `nodes`, `role` or partitions")
        for partition in route.partition:
            if bool(partition.nodes) == bool(partition.role):
                raise ConfigError(f"{where}: give each partition either `nodes` or `role`")


def check_kind(store: StoreConfig, source: str) -> None:
    """A kind that is built in, or a class by its full name."""
    module, _, attribute = store.kind.partition(":")
    if store.kind in KINDS or (module and attribute.isidentifier()):
        return
    near = get_close_matches(store.kind, KINDS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KINDS)}"
    raise ConfigError(
        f"{source}: dialogs.store {store.name!r}: unknown kind {store.kind!r}; {hint}; name a third-party store as "
        "`package.module:Class`"
    )
