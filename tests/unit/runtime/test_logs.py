"""Structured logs: what a JSON line has, and that every record of Holdfast has its fields (U5)."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.node.config import parse_config
from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.runtime.events import fields_of
from holdfast.runtime.logs import JsonFormatter, install
from holdfast.subsystem.config import LogConfig
from holdfast.telemetry.facts import GroupFact, LinkFact, NodeFact, PathFact

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src/holdfast"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


def line(formatter: logging.Formatter | None = None, /, **attributes: Any) -> dict[str, Any]:
    """A record with these attributes, as it is written."""
    values = {"name": "holdfast", "levelno": 30, "levelname": "WARNING", "msg": "said"} | attributes
    text = (formatter or JsonFormatter()).format(logging.makeLogRecord(values))
    assert "\n" not in text
    assert text.isascii()
    written: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return written


def test_a_line_has_the_time_in_utc_and_the_fields_of_the_record() -> None:
    record = line(created=1.5, msg="link to %s is up", args=("bob",), event="link_up", peer="bob")
    assert record == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "warning",
        "logger": "holdfast",
        "event": "link_up",
        "message": "link to bob is up",
        "peer": "bob",
    }


def test_fields_of_the_process_give_way_to_those_of_the_record() -> None:
    formatter = JsonFormatter({"node": "ann", "domain": "shop"})
    assert line(formatter)["node"] == "ann"
    assert line(formatter, node="bob")["node"] == "bob"
    assert line(formatter, node="bob")["domain"] == "shop"


def test_no_field_replaces_what_every_line_has() -> None:
    record = line(JsonFormatter({"time": 0}), level="mine")
    assert record["time"] != 0
    assert record["level"] == "warning"


def test_any_value_becomes_valid_json_on_one_line() -> None:
    given = {
        "id": b"\x01\xff",
        "rate": float("nan"),
        "path": Path("a/b"),
        "pair": (1, b"\x02"),
        "map": {b"k": {1: None}},
        "odd": "two\nlines \udcff",
    }
    record = line(**given)
    assert record["id"] == "01ff"
    assert record["rate"] == "nan"
    assert record["path"] == "a/b"
    assert record["pair"] == [1, "02"]
    assert record["map"] == {"b'k'": {"1": None}}
    assert record["odd"] == "two\nlines \udcff"


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = line(exc_info=sys.exc_info())
    assert record["error"] == "ValueError: broken"
    assert record["traceback"].startswith("Traceback")


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root logger without the handlers that pytest gives it for each test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_an_application_that_has_handlers_keeps_them() -> None:
    with bare_root() as root:
        own = logging.NullHandler()
        root.addHandler(own)
        root.setLevel(logging.ERROR)
        install(LogConfig("json", "debug"))
        assert root.handlers == [own]
        assert root.level == logging.ERROR


def test_format_and_level_of_the_configuration_hold() -> None:
    with bare_root() as root:
        install(LogConfig("json", "warning"))
        assert root.level == logging.WARNING
        assert isinstance(root.handlers[0].formatter, JsonFormatter)


def test_importing_holdfast_installs_no_handler() -> None:
    code = (
        "import logging, holdfast.runtime.node, holdfast.runtime.logs, holdfast.web.server\n"
        "names = [n for n in logging.root.manager.loggerDict if n.startswith('holdfast')]\n"
        "assert names\n"
        "assert not any(logging.getLogger(n).handlers for n in ['', *names])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


CONFIG = """
domain = "shop"
name = "ann"
security.mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:7400"
"""


def test_the_log_is_text_at_level_info_unless_the_configuration_says_otherwise() -> None:
    assert parse_config(CONFIG).log == LogConfig("text", "info")
    changed = parse_config('log = {format = "json", level = "error"}' + CONFIG)
    assert changed.log == LogConfig("json", "error")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"log\.format"):
        parse_config('log = {format = "xml"}' + CONFIG)


# -- what Holdfast logs ------------------------------------------------------------------------------------------


def test_facts_of_the_telemetry_have_their_fields() -> None:
    path = PathFact(
        1, "change", "00", "bob", "a2", "a1", "red", "udp", True, 1400, 1500, 0, 0, 1, 1
    )
    assert fields_of(path) == {
        "event": "path_change", "subsystem": "health", "peer": "bob", "path": "a1/a2/udp", "subnet": "red",
        "alive": True, "size": 1400, "size_max": 1500,
    }  # fmt: skip
    link = LinkFact(1, "moved", "00", "bob", "a1/a2/udp", "b1/b2/udp", "channel 16: loss")
    assert fields_of(link) == {
        "event": "link_moved", "subsystem": "links", "peer": "bob", "path": "a1/a2/udp",
        "path_before": "b1/b2/udp", "reason": "channel 16: loss",
    }  # fmt: skip
    group = GroupFact(1, "book", "catching up", 3, 7)
    assert fields_of(group) == {
        "event": "group_catching_up", "subsystem": "group", "group": "book", "term": 3, "index": 7,
    }  # fmt: skip
    assert fields_of(NodeFact(1, "alarm", "bob")) == {
        "event": "node_alarm",
        "detail": "bob",
        "count": 1,
    }


def is_log_call(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("log", "_logger")
    )


@cache
def log_calls() -> list[tuple[str, ast.Call]]:
    """Every call of a logger in the source, with its place."""
    texts = {file: file.read_text() for file in sorted(SOURCE.rglob("*.py"))}
    return [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node)
        for file, text in texts.items()
        if re.search(r"\b(log|_logger)\.(" + "|".join(LEVELS) + r")\(", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and is_log_call(node)
    ]


def test_every_log_call_passes_fields() -> None:
    calls = log_calls()
    assert len(calls) > 50
    bare = [place for place, call in calls if not any(k.arg == "extra" for k in call.keywords)]
    assert bare == []


def test_every_event_and_subsystem_of_a_log_call_is_documented() -> None:
    files = dict.fromkeys(ROOT / place.partition(":")[0] for place, _ in log_calls())
    source = "".join(file.read_text() for file in files)
    events = set(re.findall(r'"event": "(\w+)"', source))
    events |= set(re.findall(r'_fields\(\s*"(\w+)"', source))
    events |= set(re.findall(r'_say\(config, [^,]+, "(\w+)"', source))
    page = (ROOT / "docs/reference/logs-and-traces.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page))
    assert len(events) > 45
    assert events - documented == set()
    named = set(re.findall(r'"subsystem": "(\w+)"', source))
    assert named <= {subsystem.name for subsystem in SUBSYSTEMS} | {"node", "control", "web"}
    assert named <= documented


def test_every_field_of_a_log_call_is_documented() -> None:
    page = (ROOT / "docs/reference/logs-and-traces.md").read_text()
    documented = set(re.findall(r"`(\w+)`", page))
    fields = {
        key.value
        for _, call in log_calls()
        for keyword in call.keywords
        if keyword.arg == "extra"
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Dict)
        for key in part.keys
        if isinstance(key, ast.Constant)
    }
    assert len(fields) > 15
    assert fields - documented == set()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_is_logged_all_the_same() -> None:
    """It may be one of the application. A formatter that raised would lose the record."""
    try:
        raise Mute
    except Mute:
        record = logging.LogRecord("holdfast", 40, "", 1, "failed", None, sys.exc_info())
    record.value = Mute()
    line = json.loads(JsonFormatter().format(record))
    assert line["error"].endswith("Mute: <exception str() failed>")
    assert line["value"] == "<Mute>"
