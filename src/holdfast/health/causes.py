"""One incident for each cause: what several failing paths have in common is named once, with the paths below it.

For each class of error the failing paths are covered by as few places as explain them: a node, a subnet, an adapter,
what an adapter sends or receives, a pair of adapters, a single path. A place is named only if *all* its paths that are
known fail with that class; of several, the one that explains most is taken first. If all known paths of several
subnets fail alike, that is one cause as well.

Two faults show in more than one way. A filter of TCP in one direction stops connections in both, and the listeners find
out one after the other. A bad member of a bundle of links takes some flows, and multicast or fragments may be among
them, or all datagrams of the opposite direction: between the same adapters, these belong to the fault of some flows.
If it takes all flows of datagrams in one direction, no flow passes there that others could be compared with: multicast
or fragments of the other direction then belong to the fault of datagrams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from holdfast.health.classify import DEAD, FLOWS, MULTICAST, PROTOCOL, SIZE
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.values import Alarm

EVERYWHERE: Final = "all subnets"
NODE: Final = "node"
SUBNET: Final = "subnet"
ADAPTER: Final = "adapter"
SENT_BY: Final = "sent by"
RECEIVED_BY: Final = "received by"
PAIR: Final = "pair"
PATH: Final = "path"
_ORDER: Final = (NODE, EVERYWHERE, SUBNET, ADAPTER, SENT_BY, RECEIVED_BY, PAIR, PATH)
_KINDS: Final = ("", "udp", "tcp", "frag", "multicast")
_BORROWED: Final = ("frag", "multicast")
"""Kinds that have flows of their own, and that are datagrams as well."""

Place = tuple[str, str]
"""What kind of place, and its name."""


class Cause(msgspec.Struct, frozen=True, gc=False):
    """What explains some failing paths."""

    place: Place
    alarm: Alarm
    """Of the path that fails longest, of the kind of packets that says most."""
    paths: tuple[PathKey, ...]
    kinds: tuple[str, ...]
    """The kinds of packets that show it."""


class Names(msgspec.Struct, frozen=True):
    """How places are called."""

    node: Callable[[bytes], str]
    subnet: Callable[[bytes, str], str]


def causes_of(
    alarms: Mapping[PathKey, Mapping[tuple[str, str], Alarm]],
    known: Iterable[PathKey],
    names: Names,
) -> list[Cause]:
    """Everything that is wrong, one entry for each cause. `known` are all paths whose listeners are heard."""
    by_class: dict[str, dict[PathKey, list[Alarm]]] = {}
    for path, active in alarms.items():
        for (error_class, _), alarm in active.items():
            by_class.setdefault(error_class, {}).setdefault(path, []).append(alarm)
    paths = list(known)
    places = _places(paths, names)
    _stop_both_ways(by_class.get(PROTOCOL, {}), dict.fromkeys(paths, True))
    _join_flows(by_class)
    found: list[Cause] = []
    for error_class, failing in by_class.items():
        found += _cover(error_class, failing, places, names)
    return sorted(_join_pairs(found, names), key=lambda cause: cause.alarm.since_ns)


def _stop_both_ways(failing: dict[PathKey, list[Alarm]], known: Mapping[PathKey, bool]) -> None:
    """Where TCP does not pass in one direction, it does not in the other."""
    for path, alarms in list(failing.items()):
        back = _reverse(path)
        tcp = [alarm for alarm in alarms if alarm.error.kind == "tcp"]
        if tcp and back in known and back not in failing:
            failing[back] = tcp


def _join_flows(by_class: dict[str, dict[PathKey, list[Alarm]]]) -> None:
    """Where some flows fail between two adapters, a fault of multicast or fragments alone has the same cause, and so
    has one of all datagrams in the opposite direction, where all flows may be among the bad ones."""
    flows = by_class.get(FLOWS, {})
    known = dict.fromkeys(flows, True)
    for error_class in (SIZE, PROTOCOL, MULTICAST) if flows else ():
        failing = by_class.get(error_class, {})
        for path, alarms in list(failing.items()):
            borrowed = all(alarm.error.kind in _BORROWED for alarm in alarms)
            datagrams = all(alarm.error.kind != "tcp" for alarm in alarms)
            if (path in known and borrowed) or (_reverse(path) in known and datagrams):
                flows.setdefault(path, []).extend(failing.pop(path))


def _join_pairs(found: list[Cause], names: Names) -> list[Cause]:
    """Where multicast fails between two adapters and nothing else does, a filter of other datagrams between the same
    adapters has the same cause. A fault of multicast that more than two adapters share has one of its own."""
    filtered: dict[frozenset[tuple[bytes, str]], Cause] = {}
    rest: list[Cause] = []
    for cause in sorted(found, key=lambda one: one.alarm.error.error_class == MULTICAST):
        ends, error_class = _ends(cause.paths[0]), cause.alarm.error.error_class
        if cause.place[0] not in (PAIR, PATH):
            rest.append(cause)
        elif error_class == PROTOCOL and "tcp" not in cause.kinds:
            filtered[ends] = cause
        elif error_class == MULTICAST and ends in filtered:
            filtered[ends] = _joined(filtered[ends], cause, names)
        else:
            rest.append(cause)
    return [*filtered.values(), *rest]


def _ends(path: PathKey) -> frozenset[tuple[bytes, str]]:
    return frozenset(((path[0], path[1]), (path[2], path[3])))


def _joined(main: Cause, other: Cause, names: Names) -> Cause:
    paths = dict.fromkeys((*main.paths, *other.paths), True)
    place, covered = _pair(main.alarm.path, paths, names)
    alarm = _of_both_ways(main.alarm, covered)
    return Cause(place, alarm, tuple(covered), tuple(sorted({*main.kinds, *other.kinds})))


def _of_both_ways(alarm: Alarm, paths: Iterable[PathKey]) -> Alarm:
    """Without the claim of one direction, where paths of both have the same cause."""
    if not alarm.error.one_way or _reverse(alarm.path) not in paths:
        return alarm
    error = msgspec.structs.replace(alarm.error, one_way=False)
    return msgspec.structs.replace(alarm, error=error)


def _reverse(path: PathKey) -> PathKey:
    return path[2], path[3], path[0], path[1]


def _places(known: list[PathKey], names: Names) -> dict[Place, dict[PathKey, bool]]:
    """Every place that more than one path shares, with its paths."""
    places: dict[Place, dict[PathKey, bool]] = {}
    subnets = {names.subnet(path[0], path[1]) for path in known}
    if len(subnets) > 1:
        places[EVERYWHERE, ""] = dict.fromkeys(known, True)
    for path in known:
        sender, adapter, listener, remote = path
        here, there = names.node(sender), names.node(listener)
        for place in (
            (NODE, here),
            (SUBNET, names.subnet(sender, adapter)),
            (ADAPTER, f"{here}/{adapter}"),
            (ADAPTER, f"{there}/{remote}"),
            (SENT_BY, f"{here}/{adapter}"),
            (RECEIVED_BY, f"{there}/{remote}"),
        ):
            places.setdefault(place, {})[path] = True
    return {place: paths for place, paths in places.items() if _is_shared(place, paths)}


def _is_shared(place: Place, paths: Mapping[PathKey, bool]) -> bool:
    """Whether a place is more than the two ends of its paths: with two nodes an adapter and its peer cannot be told
    apart."""
    ends = {(path[0], path[1]): True for path in paths} | {(p[2], p[3]): True for p in paths}
    if place[0] == NODE:
        return len(paths) > 1
    return len(ends) > 2 and len(paths) > 1


def _cover(
    error_class: str,
    failing: dict[PathKey, list[Alarm]],
    places: dict[Place, dict[PathKey, bool]],
    names: Names,
) -> list[Cause]:
    whole = [
        (place, paths)
        for place, paths in places.items()
        if all(path in failing for path in paths) and (place[0] != NODE or error_class == DEAD)
    ]
    left = dict.fromkeys(failing, True)
    found: list[Cause] = []
    while left:
        best: tuple[Place, list[PathKey]] | None = None
        best_rank: tuple[int, int] = (0, 0)
        for place, paths in whole:
            new = [path for path in paths if path in left]
            rank = (len(new), -_ORDER.index(place[0]))
            if len(new) > 1 and rank > best_rank:
                best, best_rank = (place, new), rank
        place, covered = best if best is not None else _pair(next(iter(left)), left, names)
        for path in covered:
            left.pop(path, None)
        found.append(_cause(error_class, place, covered, failing))
    return found


def _pair(path: PathKey, left: dict[PathKey, bool], names: Names) -> tuple[Place, list[PathKey]]:
    back = _reverse(path)
    ends = f"{names.node(path[0])}/{path[1]}", f"{names.node(path[2])}/{path[3]}"
    if back in left:
        return (PAIR, " and ".join(sorted(ends))), [path, back]
    return (PATH, " to ".join(ends)), [path]


def _cause(
    error_class: str, place: Place, paths: list[PathKey], failing: dict[PathKey, list[Alarm]]
) -> Cause:
    alarms = [alarm for path in paths for alarm in failing[path]]

    def says_less(alarm: Alarm) -> tuple[bool, int, int]:
        error = alarm.error
        return error.error_class != error_class, _KINDS.index(error.kind), alarm.since_ns

    first = _of_both_ways(min(alarms, key=says_less), paths)
    kinds = dict.fromkeys(alarm.error.kind for alarm in alarms if alarm.error.kind)
    return Cause(place, first, tuple(paths), tuple(sorted(kinds)))
