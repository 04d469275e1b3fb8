"""A hook of the wheel build: `HOLDFAST_WHEEL=compiled` includes the compiled core and sets the platform tag."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCore(BuildHookInterface):
    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("HOLDFAST_WHEEL") == "compiled":
            build_data["artifacts"].append("src/holdfast/_compiled/*")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
