"""`node.objects` over sockets: three nodes in one process, with files and SQLite."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.support.object_nodes import object_nodes, until

from holdfast.errors import (
    MisuseError,
    ObjectConflict,
    ObjectExists,
    ObjectNotFound,
    ObjectUnavailable,
)


def test_objects_are_created_read_changed_moved_watched_and_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with object_nodes(tmp_path) as (a, b, c):
            made = await a.objects.create("/x", b"one", replicas=3)
            assert made.edition == 1
            assert await b.objects.read("/x") == b"one"
            assert await c.objects.read("/x", fresh=False) == b"one"
            with pytest.raises(ObjectExists, match="nothing was changed"):
                await c.objects.create("/x", b"two")
            opened = await b.objects.open("/x")
            assert await opened.write(b"hello world") == 2
            assert await opened.patch(6, b"WORLD") == 3
            with pytest.raises(ObjectConflict, match="edition 3"):
                await c.objects.write("/x", b"late", edition=1)
            assert await opened.read() == b"hello WORLD"
            await c.objects.mkdir("/d")
            await c.objects.move("/x", "/d/y")
            assert await a.objects.list() == ["d/"]
            assert await a.objects.list("/d") == ["y"]
            info = await a.objects.stat("/d/y")
            assert [replica.state for replica in info.replicas] == ["sound"] * 3
            editions = []

            async def watch() -> None:
                async for change in b.objects.watch("/d/y"):
                    editions.append((change.edition, change.deleted))  # noqa: PERF401 looked at meanwhile

            watching = asyncio.create_task(watch())
            await until(lambda: editions)
            await a.objects.delete("/d/y")
            async with asyncio.timeout(10):
                await watching
            assert editions[-1] == (info.edition + 1, True)
            with pytest.raises(ObjectNotFound):
                await c.objects.read("/d/y")

    asyncio.run(story())


def test_a_read_that_is_resumed_reads_to_the_end(tmp_path: Path) -> None:
    """What is behind the first chunk counts as taken: the replicas would wait for it otherwise."""
    chunks, first = 44, 18
    data = os.urandom(chunks << 20)

    async def story() -> None:
        async with object_nodes(tmp_path) as (a, b, _):
            made = await a.objects.create("/x", data)
            digest = bytes.fromhex((await made.stat()).digest)
            async with (
                asyncio.timeout(60),
                b.objects.reading("/x", first=first, digest=digest) as reader,
            ):
                got = b"".join([bytes(chunk) async for chunk in reader])
            assert got == data[first << 20 :]

    asyncio.run(story())


def test_content_streams_from_a_file_and_from_an_iterator(tmp_path: Path) -> None:
    data = os.urandom(1_500_000)
    file = tmp_path / "content"
    file.write_bytes(data)

    async def pieces() -> object:
        for at in range(0, len(data), 70_000):
            yield data[at : at + 70_000]

    async def story() -> None:
        async with object_nodes(tmp_path) as (a, b, c):
            seen: list[int] = []
            await a.objects.create("/f", file, on_progress=lambda done, _, __: seen.append(done))
            await b.objects.create("/i", pieces())  # type: ignore[arg-type]  # an async iterator
            for path in ("/f", "/i"):
                assert await c.objects.read(path) == data
            part = []
            async with c.objects.reading("/f") as reader:
                async for chunk in reader:
                    part.append(bytes(chunk))
                    break
            assert part[0] == data[: len(part[0])]
            stored = {file.name[:32] for file in (tmp_path / "a" / "objects").glob("??/*")}
            assert {(await c.objects.stat(path)).id for path in ("/f", "/i")} <= stored
            assert not list((tmp_path / "a" / "objects" / "staging").iterdir())

    asyncio.run(story())


def test_misuse_is_refused_before_anything_happens(tmp_path: Path) -> None:
    async def story() -> None:
        async with object_nodes(tmp_path) as (a, b, c):
            for path in ("x", "/../x", "/a/../b"):
                with pytest.raises(MisuseError):
                    await a.objects.create(path, b"")
            with pytest.raises(MisuseError):
                await a.objects.create("/x", b"", mode="sloppy")
            with pytest.raises(ObjectNotFound):
                await a.objects.create("/no/such/directory", b"")
            with pytest.raises(ObjectNotFound):
                await a.objects.read("/x")
            blocked = await a.objects.drain("b", dry_run=True)
            assert {step.state for step in blocked} == {"blocked"}
            await b.stop()
            await c.stop()
            with pytest.raises(ObjectUnavailable):
                await a.objects.create("/x", b"")

    asyncio.run(story())


def test_a_replica_on_a_damaged_file_is_repaired_from_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with object_nodes(tmp_path) as (a, b, c):
            made = await a.objects.create("/x", b"z" * 300_000)
            [file] = (tmp_path / "b" / "objects").glob(f"??/{made.id.hex()}-*")
            with file.open("r+b") as out:
                out.write(b"rotten")
            assert await b.objects.read("/x") == b"z" * 300_000
            info = await c.objects.repair("/x")
            assert {r.state for r in info.replicas} <= {"sound", "repaired"}
            assert file.read_bytes()[:6] == b"zzzzzz"

    asyncio.run(story())
