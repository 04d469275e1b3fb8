"""Incidents from path facts, in the plainest way that serves the tests of what is made of incidents."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOSSY_PPM = 20_000
FLAPS = 4
CALM_S = 60


def simple_incidents(path_facts: DataFrame) -> DataFrame:
    """Stretches of facts with the same error, per path. Deaths in quick succession are flapping; a transport that is
    dead while another one of the same pair lives is filtered."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    from holdfast.pipeline.model_tables import PAIR, PATH

    ordered = Window.partitionBy(*PATH, "incarnation").orderBy("now_ns", "n")
    error = (
        sf.when(~sf.col("alive"), "dead")
        .when((sf.col("size") > 0) & (sf.col("size") < sf.col("size_max")), "size")
        .when(sf.col("bad_patterns") != "", "pattern")
        .when(sf.col("loss_ppm") >= LOSSY_PPM, "loss")
        .otherwise("")
    )
    facts = (
        path_facts.withColumn("listener", sf.col("node"))
        .withColumn("error_class", error)
        .withColumn("before", sf.lag("error_class").over(ordered))
        .withColumn("until", sf.lead("at").over(ordered))
        .withColumn(
            "stretch",
            sf.sum(sf.when(sf.col("error_class") == sf.col("before"), 0).otherwise(1)).over(
                ordered
            ),
        )
        .where("error_class != ''")
        .groupBy(*PATH, "incarnation", "stretch", "error_class")
        .agg(
            sf.min("at").alias("start_at"),
            sf.max(sf.coalesce("until", "at")).alias("end_at"),
        )
    )
    of_path = Window.partitionBy(*PATH, "error_class").orderBy("start_at")
    calm = sf.unix_micros("start_at") - sf.unix_micros(sf.lag("end_at").over(of_path))
    merged = (
        facts.withColumn("new", sf.when(calm <= CALM_S * 1_000_000, 0).otherwise(1))
        .withColumn("run", sf.sum("new").over(of_path))
        .groupBy(*PATH, "error_class", "run")
        .agg(
            sf.min("start_at").alias("start_at"),
            sf.max("end_at").alias("end_at"),
            sf.count("*").alias("times"),
        )
        .withColumn(
            "error_class",
            sf.when(
                (sf.col("error_class") == "dead") & (sf.col("times") >= FLAPS), "flapping"
            ).otherwise(sf.col("error_class")),
        )
    )
    # Only one of the transports of a pair is dead: it is filtered.
    dead = merged.where("error_class = 'dead'")
    other = dead.select(
        *PAIR,
        sf.col("transport").alias("other_transport"),
        sf.col("start_at").alias("other_start"),
        sf.col("end_at").alias("other_end"),
    )
    both = (
        dead.join(other, list(PAIR))
        .where(
            (sf.col("transport") != sf.col("other_transport"))
            & (sf.col("other_start") < sf.col("end_at"))
            & (sf.col("other_end") > sf.col("start_at"))
        )
        .select(*PATH, "start_at", sf.lit(True).alias("both"))
        .distinct()
    )
    return (
        merged.join(both, [*PATH, "start_at"], "left")
        .withColumn(
            "error_class",
            sf.when(
                (sf.col("error_class") == "dead") & sf.col("both").isNull(), "protocol"
            ).otherwise(sf.col("error_class")),
        )
        .select(*PATH, "error_class", "start_at", "end_at")
    )
