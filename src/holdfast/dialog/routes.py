"""From a URI to the nodes that have an instance: what the configuration says. Roles of the overlay plug in beside it.

A URI is `holdfast://NODE/SERVICE`, for the service of one node, or just the name of a service, for which there is a
route. The key of data-dependent routing is given when the dialog is opened, or as `?key=`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

from holdfast.dialog.section import PartitionConfig, RouteConfig

SCHEME: Final = "holdfast://"


def split_uri(uri: str) -> tuple[str, str, bytes]:
    """The node (empty: any), the service and the key (empty: none) that a URI names."""
    rest, _, query = uri.partition("?")
    node = ""
    if rest.startswith(SCHEME):
        node, _, rest = rest.removeprefix(SCHEME).partition("/")
    key = ""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "key":
            key = value
    return node, rest, key.encode()


def service_of(uri: str) -> str:
    return split_uri(uri)[1]


def resolve(
    routes: Sequence[RouteConfig], members: Mapping[str, bytes], uri: str, key: bytes, spread: bytes
) -> list[bytes] | str:
    """The nodes to ask, best first, or why there is none. `members` has the id of every known node by name.

    `spread` picks the instance of a farm that is asked first; the dialog's id spreads dialogs evenly.
    """
    node, service, uri_key = split_uri(uri)
    if node:
        names: Sequence[str] = (node,)
    else:
        route = next((route for route in routes if route.service == service), None)
        if route is None:
            return (
                f"no route to service {service!r}; add one to the section dialogs, or name a node"
            )
        names = route.nodes
        if route.partition:
            wanted = key or uri_key
            if not wanted:
                return f"service {service!r} is partitioned: a dialog with it needs a key"
            names = partition_of(route.partition, wanted).nodes
    known = [members[name] for name in names if name in members]
    if not known:
        return f"none of {', '.join(names)} is a member of the domain"
    first = crc32(spread) % len(known)
    return known[first:] + known[:first]


def role_of(routes: Sequence[RouteConfig], uri: str, key: bytes, unrouted: bool) -> str:
    """The role whose holders are the instances; empty when the URI or its route names nodes. `unrouted` says whether
    a service without a route has a role."""
    node, service, uri_key = split_uri(uri)
    if node:
        return ""
    route = next((route for route in routes if route.service == service), None)
    if route is None:
        return service_role(service) if unrouted else ""
    wanted = key or uri_key
    if not route.partition or not wanted:
        return route.role  # empty for a partitioned service: `resolve` says that it needs a key
    return partition_of(route.partition, wanted).role


def service_role(service: str) -> str:
    """The role that every node publishes that listens to a service."""
    return f"dialog/{service}"


def partition_of(partitions: Sequence[PartitionConfig], key: bytes) -> PartitionConfig:
    """The partition that a key belongs to: by the ranges of keys, or by hash where there are none."""
    if not any(partition.first for partition in partitions):
        return partitions[crc32(key) % len(partitions)]
    ordered = sorted(partitions, key=lambda partition: partition.first.encode())
    at = bisect_right([partition.first.encode() for partition in ordered], key) - 1
    return ordered[max(0, at)]
