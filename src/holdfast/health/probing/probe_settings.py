"""What should be measured, by configuration and by clients: signatures of subnets, plans of adapters."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.health.config import HealthConfig, Signatures, Tune, tuned
from holdfast.health.probing.attributes import Plan, make_plan

PLANS_MAX: Final = 1000


class ProbeSettings:
    """The current settings, starting with the configuration."""

    def __init__(self, config: HealthConfig, mtus: dict[str, int]) -> None:
        self._config = config
        self._mtus = mtus
        self._everywhere = config.signatures
        self._signatures = dict(config.subnets)
        self._plans: dict[tuple[str, tuple[int, ...], tuple[str, ...], bool], Plan] = {}

    def mtu(self, adapter: str) -> int:
        return self._mtus.get(adapter, 1500)

    def signatures(self, subnet: str) -> Signatures:
        return self._signatures.get(subnet, self._everywhere)

    def tune(self, tune: Tune) -> None:
        if tune.subnet:
            self._signatures[tune.subnet] = tuned(self.signatures(tune.subnet), tune)
            return
        self._everywhere = tuned(self._everywhere, tune)
        self._signatures = {name: tuned(old, tune) for name, old in self._signatures.items()}

    def plan(
        self, adapter: str, sizes: tuple[int, ...], patterns: tuple[str, ...], probed: bool = True
    ) -> Plan:
        """What is probed from an adapter if traffic needs these values in addition to the configuration."""
        key = (adapter, sizes, patterns, probed)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            config = self._config
            if not probed:
                config = msgspec.structs.replace(config, kinds=())
            plan = make_plan(config, self.mtu(adapter), sizes, patterns)
            self._plans[key] = plan
        return plan
