"""Faults as the lab says them: the simulator's words, and a few that only real packets have.

    red n1->n2 over 1000
    blue *->n2 filter multicast
    red n1<->n2 loss 20% only udp share 25% flap 200ms/1s

Only here: `every 4` (each fourth packet), `packets 50` (more in a second than that), `mtu 800` (the switch's port
of a host is narrower than everybody thinks), `pattern 5555 at 100` (bytes at one place of the IP packet) and `share
25% from 50%` (the third quarter of the flows, where `share 25%` is the first). `watch 1000` harms nothing: it counts
the packets that `over 1000` would take.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.sim.amounts import MILLION, parse_count, parse_share, share_text
from holdfast.sim.fault_text import Words, parse_fault, parse_octets
from holdfast.sim.faults import ANY, Blackout, Fault, Pattern, What, what_text

PLACE_MAX: Final = 255
OCTETS_AT_MAX: Final = 16
"""What a rule in the kernel can compare, and how far into a packet it can look."""


class Every(msgspec.Struct, frozen=True, tag=True):
    """Each n-th packet is lost."""

    n: int


class Packets(msgspec.Struct, frozen=True, tag=True):
    """What exceeds so many packets in a second is lost."""

    per_s: int


class Mtu(msgspec.Struct, frozen=True, tag=True):
    """The switch's port of a host carries no larger packets, either way, whoever sends them."""

    size: int


class PatternAt(msgspec.Struct, frozen=True, tag=True):
    """Packets with these bytes at this place are lost; places are counted from the first byte of the IP header."""

    octets: bytes
    at: int


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Nothing is wrong: packets of more than `size` bytes are counted."""

    size: int


LabWhat = What | Every | Packets | Mtu | PatternAt | Watch


class LabFault(msgspec.Struct, frozen=True):
    """One thing that is wrong on some paths of a lab. `spared` is the same for the simulator's `Fault`."""

    spared: Fault
    """Where, and whom it spares; its own `what` is not looked at."""
    what: LabWhat
    from_ppm: int = 0
    """Where the share of the flows begins."""

    def covers(self, subnet: str, sender: str, listener: str) -> bool:
        """Whether the path lies within. In a lab adapters are called as their subnet is."""
        return self.spared.where.covers(subnet, (sender, subnet), (listener, subnet))

    def text(self) -> str:
        placeholder = msgspec.structs.replace(self.spared, what=Blackout())
        text = placeholder.text().replace(" blackout", f" {lab_text(self.what)}", 1)
        share = f" share {share_text(self.spared.share_ppm)}"
        begins = f"{share} from {share_text(self.from_ppm)}" if self.from_ppm else share
        return text.replace(share, begins, 1)


def lab_text(what: LabWhat) -> str:
    match what:
        case Every(n):
            return f"every {n}"
        case Packets(per_s):
            return f"packets {per_s}"
        case Mtu(size):
            return f"mtu {size}"
        case Watch(size):
            return f"watch {size}"
        case PatternAt(octets, at):
            return f"pattern {octets.hex()} at {at}"
        case _:
            return what_text(what)


def parse_lab_fault(text: str, hosts: tuple[str, ...], subnets: tuple[str, ...]) -> LabFault:
    """A fault from its text; every complaint quotes it."""
    try:
        fault = _parse(text)
        _check_names(fault, hosts, subnets)
    except MisuseError as error:
        hint = "; quote it, or the shell takes > for itself" if ">" not in text else ""
        raise MisuseError(f"{text!r}: {error}{hint}; nothing was broken") from None
    return fault


_FROM: Final = re.compile(r"(?<=\bshare )(\S+) from (\S+)")
_LAB: Final = re.compile(r"\b(?:(every|packets|mtu|watch) (\S+)|pattern (\S+) at (\S+))")


def _parse(text: str) -> LabFault:
    """What the simulator's parser does not know is taken out first; it reads a blackout in its place."""
    text = " ".join(text.split())
    begins = _FROM.search(text)
    if begins:
        text = text[: begins.start()] + begins[1] + text[begins.end() :]
    own = _LAB.search(text)
    if own:
        text = text[: own.start()] + "blackout" + text[own.end() :]
    words = Words(text)
    fault = parse_fault(words)
    words.end()
    from_ppm = parse_share(begins[2]) if begins else 0
    if from_ppm + fault.share_ppm > MILLION:
        raise MisuseError("the share of the flows ends beyond the last one")
    return LabFault(fault, _lab_what(own) if own else fault.what, from_ppm)


def _lab_what(found: re.Match[str]) -> LabWhat:
    word, amount, octets, at = found.groups()
    if word is None:
        return _pattern_at(parse_octets(octets), parse_count(at))
    number = parse_count(amount)
    if number < 1:
        raise MisuseError(f"{word} {number}: a whole number from 1 on is expected")
    match word:
        case "every":
            return Every(number)
        case "packets":
            return Packets(number)
        case "watch":
            return Watch(number)
        case _:
            if not 72 <= number <= 65_535:
                raise MisuseError(f"mtu {number}: it is from 72 to 65535")
            return Mtu(number)


def _pattern_at(octets: bytes, at: int) -> PatternAt:
    if len(octets) > OCTETS_AT_MAX or at > PLACE_MAX:
        raise MisuseError(
            f"a pattern at a place has at most {OCTETS_AT_MAX} bytes, and its place is {PLACE_MAX} at most"
        )
    return PatternAt(octets, at)


def _check_names(fault: LabFault, hosts: tuple[str, ...], subnets: tuple[str, ...]) -> None:
    where = fault.spared.where
    if where.subnet not in (ANY, *subnets):
        raise MisuseError(f"there is no subnet {where.subnet!r}: {', '.join(subnets)} or *")
    for end in (where.sender, where.listener):
        host, _, adapter = end.partition("/")
        if host not in (ANY, *hosts) or (adapter and adapter not in subnets):
            raise MisuseError(f"there is no host {end!r}: {', '.join(hosts)} or *")
    if isinstance(fault.what, Mtu):
        whole = (
            fault.spared.only == ""
            and fault.spared.off_ns == 0
            and fault.spared.share_ppm == 1_000_000
        )
        if where.sender != ANY or not where.both or not whole:
            raise MisuseError(
                f"the width of a port concerns all, both ways: write {where.subnet} *<->{where.listener} mtu N"
            )
    if isinstance(fault.what, Watch) and fault.spared.off_ns:
        raise MisuseError("what harms nothing does not flap")
    if isinstance(fault.what, Pattern) and len(fault.what.octets) > 1000:
        raise MisuseError("a pattern has at most 1000 bytes")
