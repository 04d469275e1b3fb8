"""Fault localisation (SPEC P3): the adapter, node, subnet, switch port, realm or direction that explains failing paths.

Each bucket of time and symptom is explained on its own (`cover.explain`), in parallel on the executors. A symptom is a
class of error and a transport: a filter that drops TCP is judged by the TCP paths that pass, not by UDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.model_tables import INVENTORY, LOCALISATION, LOCATED_FAULTS, PATH
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.path_states import BUCKET_S
from holdfast.pipeline.transforms.risk_groups import SIDE_COLUMNS, InventoryRow

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

    from holdfast.pipeline.transforms.cover import CoverSettings, Explanation

SYMPTOM: Final = ("bucket_at", "error_class", "transport")
_SIDES: Final = tuple(
    f"{side}_{column}" for side in ("sender", "listener") for column in SIDE_COLUMNS
)


def inventory_frame(session: SparkSession, rows: list[InventoryRow]) -> DataFrame:
    """An inventory as the frame that `localise` takes."""
    return session.createDataFrame([msgspec.structs.astuple(row) for row in rows], INVENTORY)


def localise(
    states: DataFrame,
    inventory: DataFrame | None = None,
    settings: CoverSettings | None = None,
    bucket_s: int = BUCKET_S,
) -> DataFrame:
    """The faults that explain `states` (see `path_states`), as the table `localisation`."""
    placed = _with_inventory(states, inventory)
    rows = placed.groupBy(*SYMPTOM).applyInPandas(
        _explainer(settings, bucket_s), schema=LOCALISATION
    )
    return conform(rows, LOCALISATION)


def located_faults(localisation: DataFrame) -> DataFrame:
    """Faults as people see them: the same groups in adjacent buckets are one, whatever its symptoms."""
    end = sf.col("bucket_at") + sf.make_dt_interval(secs=sf.col("bucket_s"))
    of_groups = Window.partitionBy("groups").orderBy("bucket_at")
    before = sf.max("until_at").over(of_groups.rowsBetween(Window.unboundedPreceding, -1))
    starts = sf.when(sf.col("bucket_at") <= before, 0).otherwise(1)
    rows = (
        localisation.withColumn("until_at", end)
        .withColumn("starts", starts)
        .withColumn("stretch", sf.sum("starts").over(of_groups))
        .groupBy("kind", "name", "groups", "stretch")
        .agg(
            sf.min("bucket_at").alias("start_at"),
            sf.max("until_at").alias("end_at"),
            sf.count_distinct("bucket_at").alias("buckets"),
            sf.sort_array(sf.collect_set("error_class")).alias("error_classes"),
            sf.sort_array(sf.collect_set("transport")).alias("transports"),
            sf.max("confidence").alias("confidence"),
            sf.max("failing").alias("failing"),
            sf.min("passing").alias("passing"),
        )
    )
    return conform(rows, LOCATED_FAULTS)


def _with_inventory(states: DataFrame, inventory: DataFrame | None) -> DataFrame:
    """States with realm, switch and port of both ends; empty where the inventory does not say."""
    if inventory is None:
        return states.withColumns({name: sf.lit("") for name in _SIDES})
    frame = states
    for side in ("sender", "listener"):
        known = inventory.select(
            sf.col("node").alias(side),
            sf.col("adapter").alias(f"{side}_adapter"),
            *(sf.col(name).alias(f"{side}_{name}") for name in SIDE_COLUMNS),
        )
        frame = frame.join(sf.broadcast(known), [side, f"{side}_adapter"], "left")
    return frame.withColumns({name: sf.coalesce(name, sf.lit("")) for name in _SIDES})


def _explainer(
    settings: CoverSettings | None, bucket_s: int
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def explain_symptom(paths: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        from holdfast.pipeline.transforms.cover import explain

        # The rows of a group come in any order; the result must not depend on it.
        paths = paths.sort_values(list(PATH), ignore_index=True)
        found = explain(paths, settings)
        return pd.DataFrame(list(_rows(paths, found, bucket_s)), columns=_COLUMNS)

    return explain_symptom


_COLUMNS: Final = (
    *("bucket_at", "bucket_s", "error_class", "transport", "rank", "kind", "name", "groups"),
    *("confidence", "margin", "runner_up_kind", "runner_up_name", "failing", "passing"),
    *("failing_total", "passing_total", "unexplained"),
)


def _rows(paths: pd.DataFrame, found: Explanation, bucket_s: int) -> Iterator[tuple[Any, ...]]:
    first = paths.iloc[0]
    failing = int(paths["failing"].sum())
    for rank, fault in enumerate(found.faults, start=1):
        runner_up = fault.runner_up
        yield (
            *(first["bucket_at"], bucket_s, first["error_class"], first["transport"], rank),
            *(fault.groups[0].kind, fault.groups[0].name),
            [{"kind": group.kind, "name": group.name} for group in fault.groups],
            *(fault.confidence, fault.margin),
            runner_up.kind if runner_up else None,
            runner_up.name if runner_up else None,
            *(fault.failing, fault.passing, failing, len(paths) - failing, found.unexplained),
        )
