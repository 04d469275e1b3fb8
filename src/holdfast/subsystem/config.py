"""The configuration of a node, as values. `holdfast.node.config` reads and checks it.

The fields of `NodeConfig` are those that every node has. Everything else belongs to a subsystem, which declares a
`Section` for each top-level key of the file that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from holdfast.errors import ConfigError
from holdfast.wire.frames import AdapterInfo

T = TypeVar("T")
Anchor = Callable[[str], str]
"""Makes a path of the file absolute: paths are relative to the file. An empty one stays empty."""
MEASURE: tuple[Literal["alt", "frag", "mss"], ...] = ("alt", "frag", "mss")


class AdapterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter: a local address, and the transports used on it."""

    name: str
    address: str
    """`host:port` at which other nodes reach this node, so the host is not 0.0.0.0."""
    subnet: str = ""
    """Adapters on one subnet reach each other. Default: the name of the adapter."""
    transports: tuple[Literal["tcp", "udp"], ...] = ("tcp", "udp")
    mtu: int = 1500
    """The largest packet that this adapter is meant to carry; sizes are probed up to it."""
    measure: tuple[Literal["alt", "frag", "mss"], ...] = MEASURE
    """What is measured on separate flows, if the adapter of the peer enables it too: other source ports, fragments, TCP
    segment sizes."""
    websocket: bool = False
    """Carry the TCP connections of this adapter in WebSockets, for networks that are connected only by an HTTP
    proxy."""
    proxy: str = ""
    """`http://[user:password@]host:port`: open those WebSockets through this proxy."""
    multicast: str = ""
    """`239.255.x.y:port` or `[ff02::x]:port`, the same for all adapters of the subnet: enables multicast probing."""


class SubnetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The heartbeat settings of one subnet."""

    name: str
    neighbourhood: Literal["all", "ring", "hypercube"] = "all"
    """Which nodes exchange heartbeats: all, neighbours on a ring, or neighbours on a hypercube. The same on every node
    of the domain."""


class SecurityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tls`: nodes authenticate each other and encrypt. `plain`: neither, and on loopback only."""

    mode: Literal["tls", "plain"] = "tls"
    authority: str = ""
    certificate: str = ""
    key: str = ""


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web page of this node."""

    address: str = ""
    """`host:port`; no page by default."""
    token: str = ""
    """Required if the address is not loopback."""
    results: str = ""
    """Output directory of the pipeline, or a copy; the page then shows incidents, causes and verdicts."""


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Telemetry for the pipeline."""

    enabled: bool = True
    directory: str = ""
    """Default: `<data>/telemetry`."""
    max_mb: int = 512
    seal_s: float = 30.0


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log of `holdfast node`. A program that runs a node itself configures the standard library's `logging`."""

    format: Literal["text", "json"] = "text"
    """`json`: one object per line, for programs."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Records below this level are not written."""


class LabConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For demonstrations: allows `holdfast fault` to drop packets that this node sends."""

    faults: bool = False


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    domain: str
    name: str
    data: str = ""
    """Directory for everything that the node stores; in memory by default."""
    preset: Literal["lan", "wan"] = "lan"
    join: tuple[str, ...] = ()
    """Addresses of members; one reachable member is enough."""
    mesh: Literal["all", "join"] = "all"
    """Link to every member, or only to those in `join` and those that join this node."""
    adapter: tuple[AdapterConfig, ...] = ()
    subnet: tuple[SubnetConfig, ...] = ()
    security: SecurityConfig = SecurityConfig()
    web: WebConfig = WebConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    log: LogConfig = LogConfig()
    lab: LabConfig = LabConfig()
    sections: Mapping[str, Any] = {}
    """The sections of subsystems, by top-level key of the file. Use `Section.of`."""

    def adapters(self) -> tuple[AdapterInfo, ...]:
        infos = []
        for adapter in self.adapter:
            host, port = split_address(adapter.address, f"adapter {adapter.name!r}")
            infos.append(
                AdapterInfo(
                    adapter.name,
                    adapter.subnet or adapter.name,
                    host,
                    port,
                    adapter.transports,
                    adapter.multicast,
                    adapter.mtu,
                    # Behind a proxy, this node's own segments do not reach the peer, so there is nothing to measure.
                    () if adapter.websocket else adapter.measure,
                )
            )
        return tuple(infos)

    @property
    def telemetry_directory(self) -> str:
        """Where this node records telemetry; empty if it records none."""
        found = self.telemetry.directory or (f"{self.data}/telemetry" if self.data else "")
        return found if self.telemetry.enabled else ""

    @property
    def subnets(self) -> list[str]:
        """The subnet of each adapter."""
        return [adapter.subnet or adapter.name for adapter in self.adapter]


class Section(Generic[T]):
    """One top-level key of the file that a subsystem reads, with its type and its default."""

    def __init__(
        self, key: str, kind: Any, default: T, paths: Callable[[T, Anchor], T] | None = None
    ) -> None:
        self.key = key
        self.kind = kind
        """A struct type for a table, `tuple[Struct, ...]` for an array of tables, or a plain type."""
        self.default = default
        self.paths = paths
        """Returns a value with its paths anchored; None: this section has no paths."""

    def of(self, config: NodeConfig) -> T:
        """The value in this configuration, or the default."""
        value: T = config.sections.get(self.key, self.default)
        return value


def split_address(address: str, where: str) -> tuple[str, int]:
    """`host:port`, or a `ConfigError` that names the place."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    named = bool(host) and host.isprintable() and " " not in host
    if not named or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(
            f"{where}: {address!r} is not an address; write host:port, such as 10.0.0.1:7400"
        )
    return host, int(port)


def check_unique(values: list[str], what: str, source: str) -> None:
    """Refuse duplicates: two things of one kind cannot share a name."""
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{source}: two {what} {value!r}")
