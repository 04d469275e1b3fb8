"""Reads a node's configuration: one TOML file, checked whole before anything starts.

Unknown keys are refused with the nearest known one. Nothing reads the environment. Each subsystem checks its own
sections.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.links.handshake import ADAPTERS_MAX, NAME_MAX
from holdfast.node.complaints import check_keys, explain
from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.subsystem import NodeConfig, Subsystem
from holdfast.subsystem.config import (
    AdapterConfig,
    LabConfig,
    LogConfig,
    SecurityConfig,
    SubnetConfig,
    TelemetryConfig,
    WebConfig,
    check_unique,
    split_address,
)

__all__ = [
    "AdapterConfig",
    "LabConfig",
    "LogConfig",
    "NodeConfig",
    "SecurityConfig",
    "SubnetConfig",
    "TelemetryConfig",
    "WebConfig",
    "check",
    "is_loopback",
    "parse_config",
    "split_address",
]


def is_loopback(host: str) -> bool:
    """Whether packets to `host` stay on this machine. Of names, only `localhost` is certain."""
    address = _literal(host)
    return host == "localhost" if address is None else address.is_loopback


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def parse_config(
    text: str, source: str = "configuration", subsystems: Sequence[Subsystem] = SUBSYSTEMS
) -> NodeConfig:
    """A checked configuration from TOML text. Every error names the file, the key and the valid form."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    known = {field.name: field.type for field in msgspec.structs.fields(NodeConfig)}
    del known["sections"]
    sections = {section.key: section.kind for s in subsystems for section in s.sections}
    kinds = {**known, **sections}
    check_keys(raw, kinds, source)
    try:
        own = {key: value for key, value in raw.items() if key in known}
        config = msgspec.convert(own, NodeConfig)
        read = {
            key: _convert(value, sections[key], key)
            for key, value in raw.items()
            if key in sections
        }
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, kinds)}") from None
    config = msgspec.structs.replace(config, sections=read)
    check(config, source, subsystems)
    return config


def _convert(value: Any, kind: Any, key: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = text.replace("`$", f"`$.{key}", 1) if "`$" in text else f"{text} - at `$.{key}`"
        raise msgspec.ValidationError(place) from None


def check(config: NodeConfig, source: str, subsystems: Sequence[Subsystem] = SUBSYSTEMS) -> None:
    """Checks beyond the types."""
    for key, value in (("domain", config.domain), ("name", config.name)):
        if not 0 < len(value) <= NAME_MAX:
            raise ConfigError(f"{source}: {key} must have 1 to {NAME_MAX} letters")
    _check_adapters(config, source)
    if config.security.mode == "tls":
        _check_tls(config, source)
    for join in config.join:
        _, port = split_address(join, f"{source}: join")
        if not port:
            raise ConfigError(f"{source}: join: port 0 is invalid, in {join!r}")
    for subsystem in subsystems:
        subsystem.check(config, source)
    _check_telemetry(config.telemetry, source)
    if config.web.address:
        host, _ = split_address(config.web.address, f"{source}: [web] address")
        if not is_loopback(host) and not config.web.token:
            raise ConfigError(
                f"{source}: [web] address {host} is not loopback, so the page needs a token; set [web] token, or use "
                "127.0.0.1"
            )
    if "://" in config.web.results:
        raise ConfigError(
            f"{source}: [web] results must be a directory of this machine: a node has no client for "
            f"{config.web.results!r}. Mount it, or copy the output of the pipeline"
        )


def _check_adapters(config: NodeConfig, source: str) -> None:
    if not config.adapter:
        raise ConfigError(f"{source}: no [[adapter]]: a node needs at least one")
    if len(config.adapter) > ADAPTERS_MAX:
        raise ConfigError(f"{source}: a node has at most {ADAPTERS_MAX} adapters")
    for adapter in config.adapter:
        _check_adapter(adapter, config.security.mode, source)
    check_unique([adapter.name for adapter in config.adapter], "adapters are called", source)
    check_unique([adapter.address for adapter in config.adapter], "adapters have", source)
    check_unique([subnet.name for subnet in config.subnet], "subnets are called", source)
    known = config.subnets
    for subnet in config.subnet:
        if subnet.name not in known:
            raise ConfigError(
                f"{source}: no adapter is on subnet {subnet.name!r}; there are {', '.join(known)}"
            )
    groups = [adapter.multicast for adapter in config.adapter if adapter.multicast]
    check_unique(groups, "adapters have the multicast group", source)


def _check_adapter(adapter: AdapterConfig, mode: str, source: str) -> None:
    where = f"{source}: adapter {adapter.name!r}"
    host, port = split_address(adapter.address, where)
    if not 0 < len(adapter.name) <= NAME_MAX or len(adapter.subnet) > NAME_MAX:
        raise ConfigError(f"{where}: its name and its subnet have at most {NAME_MAX} letters")
    address = _literal(host)
    if address is not None and address.is_unspecified:
        raise ConfigError(
            f"{where}: other nodes cannot reach {host}; write the address that they use"
        )
    if not port:
        raise ConfigError(f"{where}: other nodes cannot reach port 0; write the port that they use")
    if not adapter.transports:
        raise ConfigError(f"{where} has no transports")
    if not 576 <= adapter.mtu <= 65_535:
        raise ConfigError(f"{where}: mtu must be from 576 to 65535")
    if adapter.multicast:
        _check_multicast(adapter, where)
    if adapter.websocket or adapter.proxy:
        _check_websocket(adapter, where)
    if mode == "plain" and not is_loopback(host):
        raise ConfigError(
            f"{where}: plain mode is accepted on loopback only, and {host} is not loopback; "
            'create certificates with `holdfast ca` and set [security] mode = "tls"'
        )


def _check_websocket(adapter: AdapterConfig, where: str) -> None:
    if not adapter.websocket:
        raise ConfigError(f"{where}: a proxy carries WebSockets only; set websocket = true")
    if adapter.transports != ("tcp",) or adapter.multicast:
        raise ConfigError(f'{where}: a WebSocket carries streams only; set transports = ["tcp"]')
    if not adapter.proxy:
        return
    scheme, _, place = adapter.proxy.partition("://")
    if scheme != "http" or not place:
        shown = adapter.proxy.rpartition("@")[2]  # without a password
        raise ConfigError(
            f"{where}: proxy {shown!r} is not of the form http://host:port or http://user:password@host:port"
        )
    split_address(place.rpartition("@")[2].rstrip("/"), f"{where}: proxy")


def _check_multicast(adapter: AdapterConfig, where: str) -> None:
    group, port = split_address(adapter.multicast, f"{where}: multicast")
    address = _literal(group)
    if address is None or not address.is_multicast or not port:
        raise ConfigError(
            f"{where}: multicast: {adapter.multicast!r} is not a multicast group; write one with "
            "a port, such as 239.255.7.1:7401 or [ff02::7400]:7401"
        )
    own = _literal(split_address(adapter.address, where)[0])
    if own is not None and own.version != address.version:
        raise ConfigError(
            f"{where}: multicast: {group} is an IPv{address.version} group, but the adapter has "
            f"an IPv{own.version} address; use a group of the same version"
        )


def _check_telemetry(telemetry: TelemetryConfig, source: str) -> None:
    if telemetry.max_mb < 1:
        raise ConfigError(f"{source}: [telemetry] max_mb must be at least 1")
    if not 0 < telemetry.seal_s <= 86_400:
        raise ConfigError(f"{source}: [telemetry] seal_s must be above 0 and at most a day (86400)")


def _check_tls(config: NodeConfig, source: str) -> None:
    for key in ("authority", "certificate", "key"):
        if not getattr(config.security, key):
            raise ConfigError(
                f"{source}: [security] {key} is missing; `holdfast ca init` and `holdfast ca issue "
                f'{config.name}` create it, or use mode = "plain" on loopback'
            )
    if not any("tcp" in adapter.transports for adapter in config.adapter):
        raise ConfigError(
            f'{source}: keys for datagrams are exchanged over TLS: add "tcp" to the transports of '
            "an adapter"
        )
