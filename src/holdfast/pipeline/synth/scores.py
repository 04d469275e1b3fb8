"""Results compared with the truth of synthetic telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.synth.truth import INVENTORY_NAME, TRUTH
from holdfast.pipeline.transforms.path_states import ALL_TRANSPORTS, overlap, seconds, slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTICED_S: Final = 10.0
"""A fault that lasts for less of a bucket than this need not be located in it."""


class LocalisationScore(msgspec.Struct, frozen=True, kw_only=True):
    """How well faults were located, counted per bucket and, for `recall_faults`, per fault."""

    located: int
    correct: int
    expected: int
    found: int
    faults: int
    faults_found: int
    ambiguity: float
    """How many groups a correct answer names, on average: 1 is exact."""

    @property
    def precision(self) -> float:
        return self.correct / self.located if self.located else 0.0

    @property
    def recall(self) -> float:
        return self.found / self.expected if self.expected else 0.0

    @property
    def recall_faults(self) -> float:
        return self.faults_found / self.faults if self.faults else 0.0

    def text(self) -> str:
        """One line for people."""
        return (
            f"localisation: precision {self.precision:.3f} ({self.correct} of {self.located}), "
            f"recall {self.recall:.3f} ({self.found} of {self.expected} buckets, {self.faults_found} of "
            f"{self.faults} faults), {self.ambiguity:.2f} groups per correct answer"
        )


def read_truth(session: SparkSession, out: str, name: str) -> DataFrame:
    """A table of the truth: faults, incidents, coverage, violations, busy or noise."""
    return session.read.parquet(f"{out}/{TRUTH}/{name}")


def inventory_path(out: str) -> str:
    return f"{out}/{TRUTH}/{INVENTORY_NAME}"


def score_localisation(
    localisation: DataFrame,
    faults: DataFrame,
    incidents: DataFrame,
    bucket_s: int,
    confidence_min: float = 0.0,
) -> LocalisationScore:
    """Compare located faults with the truth.

    An answer is correct if it names, among its groups, that of a fault that was active in its bucket with the same
    symptom. A fault is expected in a bucket if it showed on a path there; noise on one path is a correct
    answer if the pair is named, and is not expected.
    """
    answers = localisation.where(sf.col("confidence") >= confidence_min)
    active = _active(faults, incidents, bucket_s).cache()
    named = answers.withColumn("answer", sf.monotonically_increasing_id()).withColumn(
        "group", sf.explode("groups")
    )
    matches = named.join(
        active,
        (sf.col("bucket_at") == sf.col("true_bucket"))
        & (sf.col("error_class") == sf.col("true_class"))
        & (sf.col("transport") == sf.col("true_transport"))
        & (sf.col("group.kind") == sf.col("true_kind"))
        & (sf.col("group.name") == sf.col("true_name")),
    ).cache()
    expected = active.where("expected")
    hit = matches.where("expected").select("fault", "bucket_at").distinct()
    right = matches.select("answer", sf.size("groups").alias("names")).distinct()
    totals = right.agg(sf.count("*").alias("correct"), sf.avg("names").alias("names")).collect()[0]
    score = LocalisationScore(
        located=answers.count(),
        correct=totals["correct"],
        expected=expected.select("fault", "true_bucket").distinct().count(),
        found=hit.count(),
        faults=expected.select("fault").distinct().count(),
        faults_found=hit.select("fault").distinct().count(),
        ambiguity=totals["names"] or 0.0,
    )
    active.unpersist()
    matches.unpersist()
    return score


def _active(faults: DataFrame, incidents: DataFrame, bucket_s: int) -> DataFrame:
    """Per bucket the faults that showed in it, and for how long; noise counts as a fault of its pair."""
    shown = (
        incidents.withColumn("start", seconds(sf.col("start_at")))
        .withColumn("end", seconds(sf.col("end_at")))
        .withColumn("bucket", sf.explode(slots_of(sf.col("start"), sf.col("end"), bucket_s)))
        .withColumn("lasts", overlap(sf.col("bucket"), sf.col("start"), sf.col("end"), bucket_s))
        .withColumn("true_bucket", sf.timestamp_seconds(sf.col("bucket") * bucket_s))
        .withColumn("true_class", sf.col("error_class"))
        .withColumn(
            "true_transport",
            sf.when(sf.col("error_class").isin(*ALL_TRANSPORTS), "").otherwise(sf.col("transport")),
        )
    )
    per_fault = shown.groupBy("fault", "true_bucket", "true_class", "true_transport").agg(
        sf.max("lasts").alias("lasts")
    )
    groups = faults.select(
        "fault", sf.col("kind").alias("true_kind"), sf.col("name").alias("true_name")
    ).distinct()
    real = per_fault.join(groups, "fault").withColumn("expected", sf.col("lasts") >= _NOTICED_S)
    pair = sf.concat_ws(
        ">",
        sf.concat_ws("/", "sender", "sender_adapter"),
        sf.concat_ws("/", "listener", "listener_adapter"),
    )
    noise = shown.where("fault < 0").select(
        *("fault", "true_bucket", "true_class", "true_transport", "lasts"),
        sf.lit("pair").alias("true_kind"),
        pair.alias("true_name"),
        sf.lit(False).alias("expected"),
    )
    return real.unionByName(noise)
