"""The question language (SPEC P5): which paths satisfy this, now and in history?

    question := term { "or" term }
    term     := factor { "and" factor }
    factor   := "not" factor | "(" question ")" | clause
    clause   := "clean" [ "of" CLASS ] "for" DURATION
              | FIELD ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) VALUE

`clean for 30d and size >= 4096 and protocol = udp`. A duration is a number with s, m, h, d or w, of ten years at most.
A value is a word, a quoted text, a number, a percentage (`1%`) or a time (`5ms`, `200us`) where the field is a share or
a round trip. Fields with few values (`protocol`, `state`) take those only: a typing error is no empty answer.
This module parses; `ask` answers.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.pipeline.verdict import CLASSES

TEXT: Final = "text"
NUMBER: Final = "number"
SHARE: Final = "share"
MICROS: Final = "round trip"

FIELDS: Final = {
    "size": ("size", NUMBER),
    "size_max": ("size_max", NUMBER),
    "worst_size": ("worst_size", NUMBER),
    "protocol": ("transport", TEXT),
    "transport": ("transport", TEXT),
    "subnet": ("subnet", TEXT),
    "sender": ("sender_name", TEXT),
    "listener": ("listener_name", TEXT),
    "sender_adapter": ("sender_adapter", TEXT),
    "listener_adapter": ("listener_adapter", TEXT),
    "state": ("state", TEXT),
    "loss": ("loss_ratio", SHARE),
    "coverage": ("coverage", SHARE),
    "rtt_p50": ("rtt_p50_us", MICROS),
    "rtt_p99": ("rtt_p99_us", MICROS),
    "jitter": ("jitter_us_max", MICROS),
    "degradations": ("degradations", NUMBER),
    "deaths": ("deaths", NUMBER),
}
"""Word of the language to the column of `path_health` and the kind of its values."""

TRANSPORTS: Final = ("udp", "tcp", "multicast", "frag")
VALUES: Final = {"transport": TRANSPORTS, "state": ("ok", "soft error", "dead")}
"""Columns with few values, in lower case."""

OPERATORS: Final = ("<=", ">=", "!=", "=", "<", ">")
_ORDERED: Final = frozenset(("<", "<=", ">", ">="))
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<op><=|>=|!=|=|<|>)|(?P<paren>[()])|(?P<quoted>"[^"]*"|'[^']*')|(?P<word>[^\s()<>=!"']+))"""
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)?")
_TIME_US: Final = {"us": 1.0, "ms": 1e3, "s": 1e6, None: 1.0}
_DEPTH_MAX: Final = 50
_CLEAN_MAX: Final = 8
"""Different `clean` clauses in one question: each is a pass over the incidents."""
_DURATION_S_MAX: Final = 10 * 366 * 86_400
"""Longer than anything is kept."""


class Clean(msgspec.Struct, frozen=True):
    """No incident, of one class or of any, for so long."""

    seconds: float
    error_class: str = ""


class Compare(msgspec.Struct, frozen=True):
    """A column against a value."""

    column: str
    operator: str
    value: str | float


class Not(msgspec.Struct, frozen=True):
    item: Node


class All(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


class Either(msgspec.Struct, frozen=True):
    items: tuple[Node, ...]


Node = Clean | Compare | Not | All | Either


class QuestionUnclear(MisuseError):
    """A question that cannot be parsed; says where and what was expected."""


class _Token(msgspec.Struct, frozen=True):
    text: str
    at: int
    quoted: bool = False


def parse(question: str) -> Node:
    """The question as a tree; raises `QuestionUnclear`."""
    return _Parser(question).whole()


def clauses(node: Node) -> list[Clean]:
    """All `clean` clauses of a question, in order, each once."""
    found: list[Clean] = []
    stack = [node]
    while stack:
        item = stack.pop(0)
        if isinstance(item, Clean) and item not in found:
            found.append(item)
        elif isinstance(item, Not):
            stack.insert(0, item.item)
        elif isinstance(item, All | Either):
            stack[:0] = item.items
    return found


class _Parser:
    def __init__(self, question: str) -> None:
        self._question = question
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        if not self._tokens:
            raise self._unclear("the question is empty", 0)
        node = self._either()
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            raise self._unclear(f"expected 'and', 'or' or the end, not {token.text!r}", token.at)
        if len(clauses(node)) > _CLEAN_MAX:
            raise self._unclear(f"more than {_CLEAN_MAX} different 'clean' conditions", 0)
        return node

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        text = self._question.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                raise self._unclear(f"cannot read {text[start : start + 10]!r}", start)
            kind = match.lastgroup or ""
            word = match[kind]
            quoted = kind == "quoted"
            tokens.append(_Token(word[1:-1] if quoted else word, match.start(kind), quoted))
            at = match.end()
        return tokens

    def _either(self) -> Node:
        items = [self._both()]
        while self._take("or"):
            items.append(self._both())
        return items[0] if len(items) == 1 else Either(tuple(items))

    def _both(self) -> Node:
        items = [self._factor()]
        while self._take("and"):
            items.append(self._factor())
        return items[0] if len(items) == 1 else All(tuple(items))

    def _factor(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._unclear("too many nested brackets", 0)
        try:
            if self._take("not"):
                return Not(self._factor())
            if self._take("("):
                node = self._either()
                self._expect(")", "a closing bracket")
                return node
            return self._clause()
        finally:
            self._depth -= 1

    def _clause(self) -> Node:
        token = self._next("a condition, for example 'clean for 30d' or 'size >= 4096'")
        if token.text.lower() == "clean" and not token.quoted:
            return self._clean()
        if token.text.lower() not in FIELDS or token.quoted:
            words = (*FIELDS, "clean")
            raise self._unclear(
                f"unknown field {token.text!r}{_nearest(token.text, words)}", token.at
            )
        return self._comparison(token)

    def _clean(self) -> Clean:
        error_class = ""
        if self._take("of"):
            token = self._next("a class of errors")
            error_class = token.text.lower()
            if error_class not in CLASSES:
                known = ", ".join(CLASSES)
                raise self._unclear(f"unknown class {token.text!r}; there are {known}", token.at)
        self._expect("for", "'for' and a duration")
        token = self._next("a duration such as 30d")
        match = _DURATION.fullmatch(token.text)
        if match is None or float(match[1]) <= 0:
            raise self._unclear(
                f"{token.text!r} is not a duration: a number with s, m, h, d or w", token.at
            )
        seconds = float(match[1]) * _UNIT_S[match[2]]
        if seconds > _DURATION_S_MAX:
            raise self._unclear(f"{token.text!r} is longer than ten years", token.at)
        return Clean(seconds, error_class)

    def _comparison(self, field: _Token) -> Compare:
        column, kind = FIELDS[field.text.lower()]
        operator = self._next(f"a comparison after {field.text!r}")
        if operator.text not in OPERATORS:
            raise self._unclear(f"expected one of {', '.join(OPERATORS)}", operator.at)
        if kind == TEXT and operator.text in _ORDERED:
            raise self._unclear(f"{field.text!r} is a text: compare it with = or !=", operator.at)
        value = self._next("a value")
        if kind == TEXT:
            return Compare(column, operator.text, self._text(value, column, field.text))
        number = _number(value.text, kind)
        if not math.isfinite(number):
            raise self._unclear(f"{field.text!r} is a {kind}, {value.text!r} is none", value.at)
        return Compare(column, operator.text, number)

    def _text(self, token: _Token, column: str, field: str) -> str:
        known = VALUES.get(column)
        if known is None:
            return token.text
        if token.text.lower() not in known:
            raise self._unclear(
                f"{field!r} is never {token.text!r}{_nearest(token.text, known)}", token.at
            )
        return token.text.lower()

    def _take(self, word: str) -> bool:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.text.lower() == word and not token.quoted:
                self._at += 1
                return True
        return False

    def _expect(self, word: str, what: str) -> None:
        if not self._take(word):
            at = self._tokens[self._at].at if self._at < len(self._tokens) else len(self._question)
            raise self._unclear(f"expected {what}", at)

    def _next(self, what: str) -> _Token:
        if self._at == len(self._tokens):
            raise self._unclear(f"expected {what}", len(self._question))
        self._at += 1
        return self._tokens[self._at - 1]

    def _unclear(self, problem: str, at: int) -> QuestionUnclear:
        return QuestionUnclear(f"{problem}; nothing was asked\n  {self._question}\n  {' ' * at}^")


def _number(text: str, kind: str) -> float:
    """The number that a value stands for; NaN if it stands for none."""
    try:
        if kind == SHARE and text.endswith("%"):
            return float(text[:-1]) / 100
        if kind == MICROS and (match := _TIME.fullmatch(text)):
            return float(match[1]) * _TIME_US[match[2]]
        return float(text)
    except ValueError:
        return math.nan


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.lower(), known, 1)
    return f": did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
