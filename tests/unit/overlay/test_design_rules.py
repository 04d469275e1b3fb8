"""The twenty rules that repair the paper, each with the schedule in which the paper loses, duplicates or hangs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.overlay_world import FAST, PORT, Host, World, node_id, publish, world_of

from holdfast.links.ports import PeerDown, PeerUp, Received, SendChannel
from holdfast.overlay import tree_id
from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.frames import (
    CLAIM,
    END,
    GET,
    HIDDEN,
    NOT_FOUND,
    PUBLISH,
    PUT,
    REGISTER_AGAIN,
    RELINK,
    SEARCH,
    TAKEN,
    Break,
    CutHealed,
    Entry,
    Found,
    Message,
    Reply,
    Reverse,
    TreeInfo,
    Trees,
    Wave,
    WaveAnswer,
)
from holdfast.overlay.ids import numbered, role_key
from holdfast.overlay.mesh import links_made_by
from holdfast.overlay.ports import (
    CONSUME,
    SUSPEND,
    AnswerMessage,
    CancelSend,
    ClosePort,
    Connected,
    ConnectTo,
    Delivered,
    FindInstances,
    FoundInstances,
    OpenPort,
    OverlayEvent,
    PublishMany,
    PublishRole,
    RoleGained,
    RoleLost,
    SearchResult,
    SearchRole,
    SendToRole,
    Snooped,
    SnoopVerdict,
    UnpublishRole,
)
from holdfast.overlay.records import Record, Trace
from holdfast.overlay.trees import BEATEN, RoleState
from holdfast.sim.overlay_world import decoder
from holdfast.types import DATA, MILLISECOND, SECOND, NodeId
from holdfast.wire.frames import MemberInfo

TREE = tree_id("tree")


def line(*names: str, config: OverlayConfig = FAST) -> World:
    """Nodes in a row, each linked to the next."""
    return world_of(*names, seed=1, config=config)


def silent(item: Delivered) -> AnswerMessage | None:
    return None


def counter(host: Host, name: str) -> int:
    return host.machine.hub.counters.get(name, 0)


def instance(world: World, name: str, role: str = "role") -> bytes:
    local = world.hosts[name].machine.local.get(TREE, role)
    assert local is not None
    return local.instance


# -- 1 -----------------------------------------------------------------------------------------------------------


def test_rule_1_a_resend_is_no_cycle_and_is_performed_once() -> None:
    """c is slow. The sender sends again with the same id and a new attempt number. Without the attempt every node on
    the way would take the re-send for a cycle and cut a good edge."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.hosts["c"].answers = silent
    first = world.send("a", b"work")
    world.run(SECOND)
    request = world.hosts["c"].delivered[0].request
    second = world.send("a", b"work", request=request, attempt=1)
    world.run(SECOND)
    token = world.hosts["c"].delivered[0].token
    world.post(world.hosts["c"], [AnswerMessage(token, b"done")])
    world.run(SECOND)
    a = world.hosts["a"]
    assert world.receivers(b"work") == {"c": 1}
    assert a.replies(first) == a.replies(second) == [b"done"]
    assert sum(counter(host, "cycles") for host in world.hosts.values()) == 0
    assert a.machine.inspect.built(TREE, "role")


# -- 2 -----------------------------------------------------------------------------------------------------------


def test_rule_2_no_listener_ends_the_copy_by_name() -> None:
    """c holds the role but no port is open: the sender would wait without end."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.post(world.hosts["c"], [ClosePort(PORT)])
    end = world.request("a", b"x")
    assert end.kind == "done"
    assert end.failed == ((instance(world, "c"), "no_listener"),)


def test_rule_2_a_consumed_message_still_gets_its_last() -> None:
    """The paper: 'No other processing is required'. The sender would hang."""
    world = line("a", "b", "c")
    publish(world, "c")
    b = world.hosts["b"]
    world.post(b, [OpenPort(PORT, snoop=True)])
    op = world.send("a", b"x")
    world.run(SECOND)
    shown = b.told(Snooped)[0]
    assert not shown.reply
    world.post(b, [SnoopVerdict(shown.token, CONSUME)])
    world.run(SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert [how for _, how in end.failed] == ["consumed"]
    assert world.receivers(b"x") == {}


def test_rule_2_a_consumed_last_reply_passes_last_on() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    b = world.hosts["b"]
    world.post(b, [OpenPort(PORT, snoop=True)])
    op = world.send("a", b"x")
    for _ in range(2):
        world.run(SECOND)
        shown = b.told(Snooped)[-1]
        action = CONSUME if shown.reply else 0
        world.post(b, [SnoopVerdict(shown.token, action)])
    world.run(SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "done"
    assert world.hosts["a"].replies(op) == []


def test_rule_2_a_suspended_message_that_is_never_resumed_is_swept_and_reported() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    b = world.hosts["b"]
    world.post(b, [OpenPort(PORT, snoop=True)])
    op = world.send("a", b"x", lifetime_ns=60 * SECOND)
    world.run(SECOND)
    world.post(b, [SnoopVerdict(b.told(Snooped)[0].token, SUSPEND)])
    world.run(20 * SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "null"
    assert "swept" in [how for _, how in end.failed]
    assert end.incomplete
    assert any(e.event == "swept" for e in b.told(OverlayEvent))


def test_rule_2_a_swept_message_names_the_instances_that_it_did_not_reach() -> None:
    """b, which holds the role itself, keeps the message: a, where it comes from, and d answer, b and c are named."""
    world = line("d", "a", "b", "c")
    publish(world, "d", "a", "b", "c")
    b = world.hosts["b"]
    world.post(b, [OpenPort(PORT, snoop=True)])
    op = world.send("d", b"x", lifetime_ns=60 * SECOND, aggregate=True)
    world.run(20 * SECOND)
    end = world.hosts["d"].end_of(op)
    assert end is not None
    assert sorted(data for _, data in end.replies) == [b"a", b"d"]
    how = {world.by_id[NodeId(i[:16])].name: why for i, why in end.failed}
    assert how == {"b": "swept", "c": "swept"}
    assert not end.unknown
    local = world.hosts["c"].machine.local.get(tree_id("tree"), "role")
    assert local is not None
    end = world.request(
        "d", b"y", instance=local.instance, lifetime_ns=60 * SECOND, run_ns=20 * SECOND
    )
    assert end.failed == ((local.instance, "swept"),)


def test_rule_2_an_expired_message_ends_by_name() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    world.hosts["c"].answers = silent
    end = world.request("a", b"x", lifetime_ns=2 * SECOND)
    assert end.kind == "null"
    assert end.failed == ((instance(world, "c"), "expired"),)


def test_rule_2_a_refused_copy_ends_by_name() -> None:
    """The node is full. It says so instead of dropping the message."""
    world = line("a", "b", "c", config=msgspec.structs.replace(FAST, pending_per_peer_max=1))
    publish(world, "c")
    world.hosts["c"].answers = silent
    world.send("a", b"one")
    world.run(SECOND)
    end = world.request("a", b"two", run_ns=SECOND)
    assert end.kind == "null"
    assert "too many requests" in end.reason
    assert world.receivers(b"two") == {}


# -- 3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_rule_3_two_concurrent_first_publishers_meet(seed: int) -> None:
    """Both ask the search at the same time and find nothing. With a plain put both would be first, and their trees
    would never meet."""
    world = World(seed)
    for k in range(9):
        world.add(f"n{k}", f"r{k % 3}")
    world.mesh()
    world.run(2 * SECOND)
    world.publish("n0")
    world.publish("n4")
    world.publish("n8")
    world.run(5 * SECOND)
    for sender in ("n0", "n1", "n8"):
        data = f"from {sender}".encode()
        world.request(sender, data)
        assert world.receivers(data) == {"n0": 1, "n4": 1, "n8": 1}
    firsts = [n for n in ("n0", "n4", "n8") if is_domain_first(world, n)]
    assert len(firsts) == 1


def is_domain_first(world: World, name: str) -> bool:
    local = world.hosts[name].machine.local.get(TREE, "role")
    return (
        local is not None and local.anchor is not None and local.anchor.instance == local.instance
    )


def test_rule_3_an_owner_that_gets_a_second_entry_makes_the_loser_link() -> None:
    """Two sides that were apart each have a first. One owner hands its entry to the other, which keeps one of them."""
    world = line("a", "b", "c")
    publish(world, "a")
    holder = instance(world, "a")
    owner = world.by_id[world.hosts["a"].machine.search.owner(role_key(TREE, "role"), 0)]  # type: ignore[index]
    loser = "b" if owner.name == "c" else "c"
    sender = world.links_of(owner.name)[0]
    second = numbered(node_id(loser), 1, 5)
    wave = numbered(node_id("a"), 1, 1 << 30)
    entry = Entry(TREE, "role", second, 0, False, "default")
    put = Wave(wave, wave, SEARCH, TREE, "role", op=PUT, entry=entry, seq=REGISTER_AGAIN, hops=1)
    told: list[tuple[str, bytes, bytes]] = []

    def watch(_sender: Host, receiver: Host, frame: Any) -> None:
        if isinstance(frame, Wave) and frame.op == RELINK and frame.entry is not None:
            told.append((receiver.name, frame.instance, frame.entry.instance))

    world.watch = watch
    world.post(owner, [Received(node_id(sender), [put], world.now)])
    world.run(SECOND)
    assert (loser, second, holder) in told


# -- 4, 5 --------------------------------------------------------------------------------------------------------


def halves(**options: Any) -> World:
    """Two halves that start apart, each with a holder."""
    world = World(3)
    for name in ("a1", "a2", "b1", "b2"):
        world.add(name)
    world.link("a1", "a2")
    world.link("b1", "b2")
    world.run(2 * SECOND)
    for name in ("a2", "b2"):
        world.publish(name, **options)
    world.run(3 * SECOND)
    return world


def test_rule_4_two_halves_that_start_apart_see_an_unpartition() -> None:
    """With 'undefined colour at boot' neither half would notice that they were ever apart."""
    world = halves()
    colours = {n: world.hosts[n].machine.partition.colour for n in world.hosts}
    assert colours["a1"] == colours["a2"] != colours["b1"] == colours["b2"]
    world.link("a1", "b1")
    world.run(3 * SECOND)
    for host in world.hosts.values():
        assert any(e.event == "unpartition" for e in host.told(OverlayEvent)), host.name
    assert len({host.machine.partition.colour for host in world.hosts.values()}) == 1
    world.request("a1", b"x")
    assert world.receivers(b"x") == {"a2": 1, "b2": 1}


def test_rule_4_a_fresh_node_yields_its_colour_silently() -> None:
    world = halves()
    world.add("c")
    world.link("c", "a1")
    world.run(3 * SECOND)
    hosts = world.hosts
    assert hosts["c"].machine.partition.colour == hosts["a1"].machine.partition.colour
    assert not [e for e in hosts["a2"].told(OverlayEvent) if e.event == "unpartition"]


def test_rule_5_two_exclusive_holders_become_one_without_traffic() -> None:
    """A partition heals and no message is sent. Recovery that is only lazy would leave two holders."""
    world = halves(exclusive=True)
    assert world.holders() == ["a2", "b2"]
    world.link("a1", "b1")
    world.run(5 * SECOND)
    assert len(world.holders()) == 1
    loser = "b2" if world.holders() == ["a2"] else "a2"
    assert world.hosts[loser].told(RoleLost)


# -- 6 -----------------------------------------------------------------------------------------------------------


def test_rule_6_a_link_that_fails_during_a_recovery_is_an_answer() -> None:
    """The answer is on its way when the link fails. The paper waits for the time-out."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.by_type.clear()
    op = world.send("a", b"x")
    world.run(MILLISECOND * 2)
    world.cut("b", "c")
    world.run(200 * MILLISECOND)
    world.link("b", "c")
    world.run(5 * SECOND)
    assert sum(counter(h, "wave_timeout") for h in world.hosts.values()) == 0
    assert world.hosts["a"].end_of(op) is not None


def test_rule_6_a_time_out_leaves_the_role_unbuilt_and_says_unknown() -> None:
    """A node that never answers a wave. The role must not be taken for absent."""
    world = line("a", "b", "c")
    publish(world, "c")
    b = world.hosts["b"]
    world.filter = lambda s, r, f: [] if isinstance(f, WaveAnswer) and r.name == "a" else [f]
    end = world.request("a", b"x", run_ns=120 * SECOND, lifetime_ns=200 * SECOND)
    assert b.alive
    assert end.incomplete
    assert not world.hosts["a"].machine.inspect.built(TREE, "role")
    assert counter(world.hosts["a"], "wave_timeout") > 0


def test_rule_6_a_lost_instance_whose_node_is_alive_is_found_however_far() -> None:
    """A ring of 14. The holder's link to the sender fails; the only way left is 13 hops long, far beyond three spew
    hops."""
    world = World(1)
    names = [f"n{k}" for k in range(14)]
    for name in names:
        world.add(name)
    world.line(*names, "n0")
    world.run(3 * SECOND)
    publish(world, "n1")
    world.request("n0", b"before")
    world.cut("n0", "n1")
    world.run(SECOND)
    end = world.request("n0", b"after")
    assert end.kind == "done"
    assert world.receivers(b"after") == {"n1": 1}


# -- 7 -----------------------------------------------------------------------------------------------------------


def test_rule_7_without_a_route_a_role_is_not_built() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    world.request("a", b"x")
    a = world.hosts["a"].machine
    assert a.inspect.built(TREE, "role")
    world.cut("a", "b")
    world.run(SECOND)
    assert not a.inspect.built(TREE, "role")


def test_rule_7_removing_the_last_stale_route_unbuilds_the_role() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    world.request("a", b"x")
    world.post(world.hosts["c"], [UnpublishRole(99, TREE, "role")])
    world.run(SECOND)
    end = world.request("a", b"y")
    assert end.kind == "not_found"
    assert not world.hosts["a"].machine.inspect.built(TREE, "role")


def test_rule_7_role_not_found_needs_search_and_recovery_first() -> None:
    """The sender has never heard of the role. 'No edges exist' must not mean 'not found'."""
    world = line("a", "b", "c", "d")
    publish(world, "d")
    end = world.request("a", b"x")
    assert end.kind == "done"
    assert counter(world.hosts["a"], "recoveries") == 1


def test_rule_7_a_one_instance_recovery_does_not_make_the_role_built() -> None:
    """Two holders on the two sides of b, which loses the routes over both links. One instance is enough for the first
    message, not for the second."""
    world = line("l", "b", "r")
    publish(world, "l", "r")
    b = world.hosts["b"]
    for end in "lr":
        b.machine.builder.link_down(NodeId(node_id(end)), False)
    assert b.machine.inspect.routes(TREE, "role") == {}
    before = counter(b, "recoveries")
    assert world.request("b", b"one", one=True).kind == "done"
    assert counter(b, "recoveries") == before + 1
    assert not b.machine.inspect.built(TREE, "role")
    world.request("b", b"all")
    assert world.receivers(b"all") == {"l": 1, "r": 1}
    assert b.machine.inspect.built(TREE, "role")


def test_rule_7_a_tree_of_a_neighbour_that_has_not_built_it_is_not_taken_over() -> None:
    """b has a route left and has lost another. A node that joins must not take that for all there is."""
    world = line("l", "b", "r")
    publish(world, "l", "r")
    world.request("b", b"warm")
    world.cut("b", "l")
    world.run(SECOND)
    assert world.hosts["b"].machine.inspect.routes(TREE, "role")
    assert not world.hosts["b"].machine.inspect.built(TREE, "role")
    world.add("n")
    world.link("n", "b")
    world.run(2 * SECOND)
    assert not world.hosts["n"].machine.inspect.built(TREE, "role")
    world.link("b", "l")
    world.run(SECOND)
    world.request("n", b"x")
    assert world.receivers(b"x") == {"l": 1, "r": 1}


def test_rule_7_a_tree_that_comes_as_unbuilt_is_not_taken_over() -> None:
    """Also a neighbour that sends such a tree, against the rule, does not make it built."""
    world = line("a", "b")
    a, b = world.hosts["a"], world.hosts["b"]
    a.machine.joining._asked[b.id] = True
    found = Found(numbered(b.id, 1, 9), 0, False, 1, 0)
    trees = Trees((TreeInfo(TREE, "role", False, (found,)),))
    world.post(a, [Received(b.id, [trees], world.now)])
    assert not a.machine.inspect.built(TREE, "role")
    assert a.machine.inspect.routes(TREE, "role") == {}


def test_rule_7_an_evicted_tree_is_not_built() -> None:
    world = line("a", "b", config=msgspec.structs.replace(FAST, trees_max=1))
    publish(world, "b")
    world.request("a", b"x")
    assert world.hosts["a"].machine.inspect.built(TREE, "role")
    world.publish("b", tree="other")
    world.run(SECOND)
    world.request("a", b"y", tree="other")
    assert not world.hosts["a"].machine.inspect.built(TREE, "role")


# -- 8, 9 --------------------------------------------------------------------------------------------------------


def test_rule_8_a_dummy_is_never_compared_or_listed() -> None:
    state = RoleState("role", 0)
    link = NodeId(b"l" * 16)
    state.add_dummy(b"\xff" * 32, link)
    holder = numbered(b"h" * 16, 1, 1)
    outcome = state.insert(Found(holder, 1, True, 1, 1), link, True, True, FAST, 0, {link: True})
    assert outcome == "added"
    assert state.top == (1, holder)
    assert state.instances() == [holder]
    assert state.ids_over(link) == (holder,)


def test_rule_9_a_hidden_null_counts_as_no_reply() -> None:
    """Role-not-found from one link, a cycle on the other. A hidden null that counted would make it an empty success."""
    message = Message(numbered(b"a" * 16, 1, 1), 0, TREE, "role", 1, b"", 1000)
    record = Record(b"key", message, Trace(None), 0)
    record.merge(Reply(message.request, 0, NOT_FOUND, True))
    record.merge(Reply(message.request, 0, HIDDEN, True))
    assert record.kind() == NOT_FOUND
    record.merge(Reply(message.request, 0, END, True))
    assert record.kind() == END


# -- 11, 12 ------------------------------------------------------------------------------------------------------


def giving(world: World, name: str) -> None:
    """The application of a node gives its role to the sender of `give`."""

    def answer(item: Delivered) -> AnswerMessage | None:
        give = item.data == b"give"
        return AnswerMessage(item.token, name.encode(), grant=give, give_up=give)

    world.hosts[name].answers = answer


def test_rule_11_the_holder_stays_until_the_taker_confirms() -> None:
    """The taker's confirmation is lost with a link. The giver asks; until then it neither answers nor forgets."""
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    giving(world, "c")
    lost = []

    def drop_confirmation(s: Host, r: Host, f: Any) -> list[Any]:
        """Neither the taker's word nor anything that says the same reaches the giver for three seconds."""
        told = isinstance(f, Wave) and (f.kind == PUBLISH or f.op in (TAKEN, RELINK, PUT))
        if told and r.name == "c" and world.now < until:
            lost.append(f)
            return []
        return [f]

    until = world.now + 3 * SECOND
    world.filter = drop_confirmation
    world.send("a", b"give")
    world.run(SECOND)
    c = world.hosts["c"].machine.local.get(TREE, "role")
    assert world.hosts["a"].told(RoleGained)
    assert lost
    assert c is not None
    assert c.moving_to == instance(world, "a")
    world.run(10 * SECOND)
    assert world.holders() == ["a"]


def test_rule_11_a_grant_to_a_cancelled_request_is_returned() -> None:
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    c = world.hosts["c"]
    c.answers = silent
    op = world.send("a", b"give")
    world.run(SECOND)
    token = c.delivered[0].token
    world.post(world.hosts["a"], [CancelSend(op)])
    world.post(c, [AnswerMessage(token, b"", grant=True, give_up=True)])
    world.run(20 * SECOND)
    assert world.holders() == ["c"]
    c.answers = None
    assert world.request("a", b"after").kind == "done"
    assert world.receivers(b"after") == {"c": 1}


def test_rule_11_a_role_is_not_granted_to_a_request_that_is_over() -> None:
    """The giver has heard of the end: it must not hold messages for a taker that does not come."""
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    c = world.hosts["c"]
    c.answers = silent
    op = world.send("a", b"give")
    world.run(SECOND)
    world.post(world.hosts["a"], [CancelSend(op)])
    world.run(SECOND)
    world.post(c, [AnswerMessage(c.delivered[0].token, b"", grant=True, give_up=True)])
    world.run(SECOND)
    held = c.machine.local.get(TREE, "role")
    assert held is not None
    assert held.moving_to == b""
    assert [e.event for e in c.told(OverlayEvent)].count("answer_refused") == 1


def test_rule_11_a_grant_that_its_taker_cannot_use_is_returned_at_once() -> None:
    """The taker has got an instance of its own meanwhile. The giver must not hold messages until it asks."""
    world = line("a", "b", "c")
    publish(world, "c")
    c = world.hosts["c"]
    c.answers = silent
    world.send("a", b"give")
    world.run(SECOND)
    publish(world, "a")
    world.post(c, [AnswerMessage(c.delivered[0].token, b"", grant=True, give_up=True)])
    world.run(SECOND)
    assert counter(c, "grants_returned") == 1
    c.answers = None
    world.request("b", b"after")
    assert world.receivers(b"after") == {"a": 1, "c": 1}


def test_rule_12_a_message_that_meets_a_repointed_route_follows_the_role() -> None:
    """a asks for the role. While the reply re-points c, b, a one by one, d's message is on its way to c: it meets a
    route that points back to where it came from. It is no stale route."""
    for wait in range(0, 12_000, 750):
        world = line("d", "a", "b", "c")
        publish(world, "c", exclusive=True)
        giving(world, "c")
        world.request("d", b"warm")
        world.send("a", b"give")
        world.run(wait * 1000)
        op = world.send("d", b"follow")
        world.run(20 * SECOND)
        end = world.hosts["d"].end_of(op)
        assert end is not None
        assert end.kind == "done", (wait, end)
        assert sum(world.receivers(b"follow").values()) == 1, wait
        assert world.holders() == ["a"]
        assert sum(counter(h, "stale_removed") for h in world.hosts.values()) == 0, wait


# -- 13, 14 ------------------------------------------------------------------------------------------------------


def test_rule_13_insertion_compares_epoch_and_instance_and_heeds_tombstones() -> None:
    state = RoleState("role", 0)
    link = NodeId(b"l" * 16)
    low, high = numbered(b"a" * 16, 1, 1), numbered(b"b" * 16, 1, 1)

    def insert(instance: bytes, epoch: int) -> str:
        return state.insert(
            Found(instance, epoch, True, 1, 1), link, True, True, FAST, 0, {link: True}
        )

    assert insert(high, 1) == "added"
    assert insert(low, 1) == BEATEN
    assert insert(low, 2) == "added"
    assert state.instances() == [low]
    assert state.bury(low, 1, 10, 8) is False, "an unpublish removes nothing newer"
    assert state.bury(low, 2, 10, 8) is True
    assert insert(low, 2) == BEATEN, "a late publish of what was unpublished"
    assert insert(low, 3) == "added"


def test_rule_13_the_handshake_does_not_steal_a_held_role() -> None:
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    op = world.publish("a", claim=True)
    world.run(3 * SECOND)
    answer = world.published("a", op)
    assert answer is not None
    assert not answer.ok
    assert world.holders() == ["c"]


def test_rule_13_two_handshakes_at_once_give_one_holder() -> None:
    world = line("a", "b", "c", "d")
    ops = {name: world.publish(name, claim=True) for name in ("a", "d")}
    world.run(10 * SECOND)
    answers = {name: world.published(name, op) for name, op in ops.items()}
    assert sorted(a.ok for a in answers.values() if a) == [False, True]
    assert len(world.holders()) == 1


def test_rule_13_a_claim_takes_the_role_from_no_registered_instance() -> None:
    """Two handshakes at once: the second one registers with a higher id, after the first one was told that it holds the
    role."""
    world = line("a", "b", "c")
    publish(world, "a", claim=True)
    owner = world.by_id[world.hosts["a"].machine.search.owner(role_key(TREE, "role"), 0)]  # type: ignore[index]
    sender = world.links_of(owner.name)[0]
    entry = Entry(TREE, "role", numbered(b"\xff" * 16, 1, 5), 1, True, "default")
    wave = numbered(node_id("c"), 1, 1 << 30)
    put = Wave(wave, wave, SEARCH, TREE, "role", op=PUT, entry=entry, seq=CLAIM, hops=1)
    answers: list[WaveAnswer] = []
    world.watch = lambda s, r, f: answers.append(f) if isinstance(f, WaveAnswer) else None
    world.post(owner, [Received(node_id(sender), [put], world.now)])
    world.run(SECOND)
    answer = next(answer for answer in answers if answer.wave == wave)
    assert not answer.accepted
    assert answer.entry is not None
    assert answer.entry.instance == instance(world, "a")


def test_rule_13_an_unpublish_by_another_node_cleans_up_after_a_dead_holder() -> None:
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    world.request("a", b"x")
    held = instance(world, "c")
    world.kill("c")
    world.run(SECOND)
    world.post(world.hosts["a"], [UnpublishRole(50, TREE, "role", held, 1)])
    world.run(SECOND)
    for name in ("a", "b"):
        assert held not in world.hosts[name].machine.inspect.routes(TREE, "role")
    publish(world, "a", exclusive=True)
    assert world.request("b", b"y").kind == "done"


def test_rule_13_an_unpublish_of_an_older_epoch_leaves_the_holder() -> None:
    """The instance has been confirmed at a later epoch since."""
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    held = world.hosts["c"].machine.local.get(TREE, "role")
    assert held is not None
    world.request("a", b"warm")
    world.post(world.hosts["a"], [UnpublishRole(50, TREE, "role", held.instance, held.epoch - 1)])
    world.run(SECOND)
    assert world.holders() == ["c"]
    assert world.request("a", b"x").kind == "done"
    world.post(world.hosts["a"], [UnpublishRole(51, TREE, "role", held.instance, held.epoch)])
    world.run(SECOND)
    assert world.holders() == []
    assert world.hosts["c"].told(RoleLost)


def test_rule_13_a_handshake_whose_ping_was_lost_asks_again() -> None:
    """The link to the holder fails while it is asked, and the search has lost its entry: that is no free role."""
    world = line("a", "b", "c")
    publish(world, "c", exclusive=True)
    world.request("a", b"warm")
    world.filter = lambda s, r, f: [] if isinstance(f, Reply) and s.name == "c" else [f]
    op = world.publish("a", claim=True)
    world.run(SECOND)
    for host in world.hosts.values():
        for table in host.machine.search._tables:
            table.clear()
    world.cut("b", "c")
    world.run(100 * MILLISECOND)
    assert world.published("a", op) is None
    world.filter = None
    world.link("b", "c")
    world.run(20 * SECOND)
    answer = world.published("a", op)
    assert answer is not None
    assert not answer.ok
    assert world.holders() == ["c"]


def test_rule_14_a_newer_incarnation_deletes_the_routes_of_the_older_one() -> None:
    state = RoleState("role", 0)
    link = NodeId(b"l" * 16)
    node = b"n" * 16
    for life in (1, 2):
        found = Found(numbered(node, life, 1), 0, False, 1, 1)
        state.insert(found, link, True, True, FAST, 0, {link: True})
    assert state.instances() == [numbered(node, 2, 1)]


def test_rule_14_down_and_up_in_one_batch_are_handled_in_order() -> None:
    """The session with b ends and a new one begins in the same turn. A reply is pending over the old one."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.hosts["c"].answers = silent
    op = world.send("a", b"x")
    world.run(SECOND)
    a, b = world.hosts["a"], world.hosts["b"]
    member = MemberInfo(b.id, "b", 1, ())
    world.post(a, [PeerDown(b.id, "test"), PeerUp(b.id, member)])
    world.run(SECOND)
    end = a.end_of(op)
    assert end is not None
    assert end.kind == "null"
    assert a.machine.hub.is_open(b.id) is False or end.incomplete


def test_rule_14_a_new_session_ends_the_old_one() -> None:
    """The end of the old session is not told: what was pending over it ends all the same."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.hosts["c"].answers = silent
    op = world.send("a", b"x")
    world.run(SECOND)
    a, b = world.hosts["a"], world.hosts["b"]
    world.post(a, [PeerUp(b.id, MemberInfo(b.id, "b", 1, ()))])
    world.run(SECOND)
    end = a.end_of(op)
    assert end is not None
    assert end.kind == "null"


# -- 15 ----------------------------------------------------------------------------------------------------------


def test_rule_15_a_rebuilt_unit_is_a_link_failure_to_its_peers() -> None:
    """b's unit raises and is built again: it has lost its breadcrumbs. Its links stay up. a would wait without end."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.hosts["c"].answers = silent
    op = world.send("a", b"x", lifetime_ns=300 * SECOND)
    world.run(SECOND)
    world.rebuild("b")
    world.run(2 * SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "null"
    world.hosts["c"].answers = None
    assert world.request("a", b"again").kind == "done"


# -- 16 ----------------------------------------------------------------------------------------------------------


def test_rule_16_messages_that_wait_for_a_recovery_keep_their_order() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    for k in range(20):
        world.send("a", f"{k}".encode())
        if k == 10:
            world.run(3 * MILLISECOND)
    world.run(3 * SECOND)
    assert [int(d.data) for d in world.hosts["c"].delivered] == list(range(20))


def test_rule_16_a_direct_connection_begins_when_the_old_path_is_drained() -> None:
    world = line("a", "b", "c")
    publish(world, "c")
    a, c = world.hosts["a"], world.hosts["c"]
    world.post(a, [FindInstances(70, TREE, "role")])
    world.run(SECOND)
    found = a.told(FoundInstances)[0]
    c.answers = silent
    world.send("a", b"old path")
    world.run(SECOND)
    world.post(a, [ConnectTo(71, found.locations)])
    world.run(2 * SECOND)
    assert not a.told(Connected), "a request on the old path is pending"
    world.post(c, [AnswerMessage(c.delivered[-1].token, b"ok")])
    world.run(SECOND)
    assert a.told(Connected)


def test_rule_16_a_busy_sender_gets_its_direct_tree() -> None:
    """Requests on the old path overlap, so that it is never empty. Only those that were under way are waited for."""
    world = line("a", "b", "c")
    publish(world, "c")
    a, c = world.hosts["a"], world.hosts["c"]
    world.post(a, [FindInstances(70, TREE, "role")])
    world.run(SECOND)
    found = a.told(FoundInstances)[0]
    waiting: list[int] = []
    c.answers = lambda item: waiting.append(item.token)
    world.send("a", b"0")
    world.run(SECOND)
    world.post(a, [ConnectTo(71, found.locations)])
    world.run(SECOND)
    for k in range(1, 6):
        world.send("a", f"{k}".encode())
        world.run(SECOND // 2)
        world.post(c, [AnswerMessage(waiting.pop(0), b"ok")])
        world.run(SECOND // 2)
        assert waiting, "another request is under way"
    assert a.told(Connected)


def test_rule_16_all_frames_of_a_tree_share_one_channel() -> None:
    """A reply that overtook the route that it made would meet a node without that route."""
    world = line("a", "b", "c")
    channels: dict[str, set[int]] = {}
    transmit = world._transmit

    def noted(host: Host, peer: NodeId, item: SendChannel) -> None:
        for message in item.messages:
            channels.setdefault(type(decoder.decode(message)).__name__, set()).add(item.channel)
        transmit(host, peer, item)

    world._transmit = noted  # type: ignore[method-assign]
    publish(world, "c", "a")
    world.request("b", b"x")
    world.post(world.hosts["c"], [UnpublishRole(99, TREE, "role")])
    world.run(SECOND)
    used = [channels[name] for name in ("Message", "Reply", "Wave", "WaveAnswer", "Edge")]
    assert used == [{DATA}] * 5


# -- 17, 18 ------------------------------------------------------------------------------------------------------


def test_rule_17_an_aggregated_reply_names_what_failed() -> None:
    """Two holders. The link to one fails while its reply is pending. Others end such a query with one reply and no word
    about the other."""
    world = line("l", "b", "r")
    publish(world, "l", "r")
    left, right = instance(world, "l"), instance(world, "r")
    world.request("b", b"warm")
    world.hosts["l"].answers = silent
    op = world.send("b", b"x", aggregate=True)
    world.run(100 * MILLISECOND)
    world.cut("b", "l")
    world.run(SECOND)
    end = world.hosts["b"].end_of(op)
    assert end is not None
    assert sorted(end.expected) == sorted((left, right))
    assert end.answered == (right,)
    assert end.failed == ((left, "link_failed"),)
    assert end.incomplete


def test_rule_17_an_instance_that_no_reply_speaks_of_is_named() -> None:
    """A neighbour ends its copy without a word of the instance behind it."""
    world = line("l", "b", "r")
    publish(world, "l", "r")
    world.request("b", b"warm")

    def without_names(sender: Host, _receiver: Host, frame: Any) -> list[Any]:
        if isinstance(frame, Reply) and sender.name == "l":
            return [Reply(frame.request, frame.attempt, END, True)]
        return [frame]

    world.filter = without_names
    end = world.request("b", b"x", aggregate=True)
    assert sorted(end.expected) == sorted((instance(world, "l"), instance(world, "r")))
    assert end.unknown == (instance(world, "l"),)


def test_rule_18_a_running_request_is_not_performed_again() -> None:
    """The way back fails while the application works; the sender re-sends. The entry exists from delivery."""
    world = line("a", "b", "c")
    publish(world, "c")
    c = world.hosts["c"]
    c.answers = silent
    op = world.send("a", b"work")
    world.run(SECOND)
    world.cut("b", "c")
    world.run(SECOND)
    world.link("b", "c")
    world.run(SECOND)
    end = world.hosts["a"].end_of(op)
    assert end is not None
    assert end.kind == "null"
    again = world.send("a", b"work", request=end.request, attempt=1)
    world.run(2 * SECOND)
    assert c.got(b"work") == 1
    world.post(c, [AnswerMessage(c.delivered[0].token, b"result")])
    world.run(SECOND)
    assert world.hosts["a"].replies(again) == [b"result"]


def test_rule_18_a_full_cache_refuses() -> None:
    world = line("a", "b", config=msgspec.structs.replace(FAST, reply_cache_max=2))
    publish(world, "b")
    kinds = [world.request("a", f"{k}".encode(), run_ns=SECOND).kind for k in range(4)]
    assert kinds == ["done", "done", "null", "null"]
    assert world.receivers(b"2") == {}


def test_rule_18_an_answer_from_the_cache_does_not_end_the_way_to_others() -> None:
    """b answers a re-send from its cache at once, before it has sent the message on to c. The record must not end with
    that: the sender would get a complete outcome without c."""
    world = line("a", "b", "c")
    publish(world, "b", "c")
    first = world.request("a", b"once", aggregate=True)
    again = world.request("a", b"once", aggregate=True, request=first.request, attempt=1)
    assert sorted(data for _, data in first.replies) == [b"b", b"c"]
    assert sorted(data for _, data in again.replies) == [b"b", b"c"]
    assert again.kind == "done"
    assert world.receivers(b"once") == {"b": 1, "c": 1}


# -- 19, 20 ------------------------------------------------------------------------------------------------------


def test_rule_19_links_that_trees_replies_or_waves_use_stay() -> None:
    """The directory asks which links are wanted. A link that neither end names may rest."""
    world = line("a", "b", "c")
    publish(world, "c")
    a, b, c = (world.hosts[name] for name in "abc")
    # The mesh of three wants every link; here it wants none.
    for host in (a, b, c):
        host.machine.planned([other.id for other in (a, b, c) if other is not host])
        host.machine.mesh._wanted = {}
    members = [b.id, c.id]
    assert a.machine.planned(members) == {}
    c.answers = silent
    op = world.send("a", b"x", instance=instance(world, "c"))
    world.run(SECOND)
    assert a.machine.planned(members) == {b.id: True}, "the tree has an edge there"
    for host in (a, b):
        host.machine.cache.drop(TREE)
    assert b.machine.planned([a.id, c.id]) == {a.id: True}, "a waits for a reply of b"
    world.post(c, [AnswerMessage(c.delivered[0].token, b"ok")])
    world.run(SECOND)
    assert a.end_of(op) is not None
    assert b.machine.planned([a.id, c.id]) == {}


def test_rule_20_links_per_node_grow_with_the_logarithm() -> None:
    degrees = {}
    for size in (64, 256, 1024):
        members = {node_id(f"n{k}"): "r" for k in range(size)}
        config = OverlayConfig(mesh_all_up_to=0)
        made = {node: links_made_by(node, members, config) for node in members}
        degree = dict.fromkeys(members, 0)
        for node, peers in made.items():
            for peer in peers:
                degree[node] += 1
                degree[NodeId(peer)] += 1
        degrees[size] = max(degree.values())
        assert degrees[size] <= 2 * (config.successors + size.bit_length())
    assert degrees[1024] - degrees[256] <= 4


def test_rule_20_paths_grow_with_the_logarithm() -> None:
    """The successors alone would mean n/2k hops: 128 for these nodes."""
    members = {node_id(f"n{k}"): "r" for k in range(1024)}
    config = OverlayConfig(mesh_all_up_to=0)
    links: dict[bytes, dict[bytes, bool]] = {node: {} for node in members}
    for node in members:
        for peer in links_made_by(node, members, config):
            links[node][peer] = links[peer][node] = True
    reached = [node_id("n0")]
    hops = {reached[0]: 0}
    for node in reached:
        for peer in links[node]:
            if peer not in hops:
                hops[peer] = hops[node] + 1
                reached.append(peer)
    assert len(hops) == 1024
    assert max(hops.values()) <= len(members).bit_length()


def test_rule_20_spew_hops_are_for_failures_not_for_evictions() -> None:
    """b forgets the tree. Its neighbours are told whom to ask; no message is sent on all links."""
    world = line("a", "b", "c", config=msgspec.structs.replace(FAST, trees_max=1))
    publish(world, "a")
    publish(world, "c")
    world.by_type.clear()
    publish(world, "a", role="other", tree="another")
    publish(world, "c", role="other", tree="another")
    assert counter(world.hosts["b"], "tree_evicted") >= 1
    end = world.request("a", b"x", aggregate=True)
    assert sorted(d for _, d in end.replies) == [b"a", b"c"]
    assert counter(world.hosts["a"], "recovery_floods") == 0


def test_rule_20_a_node_that_is_not_the_owner_passes_a_query_on() -> None:
    """The map of the asking node is out of date: it takes another node for the owner."""
    world = line("a", "b", "c", "d")
    publish(world, "d")
    a = world.hosts["a"]
    owner = a.machine.search.owner(role_key(TREE, "role"), 0)
    other = next(h for h in world.hosts.values() if h.id != owner and h is not a)
    a.machine.topology._ordered = {a.realm: [other.id]}
    assert a.machine.search.owner(role_key(TREE, "role"), 0) == other.id
    world.post(a, [SearchRole(80, TREE, "role")])
    world.run(SECOND)
    result = a.told(SearchResult)[0]
    assert result.ok
    assert result.entry is not None
    assert result.entry.instance == instance(world, "d")
    assert counter(other, "search_passed_on") == 1


def test_rule_20_recoveries_of_one_turn_travel_together() -> None:
    """A link with routes to 30 roles is lost. Recoveries for all of them share a few frames."""
    world = World(1)
    for name in ("s", "a", "b", "t"):
        world.add(name)
    for pair in (("s", "a"), ("a", "t"), ("s", "b"), ("b", "t")):
        world.link(*pair)
    world.run(2 * SECOND)
    roles = [f"r{k}" for k in range(30)]
    world.post(
        world.hosts["t"],
        [PublishMany(tuple(PublishRole(world.op(), TREE, role) for role in roles))],
    )
    world.run(3 * SECOND)
    for role in roles:
        world.send("s", b"warm", role=role)
    world.run(3 * SECOND)
    via = next(iter(world.hosts["s"].machine.inspect.routes(TREE, "r0").values()))
    world.cut("s", world.by_id[via].name)
    world.run(SECOND)
    world.by_type.clear()
    sends = [SendToRole(world.op(), TREE, role, b"x", PORT) for role in roles]
    world.post(world.hosts["s"], list(sends))
    world.run(3 * SECOND)
    assert len([d for d in world.hosts["t"].delivered if d.data == b"x"]) == 30
    assert world.by_type.get("Bulk", 0) + world.by_type.get("Wave", 0) <= 15


def test_rule_20_a_role_that_missed_a_dropped_unpartition_event_asks_the_first_instance() -> None:
    """The list is bounded. A role that was not used while its events were dropped must not count as built."""
    world = line(
        "a",
        "b",
        "c",
        "d",
        config=msgspec.structs.replace(FAST, events_max=1, refresh_ns=600 * SECOND),
    )
    publish(world, "d")
    publish(world, "b")
    a = world.hosts["a"].machine
    world.request("a", b"warm")
    cuts = a.cuts
    for number in (1, 2, 3):
        colours = (bytes([number]) * 16, bytes([number + 10]) * 16)
        cuts.add(CutHealed(node_id("a"), "default", node_id("b"), number, colours))
    assert counter(world.hosts["a"], "unpartition_dropped") == 2
    asked = []

    def watch(sender: Host, _receiver: Host, frame: Any) -> None:
        if isinstance(frame, Wave) and frame.kind == SEARCH and frame.op == GET:
            asked.append(sender.name)

    world.watch = watch
    assert not a.inspect.built(TREE, "role")
    assert world.request("a", b"x").kind == "done"
    assert "a" in asked
    assert a.inspect.built(TREE, "role")
    asked.clear()
    world.request("a", b"y")
    assert asked == [], "once is enough"
    assert world.receivers(b"y") == {"b": 1, "d": 1}


# -- 10 ----------------------------------------------------------------------------------------------------------


def test_rule_10_a_reverse_route_without_a_record_unbuilds_both_ends() -> None:
    """A triangle with a cycle. The way back of the message has forgotten it: the reverse route cannot be completed, and
    both ends of the removed edge must ask before they send again."""
    world = World(5)
    for name in ("a", "b", "c"):
        world.add(name)
    world.line("a", "b", "c", "a")
    world.run(2 * SECOND)
    publish(world, "c")
    publish(world, "b")
    world.request("a", b"warm")
    a, b = world.hosts["a"].machine, world.hosts["b"].machine
    forged = numbered(node_id("c"), 1, 77)
    a.router.cycles.reversed(
        NodeId(node_id("b")), Reverse(TREE, "role", forged, 0, (node_id("b"), node_id("a")))
    )
    world.post(world.hosts["a"], [])
    world.run(SECOND)
    assert node_id("b") in a.inspect.lost(TREE, "role")
    assert node_id("a") in b.inspect.lost(TREE, "role")
    assert counter(world.hosts["a"], "suspicious_breaks") == 1


def test_rule_10_a_break_for_a_message_that_was_not_sent_is_ignored() -> None:
    """A hostile neighbour tries to cut an edge."""
    world = line("a", "b", "c")
    publish(world, "c")
    world.request("a", b"warm")
    a = world.hosts["a"]
    forged = Break(TREE, "role", numbered(a.id, 1, 999), 0, False)
    a.machine.router.cycles.broken(NodeId(node_id("b")), forged)
    assert a.machine.inspect.built(TREE, "role")
    assert counter(a, "break_without_message") == 1


def test_rule_10_a_copy_on_a_route_found_later_breaks_nothing() -> None:
    """s asks p, which does not answer yet. q publishes and gets the message from p; then s finds a route to q of its
    own, and sends it there too. q has it already: that is no circle, and neither edge is one too many."""
    world = World(5)
    for name in ("s", "p", "q"):
        world.add(name)
    world.line("s", "p", "q", "s")
    world.run(2 * SECOND)
    publish(world, "p")
    world.hosts["p"].answers = silent
    world.send("s", b"m", lifetime_ns=60 * SECOND)
    world.run(SECOND)
    publish(world, "q")
    copies: list[tuple[str, str]] = []

    def watch(sender: Host, receiver: Host, frame: Any) -> None:
        if isinstance(frame, Message) and frame.data == b"m":
            copies.append((sender.name, receiver.name))

    world.watch = watch
    world.request("s", b"named", instance=instance(world, "q"))
    assert copies == [("s", "q")]
    assert world.receivers(b"m") == {"p": 1, "q": 1}
    assert sum(counter(host, "duplicates") for host in world.hosts.values()) == 1
    assert sum(counter(host, "cycles") for host in world.hosts.values()) == 0


def broken_way(world: World) -> tuple[Host, bytes]:
    """x, whose message came from b and went on to c; the request id of that message."""
    publish(world, "d")
    seen: list[bytes] = []
    world.watch = lambda s, r, f: seen.append(f.request) if isinstance(f, Message) else None
    world.request("a", b"x")
    return world.hosts["b"], seen[0]


@pytest.mark.parametrize("what", ["another break", "a dead link"])
def test_rule_10_a_way_back_that_is_broken_itself_unbuilds_both_ends(what: str) -> None:
    """Two messages circle in opposite directions, and each breaks an edge of the way back of the other."""
    world = line("a", "b", "c", "d")
    b, request = broken_way(world)
    cycles = b.machine.router.cycles
    if what == "another break":
        cycles._note_broken(TREE, node_id("a"))
    else:
        b.machine.hub.neighbours[node_id("a")].echoed = False
    ends = (node_id("c"), node_id("d"))
    cycles.reversed(node_id("c"), Reverse(TREE, "role", request, 0, ends))
    world.post(b, [])
    world.run(SECOND)
    assert counter(b, "suspicious_breaks") == 1
    assert node_id("a") not in b.machine.inspect.route_links(TREE, "role")
    assert node_id("d") in world.hosts["c"].machine.inspect.lost(TREE, "role")
    assert node_id("c") in world.hosts["d"].machine.inspect.lost(TREE, "role")
