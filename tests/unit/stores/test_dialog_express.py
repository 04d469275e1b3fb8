"""The express store: state in the memory of another process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dialog.records import COMMITTED, DIALOG, STAGED, TX
from holdfast.errors import StoreError, TransactionInDoubt
from holdfast.machine import Put
from holdfast.stores.dialogs.express import ExpressDaemon, ExpressDialogStore, main

KEY = b"t" * 16


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    daemon = ExpressDaemon(tmp_path / "s")
    thread = threading.Thread(target=daemon.serve)
    thread.start()
    yield tmp_path / "s"
    daemon.stop()
    thread.join()


class Cutting:
    """A proxy on a Unix socket that ends connections after so many bytes of the answers or the requests."""

    def __init__(self, target: Path, path: Path, requests: int, answers: int) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._target = target
        self._limits = [requests, answers]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            inner, _ = self._server.accept()
            outer = socket.socket(socket.AF_UNIX)
            outer.connect(str(self._target))
            for one, two, side in ((inner, outer, 0), (outer, inner, 1)):
                threading.Thread(target=self._pump, args=(one, two, side), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, side: int) -> None:
        try:
            while data := source.recv(1):
                if self._limits[side] == 0:
                    self._limits[side] = -1
                    break
                if self._limits[side] > 0:
                    self._limits[side] -= 1
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_state_survives_the_application(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from holdfast.machine import Put;"
        "from holdfast.stores.dialogs.express import ExpressDialogStore;"
        "s = ExpressDialogStore(Path(sys.argv[1])); s.open(); s.commit([Put('dialog', b'a', b'1')]);"
        "import os; os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    store = ExpressDialogStore(path)
    assert store.open().epoch == 2
    assert store.load(DIALOG) == [(b"a", b"1")]
    store.close()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("cut", [0, 3, 4, 20, 60, 120])
def test_rule_12_a_commit_is_made_once_wherever_the_connection_is_cut(
    path: Path, tmp_path: Path, side: int, cut: int
) -> None:
    limits = [-1, -1]
    limits[side] = cut + 60 if side == 0 else cut
    Cutting(path, tmp_path / "p", *limits)
    store = ExpressDialogStore(tmp_path / "p")
    for _ in range(3):
        try:
            store.open()
            break
        except StoreError:
            continue
    for n in range(5):
        store.commit([Put(DIALOG, b"%d" % n, b"x")])
    assert [key for key, _ in store.load(DIALOG)] == [b"%d" % n for n in range(5)]
    direct = ExpressDialogStore(path)
    assert direct.load(DIALOG) == store.load(DIALOG)
    store.close()
    direct.close()


def test_rule_12_a_commit_that_arrives_after_its_repetition_is_refused(path: Path) -> None:
    """It waited in the socket of a connection that the application had given up."""
    store = ExpressDialogStore(path)
    epoch = store.open().epoch
    before = store._seq
    store.commit([Put(DIALOG, b"a", b"1")])
    store.commit([Put(DIALOG, b"a", b"2")])
    late = [("p", DIALOG, b"a", b"1")]
    with pytest.raises(StoreError, match="does not follow"):
        store._ask("commit", store.name, epoch, before, late)
    assert store.load(DIALOG) == [(b"a", b"2")]
    store.close()


@pytest.mark.parametrize("cut", range(60, 200, 7))
def test_rule_12_a_transaction_cut_off_before_its_request_arrived_is_aborted(
    path: Path, tmp_path: Path, cut: int
) -> None:
    direct = ExpressDialogStore(path)
    epoch = direct.open().epoch
    Cutting(path, tmp_path / "p", cut - 60, -1)
    store = ExpressDialogStore(tmp_path / "p")
    rows = [Put(STAGED, b"s", b"1" * 40), Put(TX, KEY, COMMITTED)]
    try:
        store.begin().commit(rows, epoch)
        committed = True
    except TransactionInDoubt:
        committed = direct.settle(KEY)
    assert committed == (direct.load(STAGED) != [])
    store.close()
    direct.close()


def test_a_daemon_that_restarts_has_lost_everything_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def start() -> tuple[ExpressDaemon, threading.Thread]:
        daemon = ExpressDaemon(path)
        thread = threading.Thread(target=daemon.serve)
        thread.start()
        return daemon, thread

    daemon, thread = start()
    store = ExpressDialogStore(path)
    store.open()
    store.commit([Put(DIALOG, b"a", b"1")])
    store._drop()
    daemon.stop()
    thread.join()
    with pytest.raises(StoreError, match="does not answer"):
        store.commit([Put(DIALOG, b"b", b"2")])
    daemon, thread = start()
    with pytest.raises(StoreError):
        store.commit([Put(DIALOG, b"c", b"3")])
    daemon.stop()
    thread.join()
    store.close()


def test_nonsense_does_not_stop_the_daemon(path: Path) -> None:
    for data in (b"\x00", b"\xff" * 100, b"\x05\x00\x00\x00hello", b"\x01\x00\x00\x00\x90"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        connection.sendall(data)
        time.sleep(0.01)
        connection.close()
    store = ExpressDialogStore(path)
    assert store.open().epoch == 1
    store.close()


def test_only_the_owner_may_connect(path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_daemon_does_not_take_the_socket_of_one_that_runs(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ExpressDialogStore(path, "shop")
    store.open()
    store.commit([Put(DIALOG, KEY, b"x")])
    assert main([str(path)]) == 1
    assert "already runs" in capsys.readouterr().err
    other = ExpressDialogStore(path, "shop")
    other.open()
    assert other.load(DIALOG) == [(KEY, b"x")], "the state of the first is still there"


def test_a_daemon_that_cannot_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    assert "SOCKET" in capsys.readouterr().err
    assert main([str(tmp_path / "missing" / "socket")]) == 1
    assert "not started" in capsys.readouterr().err


def test_a_daemon_starts_where_a_killed_one_left_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    daemon = ExpressDaemon(path)
    thread = threading.Thread(target=daemon.serve)
    thread.start()
    ExpressDialogStore(path, "shop").open()
    daemon.stop()
    thread.join()
