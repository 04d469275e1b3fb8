"""The content of replicas on a real disk: what is reported is durable, and nothing that fails stops the thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from holdfast.objects import ports
from holdfast.objects.ports import DiskDone, DiskReady
from holdfast.objects.values import CHUNK, Content, content_of
from holdfast.runtime.objects import files as module
from holdfast.runtime.objects.files import ContentFiles

OBJECT, WRITE = b"o" * 16, b"w" * 16
DATA = bytes(range(256)) * (CHUNK // 128)  # two chunks


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.files = ContentFiles(folder, 0, self.answers.put)
        self._token = 0

    def next(self) -> Any:
        return self.answers.get(timeout=10)

    def do(self, kind: Any, **fields: Any) -> DiskDone:
        self._token += 1
        self.files.submit(kind(token=self._token, **fields))
        done = self.next()
        assert isinstance(done, DiskDone)
        assert done.token == self._token
        return done

    def keep(self, data: bytes = DATA) -> Content:
        content, chunks = content_of(data)
        assert not self.do(ports.OpenStage, write=WRITE, size=len(data)).reason
        for index in range(content.chunks):
            piece = data[index * CHUNK :][:CHUNK]
            assert not self.do(ports.WriteChunk, write=WRITE, index=index, data=piece).reason
        done = self.do(ports.CloseStage, write=WRITE, object=OBJECT, content=content, chunks=chunks)
        assert not done.reason, done.detail
        return content

    @property
    def staged(self) -> list[Path]:
        return list((self.folder / "staging").iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "objects")
    assert disk.next() == DiskReady(b"")
    yield disk
    disk.files.close()


def test_content_comes_back_and_damage_of_content_or_list_is_found(disk: Disk) -> None:
    content = disk.keep()
    found = disk.do(ports.ReadChunk, object=OBJECT, content=content, index=1)
    assert bytes(found.data) == DATA[CHUNK:]
    assert not disk.do(ports.VerifyContent, object=OBJECT, content=content).reason
    [file] = disk.folder.glob("??/*")
    for place in (5, content.size + 3):
        whole = bytearray(file.read_bytes())
        whole[place] ^= 1
        file.write_bytes(whole)
        verified = disk.do(ports.VerifyContent, object=OBJECT, content=content)
        assert verified.reason == "damaged"
        whole[place] ^= 1
        file.write_bytes(whole)


def test_a_patch_that_has_no_space_is_refused_and_the_disk_goes_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = disk.keep()
    monkeypatch.setattr(disk.files, "free_bytes", lambda: 1000)
    patch = {"write": WRITE, "object": OBJECT, "base": content, "edits": ((0, b"x"),)}
    done = disk.do(ports.PatchStage, size=content.size, **patch)
    assert done.reason == "full"
    assert disk.staged == []
    monkeypatch.undo()
    made = disk.do(ports.PatchStage, size=content.size, **patch)
    assert not made.reason, made.detail
    assert content_of(b"x" + DATA[1:])[1] == made.data


def test_a_job_with_numbers_that_no_file_has_does_not_stop_the_disk(disk: Disk) -> None:
    content = disk.keep()
    absurd = Content(content.digest, 1 << 80)
    assert disk.do(ports.ReadChunk, object=OBJECT, content=absurd, index=1 << 70).reason == "error"
    assert disk.do(ports.VerifyContent, object=OBJECT, content=absurd).reason == "error"
    assert not disk.do(ports.VerifyContent, object=OBJECT, content=content).reason


def test_a_stage_without_a_known_size_leaves_the_reserve_free(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not disk.do(ports.OpenStage, write=WRITE, size=-1).reason
    monkeypatch.setattr(disk.files, "free_bytes", lambda: 10)
    done = disk.do(ports.WriteChunk, write=WRITE, index=0, data=b"more than ten bytes")
    assert done.reason == "full"


def test_space_that_cannot_be_reserved_is_given_back(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert disk.do(ports.OpenStage, write=WRITE, size=2 * CHUNK).reason == "full"
    assert disk.staged == []


def test_a_system_that_takes_a_part_of_a_write_loses_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:9], at))
    data = b"z" * 100
    content, chunks = content_of(data)
    disk.keep(data)
    assert bytes(disk.do(ports.ReadList, object=OBJECT, content=content).data) == chunks


def test_content_whose_directory_is_not_synced_is_not_reported(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.keep(b"first")  # the directory exists

    def broken(_: Path) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(module, "sync_directory", broken)
    content, chunks = content_of(b"second")
    disk.do(ports.OpenStage, write=WRITE, size=6)
    disk.do(ports.WriteChunk, write=WRITE, index=0, data=b"second")
    done = disk.do(ports.CloseStage, write=WRITE, object=OBJECT, content=content, chunks=chunks)
    assert done.reason == "error"


@pytest.mark.parametrize("trouble", ["unreadable", "no hexadecimal id"])
def test_a_directory_that_cannot_be_read_is_no_emptied_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """An emptied disk gives up all replicas of the node. A wrong owner or a damaged file must not do that."""
    disk = Disk(tmp_path / "objects")
    disk.next()
    disk.files.submit(ports.StampDisk(b"d" * 8))
    content = disk.keep()
    disk.files.close()
    if trouble == "unreadable":

        def refuse(_: Path) -> None:
            raise PermissionError(errno.EACCES, "not allowed")

        monkeypatch.setattr(module, "make_directory", refuse)
    else:
        (tmp_path / "objects" / "disk").write_text("no")
    again = Disk(tmp_path / "objects")
    done = again.do(ports.VerifyContent, object=OBJECT, content=content)
    assert done.reason == "error", "no DiskReady came before"
    assert again.files.free_bytes() == 0
    again.files.close()
    assert len(list(again.folder.glob("??/*"))) == 1
