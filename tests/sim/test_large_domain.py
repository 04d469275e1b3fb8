"""Domains above the limit of `mesh_all_up_to`: links to neighbours of the mesh, and to what nodes use."""

from __future__ import annotations

import pytest
from tests.support.large_domain import LargeDomain

from holdfast.dialog.ports import Opened, Taken
from holdfast.types import SECOND


@pytest.mark.parametrize(
    ("nodes", "replicas"),
    [
        (16, ("n2", "n7", "n12")),
        pytest.param(40, ("n5", "n19", "n33"), marks=pytest.mark.campaign),
    ],
)
def test_a_group_and_a_dialog_work_between_nodes_that_are_not_neighbours(
    nodes: int, replicas: tuple[str, ...]
) -> None:
    """O1, O12, H19 and rule 19: production nodes; groups and dialogs lease the links that the mesh lacks."""
    domain = LargeDomain(1, nodes, {"book": replicas})
    domain.form()
    me = domain.names[-1]
    strangers = [n for n in domain.names if n not in domain.links(me) and n != me]
    assert strangers, "the mesh is sparse"
    apart = [r for r in replicas if set(replicas) - {r} - set(domain.mesh(r))]
    assert apart, "some replicas are not neighbours in the mesh"

    domain.multicast(replicas[1], "book", [b"one", b"two", b"three"])
    partner = strangers[0]
    here, there = domain.dialogs[me], domain.dialogs[partner]
    here.use_store()
    there.use_store()
    there.listen("echo")
    token = here.open(partner, "echo")
    domain.world.run_for(3 * SECOND)
    opened = here.answers[token]
    assert isinstance(opened, Opened)
    assert partner in domain.links(me), "the dialog leased a link"
    here.send(opened.dialog, [b"hello", b"again"])
    domain.world.run_for(2 * SECOND)
    token = there.take(opened.dialog, 2)
    domain.world.run_for(SECOND)
    got = there.answers.get(token)
    assert isinstance(got, Taken), (got, here.events, there.events)
    assert [bytes(m.body) for m in got.messages] == [b"hello", b"again"]
    counts = {name: domain.ledgers[name].state.count for name in replicas}
    assert counts == dict.fromkeys(replicas, 3)
    domain.world.finish()


def test_roles_reach_all_instances_over_several_hops_and_in_one_after_connecting() -> None:
    """O4 and O12 with production nodes: the checkers of the overlay watch the run."""
    domain = LargeDomain(2, 14)
    domain.form()
    holders = ["n3", "n8", "n12"]
    for name in holders:
        domain.roles[name].publish("worker")
    domain.world.run_for(2 * SECOND)
    asker = domain.names[-1]
    user = domain.roles[asker]
    first = user.request("worker", b"over the tree")
    find = user.find("worker")
    domain.world.run_for(2 * SECOND)
    assert sorted(data for _, data in user.done[first].replies) == [b"n12", b"n3", b"n8"]
    found = user.done[find]
    assert len(found.locations) == 3

    connect = user.connect(found)
    domain.world.run_for(3 * SECOND)
    tree = user.done[connect]
    assert len(tree.one_hop) == 3
    assert set(holders) <= set(domain.links(asker))
    second = user.request("*", b"in one hop", tree.tree)
    domain.world.run_for(SECOND)
    assert sorted(data for _, data in user.done[second].replies) == [b"n12", b"n3", b"n8"]
    assert [domain.roles[name].got for name in holders] == [[b"over the tree", b"in one hop"]] * 3
    domain.world.finish()
