"""What nodes say is shown as it is, also where it looks like markup of the terminal library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.runtime import control

ODD = "[/tmp/x]"
"""Taken for markup, this closes a tag that was never opened, and nothing is shown at all."""

GROUP: dict[str, Any] = {
    "name": ODD, "state": "halted", "why": f"no room in {ODD}", "leader": ODD, "term": 1, "position": 2, "last": 3,
    "commit": 3, "applied": 3, "lag": 0, "digest": "00", "memory": 0, "no_state": f"OSError: {ODD}", "peers": [],
    "view": [{"name": ODD, "part": ODD}], "streams": {f"{ODD}/1/0": {"next": 1, "lag": 0, "held": 0}}, "gaps": 0,
    "nacks": 0, "losses": {}, "ignoring": [{"id": 1, "what": f"topic {ODD}", "left": 0}],
    "decisions": [
        {"stream": f"{ODD}/1/0", "lost": 1, "first": 1, "attempt": 1, "by": ODD, "leader": ODD, "index": 1,
         "action": "drop"}
    ],
}  # fmt: skip
PATH: dict[str, Any] = {
    "sender": ODD, "sender_adapter": ODD, "listener": ODD, "listener_adapter": ODD, "subnet": ODD, "transport": "udp",
    "alive": True, "stale": False, "size": 1, "size_max": 2, "holes": [], "patterns": 1, "bad_patterns": [ODD],
    "errors": [ODD], "loss_ppm": 0, "rtt_us": 1, "state": ODD,
    "verdict": {
        "fine": False, "state": ODD, "error_class": ODD, "kind": ODD, "direction": ODD, "limit": 0, "loss_ppm": 0,
        "loss_window_ms": 0, "label": ODD, "text": ODD, "classes": [ODD],
    },
}  # fmt: skip
STATUS: dict[str, Any] = {
    "node": {"name": ODD, "domain": ODD, "incarnation": 1, "uptime_s": 1.0, "security": "plain"},
    "members": [
        {"name": ODD, "state": ODD, "incarnation": 1, "adapters": [{"subnet": ODD, "address": ODD}]}
    ],
    "paths": [PATH],
    "links": [
        {
            "peer": ODD,
            "channels": [{"channel": 0, "path": ODD, "moves": 0, "reason": f"because {ODD}"}],
        }
    ],
    "groups": [GROUP],
}
END = {"member": ODD, "adapter": ODD, "subnet": ODD}
ANSWERS: dict[str, dict[str, Any]] = {
    "status": STATUS,
    "table": {"paths": [PATH]},
    "incidents": {"incidents": [{"count": 2, "error_class": ODD, "since_s": 1.0, "text": ODD}]},
    "find": {"found": {"pairs": [(END, END)], "everyone": True}},
    "explain": {
        "paths": [
            {"sender": END, "listener": END, "state": ODD, "findings": [ODD], "kinds": [], "last_errors": [(ODD, 1)]}
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ["status", "."],
        ["groups", "show", "."],
        ["health", "table", "."],
        ["health", "incidents", "."],
        ["health", "find", "."],
        ["health", "explain", ".", "a", "b"],
    ],
    ids=" ".join,
)
def test_brackets_are_shown_and_break_nothing(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(_socket: Path, request: dict[str, Any], **_: Any) -> dict[str, Any]:
        return ANSWERS[request.get("what") or request["do"]]

    monkeypatch.setattr(control, "ask", ask)
    monkeypatch.setenv("COLUMNS", "400")
    command[command.index(".")] = str(tmp_path)
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert ODD in result.stdout
