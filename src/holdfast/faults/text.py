"""Parses faults from text, word by word. Errors quote the word that is wrong."""

from __future__ import annotations

from typing import Final

from holdfast.errors import MisuseError
from holdfast.faults.amounts import MILLION, parse_count, parse_share, parse_time
from holdfast.faults.model import (
    KINDS,
    SIMULATED,
    WORDS,
    Blackout,
    Corrupt,
    Duplicate,
    Every,
    Fault,
    Filter,
    Loss,
    Mtu,
    Over,
    Packets,
    Pattern,
    PatternAt,
    Rate,
    Reorder,
    Slow,
    Watch,
    What,
    Where,
)


class Words:
    """The words of a line, consumed from the left."""

    def __init__(self, text: str) -> None:
        self._words = text.split()
        self._at = 0

    def next(self, what: str) -> str:
        """The next word, which must exist; `what` describes the expected word."""
        if self._at == len(self._words):
            raise MisuseError(f"the line ends where {what} is expected")
        self._at += 1
        return self._words[self._at - 1]

    def take(self, word: str) -> bool:
        """Whether the next word is `word`; if so, it is consumed."""
        if self._at < len(self._words) and self._words[self._at] == word:
            self._at += 1
            return True
        return False

    def left(self) -> int:
        """The number of words left."""
        return len(self._words) - self._at

    def need(self, word: str) -> None:
        found = self.next(repr(word))
        if found != word:
            raise MisuseError(f"{found!r} where {word!r} is expected")

    def end(self) -> None:
        if self._at < len(self._words):
            raise MisuseError(f"{self._words[self._at]!r} is not understood here")


def parse_where(words: Words) -> Where:
    """`red n1->n2`, `* n1<->*`."""
    subnet = words.next("a subnet or *")
    ends = words.next("FROM->TO or FROM<->TO")
    both = "<->" in ends
    sender, arrow, listener = ends.partition("<->" if both else "->")
    if not (sender and arrow and listener):
        raise MisuseError(f"{ends!r} is not FROM->TO or FROM<->TO")
    return Where(subnet, sender, listener, both)


def parse_what(words: Words, can: tuple[type, ...] = SIMULATED) -> What:
    """An effect; `can` contains those that are supported here."""
    word = words.next("a kind of fault")
    what = _drop(word, words) or _change(word, words)
    if what is None or not isinstance(what, can):
        known = ", ".join(dict.fromkeys(WORDS[kind] for kind in can))
        raise MisuseError(f"{word!r} is not a kind of fault here: {known}")
    return what


PLACE_MAX: Final = 255
OCTETS_AT_MAX: Final = 16
"""The number of bytes that a kernel rule can compare, and the largest offset that it can reach."""
OCTETS_MAX: Final = 1000


def _drop(word: str, words: Words) -> What | None:
    """The effects that drop packets."""
    match word:
        case "blackout":
            return Blackout()
        case "loss":
            return Loss(parse_share(words.next("a share")))
        case "over":
            return Over(parse_count(words.next("a size in bytes")))
        case "filter":
            return Filter(parse_kind(words))
        case "pattern":
            return _pattern(words)
        case "every":
            return Every(_positive(word, words, "a number of packets"))
        case "packets":
            return Packets(_positive(word, words, "packets per second"))
        case "mtu":
            size = _positive(word, words, "a size in bytes")
            if not 72 <= size <= 65_535:
                raise MisuseError(f"mtu {size}: must be from 72 to 65535")
            return Mtu(size)
    return None


def _change(word: str, words: Words) -> What | None:
    """The effects that change packets or their time, and `watch`."""
    match word:
        case "corrupt":
            return Corrupt(parse_share(words.next("a share")))
        case "duplicate":
            return Duplicate(parse_share(words.next("a share")))
        case "reorder":
            ppm = parse_share(words.next("a share"))
            words.need("by")
            return Reorder(ppm, parse_time(words.next("a time")))
        case "slow":
            delay_ns = parse_time(words.next("a time"))
            return Slow(delay_ns, parse_time(words.next("a time")) if words.take("jitter") else 0)
        case "rate":
            bytes_per_s = parse_count(words.next("bytes per second"))
            words.need("queue")
            queue_bytes = parse_count(words.next("bytes"))
            if not bytes_per_s:
                raise MisuseError("rate 0 never sends anything: write blackout")
            return Rate(bytes_per_s, queue_bytes)
        case "watch":
            return Watch(_positive(word, words, "a size in bytes"))
    return None


def _positive(word: str, words: Words, what: str) -> int:
    number = parse_count(words.next(what))
    if number < 1:
        raise MisuseError(f"{word} {number}: must be a whole number of 1 or more")
    return number


def _pattern(words: Words) -> Pattern | PatternAt:
    octets = parse_octets(words.next("bytes in hex"))
    if not words.take("at"):
        if len(octets) > OCTETS_MAX:
            raise MisuseError(f"a pattern has at most {OCTETS_MAX} bytes")
        return Pattern(octets)
    at = parse_count(words.next("an offset"))
    if len(octets) > OCTETS_AT_MAX or at > PLACE_MAX:
        raise MisuseError(
            f"a pattern at an offset has at most {OCTETS_AT_MAX} bytes, and the offset is at most "
            f"{PLACE_MAX}"
        )
    return PatternAt(octets, at)


def parse_kind(words: Words) -> str:
    known = "tcp, udp, frag or multicast"
    name = words.next(known)
    if name not in KINDS:
        raise MisuseError(f"{name!r} is not a kind of packets: {known}")
    return name


def parse_octets(text: str) -> bytes:
    try:
        octets = bytes.fromhex(text)
    except ValueError:
        octets = b""
    if not octets:
        raise MisuseError(f"{text!r} is not bytes in hex, as 5555aaaa")
    return octets


def parse_fault(words: Words, can: tuple[type, ...] = SIMULATED) -> Fault:
    """Place, effect and restrictions. Stops at the first word that is none of these."""
    where = parse_where(words)
    what = parse_what(words, can)
    only = parse_kind(words) if words.take("only") else ""
    share_ppm, from_ppm = MILLION, 0
    if words.take("share"):
        share_ppm = parse_share(words.next("a share"))
        from_ppm = parse_share(words.next("a share")) if words.take("from") else 0
        if from_ppm + share_ppm > MILLION:
            raise MisuseError("the share of the flows ends beyond the last one")
    on_ns = off_ns = 0
    if words.take("flap"):
        text = words.next("ON/OFF times")
        on, _, off = text.partition("/")
        on_ns, off_ns = parse_time(on), parse_time(off)
        if not on_ns or not off_ns:
            raise MisuseError(f"flap {text!r}: both times must be above zero")
    return Fault(where, what, only, share_ppm, on_ns, off_ns, from_ppm)
