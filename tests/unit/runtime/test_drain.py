"""H17: a node is drained of groups, dialogs and objects; what cannot move is named, and nothing is lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.advice import edition
from tests.support.object_nodes import eventually, object_nodes, until

from holdfast import Node
from holdfast.errors import ObjectError, ObjectUnavailable
from holdfast.recording.advice import encode_advice
from holdfast.runtime.admin.values import DialogPart, Evacuate, pack
from holdfast.runtime.control import ask
from holdfast.runtime.objects.handles import PlanStep

BOOK = """
[[group]]
name = "book"
application = "holdfast.sim.ledger:Ledger"
voters = ["a", "b", "c"]
learners = ["d"]
leader = "a"
"""
DIALOGS = """
[[dialogs.store]]
name = "default"
kind = "sqlite"
[[dialogs.route]]
service = "orders"
nodes = ["a"]
"""


def group(node: Node) -> dict[str, Any]:
    found: list[dict[str, Any]] = [g for g in node.status()["groups"] if g["name"] == "book"]
    return found[0]


def voters(node: Node) -> list[str]:
    return sorted(m["name"] for m in group(node)["view"] if m["part"] == "voter")


def by_kind(steps: tuple[PlanStep, ...], kind: str) -> list[PlanStep]:
    return [step for step in steps if step.kind == kind]


def test_everything_moves_off_a_node_that_leads_and_serves(tmp_path: Path) -> None:
    async def story() -> None:
        async with object_nodes(tmp_path, "abcd", extra=BOOK + DIALOGS) as nodes:
            a, b, c, d = nodes
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 4)
            await b.group("book").send(b"before")
            await b.group("book").flush()
            await b.objects.create("/x", b"content", nodes=("a", "b", "c"))
            listener = await a.dialogs.listen("orders")
            await d.dialogs.listen("orders")
            near = await b.dialogs.open("orders")
            for body in (b"1", b"2"):
                await near.send(body)
            far = await listener.next()
            assert (await far.receive(timeout_s=10)).body == b"1"

            plan = await c.objects.admin.drain("a", dry_run=True)
            assert {step.state for step in plan} == {"planned"}
            assert [(s.name, s.add) for s in by_kind(plan, "group")] == [("book", "d")]
            assert [s.add for s in by_kind(plan, "dialog")] == ["d"]
            assert voters(b) == ["a", "b", "c"], "a plan changes nothing"

            seen: list[str] = []
            done = await c.objects.admin.drain("a", on_progress=lambda *row: seen.append(row[2]))
            assert {step.state for step in done} == {"done"}, done
            assert {step.kind for step in done} == {"group", "dialog", "object"}
            assert seen
            await until(lambda: voters(b) == ["b", "c", "d"])
            assert group(b)["leader"] in ("b", "c", "d")
            await b.group("book").send(b"after")
            await b.group("book").flush()
            moved, arrived = await asyncio.wait_for(d.dialogs.receive_any(), 10)
            assert moved is not None
            assert [message.body for message in arrived] == [b"2"]
            await near.send(b"3")
            _, arrived = await asyncio.wait_for(d.dialogs.receive_any(), 10)
            assert [message.body for message in arrived] == [b"3"]
            info = await c.objects.stat("/x")
            assert sorted(replica.node for replica in info.replicas) == ["b", "c", "d"]
            again = await c.objects.admin.drain("a")
            assert again == (), "nothing is left"

    asyncio.run(story())


def test_what_cannot_move_is_named_and_nothing_moves(tmp_path: Path) -> None:
    async def story() -> None:
        book = BOOK.replace('learners = ["d"]\n', "")
        async with object_nodes(tmp_path, "abc", extra=book + DIALOGS) as (a, b, c):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 3)
            await a.dialogs.listen("orders")
            near = await b.dialogs.open("orders")
            await near.send(b"1")
            await asyncio.wait_for(a.dialogs.receive_any(), 10)
            plan = await c.objects.admin.drain("b", dry_run=True)
            reasons = {step.kind: step.reason for step in plan if step.state == "blocked"}
            assert "no other node can take a replica" in reasons["group"]
            assert "--dialogs-to" in reasons["dialog"]
            with pytest.raises(ObjectError, match="nothing was moved"):
                await c.objects.admin.drain("b")
            assert voters(a) == ["a", "b", "c"]
            assert not b.objects.service.machine.members.draining, "it still takes replicas"
            partly = await c.objects.admin.drain("b", skip_blocked=True, dialogs_to="c")
            assert [s.state for s in by_kind(partly, "group")] == ["blocked"]
            assert [(s.add, s.state) for s in by_kind(partly, "dialog")] == [("c", "done")]
            assert voters(a) == ["a", "b", "c"]

    asyncio.run(story())


def test_a_voter_is_not_removed_when_the_others_are_not_there(tmp_path: Path) -> None:
    """Two of three voters stay, one of them is dead: with the third gone there is no majority."""

    async def story() -> None:
        async with object_nodes(tmp_path, "abcd", extra=BOOK) as (a, b, c, d):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 4)
            await c.stop()
            await until(lambda: c.id not in a.objects.service.machine.hub.up)
            await d.stop()
            await until(lambda: d.id not in a.objects.service.machine.hub.up)
            plan = await b.objects.admin.plan("a", Evacuate(kinds=("group",)))
            assert [step.state for step in plan] == ["blocked"]
            with pytest.raises(ObjectUnavailable, match="d does not answer"):
                await b.objects.admin.drain("d")

    asyncio.run(story())


def test_a_drain_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """The target was added, the old replica not yet removed: the plan is only to remove it."""

    async def story() -> None:
        async with object_nodes(tmp_path, "abcd", extra=BOOK) as (_, b, _, d):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 4)
            work = asyncio.ensure_future(b.objects.admin.drain("a"))
            await until(lambda: voters(b) == ["a", "b", "c", "d"] or work.done())
            work.cancel()
            await asyncio.wait((work,))
            plan = await b.objects.admin.plan("a", Evacuate(kinds=("group",)))
            assert [(step.add, step.state) for step in plan] in ([], [("", "planned")])
            await b.objects.admin.drain("a")
            await until(lambda: voters(d) == ["b", "c", "d"])

    asyncio.run(story())


def test_the_leader_of_a_group_with_a_voter_less_moves_and_the_rest_stays(tmp_path: Path) -> None:
    async def story() -> None:
        book = BOOK.replace('learners = ["d"]\n', "")
        async with object_nodes(tmp_path, "abc", extra=book) as (a, b, _):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 3)
            request = {"do": "group", "group": "book", "verb": "remove", "name": "c"}
            await asyncio.to_thread(ask, tmp_path / "a" / "control.sock", request)
            await until(lambda: voters(b) == ["a", "b"])
            wish = Evacuate(kinds=("group",), only="book", target="c", keep_serving=True)
            (step,) = await b.objects.admin.evacuate("a", wish)
            assert (step.state, step.reason) == ("done", "")
            await until(lambda: voters(b) == ["b", "c"])
            assert not a.objects.service.machine.members.draining

    asyncio.run(story())


def test_of_two_voters_that_are_drained_one_waits(tmp_path: Path) -> None:
    """Both would see the one new voter, and both would be removed."""

    async def story() -> None:
        async with object_nodes(tmp_path, "abcd", extra=BOOK) as (_, b, c, _):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 4)
            await c.objects.drain("a", mark=True)
            (step,) = await c.objects.admin.plan("b", Evacuate(kinds=("group",)))
            assert step.state == "blocked"
            assert "a is being drained" in step.reason
            (first,) = await c.objects.admin.plan("a", Evacuate(kinds=("group",)))
            assert first.state == "planned"

    asyncio.run(story())


def test_a_dialog_that_was_exported_and_did_not_arrive_goes_to_the_same_node(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with object_nodes(tmp_path, "abcd", extra=DIALOGS) as (a, b, c, d):
            listener = await a.dialogs.listen("orders")
            for node in (c, d):
                await node.dialogs.listen("orders")
            near = await b.dialogs.open("orders")
            await near.send(b"1")
            far = await listener.next()
            await a.dialogs.move_out(far, d.id, d.dialogs.store_id())
            # The command that moved it is gone, and nothing has arrived at d.
            (step,) = await c.objects.admin.plan("a", Evacuate())
            assert (step.kind, step.add, step.state) == ("dialog", "d", "planned")
            done = await c.objects.admin.drain("a")
            assert {step.state for step in done} <= {"done"}
            _, arrived = await asyncio.wait_for(d.dialogs.receive_any(), 10)
            assert [message.body for message in arrived] == [b"1"]

    asyncio.run(story())


def test_two_requests_to_one_node_do_not_mix(tmp_path: Path) -> None:
    """The same request joins the one in progress; another one is refused."""

    async def story() -> None:
        async with object_nodes(tmp_path, "abcd", extra=BOOK) as (a, b, _, _):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 4)
            wish = Evacuate(kinds=("group",))
            other = Evacuate(kinds=("group",), only="book", target="d", keep_serving=True)
            first, same, refused = await asyncio.gather(
                *(a.objects.admin.evacuate("a", one) for one in (wish, wish, other)),
                return_exceptions=True,
            )
            assert isinstance(refused, ObjectError)
            assert "another move off a is in progress" in str(refused)
            assert first == same
            assert isinstance(first, tuple)
            assert [step.state for step in first] == ["done"]

    asyncio.run(story())


def test_a_hostile_request_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with object_nodes(tmp_path, "ab", root="ab", extra=DIALOGS) as (a, b):
            for verb, body in (
                ("no such verb", b""),
                ("start", b"\xc1 garbage"),
                ("dialog", pack(DialogPart(b"x" * 20, 10, 5, b"late part"))),
                ("dialog", pack(DialogPart(b"x" * 20, 4, 0, b"junk"))),
                ("dialog", pack(DialogPart(b"x" * 20, 1 << 40, 0, b"huge"))),
            ):
                with pytest.raises(ObjectError):
                    await a.objects.ask_node(b.id, verb, body)
            assert await a.objects.ask_node(b.id, "hosting"), "the node goes on"

    asyncio.run(story())


def test_advice_of_the_pipeline_drains_a_node_and_good_paths_undo_it(tmp_path: Path) -> None:
    """P9 and H17: paths of a node that are likely to fail make its policy move everything away."""

    async def story() -> None:
        advice = tmp_path / "advice"
        advice.mkdir()
        section = f'[advice]\ndirectory = "{advice}"\nevery_s = 0.1\n'
        policy = "policy_after_s = 0.4"
        extra = BOOK + section
        async with object_nodes(tmp_path, "abcd", extra=extra, objects=policy) as (a, b, c, d):
            await until(lambda: group(b)["leader"] == "a" and len(group(b)["view"]) == 4)
            await b.objects.create("/x", b"content", nodes=("a", "b", "c"))
            # The others stay as they are, whatever a busy machine makes them see.
            assert a.objects.conditions is not None
            a.objects.conditions.is_on = True
            ends = [(a.id.hex(), peer.id.hex()) for peer in (b, c, d)]
            paths = [(x, "red", y, "red") for pair in ends for x, y in (pair, pair[::-1])]
            late = edition(time.time_ns() // 1000, *paths, snapshot=1)
            (advice / "00000001.parquet").write_bytes(encode_advice(late))
            members = b.objects.service.machine.members
            await until(lambda: members.offers[a.id].draining, 60)
            await until(lambda: voters(b) == ["b", "c", "d"], 60)

            async def left() -> bool:
                return "a" not in [r.node for r in (await b.objects.stat("/x")).replicas]

            await eventually(left)
            assert [members.offers[n.id].draining for n in (b, c, d)] == [False] * 3
            (advice / "00000001.parquet").unlink()
            # The next process of the node knows that the policy drained it, and ends that.
            await a.stop()
            await a.start()
            assert a.objects.conditions is not None
            a.objects.conditions.is_on = True
            await a.until_up("b", timeout_s=60)
            await until(lambda: a.id in members.offers, 60)
            await until(lambda: not members.offers[a.id].draining, 60)

    asyncio.run(story())
