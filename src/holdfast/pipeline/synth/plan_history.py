"""The history of a synthetic domain from its plan alone, without its facts: weeks of it in seconds.

Predictions need weeks of history. Facts of weeks take long to make and to reduce, and say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from holdfast.pipeline.model_tables import PATH, PATH_HOURS
from holdfast.pipeline.synth.faults import plan_faults
from holdfast.pipeline.synth.options import SynthOptions
from holdfast.pipeline.synth.path_states import hits_on, warning_ppm, warnings_on
from holdfast.pipeline.synth.topology import Topology
from holdfast.pipeline.synth.truth import moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_S: Final = 3600
EXPECTED: Final = 36_000
"""Heartbeats per hour and path."""


def plan_history(
    session: SparkSession, wanted: SynthOptions
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Incidents, watched time and hourly roll-ups, as `predict` takes them."""
    import pandas as pd

    topology = Topology(wanted)
    plan = plan_faults(wanted, topology)
    slots = np.arange(int(wanted.seconds // STEP_S))
    incidents, covered, hours = [], [], []
    for path in (path for node in range(wanted.nodes) for path in topology.paths_to(node)):
        key: dict[str, Any] = {
            "sender": topology.ids[path.sender],
            "sender_adapter": topology.adapter(path.sender_adapter),
            "listener": topology.ids[path.listener],
            "listener_adapter": topology.adapter(path.listener_adapter),
            "subnet": topology.subnet(path.listener_adapter),
            "transport": path.transport,
        }
        whole = {"start_at": moment(0, topology), "end_at": moment(wanted.seconds, topology)}
        covered.append(key | whole)
        incidents += [
            key
            | {"error_class": hit.error_class}
            | {"start_at": moment(hit.begin, topology), "end_at": moment(hit.end, topology)}
            for hit in hits_on(path, plan, topology)
        ]
        loss = np.zeros(len(slots))
        for begin, end in warnings_on(path, plan, topology):
            middle = ((slots + 0.5) * STEP_S).astype(np.float64)
            soon = (middle >= begin) & (middle < end)
            loss = np.where(soon, warning_ppm(middle, begin, end) / 1e6, loss)
        hours.append(_hours(key, wanted.start_s // STEP_S + slots, loss))
    return (
        session.createDataFrame(pd.DataFrame(incidents)),
        session.createDataFrame(pd.DataFrame(covered)).select(*PATH, "start_at", "end_at"),
        session.createDataFrame(pd.concat(hours, ignore_index=True), PATH_HOURS),
    )


def _hours(key: dict[str, Any], slots: Any, loss: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(key, index=slots).assign(
        slot=slots,
        facts=120,
        heard=(EXPECTED * (1 - loss)).astype(np.int64),
        expected=EXPECTED,
        loss_ppm_max=(loss * 1e6).astype(np.int64),
        rtt_us_sum=20_000,
        rtt_count=100,
        rtt_us_max=300,
        jitter_us_max=20,
        worsened_max=0,
    )
