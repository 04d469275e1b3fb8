"""The programs that build a lab, and sockets inside its namespaces. They need root."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError, SetupError

TOOLS: Final = {"ip": "iproute2", "nft": "nftables", "ethtool": "ethtool"}
NAMESPACES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
_TIMEOUT_S: Final = 60.0

Result = TypeVar("Result")


def need_root() -> None:
    """Refuse with a clear error if a lab is not possible here."""
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        raise SetupError("a lab needs Linux with network namespaces; nothing was done")
    if os.geteuid() != 0:
        raise SetupError(
            "a lab needs root, to create network namespaces and to drop packets in them; nothing "
            "was done. Run it with sudo, or in a container with --privileged"
        )
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(dict.fromkeys(TOOLS[tool] for tool in missing))
        raise SetupError(
            f"a lab needs {', '.join(missing)}; nothing was done. Install it: apt-get install {packages}"
        )


def run(command: Sequence[str], text: str = "") -> str:
    """Run a program; its error output becomes an exception."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise HoldfastError(f"`{' '.join(command)}` did not end within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise HoldfastError(
            f"`{' '.join(command)}` failed: {reason[0] if reason else f'exit {done.returncode}'}"
        )
    return done.stdout


def run_in(namespace: str, command: Sequence[str], text: str = "") -> str:
    return run(["ip", "netns", "exec", namespace, *command], text)


def namespaces() -> list[str]:
    """The names of all named network namespaces."""
    return sorted(path.name for path in NAMESPACES.glob("*")) if NAMESPACES.is_dir() else []


def inside(namespace: str, make: Callable[[], Result]) -> Result:
    """Call `make` in a namespace. What it opens stays there; the caller stays where it is."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            handle = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(handle, _CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(handle)
            results.append(make())
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that asked
            errors.append(error)

    # A separate thread, because a namespace belongs to a thread, and this one ends.
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def open_socket(namespace: str, *kind: int, bind: Any = None) -> socket.socket:
    """A socket in a namespace, optionally bound."""

    def make() -> socket.socket:
        made = socket.socket(*kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if bind is not None:
                made.bind(bind)
        except BaseException:
            made.close()
            raise
        return made

    return inside(namespace, make)
