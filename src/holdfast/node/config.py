"""What a node is told: one TOML file, checked whole before anything starts.

Unknown keys are refused with the nearest known one. Nothing reads the environment.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.actions import SECONDS_MAX
from holdfast.group.config import GroupConfig
from holdfast.group.policy import Rule
from holdfast.health.config import LAN as HEALTH_LAN
from holdfast.health.config import WAN as HEALTH_WAN
from holdfast.health.config import HealthConfig
from holdfast.health.needs import SetNeeds
from holdfast.health.neighbourhood import ShapeName
from holdfast.links.config import LAN as LINK_LAN
from holdfast.links.config import WAN as LINK_WAN
from holdfast.links.config import LinkTiming
from holdfast.links.handshake import ADAPTERS_MAX, NAME_MAX
from holdfast.links.measuring import MEASURE
from holdfast.node.diagnostics import (
    DiagnosticsConfig,
    TuneSection,
    check_diagnostics,
    check_tune,
    health_config,
)
from holdfast.node.needs import NeedsFields, NeedsSection, group_needs
from holdfast.types import SECOND
from holdfast.wire.frames import AdapterInfo

WAN_SLOWER = 8
"""Leaders are heard, and missed, so much more slowly in the WAN preset."""


class AdapterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to reach others: a local address, and the transports used on it."""

    name: str
    address: str
    """`host:port`; other nodes reach this node here, so the host is not 0.0.0.0."""
    subnet: str = ""
    """Adapters of one subnet reach each other. The adapter's name when left out."""
    transports: tuple[Literal["tcp", "udp"], ...] = ("tcp", "udp")
    mtu: int = 1500
    """The largest packet that this adapter is meant to carry; sizes are probed up to it."""
    measure: tuple[Literal["alt", "frag", "mss"], ...] = MEASURE
    """What is measured with flows of their own, where the peer's adapter says so too: other source ports, fragments,
    segments of TCP."""
    multicast: str = ""
    """`239.255.x.y:port` or `[ff02::x]:port`, the same for all adapters of the subnet: multicast is measured, too."""


class SubnetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the nodes of one subnet watch each other."""

    name: str
    neighbourhood: Literal["all", "ring", "hypercube"] = "all"
    """With whom heartbeats are exchanged: everybody, the next in a ring, or the neighbours on a hypercube. The same
    at every node of the domain."""


class SecurityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tls`: nodes authenticate each other and encrypt. `plain`: neither, and on loopback only."""

    mode: Literal["tls", "plain"] = "tls"
    authority: str = ""
    certificate: str = ""
    key: str = ""


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The page of this node."""

    address: str = ""
    """`host:port`; no page when left out."""
    token: str = ""
    """Needed off loopback."""


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the node records for the pipeline."""

    enabled: bool = True
    directory: str = ""
    """`<data>/telemetry` when left out."""
    max_mb: int = 512
    seal_s: float = 30.0


class GroupSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replicated group."""

    name: str
    voters: tuple[str, ...]
    """Who decides, when the group begins: one to nine nodes."""
    leader: str = ""
    """The voter that leads at first; elections decide afterwards. The first one that may lead, when left out."""
    application: str = ""
    """`package.module:Class` of a `holdfast.Replica`; the code that starts the node may give it instead."""
    window_mb: int = 16
    learners: tuple[str, ...] = ()
    """Replicas that do not vote."""
    never_lead: tuple[str, ...] = ()
    """Replicas that are not elected."""
    durability: Literal["memory", "durable"] = "memory"
    delivery: Literal["safe", "fast"] = "safe"
    mode: Literal["majority", "availability"] = "majority"
    needs: NeedsFields | None = None
    """What its messages and its order need of the paths to others."""

    transport: Literal["channel", "datagram"] = "channel"
    """How messages travel from their source: reliably, or as datagrams, each of which may be lost."""
    priorities: int = 1
    """Levels of priority, 0 the most urgent; messages have the lowest unless their sender says otherwise."""
    loss: tuple[Rule, ...] = ()
    """What to do about lost messages: the first rule that matches decides, where the application leaves it to them."""
    recover_s: float = 5.0
    """How long recovery may take when the answer does not say."""
    message_log_mb: int = 0
    """Replicas write messages down in their store, up to this much each, to recover lost ones from."""
    gone_s: float = 30.0
    """A source that cannot be reached for this long is not expected to bring anything back."""
    patience_s: float = 10.0
    """A replica whose application stands still, or that takes a state, may hold the others up for this long."""


class LabConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For demonstrations: lets `holdfast fault` break this node's own packets on their way out."""

    faults: bool = False


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    domain: str
    name: str
    data: str = ""
    """Directory for everything that the node keeps; in memory when left out."""
    preset: Literal["lan", "wan"] = "lan"
    join: tuple[str, ...] = ()
    """Addresses of members, any of which will do."""
    mesh: Literal["all", "join"] = "all"
    """Link to every member, or only to those joined (and who join us)."""
    adapter: tuple[AdapterConfig, ...] = ()
    subnet: tuple[SubnetConfig, ...] = ()
    security: SecurityConfig = SecurityConfig()
    web: WebConfig = WebConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    group: tuple[GroupSection, ...] = ()
    needs: tuple[NeedsSection, ...] = ()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    tune: tuple[TuneSection, ...] = ()
    lab: LabConfig = LabConfig()

    @property
    def timing(self) -> LinkTiming:
        return LINK_LAN if self.preset == "lan" else LINK_WAN

    @property
    def health(self) -> HealthConfig:
        preset = HEALTH_LAN if self.preset == "lan" else HEALTH_WAN
        return health_config(preset, self.diagnostics, self.tune)

    @property
    def shapes(self) -> dict[str, ShapeName]:
        """The neighbourhood of each subnet that is named."""
        return {subnet.name: subnet.neighbourhood for subnet in self.subnet}

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
                    adapter.measure,
                )
            )
        return tuple(infos)

    def groups(self) -> tuple[GroupConfig, ...]:
        return tuple(self.one_group(group) for group in self.group)

    def one_group(self, group: GroupSection) -> GroupConfig:
        slower = 1 if self.preset == "lan" else WAN_SLOWER
        plain = GroupConfig(
            name=group.name,
            voters=group.voters,
            leader=group.leader,
            learners=group.learners,
            never_lead=group.never_lead,
            durability=group.durability,
            delivery=group.delivery,
            mode=group.mode,
            window_bytes=group.window_mb << 20,
            transport=group.transport,
            priorities=group.priorities,
            policy=group.loss,
            recover_ns=int(group.recover_s * SECOND),
            gone_ns=int(group.gone_s * SECOND),
            patience_ns=int(group.patience_s * SECOND),
            message_log_bytes=group.message_log_mb << 20,
        )
        return msgspec.structs.replace(
            plain,
            append_period_ns=plain.append_period_ns * slower,
            election_ns=plain.election_ns * slower,
            stall_ns=plain.stall_ns * slower,
            nack_retry_ns=plain.nack_retry_ns * slower,
        )

    def needs_of_traffic(self, source: str = "configuration") -> list[SetNeeds]:
        """Everything that the file says about what traffic needs."""
        found = [item for section in self.needs for item in section.items(source)]
        for group in self.group:
            if group.needs is not None:
                found += group_needs(group.name, group.needs, source)
        return found


def split_address(address: str, where: str) -> tuple[str, int]:
    """`host:port`, or a `ConfigError` that says where it stands."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    named = bool(host) and host.isprintable() and " " not in host
    if not named or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(
            f"{where}: {address!r} is not an address; write host:port, as 10.0.0.1:7400"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether packets to `host` stay on this machine. Of names only one is certain to."""
    address = _literal(host)
    return host == "localhost" if address is None else address.is_loopback


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def parse_config(text: str, source: str = "configuration") -> NodeConfig:
    """A checked configuration from TOML text. Every complaint names the file, the key and what to write."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    _check_keys(raw, NodeConfig, source, "")
    try:
        config = msgspec.convert(raw, NodeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None
    check(config, source)
    return config


def check(config: NodeConfig, source: str) -> None:
    """What types cannot say."""
    for key, value in (("domain", config.domain), ("name", config.name)):
        if not 0 < len(value) <= NAME_MAX:
            raise ConfigError(f"{source}: {key} has 1 to {NAME_MAX} letters")
    _check_adapters(config, source)
    if config.security.mode == "tls":
        _check_tls(config, source)
    for join in config.join:
        _, port = split_address(join, f"{source}: join")
        if not port:
            raise ConfigError(f"{source}: join: nobody listens at port 0, as in {join!r}")
    for group in config.group:
        _check_group(config, group, source)
    _check_twice([group.name for group in config.group], "groups are called", source)
    _check_needs(config, source)
    check_diagnostics(config.diagnostics, source)
    subnets = [adapter.subnet or adapter.name for adapter in config.adapter]
    for tune in config.tune:
        check_tune(tune, subnets, source)
    _check_telemetry(config.telemetry, source)
    if config.web.address:
        host, _ = split_address(config.web.address, f"{source}: [web] address")
        if not is_loopback(host) and not config.web.token:
            raise ConfigError(f"{source}: [web]: off loopback the page needs a token")


def _check_twice(values: list[str], what: str, source: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{source}: two {what} {value!r}")


def _check_adapters(config: NodeConfig, source: str) -> None:
    if not config.adapter:
        raise ConfigError(
            f"{source}: no [[adapter]]: a node needs at least one way to reach others"
        )
    if len(config.adapter) > ADAPTERS_MAX:
        raise ConfigError(f"{source}: a node has at most {ADAPTERS_MAX} adapters")
    for adapter in config.adapter:
        _check_adapter(adapter, config.security.mode, source)
    _check_twice([adapter.name for adapter in config.adapter], "adapters are called", source)
    _check_twice([adapter.address for adapter in config.adapter], "adapters have", source)
    _check_twice([subnet.name for subnet in config.subnet], "subnets are called", source)
    known = [adapter.subnet or adapter.name for adapter in config.adapter]
    for subnet in config.subnet:
        if subnet.name not in known:
            raise ConfigError(
                f"{source}: no adapter is on subnet {subnet.name!r}; there are {', '.join(known)}"
            )
    groups = [adapter.multicast for adapter in config.adapter if adapter.multicast]
    _check_twice(groups, "adapters have the multicast group", source)


def _check_adapter(adapter: AdapterConfig, mode: str, source: str) -> None:
    where = f"{source}: adapter {adapter.name!r}"
    host, port = split_address(adapter.address, where)
    if not 0 < len(adapter.name) <= NAME_MAX or len(adapter.subnet) > NAME_MAX:
        raise ConfigError(f"{where}: its name and its subnet have at most {NAME_MAX} letters")
    address = _literal(host)
    if address is not None and address.is_unspecified:
        raise ConfigError(f"{where}: others cannot reach {host}; write the address they use")
    if not port:
        raise ConfigError(f"{where}: others cannot reach port 0; write the port they use")
    if not adapter.transports:
        raise ConfigError(f"{where} has no transports")
    if not 576 <= adapter.mtu <= 65_535:
        raise ConfigError(f"{where}: mtu is from 576 to 65535")
    if adapter.multicast:
        _check_multicast(adapter, where)
    if mode == "plain" and not is_loopback(host):
        raise ConfigError(
            f"{where}: plain mode is for loopback only, {host} is not; "
            'make certificates with `holdfast ca` and set [security] mode = "tls"'
        )


def _check_multicast(adapter: AdapterConfig, where: str) -> None:
    group, port = split_address(adapter.multicast, f"{where}: multicast")
    address = _literal(group)
    if address is None or not address.is_multicast or not port:
        raise ConfigError(
            f"{where}: multicast: {adapter.multicast!r} is not a group; write one with a port, "
            "as 239.255.7.1:7401 or [ff02::7400]:7401"
        )
    own = _literal(split_address(adapter.address, where)[0])
    if own is not None and own.version != address.version:
        raise ConfigError(
            f"{where}: multicast: {group} is a group of IPv{address.version}, and the adapter has an address of "
            f"IPv{own.version}; write a group of the same"
        )


def _check_telemetry(telemetry: TelemetryConfig, source: str) -> None:
    if telemetry.max_mb < 1:
        raise ConfigError(f"{source}: [telemetry] max_mb is at least 1")
    if not 0 < telemetry.seal_s <= 86_400:
        raise ConfigError(f"{source}: [telemetry] seal_s is more than 0 and at most a day (86400)")


def _check_needs(config: NodeConfig, source: str) -> None:
    """An adapter or subnet that this node does not have would never be found."""
    config.needs_of_traffic(source)
    places = [(f"[[needs]] of port {section.port}", section) for section in config.needs]
    fields: list[tuple[str, NeedsFields]] = [
        *places,
        *((f"group {g.name!r}: needs", g.needs) for g in config.group if g.needs is not None),
    ]
    known = (
        ("adapter", [adapter.name for adapter in config.adapter]),
        ("subnet", [adapter.subnet or adapter.name for adapter in config.adapter]),
    )
    for where, needs in fields:
        for key, names in known:
            value = getattr(needs, key)
            if value and value not in names:
                raise ConfigError(
                    f"{source}: {where}: no adapter has {key} {value!r}; known: {', '.join(names)}"
                )


def _check_tls(config: NodeConfig, source: str) -> None:
    for key in ("authority", "certificate", "key"):
        if not getattr(config.security, key):
            raise ConfigError(
                f"{source}: [security] {key} is missing; `holdfast ca init` and `holdfast ca issue "
                f'{config.name}` make it, or use mode = "plain" on loopback'
            )
    if not any("tcp" in adapter.transports for adapter in config.adapter):
        raise ConfigError(
            f'{source}: keys for datagrams are agreed over TLS: give an adapter "tcp"'
        )


def _check_group(config: NodeConfig, group: GroupSection, source: str) -> None:
    if group.message_log_mb < 0:
        raise ConfigError(f"{source}: group {group.name!r}: message_log_mb is at least 0")
    for seconds in (group.recover_s, group.gone_s, group.patience_s):
        if not 0 < seconds <= SECONDS_MAX:  # Nor does it hold of what is no number.
            raise ConfigError(
                f"{source}: group {group.name!r}: recover_s, gone_s and patience_s are more than 0, and at most "
                f"{SECONDS_MAX}"
            )
    if group.window_mb < 1:
        raise ConfigError(f"{source}: group {group.name!r}: window_mb is at least 1")
    if group.durability == "durable" and not config.data:
        raise ConfigError(
            f"{source}: group {group.name!r} is durable, but this node keeps nothing: set data = "
            '"some/directory", or durability = "memory"'
        )
    try:
        config.one_group(group)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _check_keys(raw: Any, kind: type[msgspec.Struct], source: str, where: str) -> None:
    """Refuse unknown keys, at any depth, with the nearest known one."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in fields:
            near = get_close_matches(key, fields, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(fields)}"
            place = f"[{where}] " if where else ""
            raise ConfigError(f"{source}: {place}unknown key {key!r}{hint}")
        inner = _struct_of(fields[key].type)
        if inner is None:
            continue
        path = f"{where}.{key}" if where else key
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _check_keys(item, inner, source, path)


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
            return argument
    return None
