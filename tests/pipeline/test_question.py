"""P5: a small language for questions over history, with errors that say where and what was expected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.question import (
    All,
    Clean,
    Compare,
    Either,
    Not,
    QuestionUnclear,
    clauses,
    parse,
)

DAY = 86_400.0


@pytest.mark.parametrize(
    ("question", "tree"),
    [
        ("clean for 30d", Clean(30 * DAY)),
        ("clean of size for 2w", Clean(14 * DAY, "size")),
        ("size >= 4096", Compare("size", ">=", 4096.0)),
        ("protocol = udp", Compare("transport", "=", "udp")),
        ("protocol = UDP", Compare("transport", "=", "udp")),
        ("state != 'soft error'", Compare("state", "!=", "soft error")),
        ("sender = 'rack 7'", Compare("sender_name", "=", "rack 7")),
        ("loss < 1%", Compare("loss_ratio", "<", 0.01)),
        ("rtt_p99 <= 2.5ms", Compare("rtt_p99_us", "<=", 2500.0)),
        ("SIZE>=1", Compare("size", ">=", 1.0)),
        (
            "clean for 30d and size >= 4096 and protocol = udp",
            All((Clean(30 * DAY), Compare("size", ">=", 4096.0), Compare("transport", "=", "udp"))),
        ),
        (
            "not clean for 1h or (size < 576 and subnet != lan1)",
            Either(
                (
                    Not(Clean(3600.0)),
                    All((Compare("size", "<", 576.0), Compare("subnet", "!=", "lan1"))),
                )
            ),
        ),
    ],
)
def test_questions(question: str, tree: object) -> None:
    assert parse(question) == tree


@pytest.mark.parametrize(
    ("question", "problem", "column"),
    [
        ("", "the question is empty", 0),
        ("siez >= 1", "unknown field 'siez': did you mean 'size'?", 0),
        ("clean of smell for 1d", "unknown class 'smell'; there are dead, size", 9),
        ("clean for ever", "'ever' is not a duration", 10),
        ("clean 30d", "expected 'for' and a duration", 6),
        ("size 4096", "expected one of <=, >=", 5),
        ("size >= large", "'size' is a number, 'large' is none", 8),
        ("protocol >= udp", "'protocol' is a text: compare it with = or !=", 9),
        ("size >= 1 size", "expected 'and', 'or' or the end", 10),
        ("(size >= 1", "expected a closing bracket", 10),
        ("size >=", "expected a value", 7),
        ("size >= 1 and", "expected a condition", 13),
        ("protocol = upd", "'protocol' is never 'upd': did you mean 'udp'?", 11),
        ("state = broken", "'state' is never 'broken'; there are ok, soft error, dead", 8),
        ("size >= nan", "'size' is a number, 'nan' is none", 8),
        ("rtt_p99 < inf", "'rtt_p99' is a round trip, 'inf' is none", 10),
        ("clean for 11000d", "'11000d' is longer than ten years", 10),
        (" or ".join(f"clean for {n}d" for n in range(1, 10)), "more than 8 different", 0),
    ],
)
def test_an_unclear_question_shows_where(question: str, problem: str, column: int) -> None:
    with pytest.raises(QuestionUnclear) as error:
        parse(question)
    text = str(error.value)
    assert problem in text
    assert "nothing was asked" in text
    assert text.splitlines()[-1] == "  " + " " * column + "^"


@given(st.text(alphabet="clean for30d and()or not size>=<!'\"% \n", max_size=60))
def test_any_text_is_a_question_or_a_clear_error(text: str) -> None:
    said = ""
    try:
        parse(text)
    except QuestionUnclear as unclear:
        said = str(unclear)
    assert not said or "nothing was asked" in said


def test_the_clean_clauses_of_a_question_are_found_once() -> None:
    tree = parse("clean for 1d and (clean of size for 2d or not clean for 1d)")
    assert clauses(tree) == [Clean(DAY), Clean(2 * DAY, "size")]
