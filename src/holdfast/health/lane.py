"""Which sizes and which patterns pass on one lane, judged at its listener.

Each probe is paired with a basic that was sent with it; a basic that arrives without its probe is evidence. A *round*
is what one basic announced. Three things are tested (see `evidence`): of each size, that nothing of it or above passes
(then the misses of all these sizes count together) and that it alone does not; of each pattern, that it does not pass
where a neutral packet of the same size, sent with it, does. Mixed packets only raise a doubt: they say that something
is wrong, not what. A doubt is told to the sender, who then sends everything apart until it is settled.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.health.attributes import (
    FIRST_PATTERN,
    MIXED,
    NEUTRAL,
    LanePlan,
    fragments,
    in_order,
)
from holdfast.health.evidence import HIT, SUSPECT, compound_loss, miss_weight
from holdfast.types import MILLISECOND, Nanos

BASIC_SIZE: Final = 128
"""What passes where not even the smallest size does: the basics, which are this large at most."""
ROUNDS_MAX: Final = 64
FAILED: Final = 4 * HIT
"""Evidence that is kept against what has failed: so many arrivals in a row, and it passes again."""
MISSES_MIN: Final = 3
"""Rounds in which something must be missing, whatever the odds say: losses come in bursts."""
SETTLE_NS: Final = 20 * MILLISECOND
SETTLE_NS_MAX: Final = 500 * MILLISECOND
TRIAL_ROUNDS: Final = 2
TRIAL_ROUNDS_MAX: Final = 30
TRIAL_NS: Final = 500 * MILLISECOND
"""After this time the sender is told again of a doubt that is not settled."""
STREAM_SETTLE_NS: Final = 260 * MILLISECOND
"""What a stream lost it has sent again by now, for the first time: to be missing, it must have been lost twice."""
STREAM_TRIES: Final = 2
STREAM_MISSES_MIN: Final = 2
STREAM_SPACING_NS: Final = 400 * MILLISECOND
"""When a connection is stuck everything waits behind what was lost: one loss is one miss, not ten. The next one that
counts is on another connection, or so much later that it was sent once more."""


class Values(msgspec.Struct, frozen=True, gc=False):
    """What passes on a lane."""

    size: int
    size_max: int
    holes: tuple[int, ...] = ()
    bad_patterns: tuple[str, ...] = ()
    alive: bool = True
    """Whether anything of it passes."""


class Rung:
    """What is known of one size."""

    __slots__ = (
        "alone",
        "heard",
        "limit",
        "missed_at",
        "misses",
        "packets",
        "passes",
        "sent",
        "size",
        "stuck",
        "tries",
    )

    def __init__(self, size: int, packets: int) -> None:
        self.size = size
        self.packets = packets
        """All of them must arrive."""
        self.passes: bool | None = None
        self.limit = 0
        """Evidence that nothing of this size or above passes."""
        self.alone = 0
        """Evidence that this size does not pass, whatever the others do."""
        self.misses = 0
        self.heard = 0
        self.sent = False
        """Whether the sender has ever sent it."""
        self.missed_at: Nanos = 0
        self.stuck = False
        """On a stream: its connection lets nothing pass any more."""
        self.tries = 1
        """How often what was missing last had been sent."""


class Bits:
    """What is known of one pattern."""

    __slots__ = ("heard", "misses", "name", "passes", "score", "sent")

    def __init__(self, name: str) -> None:
        self.name = name
        self.passes: bool | None = None
        self.score = 0
        self.misses = 0
        self.heard = 0
        self.sent = False


class Lane:
    """One lane of a path towards this node."""

    __slots__ = (
        "_arrived",
        "_calm",
        "_judged",
        "_rounds",
        "_threshold",
        "_void",
        "bits",
        "doubts",
        "heard_at",
        "ignored",
        "misses_min",
        "name",
        "news",
        "plan",
        "rungs",
        "settle_ns",
        "stream",
        "stuck",
        "surprises",
        "trial",
        "trial_at",
    )

    def __init__(self, plan: LanePlan, patterns: tuple[str, ...], mtu: int = 1500) -> None:
        self.name = plan.name
        self.stream = plan.name == "tcp"
        self.settle_ns = STREAM_SETTLE_NS if self.stream else SETTLE_NS
        self.misses_min = STREAM_MISSES_MIN if self.stream else MISSES_MIN
        self.stuck: list[int] = []
        """Sizes whose connection is of no use any more; on another one it may pass."""
        self.rungs: list[Rung] = []
        self.bits: list[Bits] = []
        self.doubts: dict[int, int] = {}
        """Evidence against combinations that were believed to pass, by index."""
        self.surprises = 0
        """Combinations, as bits, that arrived although they were believed not to pass."""
        self.news = False
        """A verdict has changed."""
        self.ignored = False
        """The sender goes on as if something passed that does not: it has not heard what we said."""
        self.trial: int | None = 0
        """Rounds with everything apart that were judged since the sender began, or was told of a doubt; None: no
        doubt is being settled."""
        self.trial_at: Nanos = 0
        self.heard_at: Nanos = 0
        """When something of it arrived last."""
        self._threshold = 1 << 30
        self._calm = False
        """Everything that is sent passes, and no evidence speaks against any of it."""
        self._rounds: dict[int, tuple[int, Nanos]] = {}
        self._void: dict[int, int] = {}
        """What of a round, as bits, went out on a connection that is gone."""
        self._arrived: dict[int, int] = {}
        self._judged: dict[int, tuple[int, Nanos]] = {}
        self.adopt(plan, patterns, mtu)

    def adopt(self, plan: LanePlan, patterns: tuple[str, ...], mtu: int = 1500) -> None:
        """The sender has another plan: what is known of its values stays."""
        rungs = {rung.size: rung for rung in self.rungs}
        bits = {bit.name: bit for bit in self.bits}
        names = patterns[: plan.fills - FIRST_PATTERN]
        self.plan = plan
        self.rungs = [
            rungs.get(size) or Rung(size, fragments(plan.name, size, mtu)) for size in plan.sizes
        ]
        self.bits = [bits.get(name) or Bits(name) for name in names]
        self._calm = False
        self.forget()

    def forget(self) -> None:
        """What is under way says nothing any more."""
        self._rounds.clear()
        self._void.clear()
        self._arrived.clear()
        self._judged.clear()
        self.doubts.clear()
        self.surprises = 0

    def renewed(self, size: int) -> None:
        """The connection of a size is gone, or another one: what was under way on it says nothing any more."""
        for number, rung in enumerate(self.rungs):
            if rung.size != size:
                continue
            rung.stuck = False
            void = ((1 << self.plan.fills) - 1) << number * self.plan.fills
            for pair in self._rounds:
                self._void[pair] = self._void.get(pair, 0) | void

    # -- what passes ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The largest size that passes, with all below it; 0 while nothing is known."""
        best = 0
        for rung in self.rungs:
            if rung.passes is False:
                return best or BASIC_SIZE
            if rung.passes:
                best = rung.size
        return best

    @property
    def size_max(self) -> int:
        return max((rung.size for rung in self.rungs if rung.sent), default=0)

    def values(self) -> Values:
        size = self.size
        top = max((rung.size for rung in self.rungs if rung.passes), default=0)
        holes = tuple(r.size for r in self.rungs if r.passes is False and r.size < top)
        bad = tuple(bit.name for bit in self.bits if bit.passes is False)
        alive = size != BASIC_SIZE or top > 0
        return Values(size, self.size_max, holes, bad, alive)

    @property
    def known(self) -> bool:
        return any(rung.passes is not None for rung in self.rungs)

    @property
    def open(self) -> bool:
        """Whether something that is sent is not decided, or on its way to another verdict."""
        for rung in self.rungs:
            evidence = max(rung.alone, rung.limit)
            if rung.sent and self._undecided(rung.passes, evidence, rung.alone):
                return True
        return any(
            bit.sent and self._undecided(bit.passes, bit.score, bit.score) for bit in self.bits
        )

    def _undecided(self, passes: bool | None, against: int, kept: int) -> bool:
        return passes is None or (against > 0 if passes else kept < self._cap(passes))

    def _cap(self, passes: bool | None) -> int:
        """How far evidence grows: beyond a verdict it only has to keep a few arrivals from overturning it."""
        return min(self._threshold, FAILED) if passes is False else self._threshold

    def doubt(self, now: Nanos, grace: int) -> int:
        """Combinations, as bits, that the sender must be told of now: missing, or heard against expectation."""
        # A large datagram becomes many packets, so it is often lost and rarely sent: one miss must do.
        suspect = (SUSPECT // 2 if self.name == "frag" else SUSPECT) * max(grace, 1)
        found = self.surprises
        for index, evidence in self.doubts.items():
            if evidence >= suspect:
                found |= 1 << index
        if not found or (self.trial is not None and now - self.trial_at < TRIAL_NS):
            return 0
        # A sender that is short of budget may need longer: what it has sent already counts all the same.
        self.trial, self.trial_at = self.trial or 0, now
        return found

    def begin(self, now: Nanos) -> None:
        """The sender begins to send everything apart."""
        self.trial, self.trial_at = 0, now

    def done(self) -> bool:
        """Whether the doubt that was being settled is settled now."""
        if self.trial is None:
            return False
        if self.trial < TRIAL_ROUNDS or (self.open and self.trial < TRIAL_ROUNDS_MAX):
            return False
        self.trial = None
        self.doubts.clear()
        self.surprises = 0
        return True

    # -- rounds --------------------------------------------------------------------------------------------------

    def arrived(self, pair: int, index: int, now: Nanos) -> None:
        """A probe came; the basic that announces it may come later, or have come before."""
        self.heard_at = now
        judged = self._judged.get(pair)
        if judged is not None:
            self._late(index, judged, now)
            return
        if pair not in self._arrived and len(self._arrived) >= ROUNDS_MAX:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[pair] = self._arrived.get(pair, 0) | 1 << index

    def announced(self, pair: int, mask: int, at: Nanos) -> bool:
        """A basic said what was sent with it. False when that round was judged before."""
        if pair in self._judged:
            return False
        known, since = self._rounds.get(pair, (0, at))
        if not known and len(self._rounds) >= ROUNDS_MAX:
            del self._rounds[next(iter(self._rounds))]
        self._rounds[pair] = (known | mask, since)
        return True

    def complete(self, pair: int) -> bool:
        """Whether everything that was announced of a round is here."""
        sent, _ = self._rounds.get(pair, (0, 0))
        return not sent & ~self._arrived.get(pair, 0)

    def pass_calmly(self, pair: int) -> bool:
        """A round that is complete, on a lane of which nothing is in doubt, and the only one that waits: it says
        nothing new. False when it must be weighed."""
        if len(self._rounds) != 1 or not self.calm:
            return False
        _, at = self._rounds.pop(pair)
        self._arrived.pop(pair, None)
        self._judged[pair] = (0, at)
        if len(self._judged) > ROUNDS_MAX:
            del self._judged[next(iter(self._judged))]
        return True

    @property
    def calm(self) -> bool:
        """Whether there is nothing to tell of it."""
        return self._calm and self.trial is None and not self.news and not self.ignored

    @property
    def waits(self) -> bool:
        return bool(self._rounds)

    def _late(self, index: int, judged: tuple[int, Nanos], now: Nanos) -> None:
        """It was taken for missing, and now it is here: the path is slower than was thought."""
        missing, at = judged
        if missing >> index & 1 and 0 <= now - at < 4 * SETTLE_NS_MAX:
            self.settle_ns = min(max(self.settle_ns, 2 * (now - at)), SETTLE_NS_MAX)
            rung, fill = divmod(index, self.plan.fills)
            self._pass(rung, fill)

    def judge(self, now: Nanos, loss_ppm: int, threshold: int) -> bool:
        """Weigh the rounds that had time enough. True when there were any."""
        done = []
        self._threshold = threshold
        for pair, (sent, at) in self._rounds.items():
            sent &= ~self._void.get(pair, 0)
            got = self._arrived.get(pair, 0) & sent
            if got != sent and now - at < self.settle_ns:
                continue
            done.append(pair)
            if self.stream and sent != got:
                sent = self._reached(pair, sent, got, now)
            if sent != got or not self._calm:
                self._weigh(sent, got, now, loss_ppm, threshold)
            if self.trial is not None and self._apart(sent):
                self.trial += 1
            self._judged[pair] = (sent & ~got, at)
        for pair in done:
            del self._rounds[pair]
            self._void.pop(pair, None)
            self._arrived.pop(pair, None)
        while len(self._judged) > ROUNDS_MAX:
            del self._judged[next(iter(self._judged))]
        return bool(done)

    def _reached(self, pair: int, sent: int, got: int, now: Nanos) -> int:
        """What of a round can be judged on streams: nothing of what is behind something lost on the same connection,
        and nothing on one that is known to be stuck, until that has sent again what it lost."""
        for number, rung in enumerate(self.rungs):
            indexes = [self.plan.index(number, fill) for fill in in_order(self.plan.fills, pair)]
            missing = [1 << index for index in indexes if sent & ~got & 1 << index]
            if not missing:
                continue
            counts = not rung.stuck or now - rung.missed_at >= STREAM_SPACING_NS
            sent &= ~sum(missing[1:] if counts else missing)
            if counts:
                rung.tries = 1 if rung.stuck else STREAM_TRIES
                rung.missed_at = now
            rung.stuck = True
            # What is known not to pass may stay stuck, unless other sizes pass again.
            if (rung.passes is not False or self.surprises) and rung.size not in self.stuck:
                self.stuck.append(rung.size)
        return sent

    def _apart(self, sent: int) -> bool:
        """Whether a round holds neutral packets of several sizes: what is sent to settle a doubt."""
        neutral = sum(sent >> self.plan.index(n, NEUTRAL) & 1 for n in range(len(self.rungs)))
        return neutral >= min(2, len(self.rungs))

    # -- the test ------------------------------------------------------------------------------------------------

    def _weigh(self, sent: int, got: int, now: Nanos, loss_ppm: int, threshold: int) -> None:
        fills = self.plan.fills
        full = (1 << fills) - 1
        together = 0
        above_passed = False
        for number in range(len(self.rungs) - 1, -1, -1):
            tried = sent >> number * fills & full
            if not tried:
                continue
            came = got >> number * fills & full
            rung = self.rungs[number]
            rung.sent = rung.sent or bool(tried & 1 << NEUTRAL or came)
            miss = miss_weight(compound_loss(loss_ppm, rung.packets))
            if self.stream:
                miss *= rung.tries
            if came:
                above_passed = True
                self._size_passed(number, rung)
            elif tried >> NEUTRAL & 1 or self.stream:
                if not above_passed:
                    together += 0 if rung.passes is False else miss
                    rung.limit = min(self._cap(rung.passes), rung.limit + max(together, miss))
                rung.alone = min(self._cap(rung.passes), rung.alone + miss)
                # A mixed packet says that something is wrong; that it is the size, neutral ones must say.
                rung.misses += tried >> NEUTRAL & 1
            self._weigh_fills(number, tried, came, miss, threshold)
        self._settle(threshold)

    def _size_passed(self, number: int, rung: Rung) -> None:
        rung.heard += 1
        rung.misses = 0
        rung.alone = max(0, rung.alone - HIT)
        for lower in self.rungs[: number + 1]:
            lower.limit = max(0, lower.limit - HIT)

    def _weigh_fills(self, number: int, tried: int, came: int, miss: int, threshold: int) -> None:
        """The fills of one size: doubts about each combination, and the patterns against the neutral one."""
        rung = self.rungs[number]
        control = came >> NEUTRAL & 1
        for fill in range(self.plan.fills):
            if not tried >> fill & 1:
                continue
            index = self.plan.index(number, fill)
            bit = self.bits[fill - FIRST_PATTERN] if fill >= FIRST_PATTERN else None
            if bit is not None:
                bit.sent = True
            believed = rung.passes is not False and (bit is None or bit.passes is not False)
            if fill == MIXED and not believed:
                self.ignored = True
            if came >> fill & 1:
                self.doubts.pop(index, None)
                if believed:
                    self.surprises &= ~(1 << index)
                elif fill != MIXED:
                    self.surprises |= 1 << index
                if bit is not None:
                    bit.heard += 1
                    bit.misses = 0
                    bit.score = max(0, bit.score - HIT)
                continue
            if believed:
                self.doubts[index] = min(self.doubts.get(index, 0) + miss, threshold)
            if bit is not None and control:
                bit.score = min(self._cap(bit.passes), bit.score + miss)
                bit.misses += 1

    def _pass(self, number: int, fill: int) -> None:
        """One arrival that came too late for its round."""
        self._size_passed(number, self.rungs[number])
        self.doubts.pop(self.plan.index(number, fill), None)
        if fill >= FIRST_PATTERN:
            bit = self.bits[fill - FIRST_PATTERN]
            bit.score = max(0, bit.score - HIT)

    def _settle(self, threshold: int) -> None:
        self._decide(threshold)
        sound = all(r.sent and r.passes for r in self.rungs)
        sound = sound and all(b.sent and b.passes for b in self.bits)
        self._calm = sound and not (self.doubts or self.surprises or self.open)

    def _decide(self, threshold: int) -> None:
        limited = False
        for rung in self.rungs:
            enough = rung.misses >= self.misses_min
            # A limit is one of everything above it as well.
            limited = limited or (enough and rung.passes is not False and rung.limit >= threshold)
            against = (enough and rung.alone >= threshold) or (limited and rung.misses > 0)
            if against and rung.passes is not False:
                rung.passes = False
                rung.alone = rung.limit = self._cap(False)
                self.news = True
            elif rung.passes is not True and rung.heard and rung.alone == 0:
                rung.passes = True
                rung.limit = 0
                self.news = True
        for bit in self.bits:
            if bit.score >= threshold and bit.misses >= self.misses_min and bit.passes is not False:
                bit.passes = False
                bit.score = self._cap(False)
                self.news = True
            elif bit.passes is not True and bit.heard and bit.score == 0:
                bit.passes = True
                self.news = True
