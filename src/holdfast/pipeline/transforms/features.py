"""What is known about a path at a time `t`, and whether an incident begins soon after it.

Time is cut into slots of `step_s`; row `slot` stands for t = slot * step_s. Every feature looks at slots before it, so
at nothing that is not known at t. The label looks at the slots of the horizon, from t on.
"""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as sf

from holdfast.errors import MisuseError
from holdfast.pipeline.model_tables import PAIR, PATH, PATH_HOURS
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.path_states import overlap, seconds, slots_of

DAY_S: Final = 86_400
RECENT_DAYS: Final = 7
_DECAY: Final = 0.6
"""How much less a day counts than the day after it."""
_PRIOR_DAYS: Final = 0.7
"""How many days of evidence the base rate is worth. Two hits in a row after a clean week give a half."""
_NEVER_H: Final = 30 * 24.0

FEATURES: Final = (
    *("recurrence", "same_yesterday", "same_last_week", "hits_recent", "days_since_hit"),
    *("starts_1", "starts_6", "starts_day", "starts_week", "hours_since"),
    *("loss_last", "loss_day", "rtt_ratio", "jitter_last", "siblings_1", "siblings_day"),
    *("siblings_yesterday", "hour_sin", "hour_cos"),
)


class GridSettings(msgspec.Struct, frozen=True):
    """The grid of times, and how far ahead the label looks."""

    step_s: int = 3_600
    horizon_steps: int = 2
    """With two steps there is at least one step of warning before an incident in the last one."""
    covered_min: float = 0.9
    """Share of each slot that must have been watched for the label to be known."""

    @property
    def horizon_s(self) -> int:
        return self.step_s * self.horizon_steps

    @property
    def day(self) -> int:
        """Slots per day."""
        return DAY_S // self.step_s

    def check(self) -> None:
        if DAY_S % self.step_s or not 1 <= self.horizon_steps <= self.day:
            raise MisuseError(
                f"a step of {self.step_s} s with a horizon of {self.horizon_steps} steps is not possible: the step "
                "must divide a day, and the horizon must be at most a day; nothing was predicted"
            )


def path_hours(path_facts: DataFrame, step_s: int = 3_600) -> DataFrame:
    """Path facts rolled up per path and slot; sums, counts and maxima, so that partial slots merge."""
    measured = sf.col("rtt_us") > 0
    rows = (
        path_facts.withColumn("listener", sf.col("node"))
        .withColumn("slot", sf.floor(seconds(sf.col("at")) / step_s).cast("bigint"))
        .groupBy(*PATH, "slot")
        .agg(
            sf.count("*").alias("facts"),
            sf.sum("heard").alias("heard"),
            sf.sum("expected").alias("expected"),
            sf.max("loss_ppm").alias("loss_ppm_max"),
            sf.sum("rtt_us").alias("rtt_us_sum"),
            sf.count_if(measured).alias("rtt_count"),
            sf.max("rtt_us").alias("rtt_us_max"),
            sf.max("jitter_us").alias("jitter_us_max"),
            sf.max("worsened").alias("worsened_max"),
        )
    )
    return conform(rows, PATH_HOURS)


def examples(
    incidents: DataFrame,
    observed: DataFrame,
    hours: DataFrame | None = None,
    repairs: DataFrame | None = None,
    grid: GridSettings | None = None,
) -> DataFrame:
    """One row per path and slot at whose beginning the path was watched and clean.

    Columns: the path, `slot`, `label` (null if censored: the time after t was not watched to its end), `begins`
    (incidents that begin in the slot itself), `at_last` (whether it is the path's newest slot), and `FEATURES`.
    `repairs` makes a path forget: incidents before a repair are no evidence after it.
    """
    grid = grid or GridSettings()
    grid.check()
    incidents = _on_paths(incidents, observed)
    rows = _slots(observed, grid)
    rows = rows.join(_starts(incidents, grid), [*PATH, "slot"], "left").withColumn(
        "begins", sf.coalesce("begins", sf.lit(0))
    )
    rows = rows.join(_broken(incidents, observed, grid), [*PATH, "slot"], "left").withColumn(
        "clean", sf.col("broken").isNull()
    )
    rows = _with_life(rows, repairs, grid)
    rows = _with_measures(rows, hours)
    rows = _history(rows, grid)
    rows = _siblings(rows, grid)
    return rows.where("clean AND watched_at_t").select(
        *PATH,
        "slot",
        "label",
        "begins",
        "at_last",
        *(sf.col(name).cast("double") for name in FEATURES),
    )


def _on_paths(incidents: DataFrame, observed: DataFrame) -> DataFrame:
    """Incidents of a pair as a whole (empty transport) as incidents of each path of it."""
    columns = (*PATH, "start_at", "end_at")
    single = incidents.where(sf.col("transport") != "").select(*columns)
    paths = observed.select(*PATH).distinct()
    whole = incidents.where(sf.col("transport") == "").drop("transport")
    return single.unionByName(whole.join(paths, list(PAIR)).select(*columns))


def _slots(observed: DataFrame, grid: GridSettings) -> DataFrame:
    """The slots in which each path was watched, with how much of each."""
    start, end = sf.col("start"), sf.col("end")
    step = grid.step_s
    spans = observed.withColumn("start", seconds(sf.col("start_at"))).withColumn(
        "end", seconds(sf.col("end_at"))
    )
    newest = Window.partitionBy(*PATH)
    return (
        spans.withColumn("slot", sf.explode(slots_of(start, end, step)))
        .withColumn("covered", overlap(sf.col("slot"), start, end, step))
        .withColumn("at_t", start <= sf.col("slot") * step)
        .groupBy(*PATH, "slot")
        .agg(
            (sf.sum("covered") >= grid.covered_min * step).alias("covered"),
            sf.max("at_t").alias("watched_at_t"),
        )
        .withColumn("at_last", sf.col("slot") == sf.max("slot").over(newest))
    )


def _starts(incidents: DataFrame, grid: GridSettings) -> DataFrame:
    slot = sf.floor(seconds(sf.col("start_at")) / grid.step_s).cast("bigint")
    return incidents.groupBy(*PATH, slot.alias("slot")).agg(sf.count("*").alias("begins"))


def _broken(incidents: DataFrame, observed: DataFrame, grid: GridSettings) -> DataFrame:
    """The slots at whose beginning an incident is under way; an open one lasts as long as its path is watched."""
    last = observed.groupBy(*PATH).agg(sf.max(seconds(sf.col("end_at"))).alias("last"))
    start, step = seconds(sf.col("start_at")), grid.step_s
    end = sf.coalesce(seconds(sf.col("end_at")), sf.col("last") + step)
    first = sf.floor(start / step).cast("bigint") + 1
    until = sf.ceil(end / step).cast("bigint") - 1
    return (
        incidents.join(last, list(PATH), "left")
        .where(first <= until)
        .select(*PATH, sf.explode(sf.sequence(first, until)).alias("slot"))
        .distinct()
        .withColumn("broken", sf.lit(True))
    )


def _with_life(rows: DataFrame, repairs: DataFrame | None, grid: GridSettings) -> DataFrame:
    """Rows with `life`: how often the path had been repaired before. History is counted within a life."""
    if repairs is None:
        return rows.withColumn("life", sf.lit(0))
    # A repair takes effect at the next slot: an incident in its own slot may have been before it. The newest row is
    # what is predicted from now on, so there every repair counts.
    slot = sf.ceil(seconds(sf.col("repaired_at")) / grid.step_s).cast("bigint")
    marks = repairs.groupBy(*PATH).agg(sf.collect_list(slot).alias("repaired"))
    counts = lambda mark: (mark <= sf.col("slot")) | sf.col("at_last")
    life = sf.size(sf.filter("repaired", counts))
    joined = rows.join(sf.broadcast(marks), list(PATH), "left")
    return joined.withColumn("life", sf.when(sf.col("repaired").isNull(), 0).otherwise(life)).drop(
        "repaired"
    )


def _with_measures(rows: DataFrame, hours: DataFrame | None) -> DataFrame:
    """Loss, round trip and jitter of each slot, where they are known."""
    if hours is None:
        nothing = sf.lit(None).cast("double")
        return rows.withColumns({"loss": nothing, "rtt": nothing, "jitter": nothing})
    lost = sf.greatest(sf.col("expected") - sf.col("heard"), sf.lit(0))
    measured = hours.select(
        *PATH,
        "slot",
        sf.when(sf.col("expected") > 0, lost / sf.col("expected")).alias("loss"),
        sf.when(sf.col("rtt_count") > 0, sf.col("rtt_us_sum") / sf.col("rtt_count")).alias("rtt"),
        sf.col("jitter_us_max").cast("double").alias("jitter"),
    )
    return rows.join(measured, [*PATH, "slot"], "left")


def _history(rows: DataFrame, grid: GridSettings) -> DataFrame:
    """Features from the path's own past, and the label from its future."""
    ordered = Window.partitionBy(*PATH).orderBy("slot")
    past = Window.partitionBy(*PATH, "life").orderBy("slot")
    ahead = ordered.rangeBetween(0, grid.horizon_steps - 1)
    within = lambda slots: past.rangeBetween(-slots, -1)
    day, hits = grid.day, sf.sum("begins").over(ahead)
    watched = sf.count_if("covered").over(ahead) == grid.horizon_steps
    rows = rows.withColumn("hit", (hits > 0).cast("int")).withColumn(
        "label", sf.when(hits > 0, 1.0).when(watched, 0.0)
    )
    # What happened in the same window of earlier days is known, since a horizon is at most a day.
    known = sf.when(sf.col("label").isNotNull(), sf.col("hit"))
    same = {
        f"same_{days}": sf.max(known).over(past.rangeBetween(-days * day, -days * day))
        for days in range(1, RECENT_DAYS + 1)
    }
    ago = [sf.when(sf.col(f"same_{n}") == 1, n) for n in range(1, RECENT_DAYS + 1)]
    last = sf.max(sf.when(sf.col("begins") > 0, sf.col("slot"))).over(_before(past, 1))
    since = sf.coalesce((sf.col("slot") - last) * grid.step_s / 3600, sf.lit(_NEVER_H))
    recent_rtt = _mean("rtt", past, RECENT_DAYS * day)
    return (
        rows.withColumns(same)
        .withColumns(
            {
                "recurrence": _recurrence(),
                "same_yesterday": _zero("same_1"),
                "same_last_week": _zero("same_7"),
                "hits_recent": sum((_zero(name) for name in same), sf.lit(0)),
                "days_since_hit": sf.coalesce(*ago, sf.lit(2 * RECENT_DAYS)),
                "starts_1": _log_sum("begins", within(1)),
                "starts_6": _log_sum("begins", within(6 * day // 24 or 1)),
                "starts_day": sf.log1p(_total("begins", past, day)),
                "starts_week": sf.log1p(_total("begins", past, 7 * day)),
                "hours_since": sf.log1p(sf.least(since, sf.lit(_NEVER_H))),
                "loss_last": _per_mille(sf.max("loss").over(within(1))),
                "loss_day": _per_mille(_mean("loss", past, day)),
                "rtt_ratio": sf.coalesce(sf.max("rtt").over(within(1)) / recent_rtt, sf.lit(1.0)),
                "jitter_last": sf.log1p(sf.coalesce(sf.max("jitter").over(within(1)), sf.lit(0.0))),
            }
        )
        .withColumns(_clock(grid))
    )


def _recurrence() -> Column:
    """How often the same window of the last days had an incident: recent days count more, few days count little."""
    weights = [_DECAY**n for n in range(RECENT_DAYS)]
    names = [f"same_{n}" for n in range(1, RECENT_DAYS + 1)]
    hits = sum((w * _zero(name) for w, name in zip(weights, names, strict=True)), sf.lit(0.0))
    days = sum(
        (w * sf.col(name).isNotNull().cast("int") for w, name in zip(weights, names, strict=True)),
        sf.lit(0.0),
    )
    return hits / (days + _PRIOR_DAYS)


def _siblings(rows: DataFrame, grid: GridSettings) -> DataFrame:
    """How many incidents began on other paths of the same sending or receiving adapter."""
    ends = (("sender", "sender_adapter"), ("listener", "listener_adapter"))
    day = grid.day
    for number, end in enumerate(ends):
        totals = rows.groupBy(*end, "slot").agg(
            sf.sum("begins").alias("all"), sf.sum("hit").alias("hits")
        )
        past = Window.partitionBy(*end).orderBy("slot")
        totals = totals.select(
            *end,
            "slot",
            sf.sum("all").over(past.rangeBetween(-1, -1)).alias(f"all_1_{number}"),
            _total("all", past, day).alias(f"all_day_{number}"),
            sf.max("hits").over(past.rangeBetween(-day, -day)).alias(f"all_yesterday_{number}"),
        )
        rows = rows.join(totals, [*end, "slot"], "left")
    both = lambda name: sf.log1p(_zero(f"{name}_0") + _zero(f"{name}_1"))
    return rows.withColumns(
        {
            "siblings_1": both("all_1"),
            "siblings_day": both("all_day"),
            "siblings_yesterday": both("all_yesterday"),
        }
    )


def _clock(grid: GridSettings) -> dict[str, Column]:
    angle = 2 * sf.pi() * (sf.col("slot") % grid.day) / grid.day
    return {"hour_sin": sf.sin(angle), "hour_cos": sf.cos(angle)}


def _zero(name: str) -> Column:
    return sf.coalesce(sf.col(name), sf.lit(0))


def _log_sum(name: str, window: WindowSpec) -> Column:
    return sf.log1p(sf.coalesce(sf.sum(name).over(window), sf.lit(0)))


def _before(past: WindowSpec, slots: int) -> WindowSpec:
    return past.rangeBetween(Window.unboundedPreceding, -slots)


def _total(name: str, past: WindowSpec, slots: int) -> Column:
    """The sum over the last slots, as the difference of two running sums.

    Spark adds up a sliding window again for each row, but goes on from the row before when a window begins at the
    first row. For a week of hours that is the difference between minutes and seconds.
    """
    recent = sf.coalesce(sf.sum(name).over(_before(past, 1)), sf.lit(0))
    older = sf.coalesce(sf.sum(name).over(_before(past, slots + 1)), sf.lit(0))
    return sf.greatest(recent - older, sf.lit(0))


def _mean(name: str, past: WindowSpec, slots: int) -> Column:
    """The mean of what is known in the last slots; null if nothing is."""
    known = sf.count(name).over(_before(past, 1)) - sf.count(name).over(_before(past, slots + 1))
    return sf.when(known > 0, _total(name, past, slots) / known)


def _per_mille(value: Column) -> Column:
    return sf.log1p(1000 * sf.coalesce(value, sf.lit(0.0)))
