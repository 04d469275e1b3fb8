"""`[[group]]` in the configuration: units that people use, and names instead of numbers."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.group.config import GROUP_STABILITY, GroupConfig
from holdfast.group.loss.actions import SECONDS_MAX
from holdfast.group.loss.rule import Rule
from holdfast.health.needs_config import NeedsFields, group_needs
from holdfast.health.placement.needs import SetNeeds
from holdfast.health.subsystem import check_needs
from holdfast.stability.config import AUTO
from holdfast.subsystem import NodeConfig, Section
from holdfast.subsystem.config import check_unique
from holdfast.types import SECOND

WAN_SLOWER: Final = 8
"""The factor by which timeouts of groups are longer in the WAN preset."""


class GroupSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replicated group."""

    name: str
    voters: tuple[str, ...]
    """The initial voters: one to nine."""
    leader: str = ""
    """The first leader; elections decide afterwards. Default: the first voter that may lead."""
    application: str = ""
    """`package.module:Class` of a `holdfast.Replica`; it can also be passed in code."""
    window_mb: int = 16
    learners: tuple[str, ...] = ()
    """Replicas that do not vote."""
    never_lead: tuple[str, ...] = ()
    """Replicas that are not elected."""
    durability: Literal["memory", "durable"] = "memory"
    delivery: Literal["safe", "fast"] = "safe"
    mode: Literal["majority", "availability"] = "majority"
    needs: NeedsFields | None = None
    """Requirements of its messages and its order for paths."""

    transport: Literal["channel", "datagram"] = "channel"
    """How messages travel from their source: reliably, or as datagrams, each of which may be lost."""
    priorities: int = 1
    """Priority levels, 0 the most urgent; the lowest is the default of a message."""
    loss: tuple[Rule, ...] = ()
    """Rules for lost messages: the first that matches decides, if the application does not."""
    recover_s: float = 5.0
    """Time limit of recovery, if the action sets none."""
    message_log_mb: int = 0
    """Size of the message log of each replica, from which lost messages can be recovered."""
    gone_s: float = 30.0
    """A source that is unreachable for this long is treated as gone."""
    patience_s: float = 10.0
    """How long a replica whose application makes no progress, or that installs a snapshot, may block the others."""
    zones: dict[str, tuple[str, ...]] = {}
    """Subsets of the replicas: only they deliver messages sent to the zone."""
    stability: str = AUTO
    """The protocol that determines what all replicas have applied: `cube`, `coord`, `tree`, `full`, or `auto` (chosen
    by the number of replicas)."""
    relay_from: int = 65
    """The number of replicas from which sources send to the voters only, and learners receive messages from other
    replicas."""
    trace: bool = False
    """Record a fact of kind `message` for every message that this node delivers."""


GROUPS: Final = Section[tuple[GroupSection, ...]]("group", tuple[GroupSection, ...], ())


def groups_of(config: NodeConfig) -> tuple[GroupConfig, ...]:
    """All groups of the configuration."""
    return tuple(_group(config, section) for section in GROUPS.of(config))


def needs_of_groups(config: NodeConfig) -> list[SetNeeds]:
    """The needs of the channels that carry the order and the messages of groups."""
    found: list[SetNeeds] = []
    for section in GROUPS.of(config):
        if section.needs is not None:
            found += group_needs(section.name, section.needs, "configuration")
    return found


def _group(config: NodeConfig, section: GroupSection) -> GroupConfig:
    slower = 1 if config.preset == "lan" else WAN_SLOWER
    plain = GroupConfig(
        name=section.name,
        voters=section.voters,
        leader=section.leader,
        learners=section.learners,
        never_lead=section.never_lead,
        durability=section.durability,
        delivery=section.delivery,
        mode=section.mode,
        window_bytes=section.window_mb << 20,
        transport=section.transport,
        priorities=section.priorities,
        policy=section.loss,
        recover_ns=int(section.recover_s * SECOND),
        gone_ns=int(section.gone_s * SECOND),
        patience_ns=int(section.patience_s * SECOND),
        zones=section.zones,
        message_log_bytes=section.message_log_mb << 20,
        stability=msgspec.structs.replace(GROUP_STABILITY, protocol=section.stability),
        relay_from=section.relay_from,
        trace=section.trace,
    )
    return msgspec.structs.replace(
        plain,
        append_period_ns=plain.append_period_ns * slower,
        election_ns=plain.election_ns * slower,
        stall_ns=plain.stall_ns * slower,
        nack_retry_ns=plain.nack_retry_ns * slower,
    )


def check_groups(config: NodeConfig, source: str) -> None:
    """Checks beyond the types."""
    sections = GROUPS.of(config)
    for section in sections:
        _check(config, section, source)
    check_unique([section.name for section in sections], "groups are called", source)


def _check(config: NodeConfig, group: GroupSection, source: str) -> None:
    where = f"{source}: group {group.name!r}"
    if group.message_log_mb < 0:
        raise ConfigError(f"{where}: message_log_mb must be at least 0")
    for seconds in (group.recover_s, group.gone_s, group.patience_s):
        if not 0 < seconds <= SECONDS_MAX:  # false for NaN, too
            raise ConfigError(
                f"{where}: recover_s, gone_s and patience_s must be above 0 and at most {SECONDS_MAX}"
            )
    if group.window_mb < 1:
        raise ConfigError(f"{where}: window_mb must be at least 1")
    if group.durability == "durable" and not config.data:
        raise ConfigError(
            f"{where} is durable, but this node has no data directory: set data = "
            '"some/directory", or durability = "memory"'
        )
    try:
        _group(config, group)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    if group.needs is not None:
        group.needs.needs(f"{where}: needs")
        check_needs(config, f"{where}: needs", group.needs)
