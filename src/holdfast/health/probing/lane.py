"""Which sizes and patterns pass on one lane, judged by its listener.

Each probe is paired with a basic heartbeat; a heartbeat that arrives without its probe is evidence. A *round* is what
one heartbeat announced. Three things are tested (see `evidence`): for each size, that nothing of this size or above
passes (misses of all these sizes count together), and that only this size does not pass; for each pattern, that it does
not pass where a neutral packet of the same size, sent with it, does. Mixed packets only raise a suspicion. The sender
is informed of a suspicion and then sends all combinations separately until it is settled.
"""

from __future__ import annotations

from typing import Final

from holdfast.health.config import BASIC_SIZE
from holdfast.health.probing.attributes import FIRST_PATTERN, MIXED, NEUTRAL, fragments, in_order
from holdfast.health.probing.evidence import HIT, SUSPECT, compound_loss, miss_weight
from holdfast.health.probing.values import LanePlan, LaneValues
from holdfast.types import MILLISECOND, Nanos

ROUNDS_MAX: Final = 64
FAILED: Final = 4 * HIT
"""Evidence that is kept against a failed value: after this many arrivals in a row it passes again."""
MISSES_MIN: Final = 3
"""Rounds in which something must be missing, whatever the odds say: losses come in bursts."""
SETTLE_NS: Final = 20 * MILLISECOND
SETTLE_NS_MAX: Final = 500 * MILLISECOND
BURST_MIN: Final = 8
"""So many probes sent at once fill any short queue."""
TRIAL_ROUNDS: Final = 2
TRIAL_ROUNDS_MAX: Final = 30
TRIAL_NS: Final = 500 * MILLISECOND
"""After this time the sender is informed again of an unsettled suspicion."""
STREAM_SETTLE_NS: Final = 260 * MILLISECOND
"""By now a stream has retransmitted what it lost for the first time: a missing segment was lost twice."""
CUT_NS: Final = 40 * MILLISECOND
"""So much earlier it has done so on a path without delay, too: what was missing when a connection ended counts."""
STREAM_TRIES: Final = 2
STREAM_MISSES_MIN: Final = 2
STREAM_SPACING_NS: Final = 400 * MILLISECOND
"""On a blocked connection everything waits behind the lost segment: one loss is one miss, not ten. The next one that
counts is on another connection, or late enough for another retransmission."""


class Rung:
    """The state of one size."""

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
        """The number of packets that must all arrive."""
        self.passes: bool | None = None
        self.limit = 0
        """Evidence that nothing of this size or above passes."""
        self.alone = 0
        """Evidence that this size does not pass, independent of the others."""
        self.misses = 0
        self.heard = 0
        self.sent = False
        """Whether the sender has ever sent it."""
        self.missed_at: Nanos = 0
        self.stuck = False
        """On a stream: its connection is blocked."""
        self.tries = 1
        """How often the last missing probe had been sent."""


class Bits:
    """The state of one pattern."""

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
        "_crowded",
        "_cut",
        "_judged",
        "_rounds",
        "_threshold",
        "_void",
        "bits",
        "bursts",
        "calm_misses",
        "crowd_misses",
        "doubts",
        "heard_at",
        "ignored",
        "misses_min",
        "name",
        "news",
        "plan",
        "rungs",
        "settle_ns",
        "small",
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
        """Sizes whose connection is useless; they may pass on another one."""
        self.rungs: list[Rung] = []
        self.bits: list[Bits] = []
        self.doubts: dict[int, int] = {}
        """Evidence against combinations that were believed to pass, by index."""
        self.surprises = 0
        """Combinations, as bits, that arrived although they were believed not to pass."""
        self.news = False
        """A verdict has changed."""
        self.ignored = False
        """The sender continues as if a failed value passed: it has not received our report."""
        self.trial: int | None = 0
        """Judged rounds with all combinations separate, since the sender started them or was informed of a suspicion;
        None: no suspicion is being settled."""
        self.trial_at: Nanos = 0
        self.heard_at: Nanos = 0
        """When something of it arrived last."""
        self.crowd_misses = 0
        """Probes that are missing of rounds that had to wait in a queue, since someone looked."""
        self.calm_misses = 0
        """Probes that are missing of rounds that waited nowhere: no full queue dropped those."""
        self.bursts = 0
        """Rounds of many probes that came complete and waited nowhere, since someone looked."""
        self.small = [0, 0]
        """How many rounds, of those that waited nowhere, came with their smallest probe, and how many without."""
        self._crowded: dict[int, bool] = {}
        """Rounds whose basic had waited in a queue: what is missing of them was dropped because the queue was full."""
        self._threshold = 1 << 30
        self._calm = False
        """Everything that is sent passes, without evidence against any of it."""
        self._rounds: dict[int, tuple[int, Nanos]] = {}
        self._void: dict[int, int] = {}
        """The combinations of a round, as bits, that were sent on a connection that is gone."""
        self._cut: dict[int, int] = {}
        """The sizes of a round, as bits, that were missing for long enough when their connection was replaced."""
        self._arrived: dict[int, int] = {}
        self._judged: dict[int, tuple[int, Nanos]] = {}
        self.adopt(plan, patterns, mtu)

    def adopt(self, plan: LanePlan, patterns: tuple[str, ...], mtu: int = 1500) -> None:
        """The sender has another plan; the state of its values is kept."""
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
        """Probes in flight do not count any more."""
        self._rounds.clear()
        self._void.clear()
        self._cut.clear()
        self._crowded.clear()
        self._arrived.clear()
        self._judged.clear()
        self.doubts.clear()
        self.surprises = 0

    def renewed(self, size: int, now: Nanos) -> None:
        """The connection of a size is gone or was replaced: probes in flight on it do not count any more, except one
        that has been missing for so long that it was lost twice. The peer may have replaced the connection, because
        it misses something as well, and both ends judge at almost the same time."""
        for number, rung in enumerate(self.rungs):
            if rung.size != size:
                continue
            counts, rung.stuck = not rung.stuck, False
            own = ((1 << self.plan.fills) - 1) << number * self.plan.fills
            for pair, (sent, at) in self._rounds.items():
                open_ = sent & own & ~self._void.get(pair, 0) & ~self._arrived.get(pair, 0)
                if counts and open_ and now - at >= self.settle_ns - CUT_NS:
                    counts = False
                    self._cut[pair] = self._cut.get(pair, 0) | (1 << number)
                elif not self._cut.get(pair, 0) >> number & 1:
                    self._void[pair] = self._void.get(pair, 0) | own

    # -- what passes ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The largest size that passes together with all smaller ones; 0 if unknown."""
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

    def values(self) -> LaneValues:
        size = self.size
        top = max((rung.size for rung in self.rungs if rung.passes), default=0)
        holes = tuple(r.size for r in self.rungs if r.passes is False and r.size < top)
        bad = tuple(bit.name for bit in self.bits if bit.passes is False)
        alive = size != BASIC_SIZE or top > 0
        return LaneValues(size, self.size_max, holes, bad, alive)

    @property
    def known(self) -> bool:
        return any(rung.passes is not None for rung in self.rungs)

    @property
    def open(self) -> bool:
        """Whether a value that is sent is undecided, or on its way to another verdict."""
        for rung in self.rungs:
            evidence = max(rung.alone, rung.limit)
            if rung.sent and self._undecided(rung.passes, evidence, rung.alone):
                return True
        return any(
            bit.sent and self._undecided(bit.passes, bit.score, bit.score) for bit in self.bits
        )

    def wavers(self, size: int) -> bool:
        """Whether there is evidence against this size, although it passes so far."""
        return any(rung.size == size and rung.limit > 0 for rung in self.rungs)

    def _undecided(self, passes: bool | None, against: int, kept: int) -> bool:
        return passes is None or (against > 0 if passes else kept < self._cap(passes))

    def _cap(self, passes: bool | None) -> int:
        """The maximum of the evidence: beyond a verdict it only has to outlast a few arrivals."""
        return min(self._threshold, FAILED) if passes is False else self._threshold

    def doubt(self, now: Nanos, grace: int) -> int:
        """Combinations, as bits, of which the sender must be informed now: missing, or received unexpectedly."""
        # A large datagram becomes many packets, so it is often lost and rarely sent: one miss must be enough.
        suspect = (SUSPECT // 2 if self.name == "frag" else SUSPECT) * max(grace, 1)
        found = self.surprises
        for index, evidence in self.doubts.items():
            if evidence >= suspect:
                found |= 1 << index
        if not found or (self.trial is not None and now - self.trial_at < TRIAL_NS):
            return 0
        # A sender that is short of budget may need longer: what it has sent already still counts.
        self.trial, self.trial_at = self.trial or 0, now
        return found

    def begin(self, now: Nanos) -> None:
        """The sender starts to send all combinations separately."""
        self.trial, self.trial_at = 0, now

    def done(self) -> bool:
        """Whether the suspicion is settled now."""
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
        """A probe arrived, before or after the heartbeat that announces it."""
        self.heard_at = now
        judged = self._judged.get(pair)
        if judged is not None:
            self._late(index, judged, now)
            return
        if pair not in self._arrived and len(self._arrived) >= ROUNDS_MAX:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[pair] = self._arrived.get(pair, 0) | 1 << index

    def announced(self, pair: int, mask: int, at: Nanos, crowded: bool = False) -> bool:
        """A basic said what was sent with it. False when that round was judged before. `crowded`: the basic had to
        wait in a queue."""
        if pair in self._judged:
            return False
        known, since = self._rounds.get(pair, (0, at))
        if not known and len(self._rounds) >= ROUNDS_MAX:
            del self._rounds[next(iter(self._rounds))]
        self._rounds[pair] = (known | mask, since)
        if crowded:
            self._crowded[pair] = True
        return True

    def complete(self, pair: int) -> bool:
        """Whether all announced probes of a round have arrived."""
        sent, _ = self._rounds.get(pair, (0, 0))
        return not sent & ~self._arrived.get(pair, 0)

    def pass_calmly(self, pair: int) -> bool:
        """A complete round, on a lane without suspicions, and the only one that waits: it contains nothing new. False
        if it must be evaluated."""
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
        """Whether there is nothing to report about it."""
        return self._calm and self.trial is None and not self.news and not self.ignored

    @property
    def waits(self) -> bool:
        return bool(self._rounds)

    def _late(self, index: int, judged: tuple[int, Nanos], now: Nanos) -> None:
        """It counted as missing and has now arrived: the path is slower than assumed."""
        missing, at = judged
        if missing >> index & 1 and 0 <= now - at < 4 * SETTLE_NS_MAX:
            self.settle_ns = min(max(self.settle_ns, 2 * (now - at)), SETTLE_NS_MAX)
            rung, fill = divmod(index, self.plan.fills)
            self._pass(rung, fill)

    def judge(self, now: Nanos, loss_ppm: int, threshold: int, lag_ns: Nanos = 0) -> bool:
        """Evaluate the rounds that had enough time. True if there were any. `lag_ns`: what arrived in that time may
        still wait to be read."""
        done = []
        settle_ns = self.settle_ns + lag_ns
        self._threshold = threshold
        for pair, (sent, at) in self._rounds.items():
            sent &= ~self._void.get(pair, 0)
            got = self._arrived.get(pair, 0) & sent
            if got != sent and now - at < settle_ns:
                continue
            done.append(pair)
            if self.trial is not None and sent == got and pair not in self._crowded:
                self.bursts += sent.bit_count() >= BURST_MIN
            smallest = sent & -sent
            if smallest and pair not in self._crowded:
                self.small[0 if got & smallest else 1] += 1
            if sent != got:
                if pair in self._crowded:
                    self.crowd_misses += (sent & ~got).bit_count()
                    sent = got
                elif not self.stream:
                    self.calm_misses += (sent & ~got).bit_count()
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
            self._cut.pop(pair, None)
            self._crowded.pop(pair, None)
            self._arrived.pop(pair, None)
        while len(self._judged) > ROUNDS_MAX:
            del self._judged[next(iter(self._judged))]
        return bool(done)

    def overdue(self, now: Nanos) -> list[int]:
        """The sizes of which a probe was announced long enough ago and has not arrived."""
        full, found = (1 << self.plan.fills) - 1, 0
        for pair, (sent, at) in self._rounds.items():
            if now - at >= self.settle_ns:
                found |= sent & ~self._void.get(pair, 0) & ~self._arrived.get(pair, 0)
        return [r.size for n, r in enumerate(self.rungs) if found >> n * self.plan.fills & full]

    def _reached(self, pair: int, sent: int, got: int, now: Nanos) -> int:
        """The part of a round that can be judged on streams: nothing behind a lost segment on the same connection, and
        nothing on a blocked one until that has retransmitted."""
        for number, rung in enumerate(self.rungs):
            indexes = [self.plan.index(number, fill) for fill in in_order(self.plan.fills, pair)]
            missing = [1 << index for index in indexes if sent & ~got & 1 << index]
            if not missing:
                continue
            if self._cut.get(pair, 0) >> number & 1:
                sent &= ~sum(missing[1:])
                rung.tries = STREAM_TRIES
                continue  # its connection has been replaced already
            counts = not rung.stuck or now - rung.missed_at >= STREAM_SPACING_NS
            sent &= ~sum(missing[1:] if counts else missing)
            if counts:
                rung.tries = 1 if rung.stuck else STREAM_TRIES
                rung.missed_at = now
            rung.stuck = True
            # A connection for a failed size may stay blocked, unless other sizes pass again.
            if (rung.passes is not False or self.surprises) and rung.size not in self.stuck:
                self.stuck.append(rung.size)
        return sent

    def _apart(self, sent: int) -> bool:
        """Whether a round contains neutral packets of several sizes, which are sent to settle a suspicion."""
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
                # A mixed packet shows that something is wrong; neutral ones must show that it is the size.
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
        """The fills of one size: suspicions about each combination, and patterns compared with the neutral fill."""
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
        """One arrival that was too late for its round."""
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
            # A limit is also one for everything above it.
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
