"""`node.roles` on real sockets: several nodes in one process, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from tests.conformance.worlds import free_port

from holdfast.errors import (
    MisuseError,
    NodeStopped,
    RepliesMissing,
    RoleError,
    RoleHeld,
    RoleNotFound,
)
from holdfast.node.config import parse_config
from holdfast.overlay.ports import OpenPort, PublishRole
from holdfast.runtime.node import Node
from holdfast.runtime.roles_handles import Outcome, PassingMessage, RoleMessage

HOSTS = [f"127.0.41.{k}" for k in range(1, 6)]


def config(name: str, host: str, port: int, join: str, extra: str = "") -> str:
    return f"""
domain = "roles"
name = "{name}"
join = ["{join}"]
security.mode = "plain"
telemetry.enabled = false
[[adapter]]
name = "red"
address = "{host}:{port}"
{extra}
"""


@asynccontextmanager
async def domain(count: int) -> AsyncIterator[list[Node]]:
    port = free_port(HOSTS[:count])
    join = f"{HOSTS[0]}:{port}"
    async with AsyncExitStack() as stack:
        nodes = []
        for k in range(count):
            node = Node(parse_config(config(f"n{k}", HOSTS[k], port, join)))
            nodes.append(await stack.enter_async_context(node))
        names = [f"n{k}" for k in range(count)]
        for k, node in enumerate(nodes):
            await node.until_up(*(name for name in names if name != f"n{k}"), timeout_s=20)
        for node in nodes:
            await until(lambda node=node: reached(node) == count)  # type: ignore[misc]
        yield nodes


def reached(node: Node) -> int:
    return node.roles.service.machine.topology.status()["reachable"]


async def until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not predicate():  # noqa: ASYNC110 any predicate will do, so there is no event
            await asyncio.sleep(0.01)


def run(story: Callable[[list[Node]], Awaitable[None]], count: int = 3) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), domain(count) as nodes:
            await story(nodes)

    asyncio.run(main())


def named(name: str) -> Callable[[RoleMessage], bytes]:
    return lambda message: name.encode() + b": " + message.data


def test_a_service_over_a_role_takes_a_few_lines() -> None:
    async def story(nodes: list[Node]) -> None:
        for k in (1, 2):
            await nodes[k].roles.serve("worker", named(f"n{k}"))
        outcome = await nodes[0].roles.request_all("worker", b"x")
        assert outcome.complete
        assert sorted(reply.data for reply in outcome.replies) == [b"n1: x", b"n2: x"]
        assert sorted(outcome.answered) == ["n1", "n2"]
        one = await nodes[0].roles.request_one("worker", b"y")
        assert one.data in (b"n1: y", b"n2: y")
        assert await nodes[0].roles.search("worker") in ("n1", "n2")

    run(story)


def test_replies_are_iterated_as_they_come_and_a_handler_may_be_a_coroutine() -> None:
    async def story(nodes: list[Node]) -> None:
        seen = asyncio.Event()

        async def slow(message: RoleMessage) -> bytes:
            message.reply(b"first", last=False)
            await asyncio.wait_for(seen.wait(), 10)
            return b"second"

        await nodes[1].roles.serve("worker", slow)
        request = nodes[0].roles.request("worker", b"x")
        replies = []
        async for reply in request:
            replies.append(reply.data)
            seen.set()
        assert replies == [b"first", b"second"]
        assert request.outcome is not None
        assert request.outcome.complete

    run(story, 2)


def test_a_role_that_no_node_has_is_not_found() -> None:
    async def story(nodes: list[Node]) -> None:
        with pytest.raises(RoleNotFound, match="nothing was delivered"):
            await nodes[0].roles.request_all("absent", b"x")
        with pytest.raises(RoleNotFound):
            await nodes[0].roles.send("absent", b"x")

    run(story, 2)


def test_an_instance_that_dies_in_the_middle_is_named() -> None:
    async def story(nodes: list[Node]) -> None:
        asked = asyncio.Event()

        async def never(message: RoleMessage) -> bytes:
            asked.set()
            await asyncio.sleep(60)
            return b""

        await nodes[1].roles.serve("worker", named("n1"))
        await nodes[2].roles.serve("worker", never)
        waiting = asyncio.ensure_future(nodes[0].roles.request_all("worker", b"x"))
        await asked.wait()
        await nodes[2].stop()
        outcome = await waiting
        assert [reply.data for reply in outcome.replies] == [b"n1: x"]
        assert ("n2", "link_failed") in outcome.failed
        assert not outcome.complete

    run(story)


def test_one_reply_of_an_instance_that_dies_raises() -> None:
    async def story(nodes: list[Node]) -> None:
        asked = asyncio.Event()

        def never(message: RoleMessage) -> None:
            asked.set()

        await nodes[1].roles.serve("worker", never)
        waiting = asyncio.ensure_future(nodes[0].roles.request_one("worker", b"x"))
        await asked.wait()
        await nodes[1].stop()
        with pytest.raises(RepliesMissing, match="Send again with request_id="):
            await waiting

    run(story, 2)


def test_cancelling_a_request_reaches_the_receiver() -> None:
    async def story(nodes: list[Node]) -> None:
        got: list[RoleMessage] = []

        def keep(message: RoleMessage) -> None:
            got.append(message)

        await nodes[1].roles.serve("worker", keep)
        waiting = asyncio.ensure_future(nodes[0].roles.request_all("worker", b"x"))
        await until(lambda: bool(got))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: got[0].withdrawn == "cancelled")

    run(story, 2)


def test_an_exclusive_role_is_claimed_taken_and_moved() -> None:
    async def story(nodes: list[Node]) -> None:
        first = await nodes[0].roles.publish("leader", claim=True)
        with pytest.raises(RoleHeld, match="is held"):
            await nodes[1].roles.publish("leader", claim=True)
        await nodes[1].roles.publish("leader", exclusive=True)
        await asyncio.wait_for(first.lost.wait(), 10)

        nodes[1].roles.listen(lambda message: message.grant(b"yours", give_up=True))
        reply = await nodes[2].roles.request_one("leader", b"may I?")
        assert (reply.data, reply.granted) == (b"yours", "leader")
        await until(lambda: bool(nodes[2].roles.service.machine.inspect.local_roles()))
        await until(lambda: not nodes[1].roles.service.machine.inspect.local_roles())
        nodes[2].roles.listen(lambda message: b"here")
        assert (await nodes[0].roles.request_one("leader", b"where?")).node == "n2"

    run(story)


def test_find_and_connect_send_in_one_hop() -> None:
    async def story(nodes: list[Node]) -> None:
        for k in (1, 2):
            await nodes[k].roles.serve("worker", named(f"n{k}"))
        found = await nodes[0].roles.find("worker")
        assert sorted(nodes[0].roles.name_of(place.node) for place in found) == ["n1", "n2"]
        tree = await nodes[0].roles.connect(found)
        assert tree.multi_hop == ()
        outcome = await tree.request_all(b"x")
        assert sorted(reply.data for reply in outcome.replies) == [b"n1: x", b"n2: x"]
        tree.close()

    run(story)


def test_a_snooper_on_the_receivers_node_changes_a_message() -> None:
    async def story(nodes: list[Node]) -> None:
        def change(passing: PassingMessage) -> None:
            if passing.is_reply:
                passing.resume()
            else:
                passing.change(b"changed")

        nodes[1].roles.snoop(change)
        await nodes[1].roles.serve("worker", named("n1"))
        assert (await nodes[0].roles.request_one("worker", b"x")).data == b"n1: changed"

    run(story, 2)


def test_an_unpublished_role_is_gone_and_the_node_says_what_it_knows() -> None:
    async def story(nodes: list[Node]) -> None:
        instance = await nodes[1].roles.serve("worker", named("n1"))
        await nodes[0].roles.request_one("worker", b"x")
        status = nodes[0].status()["overlay"]
        assert [role["role"] for tree in status["trees"] for role in tree["roles"]] == ["worker"]
        assert await nodes[0].roles.tree_nodes() == {"n0": ["n1"], "n1": ["n0"]}
        await instance.unpublish()
        with pytest.raises(RoleNotFound):
            await nodes[0].roles.request_one("worker", b"y")

    run(story, 2)


def test_misuse_is_refused_before_anything_is_sent() -> None:
    async def story(nodes: list[Node]) -> None:
        roles = nodes[0].roles
        with pytest.raises(MisuseError, match="1 to 255 bytes"):
            await roles.publish("x" * 300)
        with pytest.raises(MisuseError, match="1 to 255 bytes"):
            await roles.publish_many(["x", ""])
        for ask in (roles.request_all, roles.request_one, roles.send):
            with pytest.raises(MisuseError, match="1 to 255 bytes"):
                await ask("x" * 300, b"")
        with pytest.raises(MisuseError, match="16 bytes"):
            await roles.publish("x", b"short")
        with pytest.raises(MisuseError, match="protocol id"):
            roles.listen(lambda message: b"", protocol=0)
        await nodes[0].stop()
        with pytest.raises(NodeStopped):
            await roles.request_all("x", b"")

    run(story, 1)


def test_many_roles_are_published_and_removed_in_one_call() -> None:
    async def story(nodes: list[Node]) -> None:
        roles = [f"shard {k}" for k in range(20)]
        instances = await nodes[1].roles.publish_many(roles, "shards")
        assert [one.role for one in instances] == roles
        assert await nodes[0].search("shard 7", "shards") == "n1"
        with pytest.raises(RoleHeld, match=r"'shard 3'.*the other roles are"):
            await nodes[1].roles.publish_many(["shard 3", "extra"], "shards")
        assert await nodes[0].search("extra", "shards") == "n1"
        await nodes[1].roles.unpublish_many(instances)
        assert all(one.lost.is_set() for one in instances)
        with pytest.raises(RoleNotFound):
            await nodes[0].roles.request_all("shard 7", b"x", tree="shards")

    run(story, 2)


def test_a_role_moves_to_the_node_that_asks_for_it() -> None:
    async def story(nodes: list[Node]) -> None:
        giver, taker = nodes[1].roles, nodes[0].roles
        held = await giver.serve(
            "token", lambda message: giver.move(message, b"yours"), exclusive=True
        )
        taker.handle("token", lambda message: b"from the taker")
        reply = await taker.request_one("token", b"give it to me")
        assert (reply.data, reply.granted) == (b"yours", "token")
        async with asyncio.timeout(10):
            await held.lost.wait()
        assert (await giver.request_one("token", b"x")).data == b"from the taker"

    run(story, 2)


def test_connect_finds_the_instances_of_a_role_and_links_to_them() -> None:
    async def story(nodes: list[Node]) -> None:
        for k in (1, 2):
            await nodes[k].roles.serve("worker", named(f"n{k}"))
        with pytest.raises(RoleNotFound, match="nothing was connected"):
            await nodes[0].connect("absent")
        tree = await nodes[0].connect("worker")
        assert tree.multi_hop == ()
        outcome = await tree.request_all(b"x")
        assert sorted(reply.data for reply in outcome.replies) == [b"n1: x", b"n2: x"]
        places = await nodes[0].roles.find("worker")
        both = await nodes[0].connect([*places, *places[:1]])
        assert len(both.locations) == 3
        tree.close()

    run(story)


def test_an_outcome_with_an_instance_that_was_not_heard_of_is_not_complete() -> None:
    heard = Outcome("done", (), ("a",), ("a",), (), (), False, "", b"")
    assert heard.complete
    assert not msgspec.structs.replace(heard, unknown=("b",)).complete
    assert not msgspec.structs.replace(heard, failed=(("b", "expired"),)).complete
    assert not msgspec.structs.replace(heard, incomplete=True).complete


def test_a_handler_that_fails_is_named_and_gives_no_reply() -> None:
    """An empty reply would pass for an answer."""

    async def story(nodes: list[Node]) -> None:
        def at_once(message: RoleMessage) -> bytes:
            raise ValueError(message.data)

        async def later(message: RoleMessage) -> bytes:
            await asyncio.sleep(0)
            raise ValueError(message.data)

        await nodes[0].roles.serve("worker", named("n0"))
        await nodes[1].roles.serve("worker", at_once)
        await nodes[2].roles.serve("worker", later)
        outcome = await nodes[0].roles.request_all("worker", b"x")
        assert [reply.data for reply in outcome.replies] == [b"n0: x"]
        assert sorted(outcome.failed) == [("n1", "handler_failed"), ("n2", "handler_failed")]
        assert not outcome.complete
        instance = await nodes[1].roles.serve("alone", at_once)
        with pytest.raises(RoleError, match="handler_failed"):
            await nodes[0].roles.request_one("alone", b"y", instance=instance.id)

    run(story)


def test_an_instance_may_decline_direct_connections() -> None:
    async def story(nodes: list[Node]) -> None:
        instance = await nodes[1].roles.serve("worker", named("n1"))
        assert len(await nodes[0].roles.find("worker")) == 1
        instance.set_joinable(False)
        assert await nodes[0].roles.find("worker") == ()
        assert (await nodes[0].roles.locate("worker")).complete
        assert (await nodes[0].roles.request_one("worker", b"x")).data == b"n1: x"

    run(story, 2)


def boom(item: object) -> None:
    raise ValueError("a bug")


def test_an_overlay_that_fails_tells_those_that_wait_and_goes_on() -> None:
    """A fault in the overlay itself: its unit is made anew and has forgotten all. No request waits for ever, and what
    was published is published again."""

    async def story(nodes: list[Node]) -> None:
        first, second = nodes[0].roles, nodes[1].roles
        shared = await first.serve("worker", lambda message: b"first: " + message.data)
        exclusive = await first.publish("boss", exclusive=True)
        await second.serve("slow", lambda message: None)
        asked = asyncio.ensure_future(first.request_all("slow", b"x"))
        await until(lambda: bool(second._messages))
        old = shared.id
        first.service.machine._requests[PublishRole] = boom
        with pytest.raises(RoleError, match="a bug"):
            await first.publish("other")
        with pytest.raises(RoleError, match="may have received"):
            await asked
        assert exclusive.lost.is_set()
        await until(lambda: shared.id != old)
        assert not shared.lost.is_set()
        assert (await second.request_one("worker", b"y")).data == b"first: y"
        assert (await first.request_one("worker", b"z")).data == b"first: z"
        await shared.unpublish()
        with pytest.raises(RoleNotFound):
            await second.request_one("worker", b"y")

    run(story, 2)


def test_an_overlay_that_has_stopped_says_so_at_once() -> None:
    async def story(nodes: list[Node]) -> None:
        roles = nodes[0].roles
        held = await roles.serve("worker", lambda message: b"")
        failed = roles.service.machine
        failed._requests[OpenPort] = boom
        roles.listen(lambda message: b"", protocol=9)
        await until(lambda: roles.service.machine is not failed)
        roles.service.machine._requests[OpenPort] = boom
        roles.listen(lambda message: b"", protocol=10)
        await until(held.lost.is_set)
        with pytest.raises(RoleError, match="restart the node"):
            await roles.request_all("worker", b"x")
        with pytest.raises(RoleError, match="restart the node"):
            await roles.publish("other")

    run(story, 1)


@pytest.mark.parametrize("name", ["\ud800", "x" * 100 + "\udcff"])
def test_a_name_that_is_no_text_harms_nothing(name: str) -> None:
    """`os.fsdecode` makes such strings from file names that are not UTF-8."""

    async def story(nodes: list[Node]) -> None:
        roles = nodes[0].roles
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: roles.publish(name),
            lambda: roles.request_all(name, b""),
            lambda: roles.send(name, b""),
            lambda: roles.search(name),
            lambda: roles.find(name),
            lambda: roles.remove(name, bytes(32), 1),
            lambda: roles.publish("x", name),
        ]
        for call in calls:
            with pytest.raises(MisuseError):
                await call()
        await roles.serve("worker", lambda message: b"fine")
        assert (await roles.request_one("worker", b"")).data == b"fine"

    run(story, 1)
