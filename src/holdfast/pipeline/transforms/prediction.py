"""Prediction (SPEC P4): the probability that a new incident begins on a path within the horizon, given it is clean now.

A model from `pyspark.ml` is fitted on the past, calibrated on a later slice and judged on a still later one, with an
embargo of one horizon between slices so that no label reaches into the next. Until there is enough history for that,
the `recurrence` estimate is used, which needs no fitting: the share of recent days with an incident in the same hours.
Advice is given only while the lower confidence bound of the measured precision is high enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.errors import MisuseError
from holdfast.pipeline.model_tables import PATH, PREDICTION_SCORES, PREDICTIONS
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.calibration import Quality, fit_isotonic, qualities
from holdfast.pipeline.transforms.features import FEATURES, RECENT_DAYS, GridSettings, examples

if TYPE_CHECKING:
    from pyspark.ml import PipelineModel
    from pyspark.sql import SparkSession

BASE_RATE: Final = "base rate"
SAME_YESTERDAY: Final = "same hour yesterday"
RECURRENCE: Final = "recurrence"
BASELINES: Final = (BASE_RATE, SAME_YESTERDAY)
_CARRIED: Final = ("slot", "label", "begins", "at_last")


class PredictionSettings(msgspec.Struct, frozen=True):
    """How predictions are made and when they become advice."""

    grid: GridSettings = GridSettings()
    model: Literal["logistic", "boosted"] = "logistic"
    threshold: float = 0.5
    """A calibrated probability from here on is a prediction."""
    precision_min: float = 0.5
    """Advice needs a precision above this..."""
    confidence: float = 0.9
    """...with this confidence, one-sided, counted in episodes."""
    train_share: float = 0.6
    calibrate_share: float = 0.2
    starts_min: int = 50
    """Fewer incidents in the training slice than this, and no model is fitted."""
    calibrate_min: int = 20
    """Fewer incidents in the calibration slice than this, and scores are used as they are."""
    negatives_per_positive: int = 20
    """Clean rows are thinned to this many per positive row; weights make up for it."""

    def check(self) -> None:
        self.grid.check()
        if not (0 < self.threshold <= 1 and 0 < self.precision_min < 1):
            raise MisuseError("threshold and precision_min are shares between 0 and 1")
        if not 0.5 <= self.confidence < 1:
            raise MisuseError(f"a confidence of {self.confidence} is not between 0.5 and 1")
        if not 0 < self.train_share + self.calibrate_share < 1:
            raise MisuseError("train_share and calibrate_share must leave something to judge by")


class Slices(msgspec.Struct, frozen=True):
    """The slots of the three slices. A row belongs to a slice if its whole horizon does."""

    first: int
    calibrate: int
    test: int
    last: int
    horizon: int

    def train(self) -> Column:
        return sf.col("slot") + self.horizon <= self.calibrate

    def calibration(self) -> Column:
        return (sf.col("slot") >= self.calibrate) & (sf.col("slot") + self.horizon <= self.test)

    def testing(self) -> Column:
        return sf.col("slot") >= self.test


class Prediction(msgspec.Struct, frozen=True):
    """What a run of the prediction gives."""

    predictions: DataFrame
    scores: DataFrame
    qualities: Mapping[str, Quality]
    chosen: str
    advice_open: bool
    text: str
    """The scores in a few lines for people."""


class _Model(msgspec.Struct, frozen=True):
    """A way to score rows: `score` takes a frame and adds `p`."""

    name: str
    score: Callable[[DataFrame], DataFrame]
    calibrated: bool = False


def predict(
    incidents: DataFrame,
    observed: DataFrame,
    hours: DataFrame | None = None,
    repairs: DataFrame | None = None,
    settings: PredictionSettings | None = None,
) -> Prediction | None:
    """Score every clean path now, and every model on what then happened. None without any observation."""
    settings = settings or PredictionSettings()
    settings.check()
    rows = examples(incidents, observed, hours, repairs, settings.grid).cache()
    try:
        slices = cut(rows, settings)
        if slices is None:
            return None
        return _Run(rows, slices, settings).result()
    finally:
        rows.unpersist()


def cut(rows: DataFrame, settings: PredictionSettings) -> Slices | None:
    """Cut the time that rows span into slices."""
    span = rows.agg(sf.min("slot").alias("first"), sf.max("slot").alias("last")).collect()[0]
    if span["first"] is None:
        return None
    first, last = span["first"], span["last"]
    length = last - first + 1
    calibrate = first + int(length * settings.train_share)
    test = first + int(length * (settings.train_share + settings.calibrate_share))
    return Slices(first, calibrate, test, last, settings.grid.horizon_steps)


class _Run:
    """One run: fits what the history allows, judges, chooses, predicts."""

    def __init__(self, rows: DataFrame, slices: Slices, settings: PredictionSettings) -> None:
        self.rows = rows
        self.slices = slices
        self.settings = settings
        self.known = rows.where("label IS NOT NULL")
        counts = self._counts()
        self.enough_to_fit = counts["train"] >= settings.starts_min
        self.enough_to_calibrate = counts["calibrate"] >= settings.calibrate_min
        # Without anything fitted, every row after the first day was predicted from its past alone.
        first = slices.first + settings.grid.day
        self.judged_from = slices.test if self.enough_to_calibrate else min(first, slices.last)

    def result(self) -> Prediction:
        models = [*self._baselines(), self._recurrence()]
        if self.enough_to_fit and self.enough_to_calibrate:
            models.append(self._fitted())
        judged = self.rows.where(sf.col("slot") >= self.judged_from)
        # Three questions are asked of these rows; without a cache each would score them again.
        scored = _union([_scored(judged, model) for model in models]).cache()
        found = qualities(scored, self.settings.threshold, self.settings.grid.horizon_steps)
        scored.unpersist()
        chosen = self._choose(models, found)
        advice_open, why = self._gate(chosen.name, found)
        now = _scored(self.rows.where("at_last AND begins = 0"), chosen, *FEATURES)
        # Rows are let go when this run ends, so the few predictions are kept by value.
        session = self.rows.sparkSession
        made = self._predictions(now, chosen, advice_open).toArrow()
        predictions = session.createDataFrame(made)
        scores = self._scores(session, models, found, chosen, advice_open, why)
        text = _text(found, chosen.name, advice_open, why, self.settings)
        return Prediction(
            conform(predictions, PREDICTIONS), scores, found, chosen.name, advice_open, text
        )

    def _counts(self) -> dict[str, int]:
        starts = self.known.where("begins > 0")
        row = starts.agg(
            sf.count_if(self.slices.train()).alias("train"),
            sf.count_if(self.slices.calibration()).alias("calibrate"),
        ).collect()[0]
        return {"train": row["train"], "calibrate": row["calibrate"]}

    def _baselines(self) -> list[_Model]:
        """Rates of the time before the judged slice; of all time while nothing is fitted, which flatters them."""
        before = self.known
        if self.enough_to_calibrate:
            before = before.where(sf.col("slot") + self.slices.horizon <= self.slices.test)
        same = sf.col("same_yesterday") > 0
        row = before.agg(
            sf.avg("label").alias("rate"),
            sf.avg(sf.when(same, sf.col("label"))).alias("same"),
            sf.avg(sf.when(~same, sf.col("label"))).alias("other"),
        ).collect()[0]
        rate, hit, miss = (row[name] or 0.0 for name in ("rate", "same", "other"))
        constant = lambda frame: frame.withColumn("p", sf.lit(float(rate)))
        yesterday = lambda frame: frame.withColumn(
            "p", sf.when(same, sf.lit(float(hit))).otherwise(sf.lit(float(miss)))
        )
        return [_Model(BASE_RATE, constant), _Model(SAME_YESTERDAY, yesterday)]

    def _recurrence(self) -> _Model:
        raw = lambda frame: frame.withColumn("raw", sf.col("recurrence"))
        return self._calibrated(RECURRENCE, raw)

    def _fitted(self) -> _Model:
        model = self._fit()
        from pyspark.ml.functions import vector_to_array

        raw = lambda frame: model.transform(frame).withColumn(
            "raw", vector_to_array(sf.col("probability"))[1]
        )
        return self._calibrated(self.settings.model, raw)

    def _calibrated(self, name: str, raw: Callable[[DataFrame], DataFrame]) -> _Model:
        if not self.enough_to_calibrate:
            return _Model(name, lambda frame: raw(frame).withColumnRenamed("raw", "p"))
        isotonic = fit_isotonic(raw(self.known.where(self.slices.calibration())))
        return _Model(name, lambda frame: isotonic.transform(raw(frame)), calibrated=True)

    def _fit(self) -> PipelineModel:
        from pyspark.ml import Pipeline
        from pyspark.ml.classification import GBTClassifier, LogisticRegression
        from pyspark.ml.feature import VectorAssembler

        columns: dict[str, Any] = {
            "featuresCol": "vector",
            "labelCol": "label",
            "weightCol": "weight",
        }
        if self.settings.model == "boosted":
            estimator: Any = GBTClassifier(maxDepth=4, maxIter=20, seed=1, **columns)
        else:
            estimator = LogisticRegression(regParam=1e-3, maxIter=50, **columns)
        assembler = VectorAssembler(inputCols=list(FEATURES), outputCol="vector")
        return Pipeline(stages=[assembler, estimator]).fit(self._thinned())

    def _thinned(self) -> DataFrame:
        """Training rows with fewer of the many clean ones; the same ones in every run."""
        train = self.known.where(self.slices.train())
        row = train.agg(sf.sum("label").alias("hits"), sf.count("*").alias("rows")).collect()[0]
        wanted = self.settings.negatives_per_positive * max(row["hits"], 1)
        every = max(1, int((row["rows"] - row["hits"]) // wanted))
        kept = (sf.col("label") == 1) | (sf.pmod(sf.xxhash64(*PATH, "slot"), sf.lit(every)) == 0)
        weight = sf.when(sf.col("label") == 1, 1.0).otherwise(float(every))
        return train.where(kept).withColumn("weight", weight)

    def _choose(self, models: list[_Model], found: Mapping[str, Quality]) -> _Model:
        """The candidate with the smallest Brier score; baselines are there to be beaten, not to be chosen."""
        candidates = [model for model in models if model.name not in BASELINES]
        return min(
            candidates, key=lambda model: found[model.name].brier if model.name in found else 1.0
        )

    def _gate(self, chosen: str, found: Mapping[str, Quality]) -> tuple[bool, str]:
        quality = found.get(chosen, Quality())
        low = quality.precision_low(self.settings.confidence)
        if not quality.episodes:
            return False, "nothing was predicted yet, so precision is not known"
        if low < self.settings.precision_min:
            return False, (
                f"precision is {quality.episodes_hit} of {quality.episodes} episodes, above {low:.2f} with "
                f"{self.settings.confidence:.0%} confidence; {self.settings.precision_min:.2f} is needed"
            )
        if quality.brier >= found[BASE_RATE].brier:
            return False, "it is no better than the base rate"
        return True, (
            f"precision is {quality.episodes_hit} of {quality.episodes} episodes, above {low:.2f} with "
            f"{self.settings.confidence:.0%} confidence"
        )

    def _predictions(self, now: DataFrame, chosen: _Model, advice_open: bool) -> DataFrame:
        grid, threshold = self.settings.grid, self.settings.threshold
        predicted = sf.col("p") >= threshold
        at = sf.col("slot") * grid.step_s
        return conform(
            now.withColumns(
                {
                    "at": sf.timestamp_seconds(at),
                    "valid_until": sf.timestamp_seconds(at + grid.horizon_s),
                    "horizon_s": sf.lit(grid.horizon_s).cast("bigint"),
                    "probability": sf.col("p"),
                    "model": sf.lit(chosen.name),
                    "threshold": sf.lit(threshold),
                    "predicted": predicted,
                    "advised": predicted & sf.lit(advice_open),
                    "why": _why(),
                }
            ),
            PREDICTIONS,
        )

    def _scores(
        self,
        session: SparkSession,
        models: list[_Model],
        found: Mapping[str, Quality],
        chosen: _Model,
        advice_open: bool,
        why: str,
    ) -> DataFrame:
        step = self.settings.grid.step_s
        start, end = (
            datetime.fromtimestamp(slot * step, UTC)
            for slot in (self.judged_from, self.slices.last + 1)
        )
        base = found[BASE_RATE].brier if BASE_RATE in found else 0.0
        best = min((found[name].brier for name in BASELINES if name in found), default=0.0)
        rows = [
            _score_row(model, found.get(model.name, Quality()), base, best, self.settings)
            | {
                "chosen": model.name == chosen.name,
                "evaluated_from": start,
                "evaluated_until": end,
                "advice_open": advice_open and model.name == chosen.name,
                "why": why if model.name == chosen.name else "",
            }
            for model in models
        ]
        return session.createDataFrame(rows, PREDICTION_SCORES)


def _score_row(
    model: _Model, quality: Quality, base: float, best: float, settings: PredictionSettings
) -> dict[str, Any]:
    return {
        "model": model.name,
        "is_baseline": model.name in BASELINES,
        "calibrated": model.calibrated,
        "rows": quality.rows,
        "positives": quality.positives,
        "brier": quality.brier,
        "brier_skill": 1 - quality.brier / base if base else 0.0,
        "threshold": settings.threshold,
        "precision": quality.precision,
        "recall": quality.recall,
        "episodes": quality.episodes,
        "episodes_hit": quality.episodes_hit,
        "precision_low": quality.precision_low(settings.confidence),
        "incidents": quality.incidents,
        "incidents_predicted": quality.incidents_predicted,
        "beats_baselines": model.name not in BASELINES and quality.brier < best,
        "bins": [msgspec.structs.asdict(item) for item in quality.bins],
    }


def _scored(rows: DataFrame, model: _Model, *more: str) -> DataFrame:
    scored: DataFrame = model.score(rows)
    return scored.select(sf.lit(model.name).alias("model"), *PATH, *_CARRIED, "p", *more)


def _union(frames: list[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _why() -> Column:
    """The evidence in words."""
    reasons = sf.concat_ws(
        "; ",
        sf.when(
            sf.col("hits_recent") > 0,
            sf.format_string(
                f"incidents began in these hours on %d of the last {RECENT_DAYS} days",
                sf.col("hits_recent").cast("int"),
            ),
        ),
        sf.when(
            sf.col("siblings_day") > 0,
            sf.lit("incidents on other paths of the same adapters within a day"),
        ),
        sf.when(sf.col("loss_last") > 1, sf.lit("loss in the last hour")),
    )
    return sf.when(reasons == "", "nothing unusual").otherwise(reasons)


def _text(
    found: Mapping[str, Quality],
    chosen: str,
    advice_open: bool,
    why: str,
    settings: PredictionSettings,
) -> str:
    lines = []
    for name, quality in found.items():
        share = lambda value: "none" if value is None else f"{value:.3f}"
        mark = "*" if name == chosen else " "
        lines.append(
            f"{mark} {name:20} Brier {quality.brier:.5f}, precision {share(quality.precision)} "
            f"({quality.episodes_hit} of {quality.episodes} episodes, above "
            f"{quality.precision_low(settings.confidence):.3f}), recall {share(quality.recall)} "
            f"({quality.incidents_predicted} of {quality.incidents} incidents)"
        )
    if chosen in found:
        bars = ", ".join(f"{b.mean:.2f} -> {b.observed:.2f} ({b.rows})" for b in found[chosen].bins)
        lines.append(f"  calibration of {chosen}, predicted -> observed (rows): {bars}")
    lines.append(f"  advice is {'given' if advice_open else 'withheld'}: {why}")
    return "\n".join(lines)
