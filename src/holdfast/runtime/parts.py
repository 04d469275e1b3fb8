"""What a node is made of, from its configuration: store, telemetry, TLS, transports, applications."""

from __future__ import annotations

import importlib
import resource
from collections.abc import Mapping
from pathlib import Path
from time import monotonic_ns

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.ports import Replica
from holdfast.node.config import NodeConfig, parse_config, split_address
from holdfast.runtime.driver import Driver
from holdfast.stores.archive import SegmentBounds
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.stores.segments import SegmentWriter
from holdfast.stores.sqlite import SqliteStore
from holdfast.transports import (
    Credentials,
    Faults,
    MulticastTransport,
    TcpLimits,
    TcpTransport,
    Tls,
    Transport,
    UdpLimits,
    UdpTransport,
    load_tls,
)
from holdfast.types import SECOND, Nanos


def load_config(path: str | Path) -> NodeConfig:
    """Read and check a configuration file. Paths in it are relative to the file."""
    file = Path(path)
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text") from None
    config = parse_config(text, str(file))
    here = file.absolute().parent

    def place(name: str) -> str:
        return str(here / name) if name else ""

    security, telemetry = config.security, config.telemetry
    return msgspec.structs.replace(
        config,
        data=place(config.data),
        security=msgspec.structs.replace(
            security,
            authority=place(security.authority),
            certificate=place(security.certificate),
            key=place(security.key),
        ),
        telemetry=msgspec.structs.replace(telemetry, directory=place(telemetry.directory)),
    )


def load_application(name: str) -> Replica:
    """Import `package.module:Class` and make one."""
    module, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        # Foreign code: it may raise anything, and its own traceback says where.
        raise ConfigError(
            f"application {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Replica):
        raise ConfigError(f"application {name!r} is not a holdfast.Replica")
    return made


def check_applications(config: NodeConfig, applications: Mapping[str, object]) -> None:
    """Those that were given to the node: for groups that there are, and something that can be one."""
    groups = [group.name for group in config.groups()]
    for group, application in applications.items():
        if group not in groups:
            known = f"there are {', '.join(groups)}" if groups else "there are none"
            raise ConfigError(
                f"an application was given for group {group!r}, which the configuration does not have; {known}; "
                "nothing was started"
            )
        if not isinstance(application, Replica):
            found = (
                f"the class {application.__name__}: give an instance"
                if isinstance(application, type)
                else f"of type {type(application).__name__}, which is no holdfast.Replica: derive from that"
            )
            raise ConfigError(f"the application of group {group!r} is {found}; nothing was started")


def open_store(config: NodeConfig) -> Store:
    if not config.data:
        return MemoryStore()
    return SqliteStore(Path(config.data))


def open_segments(
    config: NodeConfig, node: str, incarnation: int, wall_offset_ns: Nanos
) -> SegmentWriter | None:
    """The writer of telemetry; None when there is nowhere to write to."""
    telemetry = config.telemetry
    directory = telemetry.directory or (f"{config.data}/telemetry" if config.data else "")
    if not telemetry.enabled or not directory:
        return None
    bounds = SegmentBounds(
        max_bytes=telemetry.max_mb << 20, segment_age_ns=int(telemetry.seal_s * SECOND)
    )
    return SegmentWriter(
        Path(directory), node, config.name, incarnation, wall_offset_ns, monotonic_ns, bounds
    )


def open_tls(config: NodeConfig) -> Tls | None:
    """Checked certificates; None in plain mode."""
    security = config.security
    if security.mode == "plain":
        return None
    files = Credentials(security.authority, security.certificate, security.key)
    return load_tls(files, config.domain, config.name)


def make_transports(
    config: NodeConfig, driver: Driver, tls: Tls | None, faults: Faults | None
) -> dict[tuple[str, str], Transport]:
    """One transport for each adapter and kind, not started yet."""
    made: dict[tuple[str, str], Transport] = {}
    # What measures gets at most a quarter of the files that this process may open: data must never want for one.
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = max(8, files // (8 * len(config.adapter)))
    tcp, udp = TcpLimits(), UdpLimits()
    tcp = msgspec.structs.replace(tcp, measuring_max=min(tcp.measuring_max, share))
    udp = msgspec.structs.replace(udp, sides_max=min(udp.sides_max, share))
    for a in config.adapters():
        if a.multicast:
            group = split_address(a.multicast, f"adapter {a.name!r}")
            made[(a.name, "multicast")] = MulticastTransport(
                a.name, a.host, group, driver, driver.next_flow, faults=faults
            )
        for kind in a.transports:
            key = (a.name, kind)
            if kind == "tcp":
                made[key] = TcpTransport(
                    a.name,
                    a.host,
                    a.port,
                    driver,
                    driver.next_flow,
                    tls=tls,
                    faults=faults,
                    limits=tcp,
                )
            else:
                made[key] = UdpTransport(
                    a.name,
                    a.host,
                    a.port,
                    driver,
                    driver.next_flow,
                    faults=faults,
                    limits=udp,
                    mtu=a.mtu,
                )
    return made
