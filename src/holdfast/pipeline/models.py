"""The views that models make: where faults are, which paths are at risk, when adapters are busy.

Models read views and hourly tables, never facts. Fitting costs more than a run of five minutes has, so these views are
made again only every `Settings.models_every_s`; in between, the published ones stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.pipeline.tables import Source, View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHORT_BUCKETS: Final = 4
SHORT_BUCKET_S: Final = 60
BUSY_DAYS: Final = 182
"""Half a year of hours of the week: habits of longer ago say nothing about the next week."""


def observed(source: Source) -> DataFrame:
    """The stretches of time in which each path was observed, from its runs."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    from holdfast.pipeline.incident_fold import HOLD_US
    from holdfast.pipeline.transforms.path_runs import PATH

    ordered = Window.partitionBy(*PATH, "incarnation").orderBy("start_at")
    before = sf.max("end_at").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    gap_us = sf.unix_micros("start_at") - sf.unix_micros(before)
    goes_on = (gap_us <= HOLD_US) & ~sf.col("lost_before")
    return (
        source.hourly("path_runs", source.look_back_days)
        .withColumn("starts", sf.when(sf.coalesce(goes_on, sf.lit(False)), 0).otherwise(1))
        .withColumn("stretch", sf.sum("starts").over(ordered))
        .groupBy(*PATH, "incarnation", "stretch")
        .agg(sf.min("start_at").alias("start_at"), sf.max("end_at").alias("end_at"))
        .select(*PATH, "start_at", "end_at")
    )


def path_slots(source: Source, step_s: int = 3600) -> DataFrame:
    """Path runs rolled up per path and slot of time."""
    from pyspark.sql import functions as sf

    from holdfast.pipeline.transforms.path_runs import PATH

    slot = sf.floor(sf.unix_seconds("start_at") / step_s).cast("bigint")
    sums = ("facts", "heard", "expected", "rtt_us_sum", "rtt_count")
    tops = ("loss_ppm_max", "rtt_us_max", "jitter_us_max", "worsened_max")
    return (
        source.hourly("path_runs", source.look_back_days)
        .withColumn("slot", slot)
        .groupBy(*PATH, "slot")
        .agg(
            *(sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in sums),
            *(sf.coalesce(sf.max(name), sf.lit(0)).alias(name) for name in tops),
        )
    )


def _localisation(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.localisation import localise
    from holdfast.pipeline.transforms.path_states import path_states, with_flapping

    bucket_s = _bucket_s(_span_s(source))
    states = path_states(with_flapping(_recent(source)), observed(source), bucket_s)
    return localise(states, _inventory(source), bucket_s=bucket_s)


def _span_s(source: Source) -> int:
    """The time between the first and the last observation of the look-back."""
    from pyspark.sql import functions as sf

    if "span_s" not in source.memo:
        runs = source.hourly("path_runs", source.look_back_days)
        (span,) = runs.agg(
            sf.unix_seconds(sf.max("end_at")) - sf.unix_seconds(sf.min("start_at"))
        ).collect()[0]
        source.memo["span_s"] = span or 0
    return cast("int", source.memo["span_s"])


def _bucket_s(span_s: int) -> int:
    """Buckets of a quarter of an hour; of a minute while the whole history is only a few of those."""
    from holdfast.pipeline.transforms.path_states import BUCKET_S

    return BUCKET_S if span_s >= SHORT_BUCKETS * BUCKET_S else SHORT_BUCKET_S


def _inventory(source: Source) -> DataFrame | None:
    """Where adapters are plugged in, if the run was given an inventory; nodes may be named by name or id."""
    from holdfast.pipeline.transforms.localisation import inventory_frame
    from holdfast.pipeline.transforms.risk_groups import parse_inventory

    if not source.inventory:
        return None
    names = {row["name"]: row["node"] for row in source.view("nodes").collect()}
    return inventory_frame(source.spark, parse_inventory(source.inventory, names))


def _located_faults(source: Source) -> DataFrame:
    from holdfast.pipeline.transforms.localisation import located_faults

    return located_faults(source.view("localisation"))


def _recent(source: Source) -> DataFrame:
    """The incidents of the look-back."""
    from pyspark.sql import functions as sf

    incidents = source.view("incidents")
    since = sf.make_dt_interval(days=sf.lit(source.look_back_days))
    newest = sf.broadcast(incidents.agg(sf.max("last_seen_at").alias("newest")))
    recent = incidents.crossJoin(newest).where(sf.col("last_seen_at") >= sf.col("newest") - since)
    return recent.drop("newest")


def _predicted(source: Source) -> Any:
    """Predictions and scores of this run, made once; None while the history is shorter than the horizon, because
    nothing could be judged then."""
    from holdfast.pipeline.transforms.prediction import PredictionSettings, predict
    from holdfast.pipeline.transforms.repairs import repairs

    if _span_s(source) < PredictionSettings().grid.horizon_s:
        return None
    if "prediction" not in source.memo:
        source.memo["prediction"] = predict(
            _recent(source),
            observed(source),
            path_slots(source),
            repairs(source.facts("repair", source.look_back_days)),
        )
    return source.memo["prediction"]


def _predictions(source: Source) -> DataFrame:
    from holdfast.pipeline.model_tables import PREDICTIONS

    made = _predicted(source)
    return source.spark.createDataFrame([], PREDICTIONS) if made is None else made.predictions


def _scores(source: Source) -> DataFrame:
    from holdfast.pipeline.model_tables import PREDICTION_SCORES

    made = _predicted(source)
    return source.spark.createDataFrame([], PREDICTION_SCORES) if made is None else made.scores


def _busy_windows(source: Source) -> DataFrame:
    from pyspark.sql import functions as sf

    from holdfast.pipeline.transforms.busy import busy_windows

    hours = source.hourly("load_hours", BUSY_DAYS).withColumn(
        "hour", sf.to_timestamp("hour", "yyyy-MM-dd'T'HH")
    )
    return busy_windows(hours, source.now)


def _view(
    name: str, sort: tuple[str, ...], build: Callable[[Source], DataFrame], needs: str = "incidents"
) -> View:
    return View(name, (), sort, build, "models", needs)


MODEL_VIEWS: Final = (
    _view("localisation", ("bucket_at", "error_class", "transport", "rank"), _localisation),
    _view("located_faults", ("start_at", "kind", "name"), _located_faults),
    _view("predictions", ("sender", "listener", "transport"), _predictions),
    _view("prediction_scores", ("model",), _scores),
    _view("busy_windows", ("node", "adapter", "weekday", "hour"), _busy_windows, "load_hours"),
)
