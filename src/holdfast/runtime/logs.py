"""Logs for people and for programs.

Holdfast logs with the standard library, to loggers named `holdfast` and below, and installs no handler when it is
imported. Each record has its fields as attributes (`extra`): always `event` and `subsystem`, and those that are known,
such as `node`, `peer` and `group`. `JsonFormatter` writes them as one JSON object per line; `install` is for programs
that are a node and nothing else, such as `holdfast node`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from traceback import format_exception_only
from typing import Any, Final

from holdfast.runtime.tracing import current_ids
from holdfast.subsystem.config import LogConfig

TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_OWN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes that every record has; all others are fields. Python 3.12 added `taskName`."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event and message first, then the fields of the record.

    `fields` are added to every line unless the record has its own, for example `node` and `domain`.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        given = {key: value for key, value in vars(record).items() if key not in _OWN}
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": given.pop("event", ""),
            "message": record.getMessage(),
        }
        for key, value in (self._fields | current_ids() | given).items():
            line.setdefault(key, _plain(value))
        if record.exc_info and record.exc_info[1] is not None:
            # Not str(): an exception of an application may raise there as well.
            line.setdefault("error", format_exception_only(record.exc_info[1])[-1].strip())
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, allow_nan=False)


def install(config: LogConfig, fields: Mapping[str, Any] | None = None) -> None:
    """Write the log of this process to standard error in the configured form. A process that has handlers already
    keeps them."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(fields) if config.format == "json" else logging.Formatter(TEXT)
    )
    logging.basicConfig(level=config.level.upper(), handlers=[handler])


def _utc(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """A value that JSON has: ids are written in hexadecimal, anything unknown as text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    try:
        return str(value)
    except Exception:  # noqa: BLE001 the value is of an application
        return f"<{type(value).__name__}>"
