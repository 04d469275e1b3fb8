"""Faults below a node's own sockets, for demonstrations: `holdfast fault` and `holdfast heal`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import MisuseError
from holdfast.subsystem import Control, Edge, Port
from holdfast.transports import Faults, Rule


class LabEdge(Edge):
    """Accepts faults if the configuration allows it."""

    def __init__(self, allowed: bool) -> None:
        self.faults = Faults() if allowed else None
        self._adapters: tuple[str, ...] = ()

    def attach(self, port: Port) -> None:
        self._adapters = tuple(adapter.name for adapter in port.config.adapter)

    def control(self) -> Mapping[str, Control]:
        return {"fault": self._add, "heal": self._remove}

    def _add(self, request: dict[str, Any]) -> dict[str, Any]:
        faults = self._allowed()
        fields = {key: value for key, value in request.items() if key != "do"}
        try:
            rule = msgspec.convert(fields, Rule)
        except msgspec.ValidationError as error:
            raise MisuseError(f"not a fault: {error}; nothing was changed") from None
        if rule.adapter is not None and rule.adapter not in self._adapters:
            raise MisuseError(
                f"this node has no adapter {rule.adapter!r}; it has {', '.join(self._adapters)}; "
                "nothing was changed"
            )
        return {"id": faults.add(rule), "faults": faults.describe()}

    def _remove(self, request: dict[str, Any]) -> dict[str, Any]:
        faults = self._allowed()
        if "id" in request:
            try:
                number = int(request["id"])
            except (TypeError, ValueError, OverflowError):
                raise MisuseError(
                    f"the id of a fault must be a number, not {request['id']!r}; nothing was changed"
                ) from None
            faults.remove(number)
        else:
            faults.clear()
        return {"faults": faults.describe()}

    def _allowed(self) -> Faults:
        if self.faults is None:
            raise MisuseError(
                "this node does not accept faults; set [lab] faults = true; nothing was changed"
            )
        return self.faults
