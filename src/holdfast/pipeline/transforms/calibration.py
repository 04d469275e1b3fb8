"""How good predictions are: calibration, reliability, and precision counted in episodes.

Rows of neighbouring times on one path share their incident, so they are no independent evidence. Precision is
counted in episodes: runs of predictions on one pair of adapters, whatever the transport.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.model_tables import PAIR

if TYPE_CHECKING:
    from pyspark.ml.regression import IsotonicRegressionModel

BINS: Final = 10


class Bin(msgspec.Struct, frozen=True):
    """One bar of the reliability diagram."""

    low: float
    high: float
    rows: int
    mean: float
    """The mean prediction."""
    observed: float
    """How often it then happened."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How one model did."""

    rows: int = 0
    positives: int = 0
    brier: float = 0.0
    episodes: int = 0
    episodes_hit: int = 0
    incidents: int = 0
    incidents_predicted: int = 0
    bins: tuple[Bin, ...] = ()

    @property
    def precision(self) -> float | None:
        return self.episodes_hit / self.episodes if self.episodes else None

    @property
    def recall(self) -> float | None:
        return self.incidents_predicted / self.incidents if self.incidents else None

    def precision_low(self, confidence: float) -> float:
        return wilson_low(self.episodes_hit, self.episodes, confidence)


def wilson_low(hits: int, trials: int, confidence: float) -> float:
    """The lower end of Wilson's interval for a share, one-sided: the share is above it with this confidence."""
    if not trials:
        return 0.0
    z = NormalDist().inv_cdf(confidence)
    share = hits / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (centre - spread) / (1 + z * z / trials))


def fit_isotonic(rows: DataFrame) -> IsotonicRegressionModel:
    """A monotone map from `raw` to the observed share of `label`; fit it on rows later than those of the model."""
    from pyspark.ml.regression import IsotonicRegression

    regression = IsotonicRegression(featuresCol="raw", labelCol="label", predictionCol="p")
    fitted: IsotonicRegressionModel = regression.fit(rows.select("raw", "label"))
    return fitted


def qualities(scored: DataFrame, threshold: float, horizon_steps: int) -> dict[str, Quality]:
    """The quality of each `model` in `scored`: columns model, path, slot, p, label, begins."""
    known = scored.where("label IS NOT NULL")
    figures: dict[str, dict[str, Any]] = {}
    for row in _calibration(known).collect():
        figures.setdefault(row["model"], {"bins": []})["bins"].append(row)
    found: dict[str, Quality] = {}
    episodes = {row["model"]: row for row in _episodes(known, threshold, horizon_steps).collect()}
    recalled = {row["model"]: row for row in _recall(known, threshold, horizon_steps).collect()}
    for model in sorted(figures):
        bins = sorted(figures[model]["bins"], key=lambda row: row["bin"])
        rows = sum(row["rows"] for row in bins)
        found[model] = Quality(
            rows=rows,
            positives=int(sum(row["positives"] for row in bins)),
            brier=sum(row["squared"] for row in bins) / rows,
            episodes=episodes[model]["episodes"] if model in episodes else 0,
            episodes_hit=int(episodes[model]["hits"]) if model in episodes else 0,
            incidents=recalled[model]["incidents"] if model in recalled else 0,
            incidents_predicted=int(recalled[model]["predicted"]) if model in recalled else 0,
            bins=tuple(_bin(row) for row in bins),
        )
    return found


def _bin(row: Any) -> Bin:
    low = row["bin"] / BINS
    rows = row["rows"]
    return Bin(low, low + 1 / BINS, rows, row["total"] / rows, row["positives"] / rows)


def _calibration(known: DataFrame) -> DataFrame:
    square = (sf.col("p") - sf.col("label")) * (sf.col("p") - sf.col("label"))
    number = sf.least(sf.floor(sf.col("p") * BINS), sf.lit(BINS - 1)).cast("int")
    return known.groupBy("model", number.alias("bin")).agg(
        sf.count("*").alias("rows"),
        sf.sum("label").alias("positives"),
        sf.sum("p").alias("total"),
        sf.sum(square).alias("squared"),
    )


def _episodes(known: DataFrame, threshold: float, horizon_steps: int) -> DataFrame:
    """Runs of predicted slots per pair; a hit if an incident began in one of their horizons."""
    ordered = Window.partitionBy("model", *PAIR).orderBy("slot")
    gap = sf.col("slot") - sf.lag("slot").over(ordered)
    return (
        known.where(sf.col("p") >= threshold)
        .groupBy("model", *PAIR, "slot")
        .agg(sf.max("label").alias("label"))
        .withColumn("new", sf.when(gap <= horizon_steps, 0).otherwise(1))
        .withColumn("run", sf.sum("new").over(ordered))
        .groupBy("model", *PAIR, "run")
        .agg(sf.max("label").alias("hit"))
        .groupBy("model")
        .agg(sf.count("*").alias("episodes"), sf.sum("hit").alias("hits"))
    )


def _recall(known: DataFrame, threshold: float, horizon_steps: int) -> DataFrame:
    """Incidents that began on a clean path, and how many of them a prediction was valid for."""
    recent = Window.partitionBy("model", *PAIR).orderBy("slot").rangeBetween(1 - horizon_steps, 0)
    return (
        known.groupBy("model", *PAIR, "slot")
        .agg(
            sf.max((sf.col("p") >= threshold).cast("int")).alias("predicted"),
            sf.max((sf.col("begins") > 0).cast("int")).alias("begins"),
        )
        .withColumn("warned", sf.max("predicted").over(recent))
        .where("begins = 1")
        .groupBy("model")
        .agg(sf.count("*").alias("incidents"), sf.sum("warned").alias("predicted"))
    )
