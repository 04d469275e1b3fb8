"""Setting a group up, and which unit a frame is for."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.errors import ConfigError, HoldfastError
from holdfast.group import GROUP_FRAMES, GroupConfig, ReplicaMachine, units_for
from holdfast.group.frames import Append, CommitQuery, CommitReply, Freed, Nack, Payload, StreamId
from holdfast.health.frames import Heartbeat
from holdfast.types import NodeId

S = StreamId(b"s" * 16, 1, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"voters": ()}, "at least one voter"),
        ({"name": ""}, "needs a name"),
        ({"leader": "z"}, "not one of its voters"),
        ({"leader": "l", "learners": ("l",)}, "not one of its voters"),
        ({"learners": ("a",)}, "listed twice"),
        ({"voters": tuple("abcdefghij")}, "at most 9"),
        ({"window_bytes": 100_000}, "window_bytes"),
        ({"nack_delay_ns": 0}, "nack_delay_ns"),
        ({"never_lead": ("z",)}, "'z' is not one of its replicas"),
        ({"never_lead": ("a",)}, "no replica may lead"),
        ({"election_ns": 50_000_000}, "election_ns"),
    ],
)
def test_a_group_that_cannot_work_is_refused_with_the_reason(
    settings: dict[str, Any], message: str
) -> None:
    good: dict[str, Any] = {"name": "g", "voters": ("a", "b", "c"), "leader": "a"}
    GroupConfig(**good)
    with pytest.raises(ConfigError, match=message):
        GroupConfig(**(good | settings))


def test_unknown_settings_are_refused() -> None:
    text = b'{"name": "g", "voters": ["a"], "leader": "a", "windw_bytes": 1}'
    with pytest.raises(msgspec.ValidationError, match="windw_bytes"):
        msgspec.json.decode(text, type=GroupConfig)


@pytest.mark.parametrize(
    ("settings", "founder"),
    [({}, "a"), ({"leader": "b"}, "b"), ({"never_lead": ("a", "b")}, "c")],
    ids=str,
)
def test_the_founder_is_the_wanted_leader_or_the_first_that_may_lead(
    settings: dict[str, Any], founder: str
) -> None:
    assert GroupConfig("g", ("a", "b", "c"), **settings).founder == founder


def test_a_stranger_cannot_be_a_replica() -> None:
    config = GroupConfig("g", ("a",), "a")
    with pytest.raises(HoldfastError, match="not a replica of group g"):
        ReplicaMachine(
            config=config, node=NodeId(b"z" * 16), name="z", incarnation=1, rng=Random(1)
        )


def test_frames_find_their_units() -> None:
    assert units_for(Payload("g", S, 1, 1, 0, memoryview(b""))) == ("replica/g", "messages/g")
    assert units_for(Append("g", 1, 0, 0, 0)) == ("replica/g",)
    assert units_for(Nack("g", S, ())) == ("source/g", "replica/g")
    assert units_for(Freed("g", ())) == ("source/g", "replica/g")
    assert units_for(CommitQuery("g", S, 1)) == ("replica/g",)
    assert units_for(CommitReply("g", S, 1)) == ("source/g",)
    assert units_for(Heartbeat(1, 2, 3)) == ()
    assert Heartbeat not in GROUP_FRAMES
