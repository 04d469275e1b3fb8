"""Segments of all members reach one machine over the domain, and advice reaches the members."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.worlds import free_port
from tests.support.advice import edition
from tests.unit.runtime.pairs import PATIENCE_S, config
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.collect.collect_machine import CollectMachine
from holdfast.collect.frames import PIECE_BYTES, ListSegments, SegmentList
from holdfast.collect.ports import Answered, Asked, PeerGone, Say
from holdfast.health.advice_config import AdviceConfig
from holdfast.links.ports import PeerDown, Received
from holdfast.machine import Outbox
from holdfast.recording.advice import encode_advice, newest_advice
from holdfast.runtime.node import Node
from holdfast.runtime.segment_files import (
    EDITIONS_KEPT,
    AdviceInbox,
    Refused,
    list_segments,
    put_whole,
    read_piece,
    segment_target,
)
from holdfast.types import NodeId

PEER = NodeId(b"p" * 16)
NAME = "path/day=2026-11-15/" + "ab" * 16 + "-1-000001.parquet"


# -- the unit ------------------------------------------------------------------------------------------------------


def turn(machine: CollectMachine, *items: Any) -> list[Any]:
    out = Outbox()
    machine.up(0, list(items), out)
    return [effect for effect, _ in out.effects]


def test_a_peer_has_one_request_at_a_time_and_more_are_counted() -> None:
    machine = CollectMachine()
    first, second = ListSegments(1), ListSegments(2)
    assert turn(machine, Received(PEER, [first, second], 0)) == [Asked(PEER, first)]
    assert machine.refused == 1
    turn(machine, Say(PEER, SegmentList(1)))
    assert turn(machine, Received(PEER, [second], 0)) == [Asked(PEER, second)]
    assert machine.answered == 1


def test_a_session_that_ends_frees_the_peer_and_discards_its_answer() -> None:
    machine = CollectMachine()
    turn(machine, Received(PEER, [ListSegments(1)], 0))
    assert turn(machine, PeerDown(PEER, "dead")) == [PeerGone(PEER)]
    turn(machine, Say(PEER, SegmentList(1)))
    assert machine.answered == 0
    answer = SegmentList(9)
    assert turn(machine, Received(PEER, [answer], 0)) == [Answered(PEER, answer)]


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "path/day=2026-11-15/../../x.parquet", NAME + ".part", ""]
)
def test_a_name_that_is_not_a_segments_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="not the name of a segment"):
        read_piece(tmp_path, name, 0)
    with pytest.raises(Refused, match="not the name of a segment"):
        segment_target(tmp_path, "ab" * 16, name)


def test_a_peer_cannot_claim_the_segment_of_another_node(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="of " + "cd" * 16):
        segment_target(tmp_path, "cd" * 16, NAME)


def test_segments_are_listed_in_order_and_read_in_pieces(tmp_path: Path) -> None:
    content = bytes(range(256)) * (PIECE_BYTES // 256) + b"end"
    put_whole(tmp_path / NAME, content)
    put_whole(tmp_path / NAME.replace("1-000001", "1-000002"), b"x")
    (tmp_path / "path" / "day=2026-11-15" / "foreign.parquet").write_bytes(b"")
    files, more = list_segments(tmp_path, "")
    assert (files[0], len(files), more) == ((NAME, len(content)), 2, False)
    assert len(list_segments(tmp_path, NAME)[0]) == 1
    assert read_piece(tmp_path, NAME, 0) + read_piece(tmp_path, NAME, PIECE_BYTES) == content


def test_an_edition_is_visible_only_when_it_is_whole_and_readable(tmp_path: Path) -> None:
    content = encode_advice(edition(1_000_000))
    inbox = AdviceInbox(tmp_path)
    inbox.take("00000007.parquet", 0, len(content), content[:100])
    assert newest_advice(tmp_path).advice is None
    with pytest.raises(Refused, match="out of order"):
        inbox.take("00000007.parquet", 99, len(content), content[99:])
    inbox.take("00000007.parquet", 100, len(content), content[100:])
    assert newest_advice(tmp_path).advice is not None
    with pytest.raises(Refused, match="not an advice file"):
        inbox.take("00000008.parquet", 0, 5, b"noise")
    with pytest.raises(Refused, match="not an edition"):
        inbox.take("../8.parquet", 0, 5, b"noise")
    for number in range(20, 30):
        inbox.take(f"{number:08d}.parquet", 0, len(content), content)
    assert len(list(tmp_path.glob("*.parquet"))) == EDITIONS_KEPT


# -- two nodes -----------------------------------------------------------------------------------------------------


def test_segments_and_advice_travel_over_the_domain(tmp_path: Path) -> None:
    first, second = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])
    inbox = AdviceConfig(str(tmp_path / "inbox"), accept=True, every_s=0.1)

    async def scenario() -> None:
        ann = Node(config("ann", first, data=str(tmp_path / "ann")))
        plain = config("ben", second, first, data=str(tmp_path / "ben"))
        ben = Node(msgspec.structs.replace(plain, sections={"advice": inbox}))
        async with ann, ben:
            await ann.until_up("ben", timeout_s=PATIENCE_S)
            name = f"node/day=2026-11-15/{ben.id.hex()}-1-000009.parquet"
            content = bytes(2 * PIECE_BYTES + 7)
            put_whole(tmp_path / "ben" / "telemetry" / "landing" / name, content)
            advice = edition(time.time_ns() // 1000, snapshot=3)
            put_whole(tmp_path / "out" / "advice" / "00000003.parquet", encode_advice(advice))
            arguments = ["pipeline", "collect", str(tmp_path / "ann"), "--json"]
            arguments += ["--to", str(tmp_path / "all"), "--advice", str(tmp_path / "out")]
            result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
            assert result.exit_code == 0, result.output
            rows = {row["name"]: row for row in json.loads(result.stdout)["members"]}
            assert (rows["ben"]["segments"], rows["ben"]["bytes"]) == (1, len(content))
            assert rows["ben"]["advice"] == "taken"
            place = tmp_path / "all" / ben.id.hex() / "landing" / name
            assert place.read_bytes() == content
            assert newest_advice(tmp_path / "inbox").advice == advice
            again = await asyncio.to_thread(CliRunner().invoke, app, arguments[:-2])
            assert json.loads(again.stdout)["members"][0]["segments"] == 0, "each one once"

    asyncio.run(scenario())


def test_a_member_that_accepts_no_advice_is_named(tmp_path: Path) -> None:
    first, second = free_port(["127.0.0.1"]), free_port(["127.0.0.1"])

    async def scenario() -> None:
        ann = Node(config("ann", first, data=str(tmp_path / "ann")))
        async with ann, Node(config("ben", second, first)):
            await ann.until_up("ben", timeout_s=PATIENCE_S)
            put_whole(tmp_path / "advice" / "00000003.parquet", encode_advice(edition(1)))
            arguments = ["pipeline", "collect", str(tmp_path / "ann"), "--advice", str(tmp_path)]
            result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--json"])
            assert result.exit_code == 1
            rows = {row["name"]: row for row in json.loads(result.stdout)["members"]}
            assert "accepts no advice" in rows["ben"]["problem"]

    asyncio.run(scenario())
