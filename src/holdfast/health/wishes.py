"""What configuration and clients want of measuring: signatures of subnets, plans of adapters."""

from __future__ import annotations

from holdfast.health.attributes import Plan, make_plan
from holdfast.health.config import HealthConfig, Signatures, Tune, Want, tuned


class Wishes:
    """What is wanted now; it begins with the configuration."""

    def __init__(self, config: HealthConfig, mtus: dict[str, int]) -> None:
        self._config = config
        self._mtus = mtus
        self._everywhere = config.signatures
        self._signatures = dict(config.subnets)
        self._wants: dict[str, Want] = {}
        self._plans: dict[str, Plan] = {}

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

    def plan(self, adapter: str) -> Plan:
        plan = self._plans.get(adapter)
        if plan is None:
            wants = [self._wants[name] for name in ("", adapter) if name in self._wants]
            sizes = tuple(size for want in wants for size in want.sizes)
            patterns = tuple(pattern for want in wants for pattern in want.patterns)
            plan = make_plan(self._config, self.mtu(adapter), sizes, patterns)
            self._plans[adapter] = plan
        return plan

    def want(self, want: Want) -> None:
        if not want.adapter or want.adapter in self._mtus:
            self._wants[want.adapter] = want
            self._plans.clear()
