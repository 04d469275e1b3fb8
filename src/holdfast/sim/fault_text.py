"""Faults from text, word by word. What is wrong with a line is said in terms of the line."""

from __future__ import annotations

from holdfast.errors import MisuseError
from holdfast.sim.amounts import MILLION, parse_count, parse_share, parse_time
from holdfast.sim.faults import (
    KINDS,
    Blackout,
    Corrupt,
    Duplicate,
    Fault,
    Filter,
    Loss,
    Over,
    Pattern,
    Rate,
    Reorder,
    Slow,
    What,
    Where,
)


class Words:
    """The words of a line, taken from the left."""

    def __init__(self, text: str) -> None:
        self._words = text.split()
        self._at = 0

    def next(self, what: str) -> str:
        """The next word, which must be there; `what` says what it should have been."""
        if self._at == len(self._words):
            raise MisuseError(f"the line ends where {what} is expected")
        self._at += 1
        return self._words[self._at - 1]

    def take(self, word: str) -> bool:
        """Whether the next word is `word`; if so it is taken."""
        if self._at < len(self._words) and self._words[self._at] == word:
            self._at += 1
            return True
        return False

    def left(self) -> int:
        """How many words are left."""
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


def parse_what(words: Words) -> What:
    match words.next("a kind of fault"):
        case "blackout":
            return Blackout()
        case "loss":
            return Loss(parse_share(words.next("a share")))
        case "over":
            return Over(parse_count(words.next("a size in bytes")))
        case "filter":
            return Filter(parse_kind(words))
        case "pattern":
            return Pattern(parse_octets(words.next("bytes in hex")))
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
        case other:
            raise MisuseError(
                f"{other!r} is not a kind of fault: blackout, loss, over, filter, pattern, corrupt, "
                "duplicate, reorder, slow or rate"
            )


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


def parse_fault(words: Words) -> Fault:
    """Where, what, and the spared. Stops at the first word that is none of these."""
    where = parse_where(words)
    what = parse_what(words)
    only = parse_kind(words) if words.take("only") else ""
    share_ppm = parse_share(words.next("a share")) if words.take("share") else MILLION
    on_ns = off_ns = 0
    if words.take("flap"):
        text = words.next("ON/OFF times")
        on, _, off = text.partition("/")
        on_ns, off_ns = parse_time(on), parse_time(off)
        if not on_ns or not off_ns:
            raise MisuseError(f"flap {text!r}: both times must be longer than nothing")
    return Fault(where, what, only, share_ppm, on_ns, off_ns)
