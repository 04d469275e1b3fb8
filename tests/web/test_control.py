"""The control socket: a program on the same machine asks a running node."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    AddressInUse,
    HoldfastError,
    MisuseError,
    NodeStopped,
    PeerUnknown,
    SetupError,
)
from holdfast.runtime import control
from holdfast.runtime.control import REQUEST_BYTES_MAX, ControlServer, Handler, ask

ANSWER_S = 10.0


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


async def ask_aside(path: Path, request: Mapping[str, Any], timeout_s: float = ANSWER_S) -> Any:
    """`ask` blocks, so it runs beside the loop that serves it, as another process would."""
    return await asyncio.to_thread(ask, path, request, timeout_s)


@asynccontextmanager
async def serving(path: Path, **handlers: Handler) -> AsyncIterator[ControlServer]:
    async with ControlServer(path, handlers) as server:
        yield server


async def say(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    """What a raw client reads until the node hangs up."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"".join(lines))
    writer.write_eof()
    answers = [json.loads(line) async for line in reader]
    writer.close()
    return answers


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_request_is_answered_by_its_handler(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "control.sock"
        async with serving(path, status=lambda request: {"you said": request["word"]}):
            assert await ask_aside(path, {"do": "status", "word": "hé\n"}) == {"you said": "hé\n"}

    run(scenario())


def test_a_handler_may_be_a_coroutine(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def later(request: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"late": True}

        async with serving(tmp_path / "c", later=later):
            assert await ask_aside(tmp_path / "c", {"do": "later"}) == {"late": True}

    run(scenario())


def test_handlers_can_be_added_while_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "c", status=lambda _: {"n": 1}) as server:
            server.add({"more": lambda _: {"n": 2}})
            assert await ask_aside(tmp_path / "c", {"do": "more"}) == {"n": 2}
            assert await ask_aside(tmp_path / "c", {"do": "status"}) == {"n": 1}

    run(scenario())


def test_one_connection_carries_many_requests_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "c", echo=lambda request: {"n": request["n"]}):
            lines = [json.dumps({"do": "echo", "n": n}).encode() + b"\n" for n in range(20)]
            assert await say(tmp_path / "c", *lines) == [{"n": n} for n in range(20)]

    run(scenario())


def test_a_large_answer_arrives_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        rows = [{"path": n, "text": "x" * 100} for n in range(30_000)]
        async with serving(tmp_path / "c", status=lambda _: {"rows": rows}):
            assert await ask_aside(tmp_path / "c", {"do": "status"}) == {"rows": rows}

    run(scenario())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"status\n", "not a JSON object"),
        (b"[1, 2]\n", "not a JSON object"),
        (b"\xff\xfe\n", "not a JSON object"),
        (b'{"do": "\xff"}\n', "not a JSON object"),
        (b"\n", "not a JSON object"),
        (b"[" * 30_000 + b"\n", "not a JSON object"),
        (b"{}\n", "unknown request 'None'"),
        (b'{"do": ["status"]}\n', "unknown request"),
        (b'{"do": "statsu"}\n', "known: status"),
    ],
)
def test_bad_input_gets_an_error_and_the_connection_goes_on(
    tmp_path: Path, line: bytes, says: str
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "c", status=lambda _: {"fine": 1}):
            refused, fine = await say(tmp_path / "c", line, b'{"do": "status"}\n')
            assert says in refused["error"]
            assert refused["kind"] == "MisuseError"
            assert fine == {"fine": 1}

    run(scenario())


def test_a_line_that_is_too_long_is_refused_and_ends_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "c", status=lambda _: {"fine": 1}):
            fits = {"do": "status", "pad": "x" * (REQUEST_BYTES_MAX - 100)}
            assert await ask_aside(tmp_path / "c", fits) == {"fine": 1}
            for size in (REQUEST_BYTES_MAX, 8 << 20):
                with pytest.raises(MisuseError, match=f"longer than {REQUEST_BYTES_MAX} bytes"):
                    await ask_aside(tmp_path / "c", {"do": "status", "pad": "x" * size})

    run(scenario())


def test_an_error_of_the_library_arrives_as_what_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        def refuse(request: dict[str, Any]) -> dict[str, Any]:
            raise PeerUnknown("no member is called n9; nothing was sent")

        async with serving(tmp_path / "c", send=refuse):
            with pytest.raises(PeerUnknown, match="no member is called n9"):
                await ask_aside(tmp_path / "c", {"do": "send"})

    run(scenario())


@pytest.mark.parametrize("answer", [ZeroDivisionError("oops"), {"unsendable": object()}])
def test_a_handler_that_fails_is_the_nodes_fault_and_the_node_goes_on(
    tmp_path: Path, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        def broken(request: dict[str, Any]) -> dict[str, Any]:
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

        async with serving(tmp_path / "c", broken=broken, status=lambda _: {"fine": 1}):
            with pytest.raises(HoldfastError, match="internal error in the node") as caught:
                await ask_aside(tmp_path / "c", {"do": "broken"})
            assert type(caught.value) is HoldfastError
            assert await ask_aside(tmp_path / "c", {"do": "status"}) == {"fine": 1}

    run(scenario())
    assert "control request failed" in caplog.text


def test_the_kind_of_an_answer_never_makes_anything_but_an_error_of_ours(tmp_path: Path) -> None:
    async def scenario() -> None:
        kinds = iter(("annotations", "__name__", "SystemExit", "NoSuch", 7))
        async with serving(tmp_path / "c", x=lambda _: {"error": "no", "kind": next(kinds)}):
            for _ in range(5):
                with pytest.raises(HoldfastError, match="no"):
                    await ask_aside(tmp_path / "c", {"do": "x"})

    run(scenario())


def test_only_the_user_of_the_node_can_open_the_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = os.umask(0)
        try:
            async with serving(tmp_path / "c"):
                assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600
        finally:
            os.umask(before)

    run(scenario())


def test_closing_removes_the_file_and_ends_what_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        entered, cancelled = asyncio.Event(), asyncio.Event()

        async def forever(request: dict[str, Any]) -> dict[str, Any]:
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return {}

        async with serving(tmp_path / "c", forever=forever):
            asking = asyncio.create_task(ask_aside(tmp_path / "c", {"do": "forever"}))
            await entered.wait()
        assert cancelled.is_set()
        assert not (tmp_path / "c").exists()
        with pytest.raises(HoldfastError, match="stopped before it answered"):
            await asking

    run(scenario())


def test_closing_does_not_wait_for_a_handler_that_is_not_to_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that stops has a store to give free."""
    monkeypatch.setattr(control, "RETURN_S", 0.01)

    async def scenario() -> None:
        begun, end = asyncio.Event(), asyncio.Event()

        async def stubborn(_: dict[str, Any]) -> dict[str, Any]:
            while not end.is_set():
                begun.set()
                with suppress(asyncio.CancelledError):
                    await end.wait()
            return {}

        server = ControlServer(tmp_path / "c", {"do it": stubborn})
        await server.start()
        asks = asyncio.create_task(say(tmp_path / "c", b'{"do": "do it"}\n'))
        await begun.wait()
        await server.close()
        assert "did not end within 0.01 s" in caplog.text
        end.set()
        await asks

    run(scenario())


def test_a_client_that_comes_while_the_node_goes_is_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = ControlServer(tmp_path / "c", {"status": lambda _: {}})
        await server.start()
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(str(tmp_path / "c"))
            while not any("_welcome" in repr(task) for task in asyncio.all_tasks()):  # noqa: ASYNC110 its first moment
                await asyncio.sleep(0)
            assert not server._clients
            await server.close()
            async with asyncio.timeout(ANSWER_S):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""

    run(scenario())


def test_closing_leaves_a_successors_file_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "c"
        old = ControlServer(path, {})
        await old.start()
        path.rename(tmp_path / "aside")  # Still there, so that its inode is not used again.
        async with serving(path, status=lambda _: {"new": 1}):
            await old.close()
            assert await ask_aside(path, {"do": "status"}) == {"new": 1}

    run(scenario())


def test_the_socket_of_a_killed_node_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    killed = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(path)], check=False).returncode == -9
    assert path.is_socket()
    with pytest.raises(NodeStopped, match="was killed"):
        ask(path, {"do": "status"})

    async def scenario() -> None:
        async with serving(path, status=lambda _: {"alive": 1}):
            assert await ask_aside(path, {"do": "status"}) == {"alive": 1}

    run(scenario())


def test_the_socket_of_a_live_node_is_not_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "c"
        async with serving(path, status=lambda _: {"first": 1}):
            with pytest.raises(AddressInUse, match="was not started"):
                await ControlServer(path, {}).start()
            assert await ask_aside(path, {"do": "status"}) == {"first": 1}

    run(scenario())


def test_a_live_node_whose_queue_of_clients_is_full_is_not_taken_for_dead(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(path)
        busy.listen(0)
        first.connect(path)
        with pytest.raises(AddressInUse):
            run(ControlServer(path, {}).start())
        with pytest.raises(HoldfastError, match="busy"):
            ask(path, {"do": "status"})


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("precious")
    with pytest.raises(SetupError, match="not a socket"):
        run(ControlServer(path, {}).start())
    assert path.read_text() == "precious"


def test_a_directory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be created"):
        run(ControlServer(tmp_path / "none" / "c", {}).start())
    with pytest.raises(SetupError, match="cannot be created"):
        run(ControlServer(tmp_path / ("d" * 200) / "c", {}).start())


def test_a_path_longer_than_the_socket_limit_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        deep = tmp_path / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        path = deep / "control.sock"
        descriptors = open_descriptors()
        async with serving(path, status=lambda _: {"deep": 1}):
            assert path.is_socket()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert await ask_aside(path, {"do": "status"}) == {"deep": 1}
            with pytest.raises(AddressInUse):
                await ControlServer(path, {}).start()
        assert not path.exists()
        assert open_descriptors() == descriptors

    run(scenario())


def test_a_stale_socket_at_a_long_path_is_replaced(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
        dead.listen()
    (tmp_path / "s").rename(deep / "control.sock")

    async def scenario() -> None:
        async with serving(deep / "control.sock", status=lambda _: {"alive": 1}):
            assert await ask_aside(deep / "control.sock", {"do": "status"}) == {"alive": 1}

    run(scenario())


def test_a_name_longer_than_the_socket_limit_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="too long for a socket"):
        run(ControlServer(tmp_path / ("c" * 120), {}).start())
    with pytest.raises(SetupError, match="too long for a socket"):
        ask(tmp_path / ("c" * 120), {"do": "status"})


def test_asking_where_no_node_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeStopped, match="does not exist; nothing was requested"):
        ask(tmp_path / "control.sock", {"do": "status"})
    with pytest.raises(NodeStopped, match="does not exist; nothing was requested"):
        ask(tmp_path / ("d" * 200) / "control.sock", {"do": "status"})
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeStopped, match="is not a directory"):
        ask(tmp_path / "file" / "control.sock", {"do": "status"})


def test_a_node_that_does_not_answer_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "c"))
        mute.listen()
        with pytest.raises(HoldfastError, match=r"did not answer within 0\.05 s"):
            ask(tmp_path / "c", {"do": "status"}, timeout_s=0.05)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "stopped before it answered"),
        (b'{"half": ', "stopped before it answered"),
        (b"HTTP/1.1 400\n", "not a Holdfast node"),
    ],
)
def test_an_answer_that_is_none_is_a_clear_error(tmp_path: Path, answer: bytes, says: str) -> None:
    with socket.socket(socket.AF_UNIX) as strange:
        strange.bind(str(tmp_path / "c"))
        strange.listen()

        def reply() -> None:
            client, _ = strange.accept()
            with client:
                client.recv(1000)
                client.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(HoldfastError, match=says):
            ask(tmp_path / "c", {"do": "status"}, ANSWER_S)
        thread.join()


def test_an_endless_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWER_BYTES_MAX", 10_000)

    async def scenario() -> None:
        async with serving(tmp_path / "c", status=lambda _: {"x": "y" * 20_000}):
            with pytest.raises(HoldfastError, match="longer than 10000 bytes"):
                await ask_aside(tmp_path / "c", {"do": "status"})

    run(scenario())


def test_more_clients_than_the_bound_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CLIENTS_MAX", 2)

    async def scenario() -> None:
        async with serving(tmp_path / "c", status=lambda _: {"fine": 1}):
            holders = [await asyncio.open_unix_connection(tmp_path / "c") for _ in range(2)]
            with pytest.raises(HoldfastError, match="clients are already connected to this node"):
                await ask_aside(tmp_path / "c", {"do": "status"})
            reader, writer = holders[0]
            writer.write_eof()
            assert await reader.read() == b""  # The node has let go of it.
            assert await ask_aside(tmp_path / "c", {"do": "status"}) == {"fine": 1}
            for _, writer in holders:
                writer.close()

    run(scenario())


def test_a_client_that_says_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "IDLE_S_MAX", 0.01)

    async def scenario() -> None:
        async with serving(tmp_path / "c"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "c")
            assert await reader.read() == b""
            writer.close()

    run(scenario())


def test_a_client_that_does_not_take_its_answer_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "IDLE_S_MAX", 0.05)

    async def scenario() -> None:
        asked = asyncio.Event()

        def status(request: dict[str, Any]) -> dict[str, Any]:
            asked.set()
            return {"x": "y" * (4 << 20)}

        async with serving(tmp_path / "c", status=status) as server:
            with socket.socket(socket.AF_UNIX) as stuck:
                stuck.connect(str(tmp_path / "c"))
                stuck.sendall(b'{"do": "status"}\n')
                await asked.wait()
                await asyncio.gather(*server._clients)
            assert not server._clients

    run(scenario())
