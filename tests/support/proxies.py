"""HTTP proxies for tests: tinyproxy as a process, and a small one that misbehaves."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

HOST = "127.0.0.1"


def need_tinyproxy() -> str:
    """The path of tinyproxy; skips the test if it is not installed."""
    found = shutil.which("tinyproxy") or shutil.which("tinyproxy", path="/usr/sbin:/usr/bin")
    if found is None:
        pytest.skip("tinyproxy is not installed (apt-get install tinyproxy)")
    return found


class TinyProxy:
    """A real proxy that can be killed and started again on the same port."""

    def __init__(self, directory: Path, port: int) -> None:
        self._binary = need_tinyproxy()
        self.port = port
        self._config = directory / "tinyproxy.conf"
        self._config.write_text(
            f"Port {port}\nListen {HOST}\nTimeout 600\nMaxClients 100\nLogLevel Error\n"
            f'LogFile "{directory / "tinyproxy.log"}"\nAllow 127.0.0.0/8\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._binary, "-d", "-c", str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(2000):
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            assert self._process.poll() is None, "tinyproxy ended"
            time.sleep(0.005)
        raise AssertionError("tinyproxy does not listen")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class BadProxy:
    """A proxy that can refuse, send invalid answers, stall, cut tunnels after some bytes, and corrupt them."""

    def __init__(self) -> None:
        self.mode = "good"
        self.cut_after = 0
        self.seen = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()

    def cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if self.mode == "refuse":
            writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        if self.mode == "nonsense":
            writer.write(b"\x00\xff" * 20_000)
            return
        if self.mode == "stall":
            await reader.read()
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(far_writer)
        writer.write(b"HTTP/1.1 200 Connection established\r\nX-Odd: yes\r\n\r\n")
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._writers.discard(far_writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                passed += len(data)
                if self.mode == "cut" and passed > self.cut_after:
                    break
                if self.mode == "corrupt" and len(data) > 40:
                    data = data[:30] + bytes((data[30] ^ 0x41,)) + data[31:]
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
