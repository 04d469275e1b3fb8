"""Bad input at the command line: one clear line that says what to do, the right exit code, nothing started."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conformance.worlds import free_port

from holdfast.errors import HoldfastError
from holdfast.runtime.control import ask

PATIENCE_S = 30


def write(
    path: Path, port: int, extra: str = "", name: str = "n1", security: str = 'mode = "plain"'
) -> Path:
    path.write_text(
        f"""
domain = "bad"
name = "{name}"
data = "{path.parent / name}"
{extra}
[security]
{security}
[[adapter]]
name = "red"
address = "127.0.0.1:{port}"
"""
    )
    return path


def holdfast(*arguments: str | Path, limit_file_bytes: int = 0) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if limit_file_bytes:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))

    return subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=limit,
    )


def check_refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_a_port_in_use_is_named_with_its_adapter(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = holdfast("node", write(tmp_path / "n1.toml", port))
    check_refused(done, "red", str(port))


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    done = holdfast("node", write(tmp_path / "n1.toml", 7400, extra='jion = ["127.0.0.1:1"]'))
    check_refused(done, "jion", "did you mean 'join'?")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    check_refused(holdfast("node", tmp_path / "nothing.toml"), "nothing.toml")


def test_plain_mode_off_loopback_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "n1.toml", 7400)
    path.write_text(path.read_text().replace("127.0.0.1", "192.0.2.1"))
    check_refused(holdfast("node", path), "loopback", "holdfast ca")


@pytest.mark.parametrize("trouble", ["expired", "foreign", "missing"])
def test_a_certificate_that_is_no_good_stops_the_node_before_it_starts(
    tmp_path: Path, trouble: str
) -> None:
    from datetime import UTC, datetime, timedelta

    from holdfast.transports.authority import issue, load_authority, make_authority, write_pair

    past = datetime.now(UTC) - timedelta(days=400)
    write_pair(tmp_path, "ca", make_authority("bad", days=3650), force=True)
    authority = load_authority(tmp_path)
    if trouble == "foreign":
        other = tmp_path / "other"
        other.mkdir()
        write_pair(other, "ca", make_authority("bad", days=3650), force=True)
        authority = load_authority(other)
    if trouble != "missing":
        pair = issue(authority, "n1", days=1, now=past if trouble == "expired" else None)
        write_pair(tmp_path, "n1", pair, force=True)
    security = "\n".join(
        f'{key} = "{tmp_path}/{name}"'
        for key, name in (("authority", "ca.pem"), ("certificate", "n1.pem"), ("key", "n1.key"))
    )
    done = holdfast("node", write(tmp_path / "n1.toml", 7400, security=security))
    check_refused(done, "holdfast ca issue")


def test_a_full_disk_is_said_so(tmp_path: Path) -> None:
    port = free_port(["127.0.0.1"])
    done = holdfast("node", write(tmp_path / "n1.toml", port), limit_file_bytes=4096)
    check_refused(done, "disk", code=1)


def test_a_second_node_on_the_same_data_is_refused(tmp_path: Path) -> None:
    first, second = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])
    with running(write(tmp_path / "n1.toml", first)) as node:
        wait_until_it_answers(node, tmp_path / "n1")
        done = holdfast("node", write(tmp_path / "again.toml", second))
        check_refused(done, "another process", code=1)


def test_status_of_a_node_that_does_not_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    check_refused(holdfast("status", tmp_path / "n1"), "no node is running here", code=1)


def test_a_killed_node_starts_again_as_a_new_incarnation(tmp_path: Path) -> None:
    config = write(tmp_path / "n1.toml", free_port(["127.0.0.1"]))
    seen = []
    for _ in range(3):
        with running(config) as node:
            wait_until_it_answers(node, tmp_path / "n1")
            done = holdfast("status", config, "--json")
            seen.append(json.loads(done.stdout)["node"])
            node.send_signal(signal.SIGKILL)
            node.wait(PATIENCE_S)
    assert [status["incarnation"] for status in seen] == [1, 2, 3]
    assert len({status["id"] for status in seen}) == 1


def test_a_node_that_is_told_to_stop_stops_with_0(tmp_path: Path) -> None:
    config = write(tmp_path / "n1.toml", free_port(["127.0.0.1"]))
    with running(config) as node:
        wait_until_it_answers(node, tmp_path / "n1")
        node.terminate()
        assert node.wait(PATIENCE_S) == 0
    assert not (tmp_path / "n1" / "control.sock").exists()


@contextmanager
def running(config: Path) -> Iterator[subprocess.Popen[str]]:
    node = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "node", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield node
    finally:
        node.kill()
        node.communicate(timeout=PATIENCE_S)


def wait_until_it_answers(node: subprocess.Popen[str], data: Path) -> None:
    """The node prints a line when it runs; then it answers."""
    assert node.stdout is not None
    for line in node.stdout:
        if " is running, incarnation " in line:
            break
    else:
        raise HoldfastError("the node ended before it ran")
    assert ask(data / "control.sock", {"do": "status"})["node"]["name"] == "n1"
