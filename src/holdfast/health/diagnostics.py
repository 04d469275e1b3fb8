"""The configuration of path probing: `[diagnostics]` and `[[tune]]`."""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError
from holdfast.health.config import (
    FRAG_RUNGS,
    PATTERNS,
    PATTERNS_MAX,
    PERIOD_MAX,
    PERIOD_MIN,
    RUNGS,
    RUNGS_MAX,
    Budget,
    HealthConfig,
    SignatureName,
    Tune,
    tuned,
)
from holdfast.health.probing.attributes import SIZE_MAX, SIZE_MIN, pattern_bytes
from holdfast.types import MILLISECOND

PATH_BYTES_MIN = 4_000


class DiagnosticsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is probed, and the bandwidth budgets."""

    sizes: tuple[int, ...] = RUNGS
    """Packet sizes, headers included; those above the MTU of an adapter are left out there, and its MTU is added."""
    fragmented_sizes: tuple[int, ...] = FRAG_RUNGS
    """Datagrams above the MTU, which IP fragments."""
    patterns: tuple[str, ...] = PATTERNS
    """Byte patterns in hexadecimal, repeated to fill a packet."""
    path_bytes: int = 64_000
    """Bytes per second on the wire for each path, for each adapter, and for all that this node sends."""
    adapter_bytes: int = 2_000_000
    node_bytes: int = 20_000_000
    false_alarms_per_1000_days: int = 10
    """False alarms allowed in the whole domain; a lower value makes detection slower."""


class TuneSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tunables of one signature, on one subnet or on all; omitted values come from the preset."""

    signature: SignatureName
    subnet: str = ""
    period_ms: int = 0
    grace: int = 0
    retry_ms: int = 0


def health_config(
    preset: HealthConfig, diagnostics: DiagnosticsConfig, tunes: tuple[TuneSection, ...]
) -> HealthConfig:
    """The preset with the changes of the configuration."""
    signatures = preset.signatures
    for tune in tunes:
        if not tune.subnet:
            signatures = tuned(signatures, _tune(tune))
    subnets = dict.fromkeys((tune.subnet for tune in tunes if tune.subnet), signatures)
    for tune in tunes:
        if tune.subnet:
            subnets[tune.subnet] = tuned(subnets[tune.subnet], _tune(tune))
    return msgspec.structs.replace(
        preset,
        signatures=signatures,
        subnets=tuple(subnets.items()),
        rungs=diagnostics.sizes,
        frag_rungs=diagnostics.fragmented_sizes,
        patterns=diagnostics.patterns,
        budget=Budget(
            path=diagnostics.path_bytes,
            adapter=diagnostics.adapter_bytes,
            domain=diagnostics.node_bytes,
            alarms_per_1000_days=diagnostics.false_alarms_per_1000_days,
        ),
    )


def _tune(section: TuneSection) -> Tune:
    return Tune(
        section.subnet,
        section.signature,
        section.period_ms * MILLISECOND,
        section.grace,
        section.retry_ms * MILLISECOND,
    )


def check_diagnostics(diagnostics: DiagnosticsConfig, source: str) -> None:
    where = f"{source}: [diagnostics]"
    for key in ("sizes", "fragmented_sizes"):
        sizes = getattr(diagnostics, key)
        if len(sizes) > RUNGS_MAX or any(not SIZE_MIN <= size <= SIZE_MAX for size in sizes):
            raise ConfigError(
                f"{where} {key}: at most {RUNGS_MAX}, each from {SIZE_MIN} to {SIZE_MAX}"
            )
    if len(diagnostics.patterns) > PATTERNS_MAX:
        raise ConfigError(f"{where} patterns: at most {PATTERNS_MAX}")
    for pattern in diagnostics.patterns:
        if pattern_bytes(pattern) is None or len(pattern) > 64:
            raise ConfigError(
                f"{where} patterns: {pattern!r} is not up to 32 bytes in hexadecimal, such as 55 or "
                "deadbeef"
            )
    if diagnostics.path_bytes < PATH_BYTES_MIN:
        raise ConfigError(f"{where} path_bytes: basic heartbeats alone need {PATH_BYTES_MIN}")
    if min(diagnostics.adapter_bytes, diagnostics.node_bytes) < diagnostics.path_bytes:
        raise ConfigError(f"{where}: adapter_bytes and node_bytes must be at least path_bytes")
    if diagnostics.false_alarms_per_1000_days < 1:
        raise ConfigError(f"{where} false_alarms_per_1000_days must be at least 1")


def check_tune(tune: TuneSection, subnets: list[str], source: str) -> None:
    where = f"{source}: [[tune]] {tune.signature}"
    if tune.subnet and tune.subnet not in subnets:
        raise ConfigError(
            f"{where}: no adapter of this node is on subnet {tune.subnet!r}; there are {', '.join(subnets)}"
        )
    low, high = PERIOD_MIN // MILLISECOND, PERIOD_MAX // MILLISECOND
    for key, value in (("period_ms", tune.period_ms), ("retry_ms", tune.retry_ms)):
        if value and not low <= value <= high:
            raise ConfigError(f"{where}: {key} must be from {low} to {high}")
    if not 0 <= tune.grace <= 100:
        raise ConfigError(f"{where}: grace must be from 1 to 100")
