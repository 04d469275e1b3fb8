"""`holdfast objects` and `holdfast admin`: commands against nodes that run."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.object_nodes import object_nodes
from typer.testing import CliRunner, Result

from holdfast.cli import app
from holdfast.errors import HoldfastError, MisuseError, ObjectError, ObjectExists

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four nodes in a thread; commands talk to them over their control sockets."""
    directory = tmp_path_factory.mktemp("nodes")
    up, over = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def live() -> None:
        async with object_nodes(directory, names="abcd"):
            up.set()
            await asyncio.to_thread(over.wait)

    def work() -> None:
        try:
            asyncio.run(live())
        except BaseException as failure:  # noqa: BLE001 the test must not wait for it
            failures.append(failure)
            up.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert up.wait(90)
        assert not failures, failures
        yield directory
    finally:
        over.set()
        thread.join()


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*map(str, arguments)])


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def told(*arguments: object) -> Any:
    return json.loads(done(*arguments, "--json"))


def test_a_file_is_stored_found_moved_read_and_removed(nodes: Path, tmp_path: Path) -> None:
    data = os.urandom(2_200_000)
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    where = nodes / "a"
    done("objects", "mkdir", where, "/docs")
    assert "edition 1, 2200000 bytes" in done("objects", "put", where, source, "/docs/x")
    again = run("objects", "put", where, source, "/docs/x")
    assert isinstance(again.exception, ObjectExists)
    assert told("objects", "put", where, source, "/docs/x", "--overwrite")["edition"] == 2
    assert done("objects", "ls", where) == "docs/\n"
    found = told("objects", "where", nodes / "b", "/docs/x")
    assert [replica["state"] for replica in found["replicas"]] == ["sound"] * 3
    done("objects", "mv", where, "/docs/x", "/docs/y")
    assert done("objects", "get", nodes / "c", "/docs/y", target) == (
        f"{target}: edition 3, 2200000 bytes\n"
    )
    assert target.read_bytes() == data
    assert not list(tmp_path.glob("*.part"))
    assert "sound" in done("objects", "repair", where, "/docs/y")
    done("objects", "rm", where, "/docs/y")
    missing = run("objects", "get", where, "/docs/y", target)
    assert isinstance(missing.exception, ObjectError)
    assert target.read_bytes() == data, "a read that fails leaves the file"


def test_a_put_with_the_id_of_one_that_took_effect_is_not_repeated(
    nodes: Path, tmp_path: Path
) -> None:
    source, number = tmp_path / "in", "5f" * 16
    source.write_bytes(b"data")
    put = ("objects", "put", nodes / "a", source, "/resumed", "--resume")
    done(*put, "4e" * 16)
    first, second = [told(*put, number, "--overwrite")["edition"] for _ in range(2)]
    assert (first, second) == (2, 2)
    assert isinstance(run(*put, "no digits").exception, MisuseError)
    assert isinstance(run(*put, "5f").exception, MisuseError)


@pytest.fixture
def half_read(nodes: Path, tmp_path: Path) -> tuple[bytes, Path, Path]:
    """A file that an earlier read has left, with seven and a bit of its nine chunks; and a node without a replica."""
    data, source = os.urandom(9_000_000), tmp_path / "in"
    source.write_bytes(data)
    done("objects", "put", nodes / "a", source, f"/{tmp_path.name}")
    found = told("objects", "where", nodes / "a", f"/{tmp_path.name}")
    part = tmp_path / f"out.{found['digest']}.part"
    part.write_bytes(data[:7_600_000])
    holders = [replica["node"] for replica in found["replicas"]]
    return data, part, nodes / next(name for name in "abcd" if name not in holders)


def test_a_get_goes_on_with_what_an_earlier_one_has_left(
    nodes: Path, tmp_path: Path, half_read: tuple[bytes, Path, Path]
) -> None:
    data, part, reader = half_read
    sent = lambda: told("status", reader)["objects"]["sent"].get("Fetch", 0)
    before = sent()
    get = ("objects", "get", reader, f"/{tmp_path.name}", tmp_path / "out", "--resume")
    assert told(*get)["size"] == len(data)
    assert 2 <= sent() - before <= 4, "the two chunks that were missing, and directories"
    assert (tmp_path / "out").read_bytes() == data
    assert not part.exists()


def test_a_get_does_not_go_on_with_damaged_bytes(
    nodes: Path, tmp_path: Path, half_read: tuple[bytes, Path, Path]
) -> None:
    data, part, reader = half_read
    part.write_bytes(b"x" + data[1:7_600_000])
    get = ("objects", "get", reader, f"/{tmp_path.name}", tmp_path / "out", "--resume")
    refused = run(*get)
    assert isinstance(refused.exception, HoldfastError)
    assert "damaged" in str(refused.exception)
    assert not part.exists()
    assert not (tmp_path / "out").exists()
    assert told(*get)["size"] == len(data)
    assert (tmp_path / "out").read_bytes() == data


def test_two_gets_do_not_write_one_file(
    nodes: Path, tmp_path: Path, half_read: tuple[bytes, Path, Path]
) -> None:
    _, part, reader = half_read
    get = ("objects", "get", reader, f"/{tmp_path.name}", tmp_path / "out", "--resume")
    with part.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = run(*get)
    assert isinstance(refused.exception, MisuseError)
    assert part.exists()
    done(*get)


def test_a_target_that_cannot_be_written_is_named(nodes: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "none" / "out"
    source.write_bytes(b"data")
    done("objects", "put", nodes / "a", source, "/unread")
    refused = run("objects", "get", nodes / "a", "/unread", target)
    assert isinstance(refused.exception, MisuseError)
    assert f"{target} cannot be written: No such file" in str(refused.exception)


def test_a_node_is_drained_by_a_plan_that_is_shown(nodes: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"data")
    for number in range(3):
        done("objects", "put", nodes / "a", source, f"/d{number}")
    held = [
        n for n in range(3)
        if "b" in [r["node"] for r in told("objects", "where", nodes / "a", f"/d{n}")["replicas"]]
    ]  # fmt: skip
    plan = told("admin", "drain", nodes / "a", "b", "--dry-run")
    assert {step["state"] for step in plan["steps"]} <= {"planned"}
    assert {f"d{n}" for n in held} <= {step["name"] for step in plan["steps"]}
    text = done("admin", "drain", nodes / "a", "b")
    assert "done" in text or "nothing to move" in text
    for number in range(3):
        found = told("objects", "where", nodes / "a", f"/d{number}")
        assert "b" not in [replica["node"] for replica in found["replicas"]]
        assert len(found["replicas"]) == 3
    refused = run("admin", "drain", nodes / "a", "c")
    assert isinstance(refused.exception, HoldfastError)
    assert "nothing was moved" in str(refused.exception)
    assert "takes replicas again" in done("admin", "drain", nodes / "a", "b", "--undo")


def test_a_single_replica_is_moved(nodes: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"data")
    done("objects", "put", nodes / "a", source, "/single")
    names = [r["node"] for r in told("objects", "where", nodes / "a", "/single")["replicas"]]
    free = next(name for name in "abcd" if name not in names)
    moved = told(
        "admin", "move", nodes / "a", "object", "/single", "--from", names[0], "--to", free
    )
    assert [step["state"] for step in moved["steps"]] == ["done"]
    after = [r["node"] for r in told("objects", "where", nodes / "a", "/single")["replicas"]]
    assert sorted(after) == sorted([*names[1:], free])


@pytest.mark.parametrize(
    "arguments",
    [
        ("admin", "move", "a", "planet", "x", "--from", "a"),
        ("admin", "move", "a", "dialog", "x", "--to", "/no/such/node"),
        ("admin", "move", "a", "group", "x", "--from", "a"),
        ("objects", "rm", "a", "/../x"),
        ("objects", "mv", "a", "x", "/y"),
    ],
)
def test_misuse_is_refused(nodes: Path, arguments: tuple[str, ...]) -> None:
    words = [nodes / "a" if word == "a" and n == 2 else word for n, word in enumerate(arguments)]
    assert isinstance(run(*words).exception, MisuseError)


def test_the_policy_is_shown_and_switched(nodes: Path) -> None:
    assert told("admin", "policy", nodes / "a")["on"] is False
    assert told("admin", "policy", nodes / "a", "--on")["on"] is True
    assert "policy: off" in done("admin", "policy", nodes / "a", "--off")


def test_a_simulated_run_is_started_from_the_command_line() -> None:
    answer = json.loads(done("sim", "objects", "--seed", 3, "--seconds", 3, "--json"))
    assert answer["writes"] > 5
