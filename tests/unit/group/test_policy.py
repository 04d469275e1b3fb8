"""Actions and the table that chooses between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.group.frames import StreamId
from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action, Ignore, parse_action
from holdfast.group.loss.loss_info import (
    AgeInfo,
    ClusterStatus,
    LossInfo,
    MessageHolder,
    RecoveryInfo,
    TransportInfo,
)
from holdfast.group.loss.policy import Policy
from holdfast.group.loss.rule import Rule
from holdfast.group.section import groups_of
from holdfast.group.streams.values import Indication
from holdfast.node.config import parse_config
from holdfast.types import SECOND

S = StreamId(b"s" * 16, 1, 0)


def info(**changes: Any) -> LossInfo:
    """Two messages of source n4 lost, of priorities 1 and 2 of three, three seconds old; n2 has them."""
    plain = {
        "group": "g", "question": 1, "attempt": 1, "lost": ((5, 6),), "count": 2,
        "cluster": ClusterStatus(3, 3, False, ("n2", "n3")),
        "transport": TransportInfo("n4", True, False, S, ("rain",), "datagram", 100, 9, 90, 2),
        "priorities": Indication(3, ((6, 2),), (0, 1, 1), (0, 1, 1)),
        "next": (), "recovery": RecoveryInfo((MessageHolder("replica", "n2", 2),), 1000),
        "age": AgeInfo(4 * SECOND, 3 * SECOND),
    }  # fmt: skip
    return LossInfo(**(plain | changes))


@pytest.mark.parametrize(
    ("conditions", "matches"),
    [
        ({}, True),
        ({"priority": 1}, True),
        ({"priority": 2}, False),
        ({"topic": "rain"}, True),
        ({"topic": "sun"}, False),
        ({"source": "n4"}, True),
        ({"source": "n5"}, False),
        ({"count_max": 2}, True),
        ({"count_max": 1}, False),
        ({"age_min_s": 3}, True),
        ({"age_min_s": 3.5}, False),
        ({"alone": False}, True),
        ({"alone": True}, False),
        ({"recoverable": True}, True),
        ({"recoverable": False}, False),
        ({"source_gone": False}, True),
        ({"source_gone": True}, False),
        ({"attempt_min": 1}, True),
        ({"attempt_min": 2}, False),
        ({"priority": 1, "topic": "rain", "count_max": 1}, False),
    ],
)
def test_a_rule_matches_when_all_its_conditions_hold(
    conditions: dict[str, Any], matches: bool
) -> None:
    assert Rule("drop", **conditions).matches(info()) == matches


def test_a_rule_about_priorities_does_not_match_when_nothing_is_certain() -> None:
    unknown = Indication(3, (), (0, 0, 0), (2, 2, 2))
    assert not Rule("drop", priority=1).matches(info(priorities=unknown))


def test_the_first_rule_that_matches_decides() -> None:
    policy = Policy((Rule("drop", priority=2), Rule("suspend", source="n4"), Rule("drop")))
    assert policy.answer(info()) == ("rule 2", SUSPEND)
    assert policy.answer(info(), refused=("suspend",)) == ("rule 3", DROP)


def test_recovery_that_would_end_in_what_is_refused_is_tried_once() -> None:
    policy = Policy((Rule("recover else suspend"), Rule("drop")))
    fallback = RECOVER.otherwise(SUSPEND)
    assert policy.answer(info(), refused=("suspend",)) == ("rule 1", fallback)
    assert policy.answer(info(), refused=("suspend",), tried=True) == ("rule 2", DROP)


def test_behind_every_table_what_may_come_back_is_waited_for_and_the_rest_dropped() -> None:
    policy = Policy(())
    nowhere = info(recovery=RecoveryInfo((), 0))
    gone = msgspec.structs.replace(nowhere.transport, source_gone=True)
    assert policy.answer(info()) == ("rule 1", RECOVER)
    assert policy.answer(nowhere) == ("rule 2", RECOVER)
    lost = msgspec.structs.replace(nowhere, transport=gone)
    assert policy.answer(lost) == ("rule 3", RECOVER.otherwise(DROP))


def test_only_the_rule_that_decides_may_decide_at_once() -> None:
    careful = Policy((Rule("recover", priority=1), Rule("drop", at_once=True)))
    assert careful.answer(info(), at_once=True) is None
    quick = Policy((Rule("drop", priority=1, at_once=True),))
    assert quick.answer(info(), at_once=True) == ("rule 1", DROP)


def test_words_say_actions() -> None:
    assert parse_action("Recover  else suspend", Ignore()) == RECOVER.otherwise(SUSPEND)
    assert parse_action("suspend and ignore", Ignore()) == SUSPEND.and_ignore()
    rule = Rule("recover else ignore", within_s=2, ignore_by=("topic",), ignore_count=5)
    assert rule.meant() == Action("recover", "drop", 2 * SECOND, None, Ignore(("topic",), 0, 5))
    assert rule.meant().text() == "recover else drop and ignore by topic for 5 messages"


def test_actions_combine() -> None:
    assert IGNORE(("source",), resync=True) == DROP.and_ignore(("source",), resync=True)
    first = RECOVER.and_ignore(count=2)
    assert first.otherwise(SUSPEND) == Action("recover", "suspend", 0, Ignore(count=2))
    both = first.otherwise(IGNORE(seconds=1))
    assert (both.ignore, both.failing_ignore) == (Ignore(count=2), Ignore(for_ns=SECOND))
    assert (
        both.text()
        == "recover and ignore by stream for 2 messages else drop and ignore by stream for 1 s"
    )
    with pytest.raises(ConfigError, match="no alternative"):
        DROP.otherwise(SUSPEND)
    with pytest.raises(ConfigError, match="source, stream, topic, priority"):
        DROP.and_ignore(("colour",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        lambda: IGNORE(count=-1),
        lambda: IGNORE(count=True),
        lambda: IGNORE(count=2.5),  # type: ignore[arg-type]
        lambda: IGNORE(count=1 << 64),
        lambda: IGNORE(seconds=-5),
        lambda: IGNORE(seconds=float("nan")),
        lambda: IGNORE(seconds=float("inf")),
        lambda: IGNORE(resync=1),  # type: ignore[arg-type]
        lambda: Ignore(for_ns=-1),
        lambda: Ignore(for_ns=0.5),  # type: ignore[arg-type]
        lambda: Ignore("stream"),  # type: ignore[arg-type]
        lambda: RECOVER.within(-1),
        lambda: Action("leave"),  # type: ignore[arg-type]
        lambda: Action("recover", "recover"),  # type: ignore[arg-type]
        lambda: Action("drop", ignore="stream"),  # type: ignore[arg-type]
        lambda: msgspec.structs.replace(RECOVER, limit_ns=-1),
    ],
)
def test_what_no_follower_could_take_is_no_action(made: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        made()


def test_the_shortest_time_is_not_unlimited() -> None:
    assert IGNORE(seconds=1e-12).ignore == Ignore(for_ns=1)


FILE = """
domain = "d"
name = "a"
[security]
mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:7400"
[[group]]
name = "g"
voters = ["a"]
leader = "a"
priorities = 3
[[group.loss]]
priority = 2
action = "drop"
at_once = true
[[group.loss]]
{line}
"""


def test_a_table_in_a_file_becomes_the_policy_of_the_group() -> None:
    config = parse_config(FILE.replace("{line}", 'action = "recover else suspend"\nwithin_s = 2'))
    rules = groups_of(config)[0].policy
    assert [rule.meant() for rule in rules] == [DROP, RECOVER.otherwise(SUSPEND).within(2)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('action = "recover els drop"', "did you mean 'recover else drop'"),
        ('action = "drop"\nprioritty = 1', "did you mean 'priority'"),
        ('action = "ignore"\nignore_by = ["steam"]', "steam"),
        ('action = "drop"\nat_once = true\nattempt_min = 2', "before any recovery attempt"),
        ('action = "drop"\nat_once = true\nrecoverable = false', "cannot have recoverable"),
        ('action = "recover else drop"\nat_once = true', "can only drop or ignore"),
        ('action = "ignore"\nignore_count = -1', "count to ignore is -1"),
        ('action = "ignore"\nignore_s = -5', "time to ignore is -5"),
        ('action = "ignore"\nignore_s = nan', "time to ignore is nan"),
        ('action = "ignore"\nignore_s = inf', "time to ignore is inf"),
        ('action = "drop"\nignore_count = -1', "count to ignore is -1"),
        ('action = "recover"\nwithin_s = -1', "time for recovery is -1"),
        ('action = "recover"\nwithin_s = nan', "time for recovery is nan"),
        ('action = "drop"\nage_min_s = nan', "age_min_s is nan"),
        ('action = "drop"\nage_min_s = -1', "age_min_s is -1"),
        ('action = "drop"\npriority = -1', "priority of a rule is -1"),
        ('action = "drop"\npriority = 3', "has priority 3, .* are 0 to 2"),
        ('action = "drop"\ncount_max = 0', "count_max of a rule is 0"),
        ('action = "drop"\nattempt_min = 0', "attempt_min of a rule is 0"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_the_nearest_word(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(FILE.replace("{line}", line))
