"""Builds the parts of a node from its configuration: store, telemetry, TLS, transports, applications."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.node.config import NodeConfig, parse_config, split_address
from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.recording.archive import SegmentBounds
from holdfast.recording.segment_writer import SegmentWriter
from holdfast.runtime.driver import Driver
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.subsystem import Subsystem
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
    WebSocketTransport,
    load_tls,
)
from holdfast.types import SECOND, Nanos

SPARSE_FACTOR: Final = 10
"""Segments with few facts stay open this many times longer: most kinds record little, and each file costs the
pipeline more than it holds."""


def load_config(path: str | Path, subsystems: Sequence[Subsystem] = SUBSYSTEMS) -> NodeConfig:
    """Read and check a configuration file. Paths in it are relative to the file."""
    file = Path(path)
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text") from None
    config = parse_config(text, str(file), subsystems)
    here = file.absolute().parent

    def place(name: str) -> str:
        return str(here / name) if name else ""

    security, telemetry = config.security, config.telemetry
    anchored = {
        section.key: section.paths(section.of(config), place)
        for subsystem in subsystems
        for section in subsystem.sections
        if section.paths is not None and section.key in config.sections
    }
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
        web=msgspec.structs.replace(config.web, results=place(config.web.results)),
        sections={**config.sections, **anchored},
    )


def open_store(config: NodeConfig) -> Store:
    if not config.data:
        return MemoryStore()
    return SqliteStore(Path(config.data))


def open_segments(
    config: NodeConfig, node: str, incarnation: int, wall_offset_ns: Nanos
) -> SegmentWriter | None:
    """The telemetry writer; None if there is no directory for it."""
    telemetry, directory = config.telemetry, config.telemetry_directory
    if not directory:
        return None
    bounds = SegmentBounds(
        max_bytes=telemetry.max_mb << 20,
        segment_age_ns=int(telemetry.seal_s * SECOND),
        sparse_factor=SPARSE_FACTOR,
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
    """One transport per adapter and kind, not started yet."""
    made: dict[tuple[str, str], Transport] = {}
    # Measuring sockets may use at most a quarter of the files that this process may open, so that data never lacks one.
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = max(8, files // (8 * len(config.adapter)))
    tcp, udp = TcpLimits(), UdpLimits()
    tcp = msgspec.structs.replace(tcp, measuring_max=min(tcp.measuring_max, share))
    udp = msgspec.structs.replace(udp, sides_max=min(udp.sides_max, share))
    for a in config.adapters():
        driver.load.adapter(a.name, a.subnet)
        if a.multicast:
            group = split_address(a.multicast, f"adapter {a.name!r}")
            made[(a.name, "multicast")] = MulticastTransport(
                a.name, a.host, group, driver, driver.next_flow, faults=faults
            )
        for kind in a.transports:
            key = (a.name, kind)
            section = next(each for each in config.adapter if each.name == a.name)
            if section.websocket:
                made[key] = WebSocketTransport(
                    a.name,
                    a.host,
                    a.port,
                    driver,
                    driver.next_flow,
                    tls=tls,
                    faults=faults,
                    limits=tcp,
                    proxy=section.proxy,
                )
            elif kind == "tcp":
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
