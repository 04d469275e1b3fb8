"""Retention and bounds in a group: nothing is freed that a member may request, and nothing exceeds its bound."""

from __future__ import annotations

from typing import Final

from holdfast.group.log.entries import View
from holdfast.group.log.pending_entries import PENDING_MAX
from holdfast.group.log.replicated_log import Cursor
from holdfast.group.ports import APPLY_MAX
from holdfast.sim.checkers.sight import WHOLE, Sight, SourceSight, Violation

FRAME_SLACK: Final = 1 << 17
"""A bound is checked before a frame is accepted, so it is exceeded by one."""
ENTRIES_SLACK: Final = 64


class Buffers:
    """For one group: what each replica has freed, and which replicas still need it."""

    def __init__(self) -> None:
        self._grounds: dict[tuple[str, int], int] = {}
        self._given: dict[tuple[str, int], int] = {}
        """Per process: the index of its restored snapshot."""
        self._freed: dict[tuple[str, int, int], int] = {}
        self._sights: dict[str, Sight] = {}
        """The last sight of every running replica; logs and cursors in it are live."""
        self._let_in: dict[str, Cursor] = {}
        """Where the order was when a later member was admitted."""
        self._group_epoch = 0

    def ended(self, host: str) -> None:
        self._sights.pop(host, None)

    def restored(self, life: tuple[str, int], index: int) -> None:
        """A snapshot replaces entries up to `index`; moving the start of the log there does not free anything."""
        self._given[life] = max(index, self._given.get(life, 0))

    # -- freeing -------------------------------------------------------------------------------------------------

    def see(self, sight: Sight) -> None:
        if sight.group_epoch != self._group_epoch:
            self._begin_again(sight.group_epoch)
        self._look_who_is_new(sight)
        ground = sight.log.ground.index
        before, self._grounds[sight.life] = self._grounds.get(sight.life, 0), ground
        if ground > max(before, self._given.get(sight.life, 0)):
            for other in self._needy():
                come = self._come_to(other).index
                if come < ground and other.host != sight.host:
                    raise Violation(
                        "nothing is freed that a member may request",
                        f"{sight.group}: {sight.host} has freed entries up to {ground}, "
                        f"{other.host} has only reached {come}",
                    )

    def _begin_again(self, group_epoch: int) -> None:
        """A re-created group has another order: progress in the previous one means nothing."""
        self._group_epoch = group_epoch
        for book in (self._grounds, self._given, self._sights, self._let_in):
            book.clear()

    def see_source(self, sight: SourceSight) -> None:
        key = (sight.host, sight.stream.incarnation, sight.stream.stream)
        before, self._freed[key] = self._freed.get(key, 0), sight.freed
        if sight.freed <= before:
            return
        for other in self._needy():
            at = self._come_to(other)
            come = at.next.get(sight.stream, 1) - 1
            if come < sight.freed and not at.is_over(sight.stream):
                raise Violation(
                    "nothing is freed that a member may request",
                    f"{sight.group}: the source of {sight.host} has freed messages up to {sight.freed}, "
                    f"{other.host} has only reached {come}",
                )

    def _needy(self) -> list[Sight]:
        """Members of the view that follow the order from where they are; others will restore a snapshot."""
        view = self._decided()
        waited = [] if view is None else [m.name for m in view.members if not m.suspended]
        return [
            sight
            for sight in self._sights.values()
            if sight.memory == WHOLE
            and sight.state in ("leading", "following")
            and sight.host in waited
        ]

    def _decided(self) -> View | None:
        """The last view that any replica knows to be committed."""
        views = [sight.view for sight in self._sights.values() if sight.view is not None]
        return max(views, key=lambda view: view.number, default=None)

    def _look_who_is_new(self, sight: Sight) -> None:
        before = self._decided()
        self._sights[sight.host] = sight
        view = sight.view
        if before is None or view is None or view.number <= before.number:
            return
        known = [(member.name, member.node, member.life) for member in before.members]
        for member in view.members:
            if (member.name, member.node, member.life) not in known:
                self._let_in[member.name] = sight.log.cursor_at(sight.log.commit)

    def _come_to(self, sight: Sight) -> Cursor:
        """From where on a member may request. What was committed before its admission was kept for the others and may
        be gone: a removed replica that still has the old log restores a snapshot."""
        let_in = self._let_in.get(sight.host)
        tail = sight.log.tail
        return tail if let_in is None or let_in.index <= tail.index else let_in

    # -- bounds --------------------------------------------------------------------------------------------------

    @staticmethod
    def bounds(sight: Sight) -> None:
        config = sight.config
        limits = {
            "bytes of a stream": (
                sight.streams.most_bytes(),
                2 * config.window_bytes + FRAME_SLACK,
            ),
            "streams": (len(sight.streams.streams), config.streams),
            "entries in the log": (len(sight.log), config.log_entries + ENTRIES_SLACK),
            "entries that wait": (sight.waiting, PENDING_MAX),
            "bytes at the application": (
                sight.outstanding,
                APPLY_MAX + config.entry_bytes + config.message_bytes + FRAME_SLACK,
            ),
        }
        _check(f"replica of {sight.group} on {sight.host}", limits)

    @staticmethod
    def source_bounds(sight: SourceSight) -> None:
        limits = {"bytes held": (sight.held, 2 * sight.window + FRAME_SLACK)}
        _check(f"source of {sight.group} on {sight.host}", limits)


def _check(who: str, limits: dict[str, tuple[int, int]]) -> None:
    for what, (value, bound) in limits.items():
        if value > bound:
            raise Violation("buffers are bounded", f"{who}: {value} {what} (bound {bound})")
